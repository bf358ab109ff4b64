"""Every part of a training on one process, made once and in order; run.py trains with them, bench.py measures them.

Enters: a resolved recipe, this process's workers, the pixels. Leaves: the step, the feed, and what was chosen and why.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from turnaround.data.augment import Augmentation
from turnaround.data.batches import Batches, Residency, Slicing, StepBatch, choose_residency
from turnaround.data.inputs import Inputs
from turnaround.data.order import step_bounds
from turnaround.data.pixels import Pixels
from turnaround.model.convolutions import has_depthwise, leave_to_library
from turnaround.model.network import Network, build, cost
from turnaround.optimizers import make_optimizer
from turnaround.recipe import Recipe
from turnaround.record.heartbeat import Heartbeat
from turnaround.training.choices import (
    DepthwiseChoice,
    DeviceChoice,
    PrecisionChoice,
    choose_depthwise,
    choose_precision,
)
from turnaround.training.feed import Feed
from turnaround.training.graph import leave_default_stream
from turnaround.training.learner import Learner, StepSize, make_learner
from turnaround.training.noise import MEASURE_EVERY_STEPS, RARELY_EVERY_STEPS, NoiseMeter
from turnaround.training.schedule import Scaling, scaling
from turnaround.training.step import Step, StepComponents, needs_probe
from turnaround.training.step_timer import StepTimer
from turnaround.workers.contract import Workers
from turnaround.workers.environment import RankInfo


class Assembly:
    """The parts of one process."""

    def __init__(
        self,
        recipe: Recipe,
        workers: Workers,
        pixels: Pixels,
        *,
        place: RankInfo,
        chosen: DeviceChoice,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self.recipe, self.workers, self.pixels, self.place, self.chosen = recipe, workers, pixels, place, chosen
        training = recipe.training
        leave_default_stream(workers.device)
        self.precision: PrecisionChoice = choose_precision(training.precision, workers.device)
        self.scaling: Scaling = scaling(training, workers=workers.count)
        self.network = self._network()
        self.residency: Residency = choose_residency(
            num_bytes=pixels.num_bytes,
            is_mapped=pixels.images is not None,
            device=workers.device,
            processes_on_host=place.local_size,
            processes_on_device=place.local_size if chosen.shares_device else 1,
        )
        bounds = step_bounds(num_images=pixels.num_train, global_batch=recipe.global_batch, workers=workers.count)
        self.steps_per_epoch = len(bounds)
        self.heartbeat = heartbeat or Heartbeat()
        self.depthwise: DepthwiseChoice | None = None
        timer = StepTimer(workers.device, on_last_gradient=self.heartbeat.waits)
        self.learner: Learner = make_learner(
            self.network,
            workers,
            asked_to_compile=training.compile,
            precision=self.precision,
            amount=self._amount(),
            on_last_gradient=timer.last_gradient,
        )
        self.step = Step(self._parts(), timer, self._noise_meter())

    def _network(self) -> Network:
        """On its device, the same on every process."""
        recipe, workers = self.recipe, self.workers
        network = build(recipe.model, num_classes=len(self.pixels.classes), seed=recipe.training.seed)
        self.cost = cost(network.module, size_px=recipe.size_px)
        network.module.to(workers.device, self.precision.parameters, memory_format=torch.channels_last)  # type: ignore[call-overload]
        for tensor in network.module.state_dict().values():
            workers.broadcast(tensor)
        for norm in network.batch_norms():
            if isinstance(norm.momentum, float):
                norm.momentum = self.scaling.norm_momentum(norm.momentum)  # type: ignore[assignment]
        return network

    def _amount(self) -> StepSize:
        """Of this process; the validation images of a frozen network are computed once, of others they cost little."""
        hosted, count = len(self.workers.hosted), self.workers.count
        return StepSize(
            size_px=self.recipe.size_px,
            images_per_step=self.recipe.global_batch * hosted // count,
            images_in_all=self.recipe.training.epochs * self.pixels.num_train * hosted // count,
            forward_flops_per_image=self.cost["forward_flops_per_image"],
        )

    def _parts(self) -> StepComponents:
        training = self.recipe.training
        inputs = Inputs(
            Augmentation(self.recipe.augment, seed=training.seed),
            mean=self.network.mean,
            std=self.network.std,
            num_train=self.pixels.num_train,
            device=self.workers.device,
            dtype=self.precision.parameters,
            autocast=self.precision.autocast,
        )
        return StepComponents(
            network=self.network,
            learner=self.learner.module,
            wrapped=self.learner.wrapped,
            workers=self.workers,
            optimizer=make_optimizer(self.network.module, training, betas=self.scaling.betas),
            inputs=inputs,
            precision=self.precision,
            recipe=training,
            is_compiled=self.learner.is_compiled,
        )

    def _noise_meter(self) -> NoiseMeter:
        """It looks back over a tenth of the training. Measured passes have other shapes, which are not compiled for."""
        is_expensive = needs_probe(self.network, self.workers) or self.learner.is_compiled
        return NoiseMeter(
            window_updates=self.recipe.training.epochs * self.steps_per_epoch // 10,
            every_updates=RARELY_EVERY_STEPS if is_expensive else MEASURE_EVERY_STEPS,
        )

    def warm_up(self) -> None:
        """Everything that only a first pass does, before the first epoch: compiling, loading kernels, choosing them."""
        recipe, workers = self.recipe, self.workers
        self.feed = Feed(
            batches=Batches(
                self.pixels,
                device=workers.device,
                residency=self.residency,
                processes_on_host=self.place.local_size,
            ),
            inputs=self.step.parts.inputs,
            slicing=Slicing(
                seed=recipe.training.seed,
                global_batch=recipe.global_batch,
                workers=workers.count,
                hosted=workers.hosted,
            ),
            workers=workers,
            timer=self.step.timer,
            backbone=self.learner.backbone,
            on_pass=self.heartbeat.beat,
        )
        self.network.train_mode()
        if workers.device.type != "cuda":
            self.feed.warm_up()
            return
        batch = next(self.feed.batches.steps(self.feed.slicing, epoch=1))
        self._choose_depthwise(batch)
        self.feed.warm_up()
        if self.learner.backbone is not None:
            batch = replace(batch, features=self.learner.backbone(self.feed.inputs.varied(batch, epoch=1)))
        self.step.warm_up(batch)

    def _choose_depthwise(self, batch: StepBatch) -> None:
        """Who computes depthwise convolutions; a compiled network leaves them to the library whatever is chosen."""
        if not has_depthwise(self.network.module) or self.learner.compiled.value:
            return
        backbone, images = self.learner.backbone, self._amount().images_in_all
        if backbone is not None and self.feed.inputs.augmentation.is_none:
            images = self.pixels.num_train  # their features are kept
        self.depthwise = choose_depthwise(
            steps=self.recipe.training.epochs * self.steps_per_epoch,
            images=images,
            can_capture=backbone is not None or self.step.can_capture_graph(batch),
        )
        if self.depthwise.by_library:
            full = self.step.pass_images(batch) if backbone is None else [backbone.pass_images]
            leave_to_library(self.network.module, full)

    def choices(self) -> dict[str, dict[str, object]]:
        """What was chosen for the user, each choice with its reason."""
        step = self.step
        passes = "fused: hosted workers together" if step.fuses_workers else "one for each hosted worker"
        why_passes = "batch norm keeps statistics by worker" if self.network.batch_norms() else "nothing couples images"
        if not step.fuses_workers:
            why_passes = "dropout is seeded by worker" if step.is_random else "the network is compiled"
        chosen: dict[str, tuple[object, str]] = {
            "device": (str(self.workers.device), self.chosen.reason),
            "precision": (self.precision.name, self.precision.reason),
            "pixels": (self.residency.place, self.residency.reason),
            "inputs": step.parts.inputs.how,
            "features": self.feed.how,
            "compile": (self.learner.compiled.value, self.learner.compiled.reason),
            "graph": (step.graph_choice.value, step.graph_choice.reason),
            "memory_format": ("channels_last", "convolutions run faster on it, on CPUs and GPUs"),
            "passes": (passes, why_passes),
            "scaling": (self.scaling.factor, self.scaling.reason),
        }
        if self.depthwise is not None:
            chosen["depthwise"] = (self.depthwise.value, self.depthwise.reason)
        return {name: {"value": value, "reason": reason} for name, (value, reason) in chosen.items()}
