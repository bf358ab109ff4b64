"""Every part of a training on one process, made once and in order; run.py trains with them, bench.py measures them.

    core = build_core(recipe, workers, pixels, ...)    network, optimizer, step: what a checkpoint is restored into
    ...                                                a resume restores it
    assembly = warm_up(core)                           the feed; everything that only a first pass does

Between the two a process starts its heartbeat, because the second may take a minute: it compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from turnaround.choice import Choice
from turnaround.data.augment import Augmentation
from turnaround.data.batches import Batches, Residency, Slicing, StepBatch, choose_residency
from turnaround.data.inputs import Inputs
from turnaround.data.order import step_bounds
from turnaround.data.pixels import Pixels
from turnaround.model.convolutions import has_depthwise, leave_to_library
from turnaround.model.network import Network, build, cost
from turnaround.optimizers import OPTIMIZERS, make_optimizer
from turnaround.recipe import Recipe, TrainingRecipe
from turnaround.record.heartbeat import Heartbeat
from turnaround.training.averages import EvaluatedWeights
from turnaround.training.choices import (
    DepthwiseKernels,
    Precision,
    ProcessDevice,
    agreed_precision,
    choose_backbone_precision,
    choose_compile,
    choose_depthwise,
    choose_precision,
)
from turnaround.training.clock import StartUp, StepTimer
from turnaround.training.feed import Feed
from turnaround.training.frozen import FrozenBackbone, FrozenFeed, split
from turnaround.training.graph import leave_default_stream
from turnaround.training.noise import (
    MEASURE_EVERY_STEPS,
    PROBE_EVERY_STEPS,
    RARELY_EVERY_STEPS,
    NoiseMeter,
    needs_probe,
)
from turnaround.training.saving import TrainingState
from turnaround.training.schedule import Scaling, choose_scaling
from turnaround.training.step import Step, StepComponents, class_weights
from turnaround.workers.contract import Workers
from turnaround.workers.environment import RankInfo
from turnaround.workers.shares import Shares


@dataclass(frozen=True, kw_only=True)
class ProcessWorkload:
    """The amount that this process will compute; several choices depend on it."""

    size_px: int
    images_per_step: int
    images_in_all: int
    """Training images; the validation images of a frozen network are computed once, those of others cost little."""
    forward_flops_per_image: int
    time_limit_s: float | None = None
    """Limit of the whole run: it may end long before all those images."""


@dataclass(frozen=True, kw_only=True)
class Learner:
    """The part of the network that learns, and the frozen backbone before it, if any."""

    module: nn.Module
    wrapped: nn.Module
    """The module as the engine has wrapped it: its backward pass averages gradients over processes."""
    backbone: FrozenBackbone | None
    compiled: Choice[bool]
    backbone_precision: Choice[Precision] | None = None

    @property
    def is_compiled(self) -> bool:
        """Tell whether the learning part itself is compiled; a compiled backbone is not its business."""
        return self.compiled.value and self.backbone is None

    def plan_passes(self, images_per_step: int) -> None:
        """Follow another number of images of this process in a step."""
        if self.backbone is not None:
            self.backbone.plan_passes(images_per_step)
        for module in self.wrapped.modules():
            if isinstance(module, CompiledForOneShape):
                module.images = images_per_step


@dataclass(frozen=True, kw_only=True)
class TrainingCore:
    """The objects that a checkpoint is restored into, and the choices they were made by."""

    recipe: Recipe
    workers: Workers
    pixels: Pixels
    rank_info: RankInfo
    heartbeat: Heartbeat
    network: Network
    cost: dict[str, int]
    workload: ProcessWorkload
    steps_per_epoch: int
    inputs: Inputs
    learner: Learner
    step: Step
    device: Choice[ProcessDevice]
    precision: Choice[Precision]
    scaling: Choice[Scaling]
    residency: Choice[Residency]

    @property
    def state(self) -> TrainingState:
        """What a checkpoint keeps of this training."""
        return self.step.state

    def share_out(self, shares: Shares) -> None:
        """Host other workers from here on; what was chosen by the size of the work stays, as in a resume."""
        self.workers.share_out(shares)
        self.learner.plan_passes(images_per_step(self.recipe, self.workers))


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """A training that is ready for its first step."""

    core: TrainingCore
    batches: Batches
    slicing: Slicing
    feed: Feed
    depthwise: Choice[DepthwiseKernels] | None
    """The kernels of depthwise convolutions; None where there are none to choose about."""

    def share_out(self, shares: Shares) -> None:
        """Host other workers from the next epoch on: `--share auto`, at an epoch's end."""
        self.core.share_out(shares)
        self.feed.share_out()

    def choices(self) -> dict[str, Choice[Any]]:
        """Return what was chosen for the user, by its name in the record."""
        core, step = self.core, self.core.step
        choices: dict[str, Choice[Any]] = {
            "device": Choice(str(core.workers.device), core.device.reason),
            "precision": Choice(core.precision.value.name, core.precision.reason),
            "pixels": core.residency,
            "inputs": core.inputs.choice,
            "features": self.feed.choice,
            "compile": core.learner.compiled,
            "graph": step.graph.choice,
            "memory_format": Choice("channels_last", "convolutions run faster on it, on CPUs and GPUs"),
            "passes": _passes_choice(step, core.network),
            "scaling": Choice(core.scaling.value.factor, core.scaling.reason),
        }
        if (backbone := core.learner.backbone_precision) is not None:
            choices["backbone"] = Choice(backbone.value.name, backbone.reason)
        if core.workers.count > 1 and core.recipe.model.weights == "none":
            choices["workers_tested"] = _workers_tested(core.recipe)
        return choices if self.depthwise is None else {**choices, "depthwise": self.depthwise}


def build_core(
    recipe: Recipe,
    workers: Workers,
    pixels: Pixels,
    *,
    rank_info: RankInfo,
    device: Choice[ProcessDevice],
    heartbeat: Heartbeat | None = None,
) -> TrainingCore:
    """Build network, optimizer and step; the same weights on every process."""
    training, heartbeat = recipe.training, heartbeat or Heartbeat()
    leave_default_stream(workers.device)  # before anything is allocated on it
    precision = agreed_precision(choose_precision(training.precision, workers.device), workers)
    scaling = choose_scaling(training, workers=workers.count)
    network, its_cost = _network(recipe, workers, len(pixels.classes), precision.value, scaling.value)
    residency = _residency(pixels, rank_info, device.value)
    bounds = step_bounds(num_images=pixels.num_train, global_batch=recipe.global_batch, workers=workers.count)
    workload = _workload(recipe, workers, pixels, its_cost)
    # After its last gradient a process waits for the others: should it stay silent there, it is not the one that hangs.
    timer = StepTimer(workers.device, on_last_gradient=heartbeat.waits)
    learner = make_learner(
        network,
        workers,
        training,
        precision=precision.value,
        workload=workload,
        on_last_gradient=timer.last_gradient,
    )
    inputs = _inputs(recipe, network, pixels, workers.device, precision.value)
    components = StepComponents(
        network=network,
        learner=learner.module,
        wrapped=learner.wrapped,
        workers=workers,
        optimizer=make_optimizer(network.module, training, betas=scaling.value.betas, momentum=scaling.value.momentum),
        inputs=inputs,
        precision=precision.value,
        recipe=training,
        is_compiled=learner.is_compiled,
        evaluated=EvaluatedWeights.of(training, learner.module, network=network.module, power=scaling.value.norm_power),
        class_weights=class_weights(training, pixels, workers.device, precision.value),
    )
    meter = _noise_meter(network, workers, learner, steps_in_all=training.num_epochs * len(bounds))
    return TrainingCore(
        recipe=recipe,
        workers=workers,
        pixels=pixels,
        rank_info=rank_info,
        heartbeat=heartbeat,
        network=network,
        cost=its_cost,
        workload=workload,
        steps_per_epoch=len(bounds),
        inputs=inputs,
        learner=learner,
        step=Step(components, timer, meter),
        device=device,
        precision=precision,
        scaling=scaling,
        residency=residency,
    )


def open_batches(core: TrainingCore) -> tuple[Batches, Slicing]:
    """Bring the pixels to where they stay, and say which of them are this process's."""
    recipe, workers = core.recipe, core.workers
    batches = Batches(
        core.pixels,
        device=workers.device,
        residency=core.residency.value,
        processes_on_host=core.rank_info.local_size,
    )
    slicing = Slicing(
        seed=recipe.training.seed,
        global_batch=recipe.global_batch,
        workers=workers.count,
        hosted=workers.hosted,
    )
    return batches, slicing


def warm_up(core: TrainingCore, *, start_up: StartUp | None = None) -> Assembly:
    """Do everything that only a first pass does, before the first epoch: compiling, loading and choosing kernels."""
    workers, backbone, start_up = core.workers, core.learner.backbone, start_up or StartUp()
    batches, slicing = open_batches(core)
    start_up.ended("bring pixels to the device")
    core.network.train_mode()
    workers.sum(on_cuda := torch.tensor([float(workers.device.type == "cuda")], device=workers.device))
    # All warm up or none: a pass ends in an all-reduce, and a CPU may stand beside a GPU.
    if not bool(on_cuda):
        feed = _feed(core, batches, slicing)
        start_up.ended("features of the frozen network" if backbone is not None else "warm up")
        return Assembly(core=core, batches=batches, slicing=slicing, feed=feed, depthwise=None)
    # The first step is a full one wherever there are several: its shape is compiled and captured.
    batch = next(batches.steps(slicing, epoch=1))
    # Before the first pass, which would make a plan with cuDNN.
    depthwise = choose_depthwise_kernels(core, batch) if workers.device.type == "cuda" else None
    start_up.ended("choose kernels")
    feed = _feed(core, batches, slicing)
    if backbone is not None:
        start_up.ended("features of the frozen network")
        batch = replace(batch, features=backbone(core.inputs.varied(batch, epoch=1)))
    core.step.warm_up(batch)
    start_up.ended("warm up")  # first passes: compiling, loading kernels, capturing graphs
    return Assembly(core=core, batches=batches, slicing=slicing, feed=feed, depthwise=depthwise)


def choose_depthwise_kernels(core: TrainingCore, batch: StepBatch) -> Choice[DepthwiseKernels] | None:
    """Choose the kernels of depthwise convolutions; a compiled network takes cuDNN's whatever is chosen."""
    if not has_depthwise(core.network.module) or core.learner.compiled.value:
        return None
    backbone, images = core.learner.backbone, core.workload.images_in_all
    if backbone is not None and core.inputs.augmentation.is_none:
        images = core.pixels.num_train  # their features are kept
    choice = choose_depthwise(
        steps=core.recipe.training.num_epochs * core.steps_per_epoch,
        images=images,
        can_capture=backbone is not None or core.step.can_capture_graph(batch),
    )
    if choice.value is DepthwiseKernels.CUDNN:
        # Full passes only: other numbers of images come less often, and each would cost a plan of its own.
        full_passes = core.step.pass_images(batch) if backbone is None else [backbone.pass_images]
        leave_to_library(core.network.module, full_passes)
    return choice


class CompiledForOneShape(nn.Module):
    """A module that is compiled for full batches.

    The last batch of an epoch is smaller: it would be compiled for again, or make all of it compile for any size, which
    is slower; so it takes the plain way.
    """

    def __init__(self, module: nn.Module, *, images: int) -> None:
        super().__init__()
        self.module, self.images = module, images
        self._compiled: Callable[[Tensor], Tensor] = torch.compile(module, dynamic=False)

    def forward(self, images: Tensor) -> Tensor:
        # Not under no_grad either: torch.compile would compile once more for it.
        run = self._compiled if len(images) == self.images and torch.is_grad_enabled() else self.module
        return run(images)


def make_learner(
    network: Network,
    workers: Workers,
    training: TrainingRecipe,
    *,
    precision: Precision,
    workload: ProcessWorkload,
    on_last_gradient: Callable[[], None],
) -> Learner:
    """Take a frozen network apart where it can be, and compile what takes the time where that pays."""
    parts = split(network, size_px=workload.size_px)
    passes = 1 if parts else 3  # a backward pass costs about two forward ones
    compiled = choose_compile(
        training.compile,
        device=workers.device,
        flops=passes * float(workload.forward_flops_per_image) * workload.images_in_all,
        learns_all=parts is None,
        # torch.compile bypasses batch norm by worker (model/grouped_norm.py).
        fuses_norms=parts is None and len(workers.hosted) > 1 and bool(network.batch_norms()),
        time_limit_s=workload.time_limit_s,
    )
    if parts is None:
        module = network.module
        runs: nn.Module = CompiledForOneShape(module, images=workload.images_per_step) if compiled.value else module
        wrapped = workers.wrap(runs, on_last_gradient=on_last_gradient)
        return Learner(module=module, wrapped=wrapped, backbone=None, compiled=compiled)
    of_backbone = agreed_precision(choose_backbone_precision(training.precision, workers.device, precision), workers)
    backbone = FrozenBackbone(
        parts.backbone,
        device=workers.device,
        precision=of_backbone.value,
        learns_in=precision,
        size_px=workload.size_px,
        images_per_step=workload.images_per_step,
        is_compiled=compiled.value,
    )
    # The head alone: nothing else has gradients that processes could average.
    wrapped = workers.wrap(parts.head, on_last_gradient=on_last_gradient)
    return Learner(
        module=parts.head, wrapped=wrapped, backbone=backbone, compiled=compiled, backbone_precision=of_backbone
    )


def _network(
    recipe: Recipe, workers: Workers, num_classes: int, precision: Precision, scaling: Scaling
) -> tuple[Network, dict[str, int]]:
    """Build the network on its device, the same on every process, and count what it costs."""
    network = build(recipe.model, num_classes=num_classes, seed=recipe.training.seed)
    its_cost = cost(network.module, size_px=recipe.size_px)
    network.module.to(workers.device, precision.parameters, memory_format=torch.channels_last)  # type: ignore[call-overload]
    # The same seed makes the same network everywhere, but not the same weights file on two hosts.
    for tensor in network.module.state_dict().values():
        workers.broadcast(tensor)
    for norm in network.batch_norms():
        # A momentum of None is torch's cumulative average, which has no memory to keep constant.
        if isinstance(norm.momentum, float):
            norm.momentum = scaling.norm_momentum(norm.momentum)  # type: ignore[assignment]
    return network, its_cost


def images_per_step(recipe: Recipe, workers: Workers) -> int:
    """Return the images of this process in a full step."""
    return recipe.global_batch * len(workers.hosted) // workers.count


def _workload(recipe: Recipe, workers: Workers, pixels: Pixels, its_cost: dict[str, int]) -> ProcessWorkload:
    hosted, count = len(workers.hosted), workers.count
    return ProcessWorkload(
        size_px=recipe.size_px,
        images_per_step=images_per_step(recipe, workers),
        images_in_all=recipe.training.num_epochs * pixels.num_train * hosted // count,
        forward_flops_per_image=its_cost["forward_flops_per_image"],
        time_limit_s=recipe.training.time_limit_s,
    )


def _residency(pixels: Pixels, rank_info: RankInfo, device: ProcessDevice) -> Choice[Residency]:
    return choose_residency(
        num_bytes=pixels.num_bytes,
        is_mapped=pixels.images is not None,
        device=device.device,
        processes_on_host=rank_info.local_size,
        processes_on_device=rank_info.local_size if device.shares_device else 1,
    )


def _noise_meter(network: Network, workers: Workers, learner: Learner, *, steps_in_all: int) -> NoiseMeter:
    """Make a meter that looks back over a tenth of the training."""
    # Measured passes have other shapes, which are not compiled for (CompiledForOneShape).
    # A measured step has one more all-reduce: all processes measure the same ones, whichever of them compile.
    compiled = torch.tensor([float(learner.is_compiled)], device=workers.device)
    workers.sum(compiled)
    regularly = RARELY_EVERY_STEPS if bool(compiled) else MEASURE_EVERY_STEPS
    every_steps = PROBE_EVERY_STEPS if needs_probe(network, workers) else regularly
    return NoiseMeter(window_steps=steps_in_all // 10, every_steps=every_steps)


def _inputs(recipe: Recipe, network: Network, pixels: Pixels, device: torch.device, precision: Precision) -> Inputs:
    return Inputs(
        Augmentation(recipe.augment, seed=recipe.training.seed),
        mean=network.mean,
        std=network.std,
        num_train=pixels.num_train,
        device=device,
        dtype=precision.parameters,
        autocast=precision.autocast,
    )


def _feed(core: TrainingCore, batches: Batches, slicing: Slicing) -> Feed:
    if core.learner.backbone is None:
        return Feed(batches, slicing, core.workers, side_px=core.recipe.size_px)
    return FrozenFeed(
        batches,
        slicing,
        core.workers,
        backbone=core.learner.backbone,
        inputs=core.inputs,
        timer=core.step.timer,
        on_pass=core.heartbeat.beat,
    )


def _workers_tested(recipe: Recipe) -> Choice[int]:
    """Return up to how many workers the scaling rule is known to hold: a run that ends at chance is held against it."""
    limit = OPTIMIZERS[recipe.training.optimizer].known_batch(mixes=bool(recipe.augment.mixup or recipe.augment.cutmix))
    reason = f"{recipe.training.optimizer} from scratch is known to keep its accuracy up to {limit:,} images a step"
    return Choice(max(1, limit // (recipe.global_batch // recipe.workers.count)), reason)


def _passes_choice(step: Step, network: Network) -> Choice[str]:
    if not step.fuses_workers:
        reason = "dropout is seeded by worker" if step.is_random else "the network is compiled"
        return Choice("one for each hosted worker", reason)
    reason = "batch norm keeps statistics by worker" if network.batch_norms() else "nothing couples images"
    return Choice("fused: hosted workers together", reason)
