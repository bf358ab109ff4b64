"""The cores of this machine that are ours."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the cores that this process may use: under Slurm and in containers fewer than the machine has."""
    # macOS has no affinity; os.process_cpu_count, which asks for it, came with Python 3.13.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
