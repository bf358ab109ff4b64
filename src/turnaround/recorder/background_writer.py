"""All writing, in a thread of its own: a training never waits for a disk, and a full one only ends the record.

Process 0 writes recipe, machine, status and epochs; every process its spans; one on each host the telemetry.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnaround.record.files import claim
from turnaround.record.host import host_name
from turnaround.record.layout import RunDirectory
from turnaround.record.lock import RunLock
from turnaround.record.reader import job_status
from turnaround.record.schema import Span, State, Status, to_json
from turnaround.record.telemetry import Telemetry
from turnaround.record.writer import Lines, write_json, write_status
from turnaround.recorder import folder
from turnaround.recorder.facts import TrainingFacts, where_i_am

LOOK_EVERY_S = 1.0
MIN_OPEN_S = 3.0
"""A shorter training may be over before the other processes have looked for its directory: its end waits for them so
long after its start, and no longer, since some programs record their first process alone."""
ASK_EVERY_S = 0.02
MAX_END_S = 30.0
"""The end of a training waits at most so long for a disk that hangs."""
MAX_CAUSE = 500
MAX_WAITING = 10_000
"""Spans of a process that has not found its directory yet."""


@dataclass(frozen=True, kw_only=True)
class _End:
    status: Status | None


class BackgroundWriter:
    """Takes what is to be written, and writes it when it can. `failed` is called once, from the thread."""

    def __init__(self, training: TrainingFacts, path: Path, *, failed: Callable[[Exception], None]) -> None:
        self.training, self.path, self.failed = training, path, failed
        self.is_first = training.place.rank == 0
        self.directory: RunDirectory | None = None
        self._lock: RunLock | None = None
        self._of_job: Status | None = None
        # Unbounded, so that `put` never blocks a step; SimpleQueue also allows a put from a signal handler.
        self._queue: queue.SimpleQueue[Span | Status | dict[str, Any] | _End] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="turnaround-recorder", daemon=True)
        self._spans: Lines | None = None
        self._epochs: Lines | None = None
        self._telemetry: Telemetry | None = None
        self._waiting: list[Span] = []
        self._num_ranks = 0
        self._looked_s = -LOOK_EVERY_S
        self._started_s = time.monotonic()

    def start(self, status: Status) -> None:
        """Process 0 makes the directory now, so that the user hears at once where it is or why there is none."""
        if self.is_first:
            self.directory, self._lock = folder.create_directory(self.path)
            try:
                # Read before our first status replaces it.
                self._of_job = job_status(self.directory)
                self._write_status(status)
                write_json(self.directory.recipe, {**self.training.recipe(), "name": self.directory.path.name})
            except BaseException:
                self._lock.release()
                raise
        self._thread.start()

    def put(self, what: Span | Status | dict[str, Any]) -> None:
        """Queue a span, the status, or the line of an epoch for writing."""
        self._queue.put(what)

    def end(self, status: Status | None) -> None:
        """Write what is left, and this status; return when that is done, or after MAX_END_S."""
        self._queue.put(_End(status=status))
        if self._thread.is_alive():
            self._thread.join(MAX_END_S)

    def give_up(self, status: Status) -> None:
        """End without waiting, after something went wrong; a full disk may take a few bytes all the same."""
        # `failed` is called from the writer thread itself, which reads its queue no more: then we write here.
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._queue.put(_End(status=status))  # behind what is still to be written
        elif self.is_first and self.directory is not None:
            self._write_status(status)

    def _run(self) -> None:
        try:
            self._open()
            self._write_until_end()
        except Exception as error:
            self.failed(error)
        finally:
            self._close()

    def _write_until_end(self) -> None:
        while True:
            try:
                what = self._queue.get(timeout=LOOK_EVERY_S)
            except queue.Empty:
                self._open()
                if self._spans is not None:
                    self._spans.flush()
                continue
            if isinstance(what, _End):
                # A short training may end within the pause between two looks for the directory.
                self._open(is_last_chance=True)
                self._await_others()
                self._write_machine()
                if what.status is not None and self.is_first and self.directory is not None:
                    self._write_status(what.status)
                return
            self._write(what)

    def _write(self, what: Span | Status | dict[str, Any]) -> None:
        if isinstance(what, Span):
            self._open()
            if self._spans is not None:
                self._spans.write(to_json(what))
            # The first ones are kept: a process that never finds its directory must not fill the memory.
            elif len(self._waiting) < MAX_WAITING:
                self._waiting.append(what)
        elif self.is_first and self.directory is not None:
            if isinstance(what, Status):
                self._write_status(what)
                self._write_machine()
            elif self._epochs is not None:
                self._epochs.write(what)

    def _write_status(self, status: Status) -> None:
        """Write the status, with the facts of its job that the batch system has written there."""
        assert self.directory is not None
        if self._of_job is not None:
            status = replace(status, submitted_at=self._of_job.submitted_at, job=self._of_job.job)
        write_status(self.directory, status)

    def _open(self, *, is_last_chance: bool = False) -> None:
        """Open this process's own files as soon as there is a directory; look for it at most twice a second."""
        if self._spans is not None or not (self._may_look() or is_last_chance):
            return
        start = self.training.place.start
        if not self.is_first:
            self.directory = folder.find_directory(self.path, start=start)
        directory = self.directory
        if directory is None:
            return
        # The note first: by that of process 0 the others find the directory (folder.find_directory).
        mine = {**where_i_am(self.training.place), "start": start}
        write_json(directory.rank_note(self.training.place.rank), mine, directory.path)
        if self.is_first:
            self._epochs = Lines(directory.epochs, sync=True)
            self._write_machine()
        telemetry = directory.telemetry(host_name())
        if claim(telemetry):  # the first process of this host that wants it
            self._telemetry = Telemetry(telemetry)
            self._telemetry.__enter__()
        # Last: `_spans` is what says that everything above is open.
        self._spans = Lines(directory.spans(self.training.place.rank), sync=False)
        for span in self._waiting:
            self._spans.write(to_json(span))
        self._waiting.clear()

    def _may_look(self) -> bool:
        now_s = time.monotonic()
        # Half: the timeout of the queue may come a little early, and must not skip every second look.
        if now_s - self._looked_s < LOOK_EVERY_S / 2:
            return False
        self._looked_s = now_s
        return True

    def _write_machine(self) -> None:
        """Write machine.json at the beginning, and again when all processes have said where they are."""
        if not self.is_first or self.directory is None or self._num_ranks == self.training.place.size:
            return
        ranks = folder.ranks(self.directory)
        if not self._num_ranks or len(ranks) == self.training.place.size:
            write_json(self.directory.machine, self.training.machine(ranks))
            self._num_ranks = len(ranks)

    def _await_others(self) -> None:
        """Keep the directory open, as process 0, until all processes have found it: they look for one that is held."""
        while self.is_first and self.directory is not None and time.monotonic() - self._started_s < MIN_OPEN_S:
            if len(folder.ranks(self.directory)) >= self.training.place.size:
                return
            time.sleep(ASK_EVERY_S)

    def _close(self) -> None:
        if self._telemetry is not None:
            self._telemetry.__exit__(None, None, None)
        for lines in (self._spans, self._epochs):
            if lines is not None:
                with suppress(Exception):
                    lines.close()
        # The lock last: until here we may still write, and the other processes look for a directory that is held.
        if self._lock is not None:
            self._lock.release()


def outcome(error: BaseException | None) -> tuple[State, str | None]:
    """Return the final state of a training that ended with this error, and its cause."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "finished", None
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", str(error)[:MAX_CAUSE] or "Stopped from outside."
    if isinstance(error, SystemExit):
        return "failed", f"The program ended with {str(error.code)[:MAX_CAUSE]!r}."
    return "failed", f"{type(error).__name__}: {error}"[:MAX_CAUSE]
