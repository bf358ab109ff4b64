"""Watches the processes of a start from outside, where no heartbeat can: before the first one, and after the last.

A heartbeat comes from a process that trains. One that is stopped while it loads its code, or the launcher of several
processes (torch.distributed.run), which has none, would be waited for without end. So the operating system is asked
about all processes below ours: who is stopped (SIGSTOP, a debugger), and does anything move?

Loading code from a cold network disk, compiling and decoding take minutes and write nothing for a while. What counts
as progress is therefore anything: a line in the log, a new process or one that ended, a page that is read from a disk,
computing time. Only when all of that rests for as long as a training may (TURNAROUND_WATCHDOG_S) it is a hang.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from turnaround.record.files import size_of
from turnaround.workers.environment import rank_in

BUSY_SHARE = 0.01
"""Share of one core below which processes only wait: polling a file 20 times a second takes 0.3 %."""
LEAST_START_S = 60.0
"""A start that only waits is given so long, however short the watchdog's time is: a busy machine may not serve it."""
MAX_REST_S = 10.0
"""Between two looks: finding the processes below one means reading about every process of the host."""


@dataclass(frozen=True)
class _Signs:
    """Signs of progress that only grow or change, of all processes together."""

    pids: frozenset[int]
    log_bytes: int
    pages_read: int


class ProcessTreeWatch:
    """The processes below one that we have started."""

    def __init__(
        self,
        pid: int,
        log: Path,
        *,
        patience_s: float,
        launcher: str | None = None,
        ranks: Mapping[int, int] | None = None,
        least_start_s: float = LEAST_START_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`launcher` is the name of what `pid` is where it starts the training processes and is none itself.

        `ranks` tells the rank of each process number, where whoever has started them knows; else their variables do,
        which a process that was forked with others does not show.
        """
        self.pid, self.log, self.launcher, self.now_s = pid, log, launcher, now_s
        self.patience_s, self.least_start_s = patience_s, least_start_s
        self.ranks = ranks
        self.silent_ranks: tuple[int, ...] = ()
        """The ranks that the verdict names, where it names training processes."""
        self._stopped_since_s: dict[int, float] = {}
        self._signs: _Signs | None = None
        self._busy_s, self._moved_s, self._looked_s = 0.0, now_s(), -math.inf

    def look(self, *, with_heartbeat: Collection[int]) -> str | None:
        """Return the verdict, if there is one; to be called about once a second.

        `with_heartbeat` are the numbers of the processes that have one: it tells best whether they get on, and while
        any has, only others that are stopped are looked for.
        """
        now_s = self.now_s()
        # At least four looks within the patience: a verdict comes at most about a quarter of it too late.
        if now_s - self._looked_s < min(MAX_REST_S, self.patience_s / 4):
            return None
        self._looked_s, processes = now_s, self._processes()
        stopped = [process for process in processes if process.pid not in with_heartbeat and _is_stopped(process)]
        # Made anew at every look: a process that goes on or ends is forgotten, and with it its number, which the system
        # may give to another.
        since_s = self._stopped_since_s
        self._stopped_since_s = {process.pid: since_s.get(process.pid, now_s) for process in stopped}
        late = [process for process in stopped if now_s - self._stopped_since_s[process.pid] >= self.patience_s]
        if late:
            return self._verdict(late, "is stopped" if len(late) == 1 else "are stopped", waited_s=self.patience_s)
        # While any process has a heartbeat, HeartbeatMonitor judges progress. After the last one the time counts from
        # here.
        if with_heartbeat or self._has_moved(processes, now_s):
            self._moved_s, self._busy_s = now_s, _busy_s(processes)
            return None
        waited_s = now_s - self._moved_s
        if waited_s < max(self.patience_s, self.least_start_s):
            return None
        # All of them rest, so none can be told from the others: what we have started is named.
        return self._verdict([one for one in processes if one.pid == self.pid], "does not get on", waited_s=waited_s)

    def _processes(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            ours = psutil.Process(self.pid)
            return [ours, *ours.children(recursive=True)]
        return []

    def _has_moved(self, processes: list[psutil.Process], now_s: float) -> bool:
        signs = _Signs(
            pids=frozenset(process.pid for process in processes),
            # The run directory is two levels above RUN/logs/processes.log.
            log_bytes=size_of(self.log, self.log.parent.parent),
            pages_read=sum(map(_pages_read, processes)),
        )
        is_same, self._signs = signs == self._signs, signs
        # Against the whole time since the last sign: a moment of polling is no progress, minutes of importing are. At
        # least 0.01 s, in which /proc counts computing time (100 ticks a second).
        is_busy = _busy_s(processes) - self._busy_s > max(BUSY_SHARE * (now_s - self._moved_s), BUSY_SHARE)
        return not is_same or is_busy

    def _verdict(self, processes: list[psutil.Process], how: str, *, waited_s: float) -> str:
        ranks = [rank for process in processes if (rank := self._rank(process)) is not None]
        self.silent_ranks = tuple(sorted(ranks))
        who = " and ".join(map(self._name, processes)) or "A process"
        return (
            f"{who} {how}: nothing of it has moved for {waited_s:.0f} s, so all were ended. TURNAROUND_WATCHDOG_S sets "
            "how long that may be."
        )

    def _name(self, process: psutil.Process) -> str:
        if process.pid == self.pid and self.launcher is not None:
            return f"{self.launcher}, which starts the training processes (pid {process.pid}),"
        rank = self._rank(process)
        return (
            f"A helper of the training (pid {process.pid})" if rank is None else f"Process {rank} (pid {process.pid})"
        )

    def _rank(self, process: psutil.Process) -> int | None:
        if process.pid == self.pid and self.launcher is not None:
            return None
        if self.ranks is not None:
            return self.ranks.get(process.pid)
        # A process that it started itself, to compile or to decode, has the same variables, and another parent.
        starter = psutil.Process().pid if self.launcher is None else self.pid
        variables: Mapping[str, str] = {}
        with suppress(psutil.Error):
            if process.ppid() != starter:
                return None
            variables = process.environ()
        # Where no variable tells: a process that was started directly is number 0, one below a launcher is a helper.
        rank = rank_in(variables)
        return 0 if rank is None and self.launcher is None else rank


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:  # it has just ended
        return False


def _busy_s(processes: list[psutil.Process]) -> float:
    """Return the computing time of all of them, also of those below them that have ended."""
    total_s = 0.0
    for process in processes:
        with suppress(psutil.Error):
            # user, system, and both of children that were waited for; psutil's fifth on Linux is waiting for disks.
            total_s += sum(process.cpu_times()[:4])
    return total_s


def _pages_read(process: psutil.Process) -> int:
    """Return the pages that a process has waited for the disk for; code is mapped, so no count of reads has it."""
    try:
        # After the name, which may hold anything: state is field 3 of proc(5), majflt field 12.
        return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[9])
    except (OSError, ValueError, IndexError):  # ended, or no /proc
        return 0
