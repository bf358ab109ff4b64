"""Assignment of samples to steps and workers: pure functions of (seed, epoch) and of the counts.

Enters: seed, epoch, number of training images, global batch, workers.
Leaves: sample numbers. The same everywhere, so processes need not speak about it. No torch.

    epoch order   a permutation of all samples
    step          the next `global_batch` of them
    worker w      the w-th contiguous slice of the step; slices differ by one image at most

Every image is used once an epoch. When what is left at the end would give a worker fewer than two images (batch norm
needs two), the last two steps are one larger step.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from turnaround.errors import DataError

MIN_PER_WORKER = 2


def epoch_order(*, seed: int, epoch: int, num_images: int) -> npt.NDArray[np.int64]:
    """Return the permutation of an epoch.

    It sorts raw Philox output, whose stream is fixed; numpy may change that of `permutation` between versions.
    """
    # Philox's key has 128 bits, so every (seed, epoch) has a stream of its own.
    # A stable sort: two equal 64-bit keys keep their order on every machine.
    keys = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(num_images)
    return np.argsort(keys, kind="stable").astype(np.int64)


def step_bounds(*, num_images: int, global_batch: int, workers: int) -> list[tuple[int, int]]:
    """Return start and stop of every step within the epoch order."""
    fewest = MIN_PER_WORKER * workers
    if num_images < fewest:
        raise DataError(
            f"{workers} workers need at least {fewest} training images (two each); there are {num_images}. "
            "Use fewer workers or more images."
        )
    edges = [*list(range(0, num_images, global_batch)), num_images]
    if len(edges) > 2 and edges[-1] - edges[-2] < fewest:  # the rest joins the step before it
        del edges[-2]
    return list(itertools.pairwise(edges))


def worker_bounds(*, start: int, stop: int, worker: int, workers: int) -> tuple[int, int]:
    """Return start and stop of one worker's slice of a step."""
    # Floors of equally spaced points: sizes differ by one at most, and each slice ends where the next one begins.
    size = stop - start
    return start + worker * size // workers, start + (worker + 1) * size // workers


def share_bounds(*, num_images: int, rank: int, size: int, parts: int = 1) -> tuple[int, int]:
    """Return start and stop of the images that a process evaluates: all of them once, none twice, no padding.

    They are cut into `size` parts, of which it has `parts`, from number `rank` on: one of as many as there are
    processes, or as many as it hosts workers.
    """
    return rank * num_images // size, (rank + parts) * num_images // size
