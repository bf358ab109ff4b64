"""Exact evaluation on any number of processes: every image once, counts summed, no padding.

Enters: this process's share of the images. Leaves: the same `Counts` on every process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from turnaround.data.batches import EvaluationBatch
from turnaround.record.class_metrics import class_result, macro
from turnaround.record.heartbeat import Heartbeat
from turnaround.record.schema import CalibrationBin, Evaluation, Mistake
from turnaround.training.choices import autocast
from turnaround.training.feed import Feed
from turnaround.training.step import StepComponents, loss_sum
from turnaround.workers.contract import Workers

MAX_CLASSES_IN_CONFUSION = 2000
"""Beyond it the matrix alone would be larger than the weights; the per-class figures stay."""
CALIBRATION_BINS = 15
"""Bins of equal width, as in Guo et al. 2017 and most tables since: another number gives another error."""
MAX_MISTAKES = 48
"""Wrong answers that the record names: more than anybody looks at, and a few kilobytes."""
CONFIDENCE_UNITS = 2**30
"""A confidence is added up as a whole number of these parts: whole numbers add up exactly in whichever order, so the
error does not depend on how the images are spread over processes. 2**33 images fit into the sum."""


class WrongAnswer(NamedTuple):
    """One image that was taken for another class."""

    confidence: float
    image: int
    """Its place in the table of images."""
    label: int
    predicted: int


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
    mistakes: tuple[WrongAnswer, ...] = ()
    """The wrong answers of the highest confidence, the surest first; with the confusion."""

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
        with self.components.evaluated.in_place():
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
            by_class.add(logits, batch.labels, predicted=best[:, 0], ids=batch.ids)
    # Counts are summed, not means: processes may have had different numbers of images.
    workers.sum(sums)
    if by_class is not None:
        workers.sum(by_class.sums)
    mistakes = () if by_class is None else by_class.mistakes.of_all(workers)
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
        mistakes=mistakes,
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
        self.mistakes = SurestMistakes(device)

    def add(self, logits: Tensor, labels: Tensor, *, predicted: Tensor, ids: Tensor | None = None) -> None:
        """Add a batch: logits (N, classes); labels, predicted classes and the images' places in the table (N,)."""
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
        if ids is not None:
            self.mistakes.add(confidence.masked_fill(right, -1.0), torch.stack([ids, labels, predicted], dim=1))


class SurestMistakes:
    """The wrong answers of the highest confidence, kept on the device while batches come."""

    def __init__(self, device: torch.device) -> None:
        self.confidence = torch.zeros(0, device=device)  # (at most MAX_MISTAKES,), the highest first
        self.rows = torch.zeros(0, 3, dtype=torch.int64, device=device)  # image, label, predicted class of each

    def add(self, confidence: Tensor, rows: Tensor) -> None:
        """Add a batch: confidences (N,), negative for right answers, and rows (N, 3)."""
        both = torch.cat([self.confidence, confidence.float()])
        self.confidence, places = both.topk(min(MAX_MISTAKES, len(both)))
        self.rows = torch.cat([self.rows, rows])[places]

    def of_all(self, workers: Workers) -> tuple[WrongAnswer, ...]:
        """Return the surest of all processes: the same on each of them."""
        mine = zip(self.confidence.tolist(), self.rows.tolist(), strict=True)
        text = json.dumps([[confidence, *row] for confidence, row in mine if confidence >= 0])
        found = [WrongAnswer(*row) for part in workers.gather(text) for row in json.loads(part)]
        return tuple(sorted(found, key=lambda wrong: (-wrong.confidence, wrong.image))[:MAX_MISTAKES])


def final_evaluation(counts: Counts, *, epoch: int, classes: tuple[str, ...], files: Sequence[str] = ()) -> Evaluation:
    """Return the counts as the record keeps them; mistakes are told by the images' `files`."""
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
        mistakes=[
            Mistake(
                file=files[wrong.image],
                true=classes[wrong.label],
                predicted=classes[wrong.predicted],
                confidence=wrong.confidence,
            )
            for wrong in counts.mistakes
            if files
        ],
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
