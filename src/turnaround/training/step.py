"""One update over the workers that this process hosts.

Gradients are those of (sum of the losses of all images of the step) / (number of those images), whatever the number of
workers and processes and however unequal their slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turnaround.data.augment import Augmentation, normalise
from turnaround.data.batches import StepBatch
from turnaround.model.network import Network
from turnaround.recipe import TrainingRecipe
from turnaround.training.choices import PrecisionChoice
from turnaround.training.clock import StepTimer
from turnaround.training.statistics import RunningStatistics
from turnaround.workers.contract import Workers

MOST_IMAGES_PER_FUSED_PASS = 512
"""More would not be faster, and might not fit."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a step is made of; made once in run.py."""

    network: Network
    wrapped: nn.Module
    workers: Workers
    optimizer: torch.optim.Optimizer
    augmentation: Augmentation
    precision: PrecisionChoice
    recipe: TrainingRecipe


class Step:
    """Calls itself on every batch; keeps the epoch's sums on the device, so that no step waits for the host."""

    def __init__(self, parts: Parts, timer: StepTimer) -> None:
        self.parts, self.timer = parts, timer
        self.statistics = RunningStatistics(parts.network.batch_norms(), parts.workers)
        self.scaler = torch.amp.GradScaler(parts.workers.device.type, enabled=parts.precision.scales_loss)
        self.fuses_workers = not parts.network.couples_images()
        self.is_random = parts.network.is_random()
        self.totals = self._zero()

    def __call__(self, batch: StepBatch, *, epoch: int, update: int, learning_rate: float) -> None:
        parts, timer = self.parts, self.timer
        images = self._prepared(batch, epoch)
        timer.mark("copy")
        self.statistics.begin_step()
        passes = list(self._passes(batch))
        for number, (first_worker, start, stop) in enumerate(passes):
            is_last = number == len(passes) - 1
            with nullcontext() if is_last else parts.workers.deferred(parts.wrapped):
                self.statistics.begin_worker()
                if self.is_random:
                    torch.manual_seed(_dropout_seed(parts.recipe.seed, update, first_worker))
                self._forward_backward(images[start:stop], batch.labels[start:stop], batch.global_size)
                self.statistics.end_worker()
        self.statistics.end_step()
        timer.mark("compute")
        self._update(learning_rate)
        timer.mark("update")

    def take_totals(self) -> Tensor:
        """(sum of losses, number right, number of images) since the last call, over all processes."""
        totals, self.totals = self.totals, self._zero()
        self.parts.workers.sum(totals)
        return totals

    def _prepared(self, batch: StepBatch, epoch: int) -> Tensor:
        parts = self.parts
        pixels = parts.augmentation(batch.images, batch.ids, epoch=epoch, dtype=parts.precision.parameters)
        pixels = normalise(pixels, mean=parts.network.mean, std=parts.network.std)
        return pixels.contiguous(memory_format=torch.channels_last)

    def _passes(self, batch: StepBatch) -> Iterator[tuple[int, int, int]]:
        """(first worker, start, stop) of each pass: one for each hosted worker, or for as many as nothing couples."""
        largest = max(batch.worker_sizes)
        together = max(1, MOST_IMAGES_PER_FUSED_PASS // largest) if self.fuses_workers else 1
        start = 0
        for i in range(0, len(batch.worker_sizes), together):
            stop = start + sum(batch.worker_sizes[i : i + together])
            yield self.parts.workers.hosted[i], start, stop
            start = stop

    def _forward_backward(self, images: Tensor, labels: Tensor, global_size: int) -> None:
        parts = self.parts
        with autocast(parts.workers.device, parts.precision):
            logits = parts.wrapped(images)
        loss = loss_sum(logits.to(parts.precision.parameters), labels, parts.recipe)
        # The engine averages over processes, so each one multiplies by their number to give the sum.
        self.scaler.scale(loss * (parts.workers.size / global_size)).backward()  # type: ignore[no-untyped-call]
        right = (logits.argmax(dim=1) == labels).sum()
        self.totals += torch.stack(
            [loss.detach().to(self.totals), right.to(self.totals), self.totals.new_tensor(len(labels))]
        )

    def _update(self, learning_rate: float) -> None:
        optimizer = self.parts.optimizer
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad(set_to_none=True)

    def _zero(self) -> Tensor:
        device = self.parts.workers.device
        return torch.zeros(3, device=device, dtype=torch.float32 if device.type == "mps" else torch.float64)


def autocast(device: torch.device, precision: PrecisionChoice) -> torch.autocast:
    """The arithmetic of a pass, in training and in evaluation alike."""
    return torch.autocast(device.type, dtype=precision.autocast, enabled=precision.autocast is not None)


def loss_sum(logits: Tensor, labels: Tensor, recipe: TrainingRecipe) -> Tensor:
    """The sum, not the mean: sums of slices add up to the sum of the global batch."""
    if recipe.loss == "mse":
        wanted = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
        return (logits.softmax(dim=1) - wanted).square().mean(dim=1).sum()
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=recipe.label_smoothing)


def _dropout_seed(seed: int, update: int, worker: int) -> int:
    """Dropout follows the worker, not the process, so that it is the same on any number of processes."""
    return (seed * 1_000_003 + update) * 1_000_003 + worker
