"""The input of steps and evaluations: this process's share of the images, batch by batch.

Enters: `Batches` of pixels and a position. Leaves: `StepBatch` and `EvaluationBatch`. A network with a frozen
backbone takes in features instead: frozen.py has a feed for it, with the same methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from turnaround.choice import Choice
from turnaround.data.batches import Batches, EvaluationBatch, Slicing, StepBatch
from turnaround.training.position import TrainingPosition
from turnaround.workers.contract import Workers
from turnaround.workers.shares import even_shares

# At an accuracy of 90 % the standard error of 1,000 images is sqrt(0.9 x 0.1 / 1000), about one point.
MAX_TRAIN_IMAGES_EVALUATED = 1000
GPU_EVALUATION_BATCH = 256
FULL_SIZE_PX = 112
MAX_GPU_EVALUATION_BATCH = 2_048
"""A GPU evaluates more images that are smaller than 112 px, as many as have the same pixels in all, up to this number:
10,000 images of 32 px were 40 passes, which the host could not queue as fast as an H200 computes them. It is half of
what a training pass takes (step.py), which keeps its activations as well. By the size alone, not by the memory that is
free: a pass of other images rounds otherwise."""
# On a CPU a larger batch is not faster, and its activations take gigabytes at 224 px.
OTHER_EVALUATION_BATCH = 64


class Feed:
    """The batches of one process, as images."""

    choice = Choice("none", "every layer learns, or the network cannot be taken apart at its last layer")
    """For the record: which features of a backbone are computed when, and why."""
    keeps_training = False
    """True where the training images are read once and never again."""
    keeps_evaluation = False
    """True where an evaluation is made from what was kept of its images: they stay with the process that has them."""

    def __init__(self, batches: Batches, slicing: Slicing, workers: Workers, *, side_px: int | None = None) -> None:
        """`side_px` is that of the images; None where a frozen backbone turns them into features."""
        self.batches, self.slicing, self.workers = batches, slicing, workers
        self.evaluation_batch = evaluation_batch(workers.device, side_px=side_px)

    def share_out(self) -> None:
        """Take the slices of the workers that this process hosts, from the next epoch on."""
        self.slicing = replace(self.slicing, hosted=self.workers.hosted)

    def steps(self, position: TrainingPosition) -> Iterator[StepBatch]:
        """Return the steps of the epoch in progress that are left.

        The order of an epoch is a pure function of (seed, epoch), so a resumed epoch skips its first steps unread.
        """
        return self.batches.steps(self.slicing, epoch=position.epoch, first_step=position.step_in_epoch)

    def validation(self) -> Iterator[EvaluationBatch]:
        """Return this process's share of the validation images."""
        return self.batches.validation(**self._share())

    def train_sample(self) -> Iterator[EvaluationBatch]:
        """Return this process's share of a fixed sample of the training images, as they are."""
        # As many as the validation images at most: the two accuracies are compared, and neither may cost more.
        count = min(MAX_TRAIN_IMAGES_EVALUATED, self.batches.num_validation)
        return self.batches.train_sample(num_images=count, **self._share())

    def _share(self) -> dict[str, int]:
        # By process, not by worker: an evaluation has no statistics of a worker, so only the split over devices counts.
        workers, batch_size = self.workers, self.evaluation_batch
        if self.keeps_evaluation or workers.shares == even_shares(workers=workers.count, processes=workers.size):
            return {"rank": workers.rank, "size": workers.size, "batch_size": batch_size}
        # A process that hosts more workers is a faster one: it evaluates more images too.
        hosted = {"rank": workers.hosted.start, "size": workers.count, "parts": len(workers.hosted)}
        return {**hosted, "batch_size": batch_size}


def evaluation_batch(device: torch.device, *, side_px: int | None) -> int:
    """Return how many images an evaluation takes in at once; `side_px` is None for features of a frozen backbone."""
    if device.type != "cuda":
        return OTHER_EVALUATION_BATCH
    if side_px is None or side_px >= FULL_SIZE_PX:
        return GPU_EVALUATION_BATCH
    return min(int(GPU_EVALUATION_BATCH * (FULL_SIZE_PX / side_px) ** 2), MAX_GPU_EVALUATION_BATCH)
