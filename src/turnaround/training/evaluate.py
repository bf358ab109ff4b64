"""Exact evaluation on any number of processes: every image once, counts summed, no padding.

Enters: this process's share of the images. Leaves: the same `Counts` on every process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from turnaround.data.batches import EvaluationBatch
from turnaround.record.heartbeat import Heartbeat
from turnaround.record.schema import ClassResult, Evaluation
from turnaround.training.choices import autocast
from turnaround.training.feed import Feed
from turnaround.training.step import StepComponents, loss_sum

MAX_CLASSES_IN_CONFUSION = 2000
"""Beyond it the matrix alone would be larger than the weights; the per-class figures stay."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Sums over all images that were evaluated."""

    num_images: int
    loss_sum: float
    num_top1: int
    num_top5: int
    confusion: Tensor | None
    """(true class, predicted class), or (true class, was it right) beyond MAX_CLASSES_IN_CONFUSION; on request."""

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
    """Evaluates the network on what one process's feed gives; each batch is a heartbeat."""

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
    # Two columns, wrong and right, where the whole matrix would be too large.
    columns = num_classes if num_classes <= MAX_CLASSES_IN_CONFUSION else 2
    confusion = torch.zeros(num_classes * columns if with_confusion else 0, dtype=torch.int64, device=workers.device)
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
        if with_confusion:
            # One index for the cell (true class, column), so that one bincount fills the matrix.
            column = best[:, 0] if columns > 2 or num_classes == 2 else hits[:, 0].long()
            confusion += torch.bincount(batch.labels * columns + column, minlength=len(confusion))
    # Counts are summed, not means: processes may have had different numbers of images.
    workers.sum(sums)
    if with_confusion:
        workers.sum(confusion)
    components.network.train_mode()
    num_images, total_loss, top1, top5 = sums.tolist()
    return Counts(
        num_images=int(num_images),
        loss_sum=total_loss,
        num_top1=int(top1),
        num_top5=int(top5),
        confusion=confusion.view(num_classes, columns).cpu() if with_confusion else None,
    )


def final_evaluation(counts: Counts, *, epoch: int, classes: tuple[str, ...]) -> Evaluation:
    """Return the counts as the record keeps them."""
    assert counts.confusion is not None
    is_full = counts.confusion.shape[1] == len(classes)
    right = counts.confusion.diagonal() if is_full else counts.confusion[:, 1]  # (classes,)
    totals = counts.confusion.sum(dim=1)  # (classes,), images of each
    per_class = [
        ClassResult(name=name, num_images=n, accuracy=r / n if n else None)
        for name, n, r in zip(classes, totals.tolist(), right.tolist(), strict=True)
    ]
    return Evaluation(
        epoch=epoch,
        num_images=counts.num_images,
        top1=counts.top1,
        top5=counts.top5 if len(classes) > 5 else None,
        loss=counts.loss,
        classes=list(classes),
        per_class=per_class,
        confusion=counts.confusion.tolist() if is_full else [],
    )
