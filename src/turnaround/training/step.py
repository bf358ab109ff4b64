"""One update over the workers that this process hosts.

Gradients are those of (sum of the losses of all images of the step) / (number of those images), whatever the number of
workers and processes and however unequal their slices.

    Step              the order of things: inputs, passes, statistics, update
    RunningStatistics batch norm's running means: the mean over workers (averages.py)
    NoiseMeasurement  the gradient noise scale, in one step of several (noise.py)
    GraphCapture      passes as CUDA graphs (graph.py)
    TrainingState     what a checkpoint keeps of it (saving.py)
    UpdateGraph       the optimizer's update, as a CUDA graph where it has many launches (graph.py)
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turnaround.data.batches import StepBatch
from turnaround.data.inputs import Inputs
from turnaround.data.mixing import Labels, MixedLabels, dominant
from turnaround.data.pixels import Pixels
from turnaround.model.grouped_norm import by_worker
from turnaround.model.network import Network
from turnaround.recipe import TrainingRecipe
from turnaround.training.averages import EvaluatedWeights, RunningStatistics
from turnaround.training.choices import Precision, autocast
from turnaround.training.clock import StepTimer, synchronize
from turnaround.training.faults import FaultTarget, strike
from turnaround.training.graph import GraphCapture, PassShape, UpdateGraph, can_capture, worth_it
from turnaround.training.noise import NoiseMeasurement, NoiseMeter
from turnaround.training.position import TrainingPosition
from turnaround.training.saving import TrainingState
from turnaround.workers.contract import Workers

MAX_IMAGES_PER_FUSED_PASS = 512
"""A pass takes whole workers up to this many images, and one worker alone whatever its size. More would not be faster,
and might not fit."""
FULL_SIZE_PX = 112
MAX_SMALL_IMAGES_PER_FUSED_PASS = 4_096
"""A GPU takes more images that are smaller than 112 px, as many as have the same pixels in all, up to this number:
passes of 512 images of 32 px leave most of an H200 idle (docs/LOG.md). By the size alone, not by the memory that is
free: a pass of other images rounds otherwise, and a resume must not."""


@dataclass(frozen=True, kw_only=True)
class StepComponents:
    """The parts that a step calls; made once in assembly.py."""

    network: Network
    learner: nn.Module
    """The module that learns: the network, or the last layer of a frozen one."""
    wrapped: nn.Module
    """The learner as the engine has wrapped it: its backward pass averages gradients over processes (all-reduce)."""
    workers: Workers
    optimizer: torch.optim.Optimizer
    inputs: Inputs
    precision: Precision
    recipe: TrainingRecipe
    evaluated: EvaluatedWeights
    is_compiled: bool = False
    class_weights: Tensor | None = None
    """(classes,): what an image's loss is multiplied by in training, by its class; None: 1 for all."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Some of the hosted workers, computed together."""

    first_worker: int
    sizes: tuple[int, ...]
    """Images of each worker."""
    start: int
    """Index of their first image in the process's slice of the step."""

    @property
    def stop(self) -> int:
        return self.start + sum(self.sizes)

    @property
    def own(self) -> slice:
        """Its images in the process's slice of the step."""
        return slice(self.start, self.stop)


class EpochTotals:
    """Sums over the steps of the epoch in progress, kept on the device, so that no step waits for the host."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        # float64: float32 sums of a million losses would lose digits; Apple's GPUs have no float64.
        dtype = torch.float32 if workers.device.type == "mps" else torch.float64
        self.sums = torch.zeros(3, device=workers.device, dtype=dtype)  # losses, number right, number of images

    def add(self, loss: Tensor, right: Tensor, *, num_images: int) -> None:
        """Add a pass. In place, as everything here: a CUDA graph adds to this very tensor."""
        sums = self.sums  # (3,)
        sums += torch.stack([loss.to(sums), right.to(sums), sums.new_full((), num_images)])

    def take(self) -> Tensor:
        """Return the sums since the last call, over all processes, and start anew."""
        sums = self.sums.clone()
        self.sums.zero_()
        self.workers.sum(sums)
        return sums

    def by_process(self) -> list[list[float]]:
        """Return the sums of every process and keep them: a checkpoint within an epoch stores them."""
        # A gather made of a sum: each process fills its own row, and zeros from the others change no bit of it.
        rows = self.sums.new_zeros(self.workers.size, len(self.sums))  # (processes, 3)
        rows[self.workers.rank] = self.sums
        self.workers.sum(rows)
        return rows.tolist()

    def restore(self, rows: list[list[float]]) -> None:
        """Give each process its own sums; those of another number of processes all go to process 0."""
        if len(rows) != self.workers.size:
            # Only the sum over processes is ever read (`take`), so it does not matter which of them holds it.
            nothing = [0.0] * len(self.sums)
            together = [sum(column) for column in zip(nothing, *rows, strict=True)]
            rows = [together, *[nothing] * (self.workers.size - 1)]
        self.sums.copy_(torch.tensor(rows[self.workers.rank], dtype=self.sums.dtype))


class Step:
    """Callable: one update per call."""

    def __init__(self, components: StepComponents, timer: StepTimer, meter: NoiseMeter) -> None:
        network, workers = components.network, components.workers
        self.components, self.timer, self.meter = components, timer, meter
        self.learning = [p for p in network.module.parameters() if p.requires_grad]
        self.statistics = RunningStatistics(network.batch_norms(), workers)
        self.noise = NoiseMeasurement(meter, network, workers, learning=self.learning)
        self.graph = GraphCapture()
        self.update_graph = UpdateGraph(components.optimizer)
        self.totals = EpochTotals(workers)
        self._fault_target = FaultTarget(workers=workers)
        self.scaler = torch.amp.GradScaler(workers.device.type, enabled=components.precision.scales_loss)
        self.state = TrainingState(
            network.module,
            components.optimizer,
            evaluated=components.evaluated,
            scaler=self.scaler,
            meter=meter,
            on_restore=self.update_graph.forget,
        )
        self.is_random = network.is_random()
        # Hosted workers share a pass, unless dropout is seeded worker by worker, or torch.compile bypasses the
        # by_worker function mode that keeps batch norm's statistics apart.
        has_norms = bool(network.batch_norms())
        self.fuses_workers = not self.is_random and not (components.is_compiled and has_norms)

    def __call__(self, batch: StepBatch, position: TrainingPosition, *, learning_rate: float) -> None:
        workers, number = self.components.workers, position.global_step
        images, batch = self._inputs(batch, epoch=position.epoch)
        self.timer.mark("copy")
        strike("compute", step=number + 1, target=self._fault_target)
        # Decided by the step's number and size, which all processes share: a measured step has one more all-reduce.
        is_measured = self.noise.is_due(number, global_size=batch.global_size)
        # By a probe, which leaves the passes as they are, or by the passes: one process takes its workers in two of
        # them; of several processes, each has one size already.
        is_probed = is_measured and self.noise.needs_probe
        by_passes = is_measured and not is_probed
        passes = self._passes(batch, in_two=by_passes and workers.size == 1)
        # The probe's forward moves batch norm's running statistics too, so a probed step keeps a copy to go back to.
        self.statistics.begin_step(is_one_pass=len(passes) == 1 and not is_probed)
        # The probe comes first: every pass resets statistics and seeds dropout after it, so measuring a step does not
        # change what is learnt from it.
        if is_probed:
            self._probe(images, batch)
        for a_pass in passes:
            self._seed_dropout(number, a_pass)
            # Gradients add up here; the last pass averages the sum over processes, hidden behind its own backward.
            with nullcontext() if a_pass is passes[-1] else workers.deferred(self.components.wrapped):
                self._pass(a_pass, images, batch, is_measured=by_passes, is_only_pass=len(passes) == 1)
            self.statistics.end_pass(num_workers=len(a_pass.sizes))
        self.statistics.end_step()
        # Between the last backward, which leaves the averaged gradients, and the update, which drops them.
        if is_measured:
            self.noise.end_step(number, global_size=batch.global_size, loss_scale=self._loss_scale())
        self.timer.mark("compute")
        self._update(learning_rate)
        self.components.evaluated.update(number)
        self.timer.mark("update")

    def warm_up(self, batch: StepBatch) -> None:
        """Run forward and backward over a full batch; keep no statistics, gradients or totals, and make no update.

        The first round loads and compiles, the second is timed, and where the host is the limit a third is captured.
        """
        (images, batch), workers = self._inputs(batch, epoch=1), self.components.workers
        passes = self._passes(batch, in_two=False)
        # Not one pass, whatever their number: this keeps the copies that the end of the warm-up goes back to.
        self.statistics.begin_step(is_one_pass=False)
        for _ in range(2):  # the times below are those of the second round: the first one compiles
            begun_s = time.perf_counter()
            for a_pass in passes:
                with nullcontext() if a_pass is passes[-1] else workers.deferred(self.components.wrapped):
                    self._pass(a_pass, images, batch, is_measured=False, is_only_pass=len(passes) == 1)
            # Launches are asynchronous: up to here the host has only queued kernels, after it the GPU has run them.
            queueing_s = time.perf_counter() - begun_s
            synchronize(workers.device)
            whole_s = time.perf_counter() - begun_s
            self.components.optimizer.zero_grad(set_to_none=True)
        if self.can_capture_graph(batch):
            self.graph.choice = worth_it(queueing_s=queueing_s, whole_s=whole_s)
        if self.graph.choice.value:
            first = passes[0]
            self._capture(PassShape(first.sizes, batch.global_size), images[first.own], batch.labels[first.own])
        self.statistics.begin_pass()  # back to where they were
        self.totals.sums.zero_()

    def try_memory(self, batch: StepBatch) -> None:
        """Run a step and its update at rate 0 without a word to other processes: one that fails leaves none waiting.

        Statistics, totals and moments are those of no training afterwards: whoever calls this throws the step away.
        """
        (images, batch), workers = self._inputs(batch, epoch=1), self.components.workers
        passes = self._passes(batch, in_two=False)
        self.statistics.begin_step(is_one_pass=False)
        for a_pass in passes:
            with workers.deferred(self.components.wrapped):
                self._pass(a_pass, images, batch, is_measured=False, is_only_pass=len(passes) == 1)
        self._update(0.0)

    def can_capture_graph(self, batch: StepBatch) -> bool:
        """Tell whether a step like this one could be a CUDA graph, if the host is the limit."""
        workers, is_simple = self.components.workers, not (self.is_random or self.scaler.is_enabled())
        return can_capture(workers.device) and workers.size == 1 and is_simple

    def pass_images(self, batch: StepBatch) -> list[int]:
        """Return the number of images of each pass of an ordinary step."""
        return [sum(a_pass.sizes) for a_pass in self._passes(batch, in_two=False)]

    def _inputs(self, batch: StepBatch, *, epoch: int) -> tuple[Tensor, StepBatch]:
        """(N, 3, H, W) of all hosted workers, or the features (N, F) that a frozen backbone has made of them; and the
        batch with the labels that they have where images are mixed."""
        if batch.features is not None:
            return batch.features, batch
        inputs = self.components.inputs
        return inputs.varied(batch, epoch=epoch), replace(batch, labels=inputs.labels(batch, epoch=epoch))

    def _passes(self, batch: StepBatch, *, in_two: bool) -> list[Pass]:
        return plan_passes(batch, self.components.workers, fuses_workers=self.fuses_workers, in_two=in_two)

    def _pass(self, a_pass: Pass, images: Tensor, batch: StepBatch, *, is_measured: bool, is_only_pass: bool) -> None:
        """Compute some of the hosted workers forward and backward, from a graph where one was captured for them."""
        self.statistics.begin_pass()
        images, labels = images[a_pass.own], batch.labels[a_pass.own]
        shape = PassShape(a_pass.sizes, batch.global_size, "measure" if is_measured else "learn")
        length = self._replay_or_run(shape, images, labels, is_only_pass=is_only_pass)
        if length is not None:
            self.noise.add_pass(length, num_images=len(labels))

    def _probe(self, images: Tensor, batch: StepBatch) -> None:
        """Measure the noise scale by two halves of all images; nothing is learnt from it."""
        noise_and_signal = self._replay_or_run(
            PassShape(batch.worker_sizes, batch.global_size, "probe"), images, batch.labels, is_only_pass=True
        )
        assert noise_and_signal is not None
        self.noise.add_probe(noise_and_signal)

    def _replay_or_run(self, shape: PassShape, images: Tensor, labels: Labels, *, is_only_pass: bool) -> Tensor | None:
        """Return what a pass of this shape measures, from its graph where there is one; leave its gradients in the
        parameters."""
        if self.graph.count(shape):
            self._capture(shape, images, labels)
        captured = self.graph.find(shape)
        if captured is None:
            return self._run(shape, images, labels)
        return captured(images, labels, is_only_pass=is_only_pass)

    def _run(self, shape: PassShape, images: Tensor, labels: Labels) -> Tensor | None:
        """Compute a pass, launch by launch."""
        if shape.purpose == "probe":
            return self.noise.probe(self._loss, images, labels)
        with by_worker(shape.worker_sizes) if len(shape.worker_sizes) > 1 else nullcontext():
            logits = self._forward(images)  # (N, classes)
        if shape.purpose == "learn":
            self._backward(logits, labels, shape.global_size)
            return None
        # The hooks of the parameters see the gradients of this pass alone, before any engine averages them. Their
        # kernels are captured with the pass, so a replay measures as the ordinary way does.
        self.noise.begin_backward()
        self._backward(logits, labels, shape.global_size)
        return self.noise.end_backward()

    def _forward(self, images: Tensor) -> Tensor:
        with autocast(self.components.workers.device, self.components.precision):
            return cast(Tensor, self.components.wrapped(images))

    def _loss(self, images: Tensor, labels: Labels) -> Tensor:
        # The loss in the parameters' dtype: a sum of a batch's losses in bf16 (8 bits) or fp16 would be rounded away.
        logits = self._forward(images).to(self.components.precision.parameters)
        return loss_sum(logits, labels, self.components.recipe, self.components.class_weights)

    def _backward(self, logits: Tensor, labels: Labels, global_size: int) -> None:
        parts = self.components
        loss = loss_sum(logits.to(parts.precision.parameters), labels, parts.recipe, parts.class_weights)
        # The engine's all-reduce gives (1/P) sum_p g_p; with g_p = grad(loss_p x P / B) that is the gradient of
        # (sum of all losses) / B for any split of the B images: P = processes, B = global size.
        self.scaler.scale(loss * (parts.workers.size / global_size)).backward()  # type: ignore[no-untyped-call]
        right = (logits.argmax(dim=1) == dominant(labels)).sum()
        self.totals.add(loss.detach(), right, num_images=len(labels))

    def _capture(self, shape: PassShape, images: Tensor, labels: Labels) -> None:
        self.graph.capture(shape, partial(self._run, shape), images, labels, self.learning)

    def _seed_dropout(self, global_step: int, a_pass: Pass) -> None:
        """Seed by (seed, step, worker): a pass of a network that draws random numbers has one worker."""
        if self.is_random:
            torch.manual_seed(_dropout_seed(self.components.recipe.seed, global_step, a_pass.first_worker))

    def _loss_scale(self) -> float | Tensor:
        scale = self.scaler._scale if self.scaler.is_enabled() else None
        return 1.0 if scale is None else scale

    def _update(self, learning_rate: float) -> None:
        optimizer = self.components.optimizer
        if self.scaler.is_enabled():
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            self.scaler.step(optimizer)  # skips a step whose fp16 gradients overflowed
            self.scaler.update()
        else:
            self.update_graph.update(learning_rate)
        optimizer.zero_grad(set_to_none=True)  # the next backward writes instead of adding to zeros


def plan_passes(batch: StepBatch, workers: Workers, *, fuses_workers: bool, in_two: bool) -> list[Pass]:
    """Plan the passes: as many hosted workers together as fit, or one at a time where they cannot be fused.

    `in_two`: two passes at least, by which the noise scale is measured.
    """
    sizes = batch.worker_sizes
    if in_two and len(sizes) == 1:
        # Nothing couples its images: the gradients of its halves add up to its own. Losses are summed and divided
        # by the global size, so the halves need not be equal.
        half = sizes[0] // 2
        return [
            Pass(first_worker=0, sizes=(half,), start=0),
            Pass(first_worker=0, sizes=(sizes[0] - half,), start=half),
        ]
    # Features that are kept come without pixels: (0, 0, 0, 3) in place of (images, H, W, 3).
    side_px = None if batch.features is not None else batch.pixels.shape[1]
    most = max_images_per_pass(workers.device, side_px=side_px)
    # By the largest slice: the slices of a step differ by an image where the batch cannot be divided evenly.
    together = max(1, most // max(sizes)) if fuses_workers else 1
    if in_two:  # half of the workers, rounded up: at least two passes, which the estimator needs
        together = min(together, -(-len(sizes) // 2))
    # No more workers together than that many passes need: a graph that was captured for one pass serves all of its
    # shape, so 64 workers of which 49 fit are 32 and 32, not 49 and 15.
    together = -(-len(sizes) // -(-len(sizes) // together))
    passes: list[Pass] = []
    for i in range(0, len(sizes), together):
        start = passes[-1].stop if passes else 0
        passes.append(Pass(first_worker=workers.hosted[i], sizes=sizes[i : i + together], start=start))
    return passes


def max_images_per_pass(device: torch.device, *, side_px: int | None) -> int:
    """Return how many images workers may share a pass of; `side_px` is None for features of a frozen backbone."""
    if device.type != "cuda" or side_px is None or side_px >= FULL_SIZE_PX:
        return MAX_IMAGES_PER_FUSED_PASS
    as_many_pixels = int(MAX_IMAGES_PER_FUSED_PASS * (FULL_SIZE_PX / side_px) ** 2)
    return min(as_many_pixels, MAX_SMALL_IMAGES_PER_FUSED_PASS)


def loss_sum(logits: Tensor, labels: Labels, recipe: TrainingRecipe, class_weights: Tensor | None = None) -> Tensor:
    """Return the sum of the losses, not the mean: sums of slices add up to the sum of the global batch.

    A weight multiplies the whole loss of an image, smoothing included; nothing is divided by the sum of the weights:
    it differs from slice to slice. Their mean over the training images is 1.
    """
    if isinstance(labels, MixedLabels):
        return _mixed_loss_sum(logits, labels, recipe, class_weights)
    if recipe.loss == "mse":
        losses = _mse(logits, F.one_hot(labels, logits.shape[1]).to(logits.dtype))
        return losses.sum() if class_weights is None else (class_weights[labels] * losses).sum()
    smoothing = recipe.label_smoothing or 0.0
    if class_weights is None:
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
    losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    return (class_weights[labels] * losses).sum()


def class_weights(
    training: TrainingRecipe, pixels: Pixels, device: torch.device, precision: Precision
) -> Tensor | None:
    """Return what the loss of an image is multiplied by, by its class; None where all images weigh the same."""
    if training.class_weights == "none":
        return None
    counts = np.bincount(pixels.labels[: pixels.num_train], minlength=len(pixels.classes))
    # n / (classes x n_c), over the classes that have training images: the mean over all n images is then 1, so the
    # learning rate keeps its meaning. A class without images has no loss to weigh.
    weights = np.where(counts > 0, counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1)), 0.0)
    return torch.as_tensor(weights, dtype=precision.parameters, device=device)


def _mixed_loss_sum(
    logits: Tensor, labels: MixedLabels, recipe: TrainingRecipe, class_weights: Tensor | None
) -> Tensor:
    """Return the sum of the losses against soft labels.

    Cross entropy is linear in the target, smoothed or not: that of a mixed label is the mixture of two. The weight of a
    class counts as much as the class does.
    """
    parts = ((labels.first, labels.share), (labels.second, 1 - labels.share))
    # (N,) each: what the two labels of an image weigh.
    weights = [share if class_weights is None else share * class_weights[label] for label, share in parts]
    if recipe.loss == "mse":
        wanted = sum(share[:, None] * F.one_hot(label, logits.shape[1]) for label, share in parts)
        losses = _mse(logits, cast(Tensor, wanted).to(logits.dtype))
        return losses.sum() if class_weights is None else (sum(weights) * losses).sum()
    smoothing = recipe.label_smoothing or 0.0
    both = [F.cross_entropy(logits, label, reduction="none", label_smoothing=smoothing) for label, _ in parts]
    return (weights[0] * both[0] + weights[1] * both[1]).sum()


def _mse(logits: Tensor, wanted: Tensor) -> Tensor:
    """(N, classes) both -> (N,)."""
    return (logits.softmax(dim=1) - wanted).square().mean(dim=1)


def _dropout_seed(seed: int, global_step: int, worker: int) -> int:
    """Mix the three: distinct for up to a million steps and workers; beyond that a collision does no harm."""
    # 1,000,003 is the first prime above a million; 2**63 keeps the seed in the range that torch.manual_seed takes.
    return ((seed * 1_000_003 + global_step) * 1_000_003 + worker) % 2**63
