"""Others who want the same cores: while they do, the threads of this training sleep instead of spinning for each other.

    watched_neighbours      a context: looks once a second whether this process waits for cores, and switches
    Crowd                   the decision, from how long threads have waited
    SleepingThreads         the switch

OpenMP splits an operation among threads that wait for each other many thousand times a second. On idle cores it is best
to spin meanwhile; when somebody else holds one of the cores, all others burn whole time slices until it is back, and an
epoch takes many times as long (docs/LOG.md has the figures). GNU's runtime has a count for each case and chooses
between them whenever a thread waits: GOMP_SPINCOUNT, 300000 by default, as long as all its threads have a core each,
and 100 when it has made more threads than there are cores (`do_spin` in libgomp's config/linux/wait.h, the counts in
its env.c). Threads that do nothing count, too. So a few of those are the switch: nothing that is computed changes, nor
how many threads share it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from turnaround.workers.environment import OMP_WAITING, RUN_QUEUES

EVERY_S = 1.0
CROWDED_SHARE = 0.3
"""Seconds that all threads together wait for a core, in a second: on two idle cores 0.02 to 0.06, at first up to 0.18;
beside one busy loop 0.93 to 0.96 while they spin and 0.60 to 0.75 while they sleep (docs/LOG.md)."""
CALM_SHARE = 0.15
CALM_LOOKS = 3
MAX_CALM_LOOKS = 60
"""Threads that sleep wait less for cores: where that alone looks calm, we look again after 3, 6, 12, ... seconds."""
MAX_EXTRA_THREADS = 128
"""A process that may use hundreds of cores and uses a few has other cores to go to: libgomp ends a process for which
it cannot make a thread."""
JOIN_S = 5.0


@dataclass
class Crowd:
    """Whether others want our cores: told at one look that shows it, taken back after several that do not."""

    is_there: bool = False
    looks_left: int = 0
    calm_looks: int = CALM_LOOKS
    """How many calm looks in a row take it back; twice as many where it was taken back too early."""
    looks_since: int = MAX_CALM_LOOKS
    """Looks since it was taken back."""

    def look(self, waited_share: float) -> bool:
        """Take in the seconds that threads waited for cores in each second, and return whether others want them."""
        if not self.is_there:
            self.looks_since += 1
            if waited_share > CROWDED_SHARE:
                came_back = self.looks_since <= self.calm_looks
                self.calm_looks = min(MAX_CALM_LOOKS, 2 * self.calm_looks) if came_back else CALM_LOOKS
                self.is_there, self.looks_left = True, self.calm_looks
        else:
            self.looks_left = self.looks_left - 1 if waited_share < CALM_SHARE else self.calm_looks
            if self.looks_left <= 0:
                self.is_there, self.looks_since = False, 0
        return self.is_there


class SleepingThreads:
    """A context in which OpenMP's threads of this process sleep soon when they wait: it has more of them than cores."""

    def __init__(self, library: Path, extra: int) -> None:
        """`library` is GNU's OpenMP as this process has it loaded, `extra` the number of threads that do nothing."""
        self._library, self._extra = ctypes.CDLL(str(library)), extra
        self._made, self._ended = threading.Event(), threading.Event()
        # Threads of OpenMP belong to the thread for which they were made, and end when it does.
        self._owner = threading.Thread(target=self._own, name="neighbours: more threads than cores", daemon=True)

    def __enter__(self) -> Self:
        self._owner.start()
        self._made.wait(JOIN_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._owner.join(JOIN_S)

    def _own(self) -> None:
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL) does nothing, in any thread
        # What a compiler makes of `#pragma omp parallel num_threads(...)`: function, its data, threads, flags.
        self._library.GOMP_parallel(nothing, None, ctypes.c_uint(1 + self._extra), ctypes.c_uint(0))
        self._made.set()
        self._ended.wait()


@contextmanager
def watched_neighbours(variables: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Make this process's threads sleep while they wait, whenever others want its cores.

    Nothing happens where OpenMP's waiting was set, with one thread, without Linux's counts or GNU's OpenMP.
    """
    library = None if any(name in variables for name in OMP_WAITING) else gnu_openmp()
    extra = 0 if library is None else extra_threads(library, threads=torch.get_num_threads())
    if library is None or extra == 0 or not RUN_QUEUES.is_file():
        yield
        return
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(library, extra, ended), name="neighbours", daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join(JOIN_S)


def gnu_openmp(maps: Path = Path("/proc/self/maps")) -> Path | None:
    """Return the library by which torch has its threads, if it is GNU's: the runtimes of Intel and LLVM wait otherwise.

    scikit-learn and others bring a copy of their own, whose threads are counted apart.
    """
    try:
        files = {Path(line.split(maxsplit=5)[5].rstrip()) for line in maps.read_text().splitlines() if "omp" in line}
    except (OSError, IndexError):  # no Linux; an address without a file
        return None
    if any(file.name.startswith(("libomp", "libiomp")) for file in files):
        return None
    found = {file for file in files if file.name.startswith("libgomp")}
    of_torch = {file for file in found if file.parent.parent.name == "torch" or file.parent.name == "torch.libs"}
    chosen = of_torch or found
    return chosen.pop() if len(chosen) == 1 else None


def extra_threads(library: Path, *, threads: int) -> int:
    """Return how many threads make one more than cores beside so many; 0 where nobody waits, or that would be many."""
    try:
        extra = int(ctypes.CDLL(str(library)).omp_get_num_procs()) - threads + 1
    except (OSError, AttributeError):  # replaced on the disk since it was loaded; no OpenMP by its functions
        return 0
    return extra if threads > 1 and 0 < extra <= MAX_EXTRA_THREADS else 0


def waited_s(tasks: Path = Path("/proc/self/task")) -> dict[str, float]:
    """Return how long each thread of this process was ready to run and had no core, in seconds since it began."""
    waited: dict[str, float] = {}
    with suppress(OSError):
        for name in os.listdir(tasks):
            with suppress(OSError, ValueError, IndexError):  # a thread that has just ended
                # Time on a core, time waited for one, both in ns, and turns (Documentation/scheduler/sched-stats.rst).
                waited[name] = int((tasks / name / "schedstat").read_text().split()[1]) / 1e9
    return waited


def _watch(library: Path, extra: int, ended: threading.Event) -> None:
    """Look every second until the end, and switch."""
    crowd, before_s, waited_before_s = Crowd(), time.monotonic(), waited_s()
    with ExitStack() as sleeping:
        is_asleep = False
        while not ended.wait(EVERY_S):
            now_s, waited_now_s = time.monotonic(), waited_s()
            waited_in_all_s = sum(s - waited_before_s.get(thread, 0.0) for thread, s in waited_now_s.items())
            is_crowded = crowd.look(waited_in_all_s / (now_s - before_s))
            before_s, waited_before_s = now_s, waited_now_s
            if is_crowded and not is_asleep:
                sleeping.enter_context(SleepingThreads(library, extra))
            elif is_asleep and not is_crowded:
                sleeping.close()
            is_asleep = is_crowded
