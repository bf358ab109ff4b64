"""Follows one run. Enters: its directory, again and again. Leaves: what is there now, as a snapshot.

What was appended is read, and what was cut (a resume cuts epochs) is read anew. A snapshot is a `Run` whose files were
read already: it gives the same values and the same errors. Nothing outside the directory is opened.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from turnaround.errors import RunDirectoryError
from turnaround.record.files import folder_below
from turnaround.record.growing import JsonFile, LinesContent, LinesFile
from turnaround.record.heartbeat import ProcessHeartbeat
from turnaround.record.layout import RunDirectory
from turnaround.record.lock import is_held
from turnaround.record.reader import Line, Run, read_epoch, read_sample, read_span
from turnaround.record.schema import Span, State, Status, TelemetrySample, from_json

MAX_PARTS = 256
"""Processes, and hosts, whose measurements are read of one run."""
MAX_EPOCHS = 100_000
MAX_SAMPLES, MIN_SAMPLES = 2000, 100
"""Kept of each of up to eight processes or hosts; of more of them fewer each."""
MAX_HEARTBEAT_BYTES = 64 * 1024  # ours have 200; they are read every second
# A status and a lock are two files: read one after the other, they may for a moment belong to two starts.
GONE_AFTER_S = 2.0
"""A run that says it runs counts as dead once nobody has held its lock for so long."""
KILLED = "Killed without a word, or its machine went down"
UNDER_WAY = ("queued", "running")


@dataclass(frozen=True, kw_only=True)
class Content:
    """The contents of a run's files, by their names."""

    whole: dict[str, dict[str, Any] | RunDirectoryError | None] = field(default_factory=dict)
    """Files that are replaced as a whole: the object, or what is wrong with it; None when there is none."""
    lines: dict[str, LinesContent[Any]] = field(default_factory=dict)
    cause_of_end: str | None = None
    """Set when it says that it runs and nobody does: then it counts as interrupted, for this reason."""


class RunSnapshot(Run):
    """A run as it was read at one instant: no file is opened for its values."""

    def __init__(self, directory: RunDirectory, content: Content) -> None:
        super().__init__(directory)
        self.content = content

    @cached_property
    def status(self) -> Status:
        """The status as its file says, unless it says that it runs and nobody does."""
        status = self._record(Status, self.directory.status)
        if self.content.cause_of_end is not None:
            return replace(status, state="interrupted", cause=self.content.cause_of_end)
        return status

    def _json(self, path: Path) -> dict[str, Any]:
        # By the name alone: every file of a snapshot lies in the run directory itself.
        content = self.content.whole.get(path.name)
        if content is None:
            raise RunDirectoryError(
                f"{self.path.name}: {path.name} is missing: the run has not come that far, or it was removed."
            )
        if isinstance(content, RunDirectoryError):
            raise RunDirectoryError(f"{self.path.name}: {content}")
        return content

    def _is_there(self, path: Path) -> bool:
        return self.content.whole.get(path.name) is not None

    def _lines(self, path: Path, read: Callable[[dict[str, Any]], Line]) -> LinesContent[Line]:
        # `read` has nothing to do: the file was read with the same function when the lines came (FollowedRun).
        content: LinesContent[Line] = self.content.lines.get(path.name, LinesContent())
        if content.failure is not None:
            raise RunDirectoryError(f"{self.path.name}: {content.failure}")
        return content

    def _names(self) -> list[str]:
        return list(self.content.lines)

    def _where(self, path: Path) -> str:
        return f"{self.path.name}: {path.name}"


class FollowedRun:
    """One run directory, and what was read of it so far."""

    def __init__(self, root: Path, parts: tuple[str, ...], now_s: Callable[[], float] = time.monotonic) -> None:
        self.root, self.parts, self.now_s = root, parts, now_s
        self.directory = RunDirectory(root.joinpath(*parts))
        self.id = hashlib.sha256(os.fsencode("/".join(parts))).hexdigest()[:12]
        """The id by which the page requests it: no request ever names a path."""
        paths = self.directory
        whole = (paths.recipe, paths.machine, paths.status, paths.imported, paths.evaluation)
        self.whole = {path.name: JsonFile(path.name) for path in whole}
        self.epochs = LinesFile(paths.epochs.name, read_epoch, max_records=MAX_EPOCHS, now_s=now_s)
        self.spans: dict[int, LinesFile[Span]] = {}
        self.telemetry: dict[str, LinesFile[TelemetrySample | str]] = {}
        self.heartbeats: dict[int, JsonFile] = {}
        self.free_bytes: int | None = None
        self.is_held = False
        self.cause_of_end: str | None = None
        self._alone_since_s: float | None = None
        self._snapshot: RunSnapshot | None = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.directory.path.name

    @property
    def label(self) -> str:
        """Its path below the folder that is watched; for a single run its folder's name."""
        return "/".join(self.parts) or self.name

    @property
    def snapshot(self) -> RunSnapshot:
        """The run as of the last look; the same object as long as nothing has changed."""
        if self._snapshot is None:
            self._snapshot = RunSnapshot(self.directory, self._content())
        return self._snapshot

    @property
    def state(self) -> str | None:
        """The state in its status file; None while that cannot be read."""
        content = self.whole[self.directory.status.name].content
        state = content.get("state") if isinstance(content, dict) else None
        return state if isinstance(state, str) else None

    @property
    def has_recipe(self) -> bool:
        """True when there is a recipe, readable or not: it makes a directory a run."""
        return self.whole[self.directory.recipe.name].content is not None

    @property
    def status_error(self) -> RunDirectoryError | None:
        """The error that its status file gives; None when it can be read."""
        content = self.whole[self.directory.status.name].content
        return content if isinstance(content, RunDirectoryError) else None

    @property
    def is_there(self) -> bool:
        """A recipe makes a run; one that waits has only its status, one that prepares its images only its lock."""
        # Other programs have a status.json too: one whose state is none of our words makes no run.
        return self.has_recipe or self.state in get_args(State) or self.is_held

    def look(self, budget_bytes: int) -> int:
        """Read what is new, at most so much; return how much that was. OSError means that the folder is gone."""
        # One descriptor for the whole look: all files are those of one folder, whatever takes its name meanwhile.
        with folder_below(self.root, self.parts) as folder:
            # A sum and not any(): every file must be looked at, also behind one that has changed.
            is_changed = sum(file.look(folder) for file in self.whole.values()) > 0
            # New files of processes and hosts first, so that this look reads them already.
            self._find_parts(folder)
            before, revision = budget_bytes, self._revision
            for file in self._lines:
                budget_bytes -= file.look(folder, budget_bytes)
            is_changed |= self._revision != revision
            # After the files: it judges by the state that has just been read.
            is_changed |= self._look_alive()
            # Heartbeats and free space change at every look, and no analysis rests on them: they make no new snapshot.
            self._look_at_heartbeats()
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
        """True when not everything that is there was read."""
        return any(file.has_more for file in self._lines)

    def _find_parts(self, folder: int) -> None:
        """Find the files that processes and hosts have of their own: named by number and by host."""
        # By what lies in the folder, not by what machine.json says, which is written later.
        names = os.listdir(folder)
        for rank in self.directory.span_ranks(names):
            if rank not in self.spans and len(self.spans) < MAX_PARTS:
                name = self.directory.spans(rank).name
                self.spans[rank] = LinesFile(name, read_span, max_records=MAX_SAMPLES, now_s=self.now_s)
        for host in self.directory.telemetry_hosts(names):
            if host not in self.telemetry and len(self.telemetry) < MAX_PARTS:
                name = self.directory.telemetry(host).name
                self.telemetry[host] = LinesFile(name, read_sample, max_records=MAX_SAMPLES, now_s=self.now_s)
        for files in (self.spans, self.telemetry):
            for each in files.values():
                # The memory for one run stays the same from 8 processes on, down to MIN_SAMPLES for each.
                each.max_records = max(MIN_SAMPLES, min(MAX_SAMPLES, 8 * MAX_SAMPLES // len(files)))

    def _look_alive(self) -> bool:
        """Check the lock; return whether the run turned out to be dead, or alive again."""
        before = self.cause_of_end
        # A finished run is not asked for its lock: a study of hundreds of them is looked at every second.
        # None: without a status it may be a run that prepares its images and has only its lock (`is_there`).
        self.is_held = self.state in (None, *UNDER_WAY) and _is_held(self.directory)
        if self.is_held or self.state not in UNDER_WAY or self._waits_in_a_queue():
            self._alone_since_s = self.cause_of_end = None
        else:
            self._alone_since_s = self.now_s() if self._alone_since_s is None else self._alone_since_s
            if self.now_s() - self._alone_since_s >= GONE_AFTER_S:
                self.cause_of_end = KILLED
        return before != self.cause_of_end

    def _waits_in_a_queue(self) -> bool:
        """A job of a cluster that has not been started: nobody holds its directory yet."""
        content = self.whole[self.directory.status.name].content
        return self.state == "queued" and isinstance(content, dict) and isinstance(content.get("slurm"), dict)

    def _look_at_heartbeats(self) -> None:
        if self.state not in UNDER_WAY:
            return
        try:
            with folder_below(self.root, (*self.parts, self.directory.logs.name)) as logs:
                before, ranks = self.heartbeats, self.directory.heartbeat_ranks(os.listdir(logs))[:MAX_PARTS]
                # Those that are there, and no others: a process that comes to its end removes its file.
                # A known one keeps its stamp: a file that has not changed is not read again.
                self.heartbeats = {rank: before.get(rank) or self._heartbeat_file(rank) for rank in ranks}
                for file in self.heartbeats.values():
                    file.look(logs)
        except OSError:
            self.heartbeats = {}

    def _heartbeat_file(self, rank: int) -> JsonFile:
        return JsonFile(self.directory.heartbeat(rank).name, max_bytes=MAX_HEARTBEAT_BYTES)

    def processes(self) -> list[ProcessHeartbeat]:
        """Return those that have begun and not come to their end, as their own files say, by rank."""
        seen = []
        for file in self.heartbeats.values():
            try:
                seen.append(from_json(ProcessHeartbeat, file.content))
            except RunDirectoryError:
                continue  # being replaced, or not ours
        return sorted(seen, key=lambda process: process.rank)

    def _content(self) -> Content:
        # Values: what a look finds later replaces these objects and changes none, so a snapshot stays as it was.
        return Content(
            whole={name: file.content for name, file in self.whole.items()},
            lines={file.name: file.content for file in self._lines},
            cause_of_end=self.cause_of_end,
        )

    def recent(self, *, spans: int, samples: int) -> RunSnapshot:
        """Return the run with the last of its measurements only: what holds it back now. At most NUM_LATEST of each."""
        content = self.snapshot.content
        # `latest`, of which thinning takes nothing: every one of the last steps, not one in `stride`.
        lines = dict(content.lines)
        for span_file in self.spans.values():
            lines[span_file.name] = LinesContent(records=tuple(span_file.latest)[-spans:])
        for sample_file in self.telemetry.values():
            latest = [sample for sample in sample_file.latest if not isinstance(sample, str)]
            lines[sample_file.name] = LinesContent(records=tuple(latest[-samples:]))
        return RunSnapshot(self.directory, replace(content, lines=lines))

    def left_out(self) -> Iterator[str]:
        """Yield a sentence for each file that is not shown whole."""
        for file in self._lines:
            if file.is_too_large:
                yield f"{self.name}: of {file.name} only the first GiB is read."
            elif file.has_more:
                yield f"{self.name}: {file.name} is still being read."
            elif file.stride > 1:
                yield f"{self.name}: of {file.name} one line in {file.stride} is shown."


def _is_held(directory: RunDirectory) -> bool:
    try:
        return is_held(directory.lock)
    # No sign of life for now; a file system that fails for a moment is bridged by GONE_AFTER_S.
    except OSError:
        return False


def _free_bytes(folder: int) -> int | None:
    try:
        found = os.fstatvfs(folder)
    except OSError:
        return None
    # f_bavail, not f_bfree: without the blocks that are kept for root, which a training cannot have.
    return found.f_bavail * found.f_frsize
