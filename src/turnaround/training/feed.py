"""What the steps and the evaluations take in: images, or what a frozen backbone has made of them.

Enters: batches of pixels. Leaves: the same batches; for a frozen network with their features, computed

    ahead     for as many steps at once as fill the device: the backbone does not learn, so it need not wait for updates
    once      for images that are not varied: the validation images, and without augmentation all of them
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnaround.data.batches import Batches, EvaluationBatch, Slicing, StepBatch
from turnaround.data.inputs import Inputs
from turnaround.training.frozen import FrozenBackbone
from turnaround.training.step_timer import StepTimer
from turnaround.workers.contract import Workers

MAX_TRAIN_IMAGES_EVALUATED = 1000
EVALUATION_BATCH = {"cuda": 256}
OTHER_EVALUATION_BATCH = 64
"""On a CPU a larger batch is not faster, and its activations take gigabytes at 224 px."""


@dataclass(kw_only=True)
class Feed:
    """The batches of one process."""

    batches: Batches
    inputs: Inputs
    slicing: Slicing
    workers: Workers
    timer: StepTimer
    backbone: FrozenBackbone | None = None
    on_pass: Callable[[str], None] = lambda _doing: None
    """Called for every pass of the backbone that no step waits for: a sign of life."""

    def __post_init__(self) -> None:
        self._kept: dict[str, list[EvaluationBatch]] = {}
        self._table: Tensor | None = None
        self.keeps_training = self.keeps_evaluation = False

    def warm_up(self) -> None:
        """A first pass of the backbone, and what of its features will be kept: all processes keep the same."""
        if self.backbone is None:
            return
        self.backbone.warm_up(self.inputs.dtype_of_images)
        wanted = [self.batches.num_validation, self.batches.pixels.num_train + self.batches.num_validation]
        cannot = torch.tensor([not self.backbone.can_keep(n) for n in wanted]).float().to(self.workers.device)
        self.workers.sum(cannot)
        self.keeps_evaluation = not cannot[0]
        self.keeps_training = self.inputs.augmentation.is_none and not cannot[1]

    @property
    def how(self) -> tuple[str, str]:
        """For the record: which features are computed when, and why."""
        if self.backbone is None:
            return "none", "every layer learns, or the network cannot be taken apart at its last layer"
        if self.keeps_training:
            return (
                "computed once",
                "the backbone is frozen and nothing varies the images; the last layer learns on them",
            )
        at_once = f"{self.backbone.steps_at_once} steps at once"
        return (
            at_once,
            "the backbone is frozen: it need not wait for updates; images that do not vary are computed once",
        )

    def steps(self, *, epoch: int, first_update: int, first_step: int = 0) -> Iterator[StepBatch]:
        """The steps of an epoch that begins with update `first_update`, without the first `first_step` of them."""
        if self.backbone is None:
            return self.batches.steps(self.slicing, epoch=epoch, first_step=first_step)
        if self.keeps_training:
            return self._steps_from_table(self.backbone, epoch=epoch, first_step=first_step)
        # From the beginning of its group: in other company a step's features would be rounded otherwise.
        skipped = first_step % self.backbone.steps_at_once
        ahead = self._steps_ahead(
            self.backbone, epoch=epoch, first_update=first_update, first_step=first_step - skipped
        )
        return itertools.islice(ahead, skipped, None)

    def validation(self) -> Iterator[EvaluationBatch]:
        """This process's share of the validation images."""
        return self._evaluation("validation", self.batches.validation(**self._share()))

    def train_sample(self) -> Iterator[EvaluationBatch]:
        """This process's share of a fixed sample of the training images, as they are."""
        count = min(MAX_TRAIN_IMAGES_EVALUATED, self.batches.num_validation)
        return self._evaluation("train", self.batches.train_sample(num_images=count, **self._share()))

    def _share(self) -> dict[str, int]:
        batch_size = EVALUATION_BATCH.get(self.workers.device.type, OTHER_EVALUATION_BATCH)
        return {"rank": self.workers.rank, "size": self.workers.size, "batch_size": batch_size}

    def _steps_ahead(
        self, backbone: FrozenBackbone, *, epoch: int, first_update: int, first_step: int
    ) -> Iterator[StepBatch]:
        """Several steps' features in one pass; its time is shared evenly by them."""
        raw = self.batches.steps(self.slicing, epoch=epoch, first_step=first_step)
        update = first_update + first_step
        while True:
            watch = self.timer.watch(range(update, update + backbone.steps_at_once))
            group = list(itertools.islice(raw, backbone.steps_at_once))
            if not group:
                return
            watch.lap("wait")
            images = self.inputs.varied(_joined(group), epoch=epoch)
            watch.lap("copy")
            features = torch.split(backbone(images), [len(batch.ids) for batch in group])
            watch.lap("compute")
            for batch, its_features in zip(group, features, strict=True):
                self.timer.charge(update, watch.shares(len(group)))
                yield replace(batch, features=its_features)
                update += 1

    def _steps_from_table(self, backbone: FrozenBackbone, *, epoch: int, first_step: int) -> Iterator[StepBatch]:
        if self._table is None:
            self._table = self._features_of_all(backbone)
        for batch in self.batches.steps(self.slicing, epoch=epoch, first_step=first_step, with_pixels=False):
            yield replace(batch, features=self._table[batch.ids])

    def _features_of_all(self, backbone: FrozenBackbone) -> Tensor:
        """Every process computes a share of the training images; together they have all."""
        rank, size = self.workers.rank, self.workers.size
        batches = self.batches.training(rank=rank, size=size, batch_size=backbone.pass_images)
        mine = [self._features(backbone, batch) for batch in batches]
        num_train = self.batches.pixels.num_train
        table = mine[0].new_zeros(num_train, *mine[0].shape[1:])
        start = rank * num_train // size
        table[start : start + sum(map(len, mine))] = torch.cat(mine)
        if size > 1:
            for rows in torch.split(table, max(1, 2**24 // table[0].numel())):
                # Not every engine adds bf16; with zeros from all others nothing is rounded.
                summed = rows.to(torch.promote_types(rows.dtype, torch.float32))
                self.workers.sum(summed)
                rows.copy_(summed)
        return table

    def _features(self, backbone: FrozenBackbone, batch: EvaluationBatch) -> Tensor:
        self.on_pass("computes features")
        return backbone(self.inputs.plain(batch))

    def _evaluation(self, part: str, batches: Iterator[EvaluationBatch]) -> Iterator[EvaluationBatch]:
        if self.backbone is None:
            return batches
        if part not in self._kept:
            backbone = self.backbone
            made = (replace(b, features=self._features(backbone, b)) for b in batches)
            if not self.keeps_evaluation:
                return made
            # Without their pixels: what is kept are the features.
            self._kept[part] = [replace(b, pixels=b.pixels[:0], rows=None) for b in made]
        return iter(self._kept[part])


def _joined(group: list[StepBatch]) -> StepBatch:
    """The images of several steps, one after the other."""
    if len(group) == 1:
        return group[0]
    rows = [batch.rows for batch in group if batch.rows is not None]
    return replace(
        group[0],
        pixels=group[0].pixels if rows else torch.cat([batch.pixels for batch in group]),
        rows=torch.cat(rows) if rows else None,
        ids=torch.cat([batch.ids for batch in group]),
    )
