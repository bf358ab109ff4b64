"""A run directory as values. Enters: a path. Leaves: a Run, read lazily and without torch.

The files are untrusted: they may be torn, damaged, hostile or from a newer turnaround. Whatever bytes are in
them, what comes out is a value or a RunDirectoryError that names the file.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from turnaround.errors import RunDirectoryError
from turnaround.record.coding import Record
from turnaround.record.files import names_in, read_json
from turnaround.record.growing import LinesContent, read_lines
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import (
    DISJOINT_TIME_PARTS,
    EpochRecord,
    Evaluation,
    Imported,
    Span,
    Status,
    TelemetrySample,
    from_json,
)

MAX_DEPTH = 6  # find_runs: runs/study/configuration/repeat and some more, but not a whole disk

Line = TypeVar("Line")

MAX_NOTE = 1000
"""Characters of a telemetry note: it is shown to people."""
MAX_BAD_SHARE = 0.01
"""Largest share of bad lines in epochs.jsonl: with more damage no figure is computed from the rest."""


class Run:
    """One recorded run. Each part is read when first asked for, and kept: load again to see news."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory

    @classmethod
    def load(cls, path: Path) -> "Run":
        """Return the run in `path`; RunDirectoryError when there is none."""
        return cls(RunDirectory.open(path))

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    # --- how a file becomes values: overridden by who has read the files already (follow.py)

    def _json(self, path: Path) -> dict[str, Any]:
        return read_json(path)

    def _is_there(self, path: Path) -> bool:
        # A link in the file's place is there, and is refused when it is read; exists() would take a dangling one for
        # nothing.
        return os.path.lexists(path)

    def _lines(self, path: Path, read: Callable[[dict[str, Any]], Line]) -> LinesContent[Line]:
        return read_lines(path, read)

    def _names(self) -> list[str]:
        """Return the names of the run's files."""
        return names_in(self.path)

    def _record(self, kind: type[Record], path: Path) -> Record:
        payload = self._json(path)
        try:
            return from_json(kind, payload)
        except RunDirectoryError as error:
            raise RunDirectoryError(f"{self._where(path)}: {error}.") from error

    def _where(self, path: Path) -> str:
        """Return the file's name in a message."""
        return str(path)

    # --- its files

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """recipe.json, as it was handed to write_json."""
        return self._json(self.directory.recipe)

    @cached_property
    def machine(self) -> dict[str, Any]:
        """machine.json, as it was handed to write_json; an error before the run has started."""
        return self._json(self.directory.machine)

    @cached_property
    def status(self) -> Status:
        """status.json."""
        return self._record(Status, self.directory.status)

    @cached_property
    def evaluation(self) -> Evaluation | None:
        """evaluation.json; None before the end of the run."""
        path = self.directory.evaluation
        return self._record(Evaluation, path) if self._is_there(path) else None

    @property
    def is_of_others(self) -> bool:
        """True when another program has trained it, with our recorder or without."""
        return any(key in self.recipe for key in ("recorded_by", "program"))

    @cached_property
    def imported(self) -> Imported | None:
        """imported.json; None for a run that turnaround has trained."""
        path = self.directory.imported
        return self._record(Imported, path) if self._is_there(path) else None

    @cached_property
    def epochs(self) -> list[EpochRecord]:
        """One record an epoch, in order; of a repeated epoch the last line."""
        return in_order(self._epoch_lines.records)

    @property
    def bad_lines(self) -> int:
        """Lines of epochs.jsonl that were skipped because they cannot be understood."""
        lines = self._epoch_lines
        # Epochs are counted from 1: a smaller number is damage of another kind, which `in_order` leaves out as well.
        return lines.bad_lines + sum(record.epoch < 1 for record in lines.records)

    def check_epochs(self) -> None:
        """RunDirectoryError when so much of epochs.jsonl is damaged that figures from the rest would mislead."""
        known = [record.epoch for record in self.epochs]
        lines = len(self._epoch_lines.records) + self._epoch_lines.bad_lines
        # Every epoch from 1 to the last that the status counts is there: the bad lines have cost nothing.
        is_whole = known == list(range(1, max(len(known), self.status.epochs_done) + 1))
        if self.bad_lines > MAX_BAD_SHARE * lines and not is_whole:
            raise RunDirectoryError(
                f"{self.directory.epochs}: {self.bad_lines} of {lines} lines cannot be read, and epochs are missing: "
                "figures from the rest would mislead."
            )

    @property
    def is_torn(self) -> bool:
        """True when epochs.jsonl ends in a torn line: being written just now, or cut off by a kill."""
        return self._epoch_lines.is_torn

    @cached_property
    def _epoch_lines(self) -> LinesContent[EpochRecord]:
        return self._lines(self.directory.epochs, read_epoch)

    @property
    def ranks(self) -> list[int]:
        """The processes that measured spans."""
        return self.directory.span_ranks(self._names())

    def spans(self, rank: int = 0) -> list[Span]:
        """Return the step parts of one process, by step; of a step repeated after a resume the last line."""
        by_step = {span.step: span for span in self._lines(self.directory.spans(rank), read_span).records}
        return [by_step[step] for step in sorted(by_step)]

    def telemetry(self) -> dict[str, list[TelemetrySample]]:
        """Samples by host, in the order in which they were taken."""
        lines = self._telemetry_lines()
        return {host: [line for line in each if not isinstance(line, str)] for host, each in lines.items()}

    def telemetry_notes(self) -> dict[str, list[str]]:
        """Return the telemetry's notes by host: what could not be sampled."""
        lines = self._telemetry_lines()
        return {host: [line for line in each if isinstance(line, str)] for host, each in lines.items()}

    def _telemetry_lines(self) -> dict[str, tuple[TelemetrySample | str, ...]]:
        paths = {host: self.directory.telemetry(host) for host in self.directory.telemetry_hosts(self._names())}
        return {host: self._lines(path, read_sample).records for host, path in paths.items()}

    def bad_measurements(self) -> dict[str, int]:
        """Lines of spans and telemetry that were skipped, by file; only files with some."""
        # With the functions that make the records: a line that is JSON and lacks a field is a bad one as well.
        files: dict[Path, Callable[[dict[str, Any]], object]] = {
            **{self.directory.spans(rank): read_span for rank in self.ranks},
            **{self.directory.telemetry(host): read_sample for host in self.directory.telemetry_hosts(self._names())},
        }
        counts = {path.name: self._bad_lines_of(path, read) for path, read in files.items()}
        return {name: count for name, count in counts.items() if count}

    def _bad_lines_of(self, path: Path, read: Callable[[dict[str, Any]], object]) -> int:
        try:
            return self._lines(path, read).bad_lines
        except RunDirectoryError:  # of a newer format, or no plain file: whoever asks for its figures says so
            return 0

    @property
    def best(self) -> float | None:
        """The highest validation accuracy of any epoch."""
        # A NaN is neither larger nor smaller: what max() returns would depend on where it stands.
        return max((e.val_accuracy for e in self.epochs if not math.isnan(e.val_accuracy)), default=None)

    @property
    def final(self) -> float | None:
        """The validation accuracy of the last epoch."""
        value = self.epochs[-1].val_accuracy if self.epochs else math.nan
        return None if math.isnan(value) else value

    @property
    def is_rehearsal(self) -> bool:
        """True when a process hosted several workers: the accuracy is that of `workers`, the times are not."""
        workers, processes = (self.machine.get(key) for key in ("workers", "processes"))
        if not isinstance(workers, int) or not isinstance(processes, int):
            raise RunDirectoryError(f"{self.directory.machine}: workers and processes must be whole numbers.")
        return workers > processes

    def turnaround_parts(self) -> dict[str, float]:
        """Return seconds by part, from submit to finish: queue, the program's parts, other; unknown ones are absent.

        The queue alone is taken from two wall clocks: the submitting host's and that of the first program. What a
        job waited after it was requeued is in it. Code that a fork server had loaded before is a part too: so the sum
        is that of a run that starts alone, and comparable with those that did.
        """
        status = self.status
        parts: dict[str, float] = {}
        queue_s = _seconds_between(status.submitted_at, status.started_at)
        if queue_s is not None:
            again_s = status.job.requeued_s if status.job else 0.0
            parts["queue"] = queue_s + (again_s if again_s > 0 else 0.0)  # not when it is no number
        known = {part: status.time_s[part] for part in DISJOINT_TIME_PARTS if part in status.time_s}
        parts |= {part: time_s for part, time_s in known.items() if not math.isnan(time_s)}
        # other = program - the disjoint parts; the queue came before the program, so it is taken out of the sum again.
        # NaN without a program time, and then there is no rest either.
        rest_s = status.time_s.get("program", math.nan) - sum(parts.values()) + parts.get("queue", 0.0)
        if not math.isnan(rest_s):
            parts["other"] = max(0.0, rest_s)
        preloaded_s = status.time_s.get("preloaded", 0.0)
        return {**parts, "preloaded": preloaded_s} if preloaded_s > 0 else parts

    def first_step_parts(self) -> dict[str, float]:
        """Return seconds from submission to the first step: queue, import, start_up (all the rest); empty if unknown.

        What was imported is known of all starts together only: in a run with several it stays in start_up.
        """
        status = self.status
        queue_s = _seconds_between(status.submitted_at, status.started_at)
        started_s = _seconds_between(status.started_at, status.first_step_at)
        if queue_s is None or started_s is None:
            return {}
        import_s = status.time_s.get("import", 0.0)
        # `import` is of a monotonic clock, the start the difference of two wall clocks: where an import takes longer
        # than the whole start they contradict each other, and nothing is told apart.
        if status.segments > 1 or not 0 < import_s <= started_s:
            return {"queue": queue_s, "start_up": started_s}
        return {"queue": queue_s, "import": import_s, "start_up": started_s - import_s}


def read_epoch(line: dict[str, Any]) -> EpochRecord:
    """Return a line of the epochs file."""
    return from_json(EpochRecord, line)


def read_span(line: dict[str, Any]) -> Span:
    """Return a line of a spans file."""
    return from_json(Span, line)


def read_sample(line: dict[str, Any]) -> TelemetrySample | str:
    """Return a line of a telemetry file: a sample, or a note about what could not be sampled."""
    return str(line["note"])[:MAX_NOTE] if "note" in line else from_json(TelemetrySample, line)


def in_order(records: Iterable[EpochRecord]) -> list[EpochRecord]:
    """Return one record an epoch, in order; of a repeated epoch the last line."""
    # A later line overwrites an earlier one: an epoch that was repeated after a restart is the one that counts.
    by_epoch = {record.epoch: record for record in records if record.epoch >= 1}
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def status_of(directory: RunDirectory) -> Status | None:
    """Return the status of a run; None where there is none yet, or none that can be read."""
    try:
        return from_json(Status, read_json(directory.status))
    except RunDirectoryError:
        return None


def job_status(directory: RunDirectory) -> Status | None:
    """Return the status of a run that is a job of a cluster, started or not; None of any other."""
    status = status_of(directory)
    return status if status and status.job else None


def find_runs(path: Path) -> list[Path]:
    """Return `path` itself when it is a run, else every run below it, in natural order (run-2 before run-10).

    A link to a run counts; other links are not followed, hidden folders and the inside of runs not searched.
    """
    path = Path(path)
    if not path.is_dir() and not RunDirectory(path).is_run():
        RunDirectory.open(path)  # raises, with the names that are near
    if RunDirectory(path).is_run():
        return [path]
    return sorted(_runs_below(path, MAX_DEPTH), key=_natural)


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as listed:
            entries = [entry for entry in listed if not entry.name.startswith(".") and entry.is_dir()]
    # A folder that may not be listed hides its own runs only.
    except OSError:
        return
    for entry in entries:
        # is_run() follows a link, the walk does not: a link that leads back up would never end.
        if RunDirectory(Path(entry.path)).is_run():
            yield Path(entry.path)
        elif depth > 1 and not entry.is_symlink():
            yield from _runs_below(Path(entry.path), depth - 1)


def _natural(path: Path) -> list[tuple[str, int]]:
    # Pairs of text and number, [("run-", 10), ("", 0)]: numbers compare as numbers.
    return [(text, int(digits or 0)) for text, digits in re.findall(r"([^0-9]*)([0-9]*)", str(path))]


def _seconds_between(earlier: str | None, later: str | None) -> float | None:
    try:
        seconds = (datetime.fromisoformat(later or "") - datetime.fromisoformat(earlier or "")).total_seconds()
    except (ValueError, TypeError, OverflowError):  # TypeError: one with offset, one without
        return None
    return seconds if seconds >= 0 else None  # negative: the two clocks differ by more than the queue
