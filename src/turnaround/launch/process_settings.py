"""The environment of every training process on this machine, whatever it trains. No torch, and little else: a process
begins with the command (preload.py)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from turnaround.cores import usable_cores
from turnaround.workers.environment import OMP_WAITING, RUN_QUEUES

MAX_STOP_S = 24 * 3600
"""A first Ctrl-C waits for the step, an evaluation and the checkpoint, however long; a second one does not wait."""
# glibc otherwise gives large blocks back to the system after every step and clears them again before the next:
# training a mobilenet on two cores is nearly twice as fast without that.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**26),
}


def process_settings(num_here: int, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings of each of so many processes on this machine; what is set in `base` already stays."""
    settings = {
        # More threads than cores make every process slower: 2 x 2 on two cores is slower than one process.
        "OMP_NUM_THREADS": str(max(1, usable_cores() // num_here)),
        # By default torch.distributed.run kills its workers 30 s after it has passed a request on: an evaluation and a
        # checkpoint may take longer.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(MAX_STOP_S),
        **ALLOCATOR,
    }
    if not any(name in base for name in OMP_WAITING) and not RUN_QUEUES.is_file():
        # Threads that spin for each other lose whole time slices to any neighbour on their cores; threads that sleep at
        # once lose as much on an idle machine. Where a training cannot see neighbours (training/neighbours.py), its
        # threads spin for a while, then sleep (docs/LOG.md has the counts).
        settings["GOMP_SPINCOUNT"] = "3000"
    return {k: v for k, v in settings.items() if k not in base}
