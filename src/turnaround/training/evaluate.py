"""Exact evaluation on any number of processes: every image once, counts summed, no padding.

Enters: this process's share of the images. Leaves: the same `Counts` on every process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from turnaround.data.batches import EvaluationBatch
from turnaround.record.schema import ClassResult, Evaluation
from turnaround.training.choices import autocast
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
    """(true class, predicted class), or (true class, was it right) beyond MOST_CLASSES_IN_CONFUSION; on request."""

    @property
    def loss(self) -> float:
        return self.loss_sum / self.num_images

    @property
    def top1(self) -> float:
        return self.num_top1 / self.num_images

    @property
    def top5(self) -> float:
        return self.num_top5 / self.num_images


@torch.no_grad()
def evaluate(
    parts: StepComponents, batches: Iterable[EvaluationBatch], *, num_classes: int, with_confusion: bool = False
) -> Counts:
    """The network in eval mode over the batches of this process; the counts of all processes."""
    workers = parts.workers
    parts.network.module.eval()
    columns = num_classes if num_classes <= MAX_CLASSES_IN_CONFUSION else 2
    confusion = torch.zeros(num_classes * columns if with_confusion else 0, dtype=torch.int64, device=workers.device)
    sums = torch.zeros(4, dtype=torch.float32 if workers.device.type == "mps" else torch.float64, device=workers.device)
    for batch in batches:
        images = parts.inputs.plain(batch) if batch.features is None else batch.features
        with autocast(workers.device, parts.precision):
            logits = parts.learner(images)
        logits = logits.to(parts.precision.parameters)
        best = logits.topk(min(5, num_classes), dim=1).indices
        hits = best == batch.labels[:, None]
        loss = loss_sum(logits, batch.labels, parts.recipe)
        sums += torch.stack(
            [sums.new_full((), len(best)), loss.to(sums), hits[:, 0].sum().to(sums), hits.sum().to(sums)]
        )
        if with_confusion:
            column = best[:, 0] if columns > 2 or num_classes == 2 else hits[:, 0].long()
            confusion += torch.bincount(batch.labels * columns + column, minlength=len(confusion))
    workers.sum(sums)
    if with_confusion:
        workers.sum(confusion)
    parts.network.train_mode()
    num_images, total_loss, top1, top5 = sums.tolist()
    return Counts(
        num_images=int(num_images),
        loss_sum=total_loss,
        num_top1=int(top1),
        num_top5=int(top5),
        confusion=confusion.view(num_classes, columns).cpu() if with_confusion else None,
    )


def final_evaluation(counts: Counts, *, epoch: int, classes: tuple[str, ...]) -> Evaluation:
    """The counts as the record keeps them."""
    assert counts.confusion is not None
    is_full = counts.confusion.shape[1] == len(classes)
    right = counts.confusion.diagonal() if is_full else counts.confusion[:, 1]
    totals = counts.confusion.sum(dim=1)
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
