"""A frozen network: a backbone that never changes, and the last layer, which learns. The whole story is here.

What the backbone makes of an image depends on the image alone, not on any update. So it belongs to the input:

    split     the network is taken apart into backbone and last layer; where that fails it is trained as a whole
    passes    the backbone runs in passes of one size, which fill the device whatever the size of a step
    ahead     training images that vary: the features of several steps at once; no step need wait for an update
    once      images that do not vary (validation; without augmentation all of them): computed once and kept

The last layer then learns on features, step by step, like any other network (step.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turnaround.choice import Choice
from turnaround.data.batches import Batches, EvaluationBatch, Slicing, StepBatch
from turnaround.data.inputs import Inputs
from turnaround.model.network import Network, classifier_of
from turnaround.training.choices import Precision, autocast
from turnaround.training.clock import StepTimer
from turnaround.training.feed import Feed
from turnaround.training.position import TrainingPosition
from turnaround.workers.contract import Workers

TOLERANCE = 1e-4
"""Relative and absolute: two orders of the same float32 operations may differ by this much."""
GPU_IMAGES_AT_224_PX = 256
"""Enough to fill a GPU; smaller images go in proportion, so that a pass takes about as much memory."""
MAX_GPU_IMAGES = 1024
CPU_IMAGES = 64
SHARE_OF_FREE_MEMORY = 0.2
"""Features are kept only where they leave most of the memory to the training."""
MESSAGE_VALUES = 2**24
"""Values of the table that the processes add up at a time: 64 MiB, beside the table itself."""


# --- split


class Backbone(nn.Module):
    """Everything before the last layer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        features = self.network.forward_features(images)  # type: ignore[operator]  # timm's names, and those of our own networks
        return cast(Tensor, self.network.forward_head(features, pre_logits=True))  # type: ignore[operator]


@dataclass(frozen=True, kw_only=True)
class Split:
    """The two parts share their tensors with the network they were taken from."""

    backbone: nn.Module
    head: nn.Module


def split(network: Network, *, size_px: int) -> Split | None:
    """Return the two parts of a frozen network; None when everything learns, or when it cannot be taken apart.

    timm's networks differ in what follows the last layer (two heads, pooling after it), so the parts are tried on two
    random images: together they must give what the whole gives.
    """
    # Without forward_head there is no `pre_logits` to stop at.
    if network.fine_tune or not hasattr(network.module, "forward_head"):
        return None
    parts = Split(backbone=Backbone(network.module), head=classifier_of(network.module))
    like = next(network.module.parameters())
    # A generator of its own: the trial must not move the random numbers that the training draws.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images = torch.randn(2, 3, size_px, size_px).to(like)
    network.module.eval()  # dropout would make the two results differ, and batch norm would move its statistics
    try:
        with torch.no_grad():
            whole, together = network.module(images), parts.head(parts.backbone(images))
        # (2, classes) both; the shape first: allclose would broadcast.
        fits = whole.shape == together.shape and torch.allclose(whole, together, rtol=TOLERANCE, atol=TOLERANCE)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        fits = False
    network.train_mode()
    return parts if fits else None


# --- passes


class FrozenBackbone:
    """Callable: images of any number -> their features, in passes of one size."""

    def __init__(
        self,
        module: nn.Module,
        *,
        device: torch.device,
        precision: Precision,
        size_px: int,
        images_per_step: int,
        learns_in: Precision | None = None,
        is_compiled: bool = False,
    ) -> None:
        """`learns_in` is the precision of what learns on the features, where it may be another one."""
        self.module, self.device, self.precision, self.size_px = module, device, precision, size_px
        # Without autocast the last layer takes its features in the dtype of its own weights alone.
        self._dtype = learns_in.parameters if learns_in is not None and learns_in.autocast is None else None
        self.plan_passes(images_per_step)
        # A compiled pass has one shape, so that it is compiled once; the last one of an epoch is padded to it.
        self._has_fixed_shape = is_compiled
        self._run: Callable[[Tensor], Tensor] = torch.compile(module, dynamic=False) if is_compiled else module

    def plan_passes(self, images_per_step: int) -> None:
        """Choose the passes for so many images of this process in a step; a compiled one compiles once more."""
        plan = _pass_plan(self.device, size_px=self.size_px, images_per_step=images_per_step)
        self.steps_at_once, self.pass_images = plan

    def warm_up(self, dtype: torch.dtype) -> int:
        """Make one pass over zeros, which compiles and chooses kernels; return the bytes of an image's features."""
        images = torch.zeros(self.pass_images, 3, self.size_px, self.size_px, dtype=dtype, device=self.device)
        features = self(images.contiguous(memory_format=torch.channels_last))
        return features[0].numel() * features.element_size()

    def can_keep(self, num_bytes: int) -> bool:
        """Tell whether so many bytes of features may stay in memory."""
        # Asked after the warm-up: on CUDA the allocator already holds the activations of a pass, so they are taken off.
        if self.device.type == "cuda":
            free: int = torch.cuda.mem_get_info(self.device)[0]
        else:
            free = psutil.virtual_memory().available
        return 0 < num_bytes <= free * SHARE_OF_FREE_MEMORY

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        with autocast(self.device, self.precision):
            features = torch.cat([self._features(part) for part in torch.split(images, self.pass_images)])
        return features if self._dtype is None else features.to(self._dtype)

    def _features(self, images: Tensor) -> Tensor:
        missing = self.pass_images - len(images) if self._has_fixed_shape else 0
        if missing:
            # Pairs from the last dimension on: none for W, H and channels, `missing` zero images behind. A frozen
            # backbone is in eval mode, where no image affects another, so they change nothing.
            images = F.pad(images, (0, 0, 0, 0, 0, 0, 0, missing)).contiguous(memory_format=torch.channels_last)
        return self._run(images)[: len(images) - missing]


def _pass_plan(device: torch.device, *, size_px: int, images_per_step: int) -> tuple[int, int]:
    """Return (steps at once, images of a pass).

    A pass has as many whole steps as fill the device; a step that is larger than that has as many equal passes as it
    needs.
    """
    most = CPU_IMAGES
    if device.type == "cuda":
        # Activations go with the area: 256 images of 224 px take about as much memory as 1,024 of 112 px.
        most = min(MAX_GPU_IMAGES, max(1, GPU_IMAGES_AT_224_PX * 224**2 // size_px**2))
    steps_at_once = max(1, most // images_per_step)
    passes = -(-images_per_step // most)  # rounded up
    # Equal passes: 300 images by 256 would be 256 and 44; two of 150 have one shape.
    pass_images = max(images_per_step * steps_at_once, 1) if passes == 1 else -(-images_per_step // passes)
    return steps_at_once, pass_images


# --- ahead, once


class FrozenFeed(Feed):
    """The batches of one process, with the features of their images."""

    def __init__(
        self,
        batches: Batches,
        slicing: Slicing,
        workers: Workers,
        *,
        backbone: FrozenBackbone,
        inputs: Inputs,
        timer: StepTimer,
        on_pass: Callable[[str], None] = lambda _doing: None,
    ) -> None:
        """Warm the backbone up, and agree with the other processes on what is kept.

        `on_pass` is called for every pass that no step waits for: a heartbeat.
        """
        super().__init__(batches, slicing, workers)
        self.backbone, self.inputs, self.timer, self.on_pass = backbone, inputs, timer, on_pass
        self._evaluation_features: dict[str, list[EvaluationBatch]] = {}
        self._table: Tensor | None = None
        bytes_per_image = backbone.warm_up(inputs.dtype_of_images)
        # One process without room is enough: the passes of all must be the same, since they meet in collectives.
        wanted = [batches.num_validation, batches.pixels.num_train + batches.num_validation]
        cannot = torch.tensor([not backbone.can_keep(n * bytes_per_image) for n in wanted]).float().to(workers.device)
        workers.sum(cannot)
        self.keeps_evaluation = not bool(cannot[0])
        # Augmented images differ in every epoch, so their features are never the same twice.
        self.keeps_training = inputs.augmentation.is_none and not bool(cannot[1])
        self.choice = self._choice()

    def _choice(self) -> Choice[str]:
        if self.keeps_training:
            return Choice(
                "computed once", "the backbone is frozen and nothing varies the images; the last layer learns on them"
            )
        return Choice(
            f"{self.backbone.steps_at_once} steps at once",
            "the backbone is frozen: it need not wait for updates; images that do not vary are computed once",
        )

    def steps(self, position: TrainingPosition) -> Iterator[StepBatch]:
        if self.keeps_training:
            return self._steps_from_table(position)
        # Resume at a group boundary: rounding depends on which steps share a pass.
        skipped = position.step_in_epoch % self.backbone.steps_at_once
        boundary = replace(
            position,
            step_in_epoch=position.step_in_epoch - skipped,
            global_step=position.global_step - skipped,
        )
        return itertools.islice(self._steps_ahead(boundary), skipped, None)

    def validation(self) -> Iterator[EvaluationBatch]:
        return self._with_features("validation", super().validation)

    def train_sample(self) -> Iterator[EvaluationBatch]:
        return self._with_features("train", super().train_sample)

    def _steps_ahead(self, position: TrainingPosition) -> Iterator[StepBatch]:
        """Compute several steps' features in one pass; its time is shared evenly by them."""
        at_once, number = self.backbone.steps_at_once, position.global_step
        raw = super().steps(position)  # prefetched where reading takes time
        while True:
            # Reads the clock only if one of the group's steps is sampled.
            watch = self.timer.watch(range(number, number + at_once))
            group = list(itertools.islice(raw, at_once))
            if not group:
                return
            watch.lap("wait")
            images = self.inputs.varied(_joined(group), epoch=position.epoch)  # (images of all steps, 3, H, W)
            watch.lap("copy")
            # One (images, features) for each step; the steps of a group may differ in size at the end of an epoch.
            features = torch.split(self.backbone(images), [len(batch.ids) for batch in group])
            watch.lap("compute")
            for batch, its_features in zip(group, features, strict=True):
                self.timer.charge(number, watch.shares(len(group)))
                yield replace(batch, features=its_features)
                number += 1

    def _steps_from_table(self, position: TrainingPosition) -> Iterator[StepBatch]:
        if self._table is None:
            self._table = self._features_of_all()
        for batch in self.batches.steps(
            self.slicing, epoch=position.epoch, first_step=position.step_in_epoch, with_pixels=False
        ):
            yield replace(batch, features=self._table[batch.ids])  # (images, features), gathered on the device

    def _features_of_all(self) -> Tensor:
        """Compute a share of the training images' features here, and add up everybody's: (images, features)."""
        rank, size = self.workers.rank, self.workers.size
        batches = self.batches.training(rank=rank, size=size, batch_size=self.backbone.pass_images)
        mine = [self._features(batch) for batch in batches]
        num_train = self.batches.pixels.num_train
        table = mine[0].new_zeros(num_train, *mine[0].shape[1:])
        start = rank * num_train // size  # where `share_bounds` begins this process's share (data/order.py)
        table[start : start + sum(map(len, mine))] = torch.cat(mine)
        if size > 1:  # an all-gather made of sums, which every engine has
            for rows in torch.split(table, max(1, MESSAGE_VALUES // table[0].numel())):
                # Not every engine adds bf16; with zeros from all others nothing is rounded.
                summed = rows.to(torch.promote_types(rows.dtype, torch.float32))
                self.workers.sum(summed)
                rows.copy_(summed)
        return table

    def _features(self, batch: EvaluationBatch) -> Tensor:
        self.on_pass("computes features")
        return self.backbone(self.inputs.plain(batch))

    def _with_features(self, part: str, batches: Callable[[], Iterator[EvaluationBatch]]) -> Iterator[EvaluationBatch]:
        if part in self._evaluation_features:
            return iter(self._evaluation_features[part])
        computed = (replace(batch, features=self._features(batch)) for batch in batches())
        if not self.keeps_evaluation:
            return computed
        # Without pixels, which would keep whole batches in memory beside their features.
        self._evaluation_features[part] = [replace(b, pixels=b.pixels[:0], rows=None) for b in computed]
        return iter(self._evaluation_features[part])


def _joined(group: list[StepBatch]) -> StepBatch:
    """Return the images of several steps as one batch, one step after the other."""
    if len(group) == 1:
        return group[0]
    # With rows, the pixels of every batch are the same resident tensor (batches.py): only the rows are joined.
    rows = [batch.rows for batch in group if batch.rows is not None]
    return replace(
        group[0],
        pixels=group[0].pixels if rows else torch.cat([batch.pixels for batch in group]),
        rows=torch.cat(rows) if rows else None,
        ids=torch.cat([batch.ids for batch in group]),
    )
