"""Follows one run. Enters: its directory, again and again. Leaves: what is there now, as a snapshot.

What was appended is read, and what was cut (a resume cuts epochs) is read anew. Nothing outside the directory is
opened: no link is followed, and the names come from record/layout.py.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from turnaround.errors import RunDirectoryError
from turnaround.record.heartbeat import ProcessHeartbeat
from turnaround.record.layout import RunDirectory
from turnaround.record.lock import is_held
from turnaround.record.schema import EpochRecord, Span, State, TelemetrySample, from_json
from turnaround.report.live.files import JsonFile, LinesFile, folder_below, plain_mark
from turnaround.report.live.snapshot import Content, RunSnapshot

MAX_PARTS = 256
"""Processes, and hosts, whose measurements are read of one run."""
MAX_EPOCHS = 100_000
MAX_SAMPLES, MIN_SAMPLES = 2000, 100
"""Kept of each of up to eight processes or hosts; of more of them fewer each."""
GONE_AFTER_S = 2.0
"""How long nobody must hold the lock of a run that says it runs, before it counts as dead."""
KILLED = "Killed without a word, or its machine went down"
MIB = 2**20
NAMES = RunDirectory(Path())  # only for the names of its files
UNDER_WAY = ("queued", "running")


class FollowedRun:
    """One run directory, and what was read of it so far."""

    def __init__(self, root: Path, parts: tuple[str, ...], now_s: Callable[[], float] = time.monotonic) -> None:
        self.root, self.parts, self.now_s = root, parts, now_s
        self.directory = RunDirectory(root.joinpath(*parts))
        self.id = hashlib.sha256(os.fsencode("/".join(parts))).hexdigest()[:12]
        """What the page calls it: no request ever names a path."""
        self.small = {
            "recipe": JsonFile(NAMES.recipe.name, most_bytes=16 * MIB),
            "machine": JsonFile(NAMES.machine.name, most_bytes=4 * MIB),
            "status": JsonFile(NAMES.status.name, most_bytes=MIB),
            "imported": JsonFile(NAMES.imported.name, most_bytes=4 * MIB),
            "evaluation": JsonFile(NAMES.evaluation.name, most_bytes=64 * MIB),
        }
        self.epochs = LinesFile(NAMES.epochs.name, lambda line: from_json(EpochRecord, line), most=MAX_EPOCHS)
        self.spans: dict[int, LinesFile[Span]] = {}
        self.telemetry: dict[str, LinesFile[TelemetrySample | str]] = {}
        self.pulses: dict[int, JsonFile] = {}
        self.free_bytes: int | None = None
        self.is_held = False
        self.cause_of_end: str | None = None
        self._alone_since_s: float | None = None
        self._snapshot: RunSnapshot | None = None

    @property
    def name(self) -> str:
        """As its folder is called."""
        return self.directory.path.name

    @property
    def label(self) -> str:
        """Where it lies below what is watched: distinct, and a person finds it; a single run by its folder's name."""
        return "/".join(self.parts) or self.name

    @property
    def snapshot(self) -> RunSnapshot:
        """As of the last look; the same object as long as nothing has changed."""
        if self._snapshot is None:
            self._snapshot = RunSnapshot(self.directory, self._content())
        return self._snapshot

    @property
    def state(self) -> str | None:
        """What its status says; None while that cannot be read."""
        content = self.small["status"].content
        state = content.get("state") if isinstance(content, dict) else None
        return state if isinstance(state, str) else None

    @property
    def is_there(self) -> bool:
        """A recipe makes a run; one that waits has only its status, one that prepares its images only its lock."""
        return self.small["recipe"].content is not None or self.state in get_args(State) or self.is_held

    def look(self, budget_bytes: int) -> int:
        """Reads what is new, at most so much; returns how much that was. OSError: the folder is gone."""
        with folder_below(self.root, self.parts) as folder:
            is_changed = sum(file.look(folder) for file in self.small.values()) > 0
            self._find_parts(folder)
            before, revision = budget_bytes, self._revision
            for file in self._lines:
                budget_bytes -= file.look(folder, budget_bytes)
            is_changed |= self._revision != revision
            is_changed |= self._look_alive(folder)
            self._look_at_pulses()
            self.free_bytes = _free_bytes(folder)
        if is_changed:
            self._snapshot = None
        return before - budget_bytes

    @property
    def _lines(self) -> list[LinesFile[Any]]:
        """The epochs first: they are what a page cannot do without."""
        return [self.epochs, *self.spans.values(), *self.telemetry.values()]

    @property
    def _revision(self) -> int:
        return sum(file.revision for file in self._lines)

    @property
    def has_more(self) -> bool:
        """Whether not everything that is there was read."""
        return any(file.has_more for file in self._lines)

    def _find_parts(self, folder: int) -> None:
        """The files that processes and hosts have of their own: named by number and by host."""
        for name in os.listdir(folder):
            if (rank := re.fullmatch(r"spans-([0-9]{1,9})\.jsonl", name)) and len(self.spans) < MAX_PARTS:
                file = LinesFile(name, lambda line: from_json(Span, line), most=MAX_SAMPLES)
                self.spans.setdefault(int(rank[1]), file)
            host = re.fullmatch(r"telemetry-([A-Za-z0-9._-]+)\.jsonl", name)
            if host and len(self.telemetry) < MAX_PARTS:
                self.telemetry.setdefault(host[1], LinesFile(name, _sample, most=MAX_SAMPLES))
        for files in (self.spans, self.telemetry):
            for each in files.values():
                each.most = max(MIN_SAMPLES, min(MAX_SAMPLES, 8 * MAX_SAMPLES // len(files)))

    def _look_alive(self, folder: int) -> bool:
        """Whether it has turned out that nobody runs it any more, or that somebody does again."""
        before = self.cause_of_end
        self.is_held = self.state in (None, *UNDER_WAY) and _is_held(folder, self.directory)
        if self.is_held or self.state not in UNDER_WAY or self._waits_in_a_queue():
            self._alone_since_s = self.cause_of_end = None
        else:
            self._alone_since_s = self.now_s() if self._alone_since_s is None else self._alone_since_s
            if self.now_s() - self._alone_since_s >= GONE_AFTER_S:
                self.cause_of_end = KILLED
        return before != self.cause_of_end

    def _waits_in_a_queue(self) -> bool:
        """A job of a cluster that has not been started: nobody holds its directory yet."""
        content = self.small["status"].content
        return self.state == "queued" and isinstance(content, dict) and isinstance(content.get("slurm"), dict)

    def _look_at_pulses(self) -> None:
        if self.state not in UNDER_WAY:
            return
        try:
            with folder_below(self.root, (*self.parts, NAMES.logs.name)) as logs:
                found = {int(m[1]): n for n in os.listdir(logs) if (m := re.fullmatch(r"pulse-([0-9]{1,9})\.json", n))}
                ranks = sorted(found)[:MAX_PARTS]
                self.pulses = {r: self.pulses.get(r, JsonFile(found[r], most_bytes=64 * 1024)) for r in ranks}
                for file in self.pulses.values():
                    file.look(logs)
        except OSError:
            self.pulses = {}

    def processes(self) -> list[ProcessHeartbeat]:
        """Those that have begun and not come to their end, as their own files say, by rank."""
        seen = []
        for file in self.pulses.values():
            try:
                seen.append(from_json(ProcessHeartbeat, file.content))
            except RunDirectoryError:
                continue  # being replaced, or not ours
        return sorted(seen, key=lambda process: process.rank)

    def _content(self) -> Content:
        samples = {host: file.records for host, file in self.telemetry.items()}
        return Content(
            **{part: file.content for part, file in self.small.items()},
            epochs=tuple(self.epochs.records),
            bad_lines=self.epochs.bad_lines,
            is_torn=self.epochs.is_torn,
            spans={rank: tuple(file.records) for rank, file in self.spans.items()},
            telemetry={h: tuple(s for s in each if not isinstance(s, str)) for h, each in samples.items()},
            notes={h: tuple(s for s in each if isinstance(s, str)) for h, each in samples.items()},
            failure=next((file.failure for file in self._lines if file.failure is not None), None),
            cause_of_end=self.cause_of_end,
        )

    def recent(self, *, spans: int, samples: int) -> RunSnapshot:
        """The run with the last of its measurements only: what holds it back now. At most NUM_LATEST of each."""
        latest = {host: [s for s in file.latest if not isinstance(s, str)] for host, file in self.telemetry.items()}
        content = replace(
            self.snapshot.content,
            spans={rank: tuple(file.latest)[-spans:] for rank, file in self.spans.items()},
            telemetry={host: tuple(each[-samples:]) for host, each in latest.items()},
        )
        return RunSnapshot(self.directory, content)

    def left_out(self) -> Iterator[str]:
        """What of its files is not shown, in sentences."""
        for file in self._lines:
            if file.is_too_large:
                yield f"{self.name}: of {file.name} only the first GiB is read."
            elif file.has_more:
                yield f"{self.name}: {file.name} is still being read."
            elif file.stride > 1:
                yield f"{self.name}: of {file.name} one line in {file.stride} is shown."


def _sample(line: dict[str, Any]) -> TelemetrySample | str:
    return str(line["note"])[:1000] if "note" in line else from_json(TelemetrySample, line)


def _is_held(folder: int, directory: RunDirectory) -> bool:
    if plain_mark(folder, directory.lock.name) is None:  # nothing there, or something that must not be opened
        return False
    try:
        return is_held(directory.lock)
    except OSError:
        return False


def _free_bytes(folder: int) -> int | None:
    try:
        found = os.fstatvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
