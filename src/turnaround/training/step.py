"""One update over the workers that this process hosts.

Gradients are those of (sum of the losses of all images of the step) / (number of those images), whatever the number of
workers and processes and however unequal their slices.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turnaround.data.batches import StepBatch
from turnaround.data.inputs import Inputs
from turnaround.model.grouped_norm import by_worker
from turnaround.model.network import Network
from turnaround.recipe import TrainingRecipe
from turnaround.training.choices import PrecisionChoice, autocast
from turnaround.training.clock import synchronize
from turnaround.training.faults import FaultTarget
from turnaround.training.graph import NOT_POSSIBLE, GraphedPass, can_capture, worth_it
from turnaround.training.noise import NoiseMeter, PassLengths, squared_length
from turnaround.training.statistics import RunningStatistics
from turnaround.training.step_timer import StepTimer
from turnaround.workers.contract import Workers

MAX_IMAGES_PER_FUSED_PASS = 512
"""More would not be faster, and might not fit."""
PROBED_PART = 4
"""One in this many images of a step is computed once more for the noise scale."""


@dataclass(frozen=True, kw_only=True)
class StepComponents:
    """What a step is made of; made once in run.py."""

    network: Network
    learner: nn.Module
    """What learns: the network, or of a frozen one the last layer."""
    wrapped: nn.Module
    """The same, as the engine has wrapped it."""
    workers: Workers
    optimizer: torch.optim.Optimizer
    inputs: Inputs
    precision: PrecisionChoice
    recipe: TrainingRecipe
    is_compiled: bool = False


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Some of the hosted workers, computed together."""

    first_worker: int
    sizes: tuple[int, ...]
    """Images of each worker."""
    start: int
    """Where their images begin in the process's slice of the step."""

    @property
    def stop(self) -> int:
        return self.start + sum(self.sizes)


class Step:
    """Calls itself on every batch; keeps the epoch's sums on the device, so that no step waits for the host."""

    def __init__(self, parts: StepComponents, timer: StepTimer, noise: NoiseMeter) -> None:
        self.parts, self.timer, self.noise = parts, timer, noise
        self.statistics = RunningStatistics(parts.network.batch_norms(), parts.workers)
        self.scaler = torch.amp.GradScaler(parts.workers.device.type, enabled=parts.precision.scales_loss)
        self.is_random = parts.network.is_random()
        # Dropout is seeded worker by worker, and a compiled network does not see by_worker.
        has_norms = bool(parts.network.batch_norms())
        self.fuses_workers = not self.is_random and not (parts.is_compiled and has_norms)
        self.totals = self._zero()
        self.learning = [p for p in parts.network.module.parameters() if p.requires_grad]
        self.pass_lengths = PassLengths(self.learning)
        self.needs_probe = needs_probe(parts.network, parts.workers)
        self.fewest_measured = 4 if self.needs_probe else 2  # images: a batch norm needs two
        self.fault_target = FaultTarget(module=parts.network.module)
        self.graph: GraphedPass | None = None
        self.graph_choice = NOT_POSSIBLE
        self._graphed: tuple[tuple[int, ...], int] = ((), 0)

    def __call__(self, batch: StepBatch, *, epoch: int, update: int, learning_rate: float) -> None:
        parts, timer = self.parts, self.timer
        images = parts.inputs.varied(batch, epoch=epoch) if batch.features is None else batch.features
        timer.mark("copy")
        is_measured = self.noise.is_due(update) and batch.global_size >= self.fewest_measured
        is_probed = is_measured and self.needs_probe
        passes = self._passes(batch, in_two=is_measured and parts.workers.size == 1)
        self.statistics.begin_step(is_one_pass=len(passes) == 1 and not is_probed)
        small = self._probe(images, batch.labels) if is_probed else None
        squares = []
        for a_pass in passes:
            self._seed_dropout(update, a_pass)
            with nullcontext() if a_pass is passes[-1] else parts.workers.deferred(parts.wrapped):
                length = self._pass(a_pass, images, batch, is_measured=is_measured)
            if length is not None:
                squares.append((length, sum(a_pass.sizes)))
            self.statistics.end_pass(num_workers=len(a_pass.sizes))
        self.statistics.end_step()
        if is_measured:
            self._observe_noise(update, batch.global_size, squares, small)
        timer.mark("compute")
        self._update(learning_rate)
        timer.mark("update")

    def _pass(self, a_pass: Pass, images: Tensor, batch: StepBatch, *, is_measured: bool) -> Tensor | None:
        """Forward and backward over some of the hosted workers; the squared length of its gradient when asked for."""
        self.statistics.begin_pass()
        images, labels = images[a_pass.start : a_pass.stop], batch.labels[a_pass.start : a_pass.stop]
        if self.graph is not None and not is_measured and self._graphed == (a_pass.sizes, batch.global_size):
            self.graph(images, labels)
            return None
        return self._forward_backward(a_pass.sizes, images, labels, batch.global_size, is_measured=is_measured)

    def _forward_backward(
        self, sizes: tuple[int, ...], images: Tensor, labels: Tensor, global_size: int, *, is_measured: bool = False
    ) -> Tensor | None:
        with by_worker(sizes) if len(sizes) > 1 else nullcontext():
            logits = self._forward(images)
        if is_measured:
            self.pass_lengths.begin()
        self._backward(logits, labels, global_size)
        return self.pass_lengths.take() if is_measured else None

    def _seed_dropout(self, update: int, a_pass: Pass) -> None:
        if self.is_random:
            torch.manual_seed(_dropout_seed(self.parts.recipe.seed, update, a_pass.first_worker))

    def warm_up(self, batch: StepBatch) -> None:
        """Passes over a full batch that leave nothing behind: no statistics, no gradients, no totals, no update.

        The first loads and compiles, the second is timed, and where the host is the limit a third is recorded.
        """
        images = self.parts.inputs.varied(batch, epoch=1) if batch.features is None else batch.features
        passes = self._passes(batch, in_two=False)
        self.statistics.begin_step(is_one_pass=False)
        for _ in range(2):
            begun_s = time.perf_counter()
            for a_pass in passes:
                with nullcontext() if a_pass is passes[-1] else self.parts.workers.deferred(self.parts.wrapped):
                    self._pass(a_pass, images, batch, is_measured=False)
            queueing_s = time.perf_counter() - begun_s
            synchronize(self.parts.workers.device)
            whole_s = time.perf_counter() - begun_s
            self.parts.optimizer.zero_grad(set_to_none=True)
        if self.can_capture_graph(batch):
            self.graph_choice = worth_it(queueing_s=queueing_s, whole_s=whole_s)
        if self.graph_choice.value:
            self._record(passes[0].sizes, images, batch)
        self.statistics.begin_pass()  # back to where they were
        self.totals.zero_()

    def can_capture_graph(self, batch: StepBatch) -> bool:
        """Whether a step like this one could be a graph, if the host is the limit."""
        workers, simple = self.parts.workers, not (self.is_random or self.scaler.is_enabled())
        return can_capture(workers.device) and workers.size == 1 and len(self.pass_images(batch)) == 1 and simple

    def pass_images(self, batch: StepBatch) -> list[int]:
        """Over how many images each pass of an ordinary step goes."""
        return [sum(a_pass.sizes) for a_pass in self._passes(batch, in_two=False)]

    def _record(self, sizes: tuple[int, ...], images: Tensor, batch: StepBatch) -> None:
        def run(images: Tensor, labels: Tensor) -> None:
            self._forward_backward(sizes, images, labels, batch.global_size)

        self.graph = GraphedPass(run, images, batch.labels, self.learning)
        self._graphed = (sizes, batch.global_size)

    def take_totals(self) -> Tensor:
        """(sum of losses, number right, number of images) since the last call, over all processes."""
        totals = self.totals.clone()
        self.totals.zero_()  # in place: a recorded pass adds to this very tensor
        self.parts.workers.sum(totals)
        return totals

    def totals_by_process(self) -> list[list[float]]:
        """The same of every process, without forgetting them: what a checkpoint within an epoch keeps."""
        workers = self.parts.workers
        rows = self.totals.new_zeros(workers.size, len(self.totals))
        rows[workers.rank] = self.totals
        workers.sum(rows)
        return rows.tolist()

    def restore_totals(self, rows: list[list[float]]) -> None:
        """Each process its own; of another number of processes, process 0 takes them all."""
        workers = self.parts.workers
        if len(rows) != workers.size:
            nothing = [0.0] * len(self.totals)
            rows = [[sum(column) for column in zip(nothing, *rows, strict=True)], *[nothing] * (workers.size - 1)]
        self.totals.copy_(torch.tensor(rows[workers.rank], dtype=self.totals.dtype))

    def is_finite(self) -> bool:
        """Whether every number of the network is one; the host waits for it."""
        values = [v for v in self.parts.network.module.state_dict().values() if v.is_floating_point()]
        return bool(torch.stack([torch.isfinite(v).all() for v in values]).all())

    def _passes(self, batch: StepBatch, *, in_two: bool) -> list[Pass]:
        """As many hosted workers together as fit, or one at a time where they cannot be fused."""
        workers_here = len(batch.worker_sizes)
        if in_two and workers_here == 1 and not self.needs_probe:  # nothing couples its images: halves add up to it
            first, rest = batch.worker_sizes[0] // 2, batch.worker_sizes[0] - batch.worker_sizes[0] // 2
            return [Pass(first_worker=0, sizes=(first,), start=0), Pass(first_worker=0, sizes=(rest,), start=first)]
        together = max(1, MAX_IMAGES_PER_FUSED_PASS // max(batch.worker_sizes)) if self.fuses_workers else 1
        if in_two:
            together = min(together, -(-workers_here // 2))
        passes, start = [], 0
        for i in range(0, workers_here, together):
            sizes = batch.worker_sizes[i : i + together]
            passes.append(Pass(first_worker=self.parts.workers.hosted[i], sizes=sizes, start=start))
            start = passes[-1].stop
        return passes

    def _forward(self, images: Tensor) -> Tensor:
        with autocast(self.parts.workers.device, self.parts.precision):
            return cast(Tensor, self.parts.wrapped(images))

    def _backward(self, logits: Tensor, labels: Tensor, global_size: int) -> None:
        parts = self.parts
        loss = loss_sum(logits.to(parts.precision.parameters), labels, parts.recipe)
        # The engine averages over processes, so each one multiplies by their number to give the sum.
        self.scaler.scale(loss * (parts.workers.size / global_size)).backward()  # type: ignore[no-untyped-call]
        right = (logits.argmax(dim=1) == labels).sum()
        self.totals += torch.stack(
            [loss.detach().to(self.totals), right.to(self.totals), self.totals.new_full((), len(labels))]
        )

    def _probe(self, images: Tensor, labels: Tensor) -> tuple[Tensor, int]:
        """Squared length of the mean gradient over the first images; nothing is learnt from it."""
        first = max(2, len(labels) // PROBED_PART)
        loss = loss_sum(
            self._forward(images[:first]).to(self.parts.precision.parameters), labels[:first], self.parts.recipe
        )
        gradients = torch.autograd.grad(loss / first, self.learning, allow_unused=True)
        return squared_length([g for g in gradients if g is not None]), first

    def _observe_noise(
        self, update: int, global_size: int, squares: list[tuple[Tensor, int]], probed: tuple[Tensor, int] | None
    ) -> None:
        """Turns the squared lengths of this step's passes into one measurement, over all processes."""
        workers = self.parts.workers
        scale = self.scaler._scale if self.scaler.is_enabled() and self.scaler._scale is not None else 1.0
        if probed is not None:
            sums = torch.stack([probed[0], probed[0].new_full((), 1 / probed[1]), probed[0].new_ones(())])
        else:
            # A pass's gradient is that of its sum of losses x processes / global size: back to the mean of its images.
            to_mean = global_size / workers.size / scale
            parts = [torch.stack([s * (to_mean / n) ** 2, s.new_full((), 1 / n), s.new_ones(())]) for s, n in squares]
            sums = torch.stack(parts).sum(dim=0)
        workers.sum(sums)
        small, inverse_size = sums[0] / sums[2], sums[1] / sums[2]
        big = squared_length([p.grad for p in self.learning if p.grad is not None]) / scale**2
        self.noise.observe(update=update, small=small, big=big, small_size=1 / inverse_size, big_size=global_size)

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


def needs_probe(network: Network, workers: Workers) -> bool:
    """One worker whose images cannot be taken apart needs an additional pass for its noise scale to be measured."""
    return workers.count == 1 and network.couples_images()


def loss_sum(logits: Tensor, labels: Tensor, recipe: TrainingRecipe) -> Tensor:
    """The sum, not the mean: sums of slices add up to the sum of the global batch."""
    if recipe.loss == "mse":
        wanted = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
        return (logits.softmax(dim=1) - wanted).square().mean(dim=1).sum()
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=recipe.label_smoothing)


def _dropout_seed(seed: int, update: int, worker: int) -> int:
    """Dropout follows the worker, not the process, so that it is the same on any number of processes."""
    return ((seed * 1_000_003 + update) * 1_000_003 + worker) % 2**63
