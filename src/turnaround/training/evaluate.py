"""Exact evaluation on any number of processes: every image once, counts summed, no padding.

Enters: this process's share of the images. Leaves: the same `Counts` on every process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from turnaround.data.batches import EvaluationBatch
from turnaround.record.class_metrics import class_result, macro
from turnaround.record.heartbeat import Heartbeat
from turnaround.record.schema import CalibrationBin, Evaluation
from turnaround.training.choices import autocast
from turnaround.training.feed import Feed
from turnaround.training.step import StepComponents, loss_sum

MAX_CLASSES_IN_CONFUSION = 2000
"""Beyond it the matrix alone would be larger than the weights; the per-class figures stay."""
CALIBRATION_BINS = 15
"""Bins of equal width, as in Guo et al. 2017 and most tables since: another number gives another error."""
CONFIDENCE_UNITS = 2**30
"""A confidence is added up as a whole number of these parts: whole numbers add up exactly in whichever order, so the
error does not depend on how the images are spread over processes. 2**33 images fit into the sum."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Sums over all images that were evaluated."""

    num_images: int
    loss_sum: float
    num_top1: int
    num_top5: int
    confusion: Tensor | None
    """(true class, predicted class), or (true class, was it right) beyond MAX_CLASSES_IN_CONFUSION; on request."""
    num_predicted: Tensor | None = None
    """(classes,): images that were taken for each class; with the confusion."""
    calibration: Tensor | None = None
    """(CALIBRATION_BINS, 3): images, number right, sum of confidences in CONFIDENCE_UNITS; with the confusion."""

    @property
    def loss(self) -> float:
        return self.loss_sum / self.num_images

    @property
    def top1(self) -> float:
        return self.num_top1 / self.num_images

    @property
    def top5(self) -> float:
        return self.num_top5 / self.num_images


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Evaluates the network on what one process's feed gives; each batch is a heartbeat.

    Where the weights are averaged (training.ema), the average is evaluated, on the sample of the training images too:
    the two accuracies are there to be compared.
    """

    components: StepComponents
    feed: Feed
    num_classes: int
    heartbeat: Heartbeat

    def validation(self, *, with_confusion: bool = False) -> Counts:
        """Evaluate the validation images: every image once."""
        return self._counts(self.feed.validation(), with_confusion=with_confusion)

    def train_sample(self) -> Counts:
        """Evaluate a fixed sample of the training images: the accuracy that augmentation and dropout hide."""
        return self._counts(self.feed.train_sample(), with_confusion=False)

    def _counts(self, batches: Iterator[EvaluationBatch], *, with_confusion: bool) -> Counts:
        average = self.components.average
        with nullcontext() if average is None else average.in_place():
            return evaluate(
                self.components,
                self._with_heartbeat(batches),
                num_classes=self.num_classes,
                with_confusion=with_confusion,
            )

    def _with_heartbeat(self, batches: Iterator[EvaluationBatch]) -> Iterator[EvaluationBatch]:
        for batch in batches:
            self.heartbeat.beat("evaluates")
            yield batch
        self.heartbeat.waits()  # for the other processes, in the sum that follows


@torch.no_grad()
def evaluate(
    components: StepComponents, batches: Iterable[EvaluationBatch], *, num_classes: int, with_confusion: bool = False
) -> Counts:
    """Run the network in eval mode over the batches of this process; return the counts of all processes."""
    workers = components.workers
    components.network.module.eval()
    by_class = ClassCounts(num_classes, workers.device) if with_confusion else None
    # (images, loss, right, right within five); float64 counts exactly, Apple's GPUs have none.
    sums = torch.zeros(4, dtype=torch.float32 if workers.device.type == "mps" else torch.float64, device=workers.device)
    for batch in batches:
        images = components.inputs.plain(batch) if batch.features is None else batch.features
        with autocast(workers.device, components.precision):
            # The learner itself, not the engine's wrapper: processes may have different numbers of batches, so nothing
            # may be agreed upon batch by batch.
            logits = components.learner(images)
        logits = logits.to(components.precision.parameters)  # (N, classes)
        best = logits.topk(min(5, num_classes), dim=1).indices  # (N, 5), the most probable first
        hits = best == batch.labels[:, None]  # (N, 5), at most one in a row
        loss = loss_sum(logits, batch.labels, components.recipe)
        sums += torch.stack(
            [sums.new_full((), len(best)), loss.to(sums), hits[:, 0].sum().to(sums), hits.sum().to(sums)]
        )
        if by_class is not None:
            by_class.add(logits, batch.labels, predicted=best[:, 0])
    # Counts are summed, not means: processes may have had different numbers of images.
    workers.sum(sums)
    if by_class is not None:
        workers.sum(by_class.sums)
    components.network.train_mode()
    num_images, total_loss, top1, top5 = sums.tolist()
    return Counts(
        num_images=int(num_images),
        loss_sum=total_loss,
        num_top1=int(top1),
        num_top5=int(top5),
        confusion=None if by_class is None else by_class.confusion.cpu(),
        num_predicted=None if by_class is None else by_class.num_predicted.cpu(),
        calibration=None if by_class is None else by_class.calibration.cpu(),
    )


class ClassCounts:
    """What the final evaluation counts besides: by class, and by confidence. Views of one tensor, one message."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        # Two columns, wrong and right, where the whole matrix would be too large.
        self.is_full = num_classes <= MAX_CLASSES_IN_CONFUSION
        columns = num_classes if self.is_full else 2
        shapes = [(num_classes, columns), (num_classes,), (CALIBRATION_BINS, 3)]
        sizes = [math.prod(shape) for shape in shapes]
        self.sums = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        parts = [part.view(shape) for part, shape in zip(torch.split(self.sums, sizes), shapes, strict=True)]
        self.confusion, self.num_predicted, self.calibration = parts

    def add(self, logits: Tensor, labels: Tensor, *, predicted: Tensor) -> None:
        """Add a batch: logits (N, classes), labels and predicted classes (N,)."""
        right = predicted == labels
        columns = self.confusion.shape[1]
        # One index for the cell (true class, column), so that one bincount fills the matrix.
        cell = labels * columns + (predicted if self.is_full else right.long())
        self.confusion += torch.bincount(cell, minlength=self.confusion.numel()).view_as(self.confusion)
        self.num_predicted += torch.bincount(predicted, minlength=len(self.num_predicted))
        # (N,), from 1 / classes to 1; the logits are float32 at least. Without a number there is no confidence.
        confidence = logits.softmax(dim=1).amax(dim=1).nan_to_num(0.0)
        units = (confidence * CONFIDENCE_UNITS).round().long()
        # Bins are open below and closed above, so that a confidence of 1 lies in the last one.
        bins = (confidence * CALIBRATION_BINS).ceil().long().sub(1).clamp(0, CALIBRATION_BINS - 1)
        self.calibration.index_add_(0, bins, torch.stack([torch.ones_like(units), right.long(), units], dim=1))


def final_evaluation(counts: Counts, *, epoch: int, classes: tuple[str, ...]) -> Evaluation:
    """Return the counts as the record keeps them."""
    assert counts.confusion is not None
    assert counts.num_predicted is not None
    is_full = counts.confusion.shape[1] == len(classes)
    right = counts.confusion.diagonal() if is_full else counts.confusion[:, 1]  # (classes,)
    totals = counts.confusion.sum(dim=1)  # (classes,), images of each
    columns = (totals.tolist(), counts.num_predicted.tolist(), right.tolist())
    per_class = [
        class_result(name, num_images=images, num_predicted=predicted, num_right=num_right)
        for name, images, predicted, num_right in zip(classes, *columns, strict=True)
    ]
    (error, bins), mean = calibration(counts), macro(per_class)
    return Evaluation(
        epoch=epoch,
        num_images=counts.num_images,
        top1=counts.top1,
        top5=counts.top5 if len(classes) > 5 else None,
        loss=counts.loss,
        classes=list(classes),
        per_class=per_class,
        confusion=counts.confusion.tolist() if is_full else [],
        macro_precision=mean.precision,
        macro_recall=mean.recall,
        macro_f1=mean.f1,
        calibration_error=error,
        calibration=bins,
    )


def calibration(counts: Counts) -> tuple[float | None, list[CalibrationBin]]:
    """Return the expected calibration error, and the bins it comes from; None and nothing without images."""
    if counts.calibration is None or not counts.num_images:
        return None, []
    rows = [(images, right, units / CONFIDENCE_UNITS) for images, right, units in counts.calibration.tolist()]
    # sum over bins of (n / N) |right / n - confidence / n|, in which n cancels.
    error = sum(abs(right - confidence) for _, right, confidence in rows) / counts.num_images
    bins = [
        CalibrationBin(num_images=images, confidence=confidence / images, accuracy=right / images)
        if images
        else CalibrationBin(num_images=0)
        for images, right, confidence in rows
    ]
    return error, bins
