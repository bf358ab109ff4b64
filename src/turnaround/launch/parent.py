"""Nothing outlives the launcher: what every process does first, before it imports anything large."""

import ctypes
import os
import signal
import sys

LAUNCHER_VARIABLE = "TURNAROUND_LAUNCHER_PID"
"""Says who started it all, to a process whose parent may be gone before it can look."""


def die_with_parent() -> None:
    """Asks Linux to end this process when its parent ends, however that ended."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
    parent = os.getppid()
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent or not _launcher_is_alive():  # it ended between the lines above, or before them
        os._exit(1)


def _launcher_is_alive() -> bool:
    pid = os.environ.get(LAUNCHER_VARIABLE, "")
    return not pid.isdigit() or os.path.exists(f"/proc/{pid}") or not os.path.exists("/proc/self")
