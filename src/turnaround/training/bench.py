"""Ceilings on this machine for this recipe: each part of a training alone, and all of them together.

Enters: an `Assembly`, warmed up. Leaves: images/s by part, over all processes, with their spread.

    augmentation   the same batch varied and normalised again and again
    input          the batches of an epoch as the network takes them, without a network
    model          the network's steps on images that are there already: what training could reach at most
    all_reduce     as many bytes as the gradients have, averaged over the processes
    training       the real thing

The parts take turns, so that whatever else the machine does hits all of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch

from turnaround.data.batches import StepBatch
from turnaround.training.assembly import Assembly
from turnaround.training.clock import synchronize

ROUNDS = 5
MIN_STEPS = 4
MAX_ROUND = 4
"""Times as long as was asked for, where whole periods of the noise scale's measurement need it."""
NOT_MEASURED = 1
"""An update whose noise scale is not measured: the model alone is what the network costs."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Images a second: the median over rounds, and the slowest and fastest round."""

    images_per_s: float
    low: float
    high: float
    rounds: int


def measure(made: Assembly, *, part_s: float) -> dict[str, Rate]:
    """Every part in turns, for about `part_s` in all and at most an epoch a round; the first round only warms up."""
    parts = _Parts(made, round_s=part_s / ROUNDS)
    takes = parts.all()
    steps = {name: parts.steps_for_a_round(run) for name, run in takes.items()}
    rates: dict[str, list[float]] = {name: [] for name in takes}
    for number in range(ROUNDS + 1):
        for name, run in takes.items():
            rate = parts.timed(run, steps[name])
            if number:
                rates[name].append(rate)
    return {
        name: Rate(images_per_s=median(each), low=min(each), high=max(each), rounds=len(each))
        for name, each in rates.items()
    }


Run = Callable[[int], int]
"""Runs so many steps and returns how many images they had, over all processes."""


class _Parts:
    """The parts of a training as functions of a number of steps."""

    def __init__(self, made: Assembly, *, round_s: float) -> None:
        self.round_s = round_s
        self.made, self.step, self.feed, self.workers = made, made.step, made.feed, made.workers
        self.update, self.epoch = 0, 0
        self.noise_every = made.step.noise.every_updates
        self.batch = next(self.feed.batches.steps(self.feed.slicing, epoch=1))
        self.prepared = self._prepared()
        gradients = made.cost["gradient_bytes"] // 4
        self.message = torch.zeros(gradients if self.workers.size > 1 else 0, device=self.workers.device)

    def all(self) -> dict[str, Run]:
        """By name, the ones that apply."""
        runs: dict[str, Run] = {"augmentation": self.augmentation, "input": self.input, "model": self.model}
        if self.feed.keeps_training:  # then training takes no images in
            del runs["augmentation"], runs["input"]
        if self.workers.size > 1:
            runs["all_reduce"] = self.all_reduce
        return {**runs, "training": self.training}

    def timed(self, run: Run, steps: int) -> float:
        """Images a second."""
        self.workers.barrier()
        synchronize(self.workers.device)
        start = time.perf_counter()
        images = run(steps)
        synchronize(self.workers.device)
        self.workers.barrier()
        return images / (time.perf_counter() - start)

    def steps_for_a_round(self, run: Run) -> int:
        """All processes take the same number, process 0's."""
        run(MIN_STEPS)
        per_step_s = self.batch.global_size / self.timed(run, MIN_STEPS)
        most = max(MIN_STEPS, self.made.steps_per_epoch - 1)  # the last step of an epoch is smaller
        wanted = max(MIN_STEPS, round(self.round_s / per_step_s))
        if run == self.training:  # as many measured steps in every round as training has on average
            whole = -(-wanted // self.noise_every) * self.noise_every
            wanted = whole if whole * per_step_s < MAX_ROUND * self.round_s else wanted
        steps = torch.tensor([min(most, wanted)], device=self.workers.device)
        self.workers.broadcast(steps)
        return int(steps.item())

    def augmentation(self, steps: int) -> int:
        for _ in range(steps):
            self.feed.inputs.varied(self.batch, epoch=1)
        return steps * self.batch.global_size

    def input(self, steps: int) -> int:
        images = 0
        for batch in self._fresh(steps):
            self.feed.inputs.varied(batch, epoch=self.epoch)
            images += batch.global_size
        return images

    def model(self, steps: int) -> int:
        for batch in itertools.islice(self._replayed(), steps):
            self._update(batch, update=NOT_MEASURED)
        return steps * self.batch.global_size

    def all_reduce(self, steps: int) -> int:
        for _ in range(steps):
            self.workers.sum(self.message)
        return steps * self.batch.global_size

    def training(self, steps: int) -> int:
        """As loop.py does it."""
        self.epoch += 1
        images, timer = 0, self.step.timer
        batches = self.feed.steps(epoch=self.epoch, first_update=self.update)
        for _ in range(steps):
            timer.begin(self.update, epoch=self.epoch)
            batch = next(batches, None)
            if batch is None:
                break
            timer.mark("wait")
            self._update(batch, update=self.update)
            self.update += 1
            images += batch.global_size
        timer.spans()
        return images

    def _fresh(self, steps: int) -> Iterator[StepBatch]:
        self.epoch += 1
        return itertools.islice(self.feed.batches.steps(self.feed.slicing, epoch=self.epoch), steps)

    def _update(self, batch: StepBatch, *, update: int) -> None:
        """With a learning rate of zero: it computes everything and moves nothing."""
        self.step(batch, epoch=max(1, self.epoch), update=update, learning_rate=0.0)

    def _prepared(self) -> torch.Tensor:
        """What the network takes: of one step, or of as many as a frozen backbone sees at once."""
        backbone = self.feed.backbone
        images = self.feed.inputs.varied(self.batch, epoch=1)
        if backbone is None:
            return images
        if self.feed.keeps_training:
            return backbone(images)
        return torch.cat([images] * backbone.steps_at_once).contiguous(memory_format=torch.channels_last)

    def _replayed(self) -> Iterator[StepBatch]:
        """Steps whose images are there already; a frozen backbone computes them as in training."""
        backbone = self.feed.backbone
        while True:
            if backbone is None or self.feed.keeps_training:
                yield replace(self.batch, features=self.prepared)
                continue
            for features in torch.split(backbone(self.prepared), len(self.batch.ids)):
                yield replace(self.batch, features=features)
