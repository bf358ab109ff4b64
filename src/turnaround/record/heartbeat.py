"""Heartbeats: each process rewrites a small file once a second, and the launcher reads all of them.

Each file (RunDirectory.heartbeat) holds rank, host, pid, step, doing, beats, ticks, program_s. `beats` counts what the
training does (steps, batches that are evaluated), `ticks` the seconds of the thread that writes: of a process that is
stopped neither moves, of one that hangs only the second. A process that came to its end removes its file. Clocks of two
hosts are never compared: the launcher notes by its own clock when a file last changed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from turnaround.errors import RunDirectoryError, StorageError
from turnaround.record.files import read_json, remove_file
from turnaround.record.host import host_name
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import from_json
from turnaround.record.writer import write_json

# The launcher (launch/local.py) and the live page look as often; the write is not synced, so it rarely waits.
EVERY_S = 1.0
WAITS = "waits for the others"


class Heartbeat:
    """The heartbeat of this process; process-wide, since what beats is spread over the training."""

    def __init__(self) -> None:
        self.step, self.doing, self.beats = 0, "starts", 0

    def beat(self, doing: str, step: int | None = None) -> None:
        """Count a sign of progress; called in every step, so it is two assignments and an addition."""
        self.doing = doing
        self.beats += 1
        if step is not None:
            self.step = step

    def waits(self) -> None:
        """Say that this process has done its part of the step."""
        self.doing = WAITS


class HeartbeatFile:
    """A context manager whose thread writes the heartbeat to its file once a second."""

    def __init__(
        self, directory: RunDirectory, *, rank: int, heartbeat: Heartbeat, program_s: Callable[[], float]
    ) -> None:
        self.directory, self.rank, self.heartbeat, self.program_s = directory, rank, heartbeat, program_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._write(0)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        # After an error the file stays: by it the launcher finds the process gone, and at which step.
        if error is None:
            remove_file(self.directory.heartbeat(self.rank), self.directory.path)

    def _run(self) -> None:
        ticks = 0
        while not self._ended.wait(EVERY_S):
            ticks += 1
            self._write(ticks)

    def _write(self, ticks: int) -> None:
        """Replace the file; not synced: after a crash of the machine nobody reads it."""
        content = {
            "rank": self.rank,
            "host": host_name(),
            "pid": os.getpid(),
            "step": self.heartbeat.step,
            "doing": self.heartbeat.doing,
            "beats": self.heartbeat.beats,
            "ticks": ticks,
            "program_s": self.program_s(),
        }
        # A full disk: the training will say so itself.
        with suppress(StorageError):
            write_json(self.directory.heartbeat(self.rank), content, self.directory.path, is_synced=False)


@dataclass(frozen=True, kw_only=True)
class ProcessHeartbeat:
    """One process, as its heartbeat file says."""

    rank: int
    host: str
    pid: int
    step: int
    doing: str
    beats: int
    ticks: int
    program_s: float

    @property
    def name(self) -> str:
        """The process in a message: its rank, host and step."""
        where = f", step {self.step}" if self.step else ""
        return f"Process {self.rank} (host {self.host}{where})"

    @property
    def is_gone(self) -> bool:
        """True when the process has ended; of a process on another host nobody knows, which gives False."""
        return self.host == host_name() and not _is_alive(self.pid)


def read(directory: RunDirectory) -> list[ProcessHeartbeat]:
    """Return all processes that have begun and not come to their end, by rank."""
    heartbeats = (_parsed(directory, rank) for rank in directory.heartbeat_ranks())
    return [heartbeat for heartbeat in heartbeats if heartbeat is not None]


def clear(directory: RunDirectory) -> None:
    """Remove the heartbeats of an earlier start, and what a process left that was killed while it wrote one."""
    for path in directory.heartbeat_files():
        remove_file(path, directory.path)


def program_s(directory: RunDirectory) -> float:
    """Return how long the last start had run when process 0 last wrote; 0 when it came to its end."""
    return next((seen.program_s for seen in read(directory) if seen.rank == 0), 0.0)


def _parsed(directory: RunDirectory, rank: int) -> ProcessHeartbeat | None:
    try:
        return from_json(ProcessHeartbeat, read_json(directory.heartbeat(rank), directory.path))
    except RunDirectoryError:  # being replaced, or not ours
        return None


def _is_alive(pid: int) -> bool:
    try:
        # The state is the first word behind the name, which may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return not Path("/proc/self").exists()  # without /proc nobody knows
    except OSError:
        return True


class HeartbeatMonitor:
    """Watches the heartbeats of a run: for a process that is gone, and a training that does not get on."""

    def __init__(
        self, directory: RunDirectory, *, patience_s: float, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.directory, self.patience_s, self.now_s = directory, patience_s, now_s
        self.gone: ProcessHeartbeat | None = None
        """The first that ended while others went on."""
        self.gone_for_s = 0.0
        self.verdict: str | None = None
        """The watchdog's sentence, once the training makes no progress any more."""
        self.silent_ranks: tuple[int, ...] = ()
        """The ranks that the verdict names."""
        self.pids: frozenset[int] = frozenset()
        """The processes that had begun and not come to their end at the last look; on any host."""
        self._gone_since_s = 0.0
        self._beats: dict[int, int] = {}
        self._ticks: dict[int, tuple[int, float]] = {}
        self._moved_s = now_s()

    @property
    def has_begun(self) -> bool:
        """True once any process was seen to train."""
        return bool(self._ticks)

    def look(self) -> str | None:
        """Read all heartbeats and return the verdict, if there is one; to be called about once a second."""
        seen, now_s = read(self.directory), self.now_s()
        self.pids = frozenset(process.pid for process in seen)
        # Only the first is kept: those that end later probably ended because of it.
        gone = [process for process in seen if process.is_gone]
        if gone and self.gone is None:
            self.gone, self._gone_since_s = gone[0], now_s
        self.gone_for_s = now_s - self._gone_since_s if self.gone else 0.0
        for process in seen:
            if self._ticks.get(process.rank, (-1, 0.0))[0] != process.ticks:
                self._ticks[process.rank] = (process.ticks, now_s)
        # Progress of any process counts: in a step all wait for each other, so a hang stops all of them.
        beats = {process.rank: process.beats for process in seen}
        if beats != self._beats or max(beats.values(), default=0) <= 1:  # the first step may compile for long
            self._beats, self._moved_s = beats, now_s
        going = [process for process in seen if process not in gone]
        # Without ticks even the thread that writes is stopped (SIGSTOP, a host that is gone); with ticks and without
        # beats the process lives and its training hangs.
        stopped = [p for p in going if now_s - self._ticks[p.rank][1] >= self.patience_s]
        if stopped or (going and now_s - self._moved_s >= self.patience_s):
            self.verdict = self.verdict or self._sentence(going, now_s)
        return self.verdict

    def _sentence(self, seen: list[ProcessHeartbeat], now_s: float) -> str:
        # Half is enough to blame: ticks come every second, and a process may have stopped a little after the last beat.
        stopped = [p for p in seen if now_s - self._ticks[p.rank][1] > self.patience_s / 2]
        # Whoever waits for the others is not the one they wait for.
        busy = [p for p in seen if p.doing != WAITS]
        silent = stopped or busy or seen
        self.silent_ranks = tuple(p.rank for p in silent)
        how = "is stopped or does not answer" if stopped else "hangs"
        return (
            f"{' and '.join(p.name for p in silent)} {how}: no process has got on for {self.patience_s:.0f} s, so all "
            "were ended. TURNAROUND_WATCHDOG_S sets how long that may be."
        )
