"""Ceilings on this machine for this recipe: each part of a training alone, and all of them together.

Enters: an `Assembly`. Leaves: images/s by part, over all processes, with their spread; `TrainingPower` adds the watts.

    augmentation   the same batch varied and normalised again and again
    input          the batches of an epoch as the network takes them, without a network
    backbone       a frozen network whose features are kept: its one pass over the images, in place of the two above
    model          the network's steps on images that are there already: what training could reach at most
    all_reduce     as many bytes as the gradients have, averaged over the processes
    training       the real thing

The parts take turns, so that whatever else the machine does hits all of them.

What a step asks of any GPU is counted beside it, on whatever device is here: a `Footprint`, from which
forecast/prior.py estimates time and memory on GPUs that nobody has tried.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import nn

from turnaround.data.batches import StepBatch
from turnaround.training.assembly import Assembly
from turnaround.training.clock import synchronize
from turnaround.training.fitting import KeptForBackward
from turnaround.training.position import TrainingPosition

ROUNDS = 5
MIN_STEPS = 4
ENOUGH_S = 20.0
"""No further round begins after this time and twice what was asked for: a network that takes seconds for a step is
measured in fewer rounds."""
MAX_ROUND = 4
"""Times as long as was asked for, where whole periods of the noise scale's measurement need it."""
NOT_MEASURED = 1
"""A step whose noise scale is not measured: the model alone is what the network costs."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Images a second: the median over rounds, and the slowest and fastest round."""

    images_per_s: float
    low: float
    high: float
    rounds: int


class TrainingPower:
    """The mean power of a GPU over the rounds of training, by its energy counter; no power where it has none."""

    def __init__(self, used_j: Callable[[], float | None] = lambda: None) -> None:
        """`used_j` returns the joules that the GPU has used until now; None where they are not known."""
        self._used_j = used_j
        self._joules, self._time_s, self._is_known = 0.0, 0.0, True

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what is used within."""
        # The counter of an H200 moves every 107 ms (docs/LOG.md), at any phase of a round: of five rounds of 0.4 s the
        # sum is right within about 5 %.
        begun_j, begun_s = self._used_j(), time.perf_counter()
        yield
        ended_j = self._used_j()
        if begun_j is None or ended_j is None:
            self._is_known = False
            return
        self._joules += ended_j - begun_j
        self._time_s += time.perf_counter() - begun_s

    @property
    def watts(self) -> float | None:
        return self._joules / self._time_s if self._is_known and self._joules > 0 and self._time_s > 0 else None


def measure(assembly: Assembly, *, part_s: float, power: TrainingPower | None = None) -> dict[str, Rate]:
    """Measure every part in turns, for about `part_s` in all and at most an epoch a round; the first round warms up."""
    power = power or TrainingPower()
    parts = _BenchParts(assembly, round_s=part_s / ROUNDS)
    takes = parts.all()
    steps = {name: parts.steps_for_a_round(run) for name, run in takes.items()}
    rates: dict[str, list[float]] = {name: [] for name in takes}
    begun_s = time.perf_counter()
    for number in range(ROUNDS + 1):
        if number > 1 and parts.agreed(time.perf_counter() - begun_s) > ENOUGH_S + 2 * part_s * len(takes):
            break
        for name, run in takes.items():
            with power.counted() if number and name == "training" else nullcontext():
                rate = parts.timed(run, steps[name])
            if number:
                rates[name].append(rate)
    return {
        name: Rate(images_per_s=median(each), low=min(each), high=max(each), rounds=len(each))
        for name, each in rates.items()
    }


Run = Callable[[int], int]
"""Runs so many steps and returns how many images they had, over all processes."""


class _BenchParts:
    """The parts of a training as functions of a number of steps."""

    def __init__(self, assembly: Assembly, *, round_s: float) -> None:
        core = assembly.core
        self.round_s = round_s
        self.batches, self.slicing, self.feed = assembly.batches, assembly.slicing, assembly.feed
        self.workers, self.step, self.inputs = core.workers, core.step, core.inputs
        self.backbone = core.learner.backbone
        self.steps_per_epoch, self.noise_every = core.steps_per_epoch, core.step.meter.every_steps
        self.global_step, self.epoch = 0, 0
        self.batch = next(self.batches.steps(self.slicing, epoch=1))
        self.prepared = self._prepared()
        self.labels = self.inputs.labels(self.batch, epoch=1)
        gradients = core.cost["gradient_bytes"] // 4
        self.message = torch.zeros(gradients if self.workers.size > 1 else 0, device=self.workers.device)

    def all(self) -> dict[str, Run]:
        """Return the parts that apply, by name."""
        runs: dict[str, Run] = {"augmentation": self.augmentation, "input": self.input, "model": self.model}
        if self.feed.keeps_training:  # then training takes no images in
            del runs["augmentation"], runs["input"]
            runs["backbone"] = self.frozen_pass
        if self.workers.size > 1:
            runs["all_reduce"] = self.all_reduce
        return {**runs, "training": self.training}

    def agreed(self, value: float) -> float:
        """Return process 0's value on every process: all take the same number of steps and rounds."""
        told = torch.tensor([value], device=self.workers.device, dtype=torch.float32)
        self.workers.broadcast(told)
        return float(told.item())

    def timed(self, run: Run, steps: int) -> float:
        """Return the images a second of so many steps."""
        self.workers.barrier()
        synchronize(self.workers.device)
        start = time.perf_counter()
        images = run(steps)
        synchronize(self.workers.device)
        self.workers.barrier()
        return images / (time.perf_counter() - start)

    def steps_for_a_round(self, run: Run) -> int:
        """Return how many steps a round has, the same on all processes."""
        # A frozen backbone computes several steps at once: fewer would pay for all of them.
        backbone = None if self.feed.keeps_training else self.backbone
        least = 1 if backbone is None else backbone.steps_at_once
        run(least)  # allocates, and tries kernels
        per_step_s = self.agreed(self.batch.global_size / self.timed(run, least))
        if per_step_s * least > self.round_s:
            return least  # one pass is a round: more would take minutes
        run(MIN_STEPS)
        per_step_s = self.batch.global_size / self.timed(run, MIN_STEPS)
        most = max(MIN_STEPS, self.steps_per_epoch - 1)  # the last step of an epoch is smaller
        wanted = max(MIN_STEPS, round(self.round_s / per_step_s))
        if run == self.training:  # as many measured steps in every round as training has on average
            whole = -(-wanted // self.noise_every) * self.noise_every
            wanted = whole if whole * per_step_s < MAX_ROUND * self.round_s else wanted
        return round(self.agreed(min(most, wanted)))

    def augmentation(self, steps: int) -> int:
        for _ in range(steps):
            self.inputs.varied(self.batch, epoch=1)
        return steps * self.batch.global_size

    def input(self, steps: int) -> int:
        images = 0
        for batch in self._fresh(steps):
            self.inputs.varied(batch, epoch=self.epoch)
            images += batch.global_size
        return images

    def frozen_pass(self, steps: int) -> int:
        assert self.backbone is not None, "features are kept of a frozen backbone"
        for _ in range(steps):
            self.backbone(self.inputs.varied(self.batch, epoch=1))
        return steps * self.batch.global_size

    def model(self, steps: int) -> int:
        for batch in itertools.islice(self._replayed(), steps):
            self._update(batch, self._position(NOT_MEASURED))
        return steps * self.batch.global_size

    def all_reduce(self, steps: int) -> int:
        for _ in range(steps):
            self.workers.sum(self.message)
        return steps * self.batch.global_size

    def training(self, steps: int) -> int:
        """Train as loop.py does."""
        self.epoch += 1
        images, timer = 0, self.step.timer
        batches = self.feed.steps(self._position(self.global_step))
        for _ in range(steps):
            position = self._position(self.global_step)
            timer.begin(position)
            batch = next(batches, None)
            if batch is None:
                break
            timer.mark("wait")
            self._update(batch, position)
            self.global_step += 1
            images += batch.global_size
        timer.spans()
        return images

    def _fresh(self, steps: int) -> Iterator[StepBatch]:
        self.epoch += 1
        return itertools.islice(self.batches.steps(self.slicing, epoch=self.epoch), steps)

    def _update(self, batch: StepBatch, position: TrainingPosition) -> None:
        """Take a step with a learning rate of zero: it computes everything and moves nothing."""
        self.step(batch, position, learning_rate=0.0)

    def _position(self, global_step: int) -> TrainingPosition:
        """Return a position in the present epoch; a round is at most an epoch long, and begins one."""
        return TrainingPosition(epochs_done=max(1, self.epoch) - 1, global_step=global_step)

    def _prepared(self) -> torch.Tensor:
        """Return what the network takes in: one step, or as many as a frozen backbone sees at once."""
        backbone = self.backbone
        images = self.inputs.varied(self.batch, epoch=1)
        if backbone is None:
            return images
        if self.feed.keeps_training:
            return backbone(images)
        return torch.cat([images] * backbone.steps_at_once).contiguous(memory_format=torch.channels_last)

    def _replayed(self) -> Iterator[StepBatch]:
        """Steps whose images are there already; a frozen backbone computes them as in training."""
        backbone = self.backbone
        while True:
            if backbone is None or self.feed.keeps_training:
                yield replace(self.batch, features=self.prepared, labels=self.labels)
                continue
            for features in torch.split(backbone(self.prepared), len(self.batch.ids)):
                yield replace(self.batch, features=features)


# --- what a step asks of any GPU


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes in fp32; half precision has half of the activations'."""

    activation_bytes_per_image: int
    """Kept for a backward pass when every layer learns."""
    largest_activation_bytes: int
    """The largest tensor among them, of one image."""
    kept_tensors: int
    """Number of them: a measure of the kernels that a step launches."""
    weight_bytes: int
    trained_bytes: int
    """Weights that learn."""


def count_footprint(module: nn.Module, *, size_px: int) -> Footprint:
    """Count one forward pass in which every layer learns; the network is left as it was.

    One image, in evaluation mode: batch norm keeps the same tensors as in training, and its statistics stay.
    """
    weights = list(module.parameters())
    learns = [weight.requires_grad for weight in weights]
    was_training = {child: child.training for child in module.modules()}
    kept = KeptForBackward(iter(weights))
    image = torch.zeros(1, 3, size_px, size_px, device=weights[0].device, dtype=weights[0].dtype)
    try:
        module.eval()
        for weight in weights:
            weight.requires_grad_(True)
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
            output = module(image)
        del output  # the graph, and with it what was kept
    finally:
        for weight, own in zip(weights, learns, strict=True):
            weight.requires_grad_(own)
        for child, own in was_training.items():
            child.training = own
    in_fp32 = 4 / weights[0].element_size()
    return Footprint(
        activation_bytes_per_image=round(kept.num_bytes * in_fp32),
        largest_activation_bytes=round(kept.largest_bytes * in_fp32),
        kept_tensors=kept.num_tensors,
        weight_bytes=4 * sum(weight.numel() for weight in weights),
        trained_bytes=4 * sum(weight.numel() for weight, own in zip(weights, learns, strict=True) if own),
    )
