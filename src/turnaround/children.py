"""Processes that this one starts, and how they end: never later than it does, however it ends.

Those that train call `die_with_parent` before anything else. Those that help with images are spawned, not forked: a
fork copies locks that another thread (torch, a progress bar) may hold, and CUDA does not survive it. They import
nothing of the main program and leave Ctrl-C to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import resource_tracker
from typing import Any

LAUNCHER_VARIABLE = "TURNAROUND_LAUNCHER_PID"
"""Says who started it all, to a process whose parent may be gone before it can look."""
SPAWN = multiprocessing.get_context("spawn")


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, however that ended."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
    parent = os.getppid()
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    # The kernel speaks only of ends that come after the call: the parent may have ended between the lines above, and
    # the launcher before them, when this process already had another parent.
    if os.getppid() != parent or not launcher_is_alive():
        os._exit(1)


def launcher_is_alive() -> bool:
    """Return whether the launcher named in the environment still runs; true where nobody can tell."""
    pid = os.environ.get(LAUNCHER_VARIABLE, "")
    return not pid.isdigit() or os.path.exists(f"/proc/{pid}") or not os.path.exists("/proc/self")


def num_cpus() -> int:
    """The cores that this process may use: under Slurm and in containers fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_have_children() -> bool:
    """A daemonic process may have none."""
    return not multiprocessing.current_process().daemon


def pool(num_processes: int, begin: Callable[..., None] | None = None, *given: Any) -> ProcessPoolExecutor:
    """Children that call `begin(*given)` first; tasks that may start one are submitted within `starting()`."""
    return ProcessPoolExecutor(num_processes, mp_context=SPAWN, initializer=_begin, initargs=(begin, given))


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Whatever starts here inherits a blocked Ctrl-C, and does not import the main program again.

    A terminal sends Ctrl-C to all of them, and a child that is still importing would show where it was. The main
    program may import torch (seconds and 300 MB in each), and a script without the usual `if __name__ == "__main__"`
    would run a second time and wait for a lock that its parent holds.
    """
    main = sys.modules["__main__"]
    resource_tracker.ensure_running()  # its start unblocks Ctrl-C: not in the midst of ours
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(begin: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    """Without this, a child outlives a killed parent for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    if begin is not None:
        begin(*given)
