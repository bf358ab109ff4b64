"""Composition: every part of a training made once, in order, and handed to the loop.

Enters: an `Assignment`, as the launcher gives it to every process. Leaves: the finished run directory.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from turnaround.data.augment import Augmentation
from turnaround.data.batches import Batches, Slicing, choose_residency
from turnaround.data.inputs import Inputs
from turnaround.data.order import step_bounds
from turnaround.data.pixels import Pixels, open_pixels
from turnaround.errors import InputError, RunDirectoryError
from turnaround.model.cost import cost
from turnaround.model.network import Network, build
from turnaround.recipe import Recipe
from turnaround.record.files import read_json
from turnaround.record.layout import RunDirectory
from turnaround.record.machine import describe
from turnaround.record.schema import Status, TimePart, from_json, utc_now
from turnaround.record.telemetry import Telemetry
from turnaround.record.writer import truncate_epochs, write_json
from turnaround.training import checkpoint
from turnaround.training.choices import DeviceChoice, PrecisionChoice, choose_device, choose_precision
from turnaround.training.clock import Clock, StepTimer
from turnaround.training.evaluate import evaluate, final_evaluation
from turnaround.training.feed import Feed
from turnaround.training.learner import Amount, make_learner
from turnaround.training.loop import Loop
from turnaround.training.noise import MEASURE_EVERY_STEPS, PROBE_EVERY_STEPS, NoiseMeter
from turnaround.training.optimizer import make_optimizer
from turnaround.training.recording import Progress, RunRecorder, Saved
from turnaround.training.schedule import Scaling, scaling, schedule
from turnaround.training.step import Parts, Step
from turnaround.workers.contract import Workers
from turnaround.workers.environment import Place
from turnaround.workers.horovod import Horovod
from turnaround.workers.single import Single
from turnaround.workers.torch_ddp import TorchDDP


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the launcher tells every process."""

    directory: RunDirectory
    pixels_dir: Path
    device: str = "auto"
    launch: str = "local"
    begun_at_s: float
    """When the user's command began, in seconds since 1970 on this host: imports and scanning are start-up too."""
    decode_time_s: float = 0.0


def train(assignment: Assignment, place: Place, progress: Progress, *, stop_asked: Callable[[], bool]) -> None:
    """Trains from the newest valid checkpoint, or from the beginning, to the end of the recipe."""
    directory = assignment.directory
    recipe = Recipe.from_record(read_json(directory.recipe))
    chosen = choose_device(assignment.device, place)
    with ExitStack() as open_parts:
        workers = _workers(recipe, place, chosen)
        if place.local_rank == 0:
            open_parts.enter_context(Telemetry(directory.telemetry(socket.gethostname())))
        pixels = open_pixels(assignment.pixels_dir)
        _agree(workers, recipe, pixels)
        session = _Session(assignment, place, recipe, workers, pixels, chosen)
        session.restore()
        session.warm_up()
        session.describe()
        open_parts.enter_context(session.recorder(progress))
        session.run(stop_asked)
    workers.close()  # not after an error: the others would report that we are gone before we have said why


def _workers(recipe: Recipe, place: Place, chosen: DeviceChoice) -> Workers:
    if place.size == 1:
        return Single(count=recipe.workers.count, device=chosen.device)
    if recipe.workers.engine == "horovod":
        return Horovod(place=place, count=recipe.workers.count, device=chosen.device)
    return TorchDDP(place=place, count=recipe.workers.count, device=chosen.device, shares_device=chosen.shares_device)


def _agree(workers: Workers, recipe: Recipe, pixels: Pixels) -> None:
    """Before the first step: all processes have the same recipe and the same images, or both values are named."""
    mine = {"recipe": json.dumps(recipe.to_dict(), sort_keys=True), "images": pixels.fingerprint}
    everyone = [json.loads(text) for text in workers.gather(json.dumps(mine))]
    for what, value in mine.items():
        for rank, theirs in enumerate(everyone):
            if theirs[what] != value:
                raise InputError(
                    f"Processes {rank} and {workers.rank} disagree about the {what}: {theirs[what]} against {value}. "
                    "All must read the same run directory and the same images."
                )


@dataclass
class _Session:
    """One start of a run on one process: a run that is resumed has several."""

    assignment: Assignment
    place: Place
    recipe: Recipe
    workers: Workers
    pixels: Pixels
    chosen: DeviceChoice

    def __post_init__(self) -> None:
        recipe, workers, pixels = self.recipe, self.workers, self.pixels
        self.directory = self.assignment.directory
        device, training = workers.device, recipe.training
        self.precision: PrecisionChoice = choose_precision(training.precision, device)
        self.network: Network = build(recipe.model, num_classes=len(pixels.classes), seed=training.seed)
        self.cost = cost(self.network.module, size_px=recipe.size_px)
        module = self.network.module.to(device, self.precision.parameters, memory_format=torch.channels_last)  # type: ignore[call-overload]
        for tensor in module.state_dict().values():
            workers.broadcast(tensor)
        self.residency = choose_residency(
            num_bytes=pixels.images.nbytes,
            device=device,
            processes_on_host=self.place.local_size,
            processes_on_device=self.place.local_size if self.chosen.shares_device else 1,
        )
        self.scaling: Scaling = scaling(training, workers=workers.count)
        for norm in self.network.batch_norms():
            if isinstance(norm.momentum, float):
                norm.momentum = self.scaling.norm_momentum(norm.momentum)  # type: ignore[assignment]
        self.slicing = Slicing(
            seed=training.seed, global_batch=recipe.global_batch, workers=workers.count, hosted=workers.hosted
        )
        bounds = step_bounds(num_images=pixels.num_train, global_batch=recipe.global_batch, workers=workers.count)
        self.steps_per_epoch = len(bounds)
        timer = StepTimer(device)
        self.learner = make_learner(
            self.network,
            workers,
            asked_to_compile=training.compile,
            precision=self.precision,
            amount=self._amount(),
            on_last_gradient=timer.last_gradient,
        )
        inputs = Inputs(
            Augmentation(recipe.augment, seed=training.seed),
            mean=self.network.mean,
            std=self.network.std,
            num_train=pixels.num_train,
            device=device,
            dtype=self.precision.parameters,
            autocast=self.precision.autocast,
        )
        parts = Parts(
            network=self.network,
            learner=self.learner.module,
            wrapped=self.learner.wrapped,
            workers=workers,
            optimizer=make_optimizer(module, training, betas=self.scaling.betas),
            inputs=inputs,
            precision=self.precision,
            recipe=training,
            is_compiled=self.learner.is_compiled,
        )
        self.step = Step(parts, timer, self._noise_meter())

    def _amount(self) -> Amount:
        """Of this process; the validation images of a frozen network are computed once, of others they cost little."""
        hosted, count = len(self.workers.hosted), self.workers.count
        return Amount(
            size_px=self.recipe.size_px,
            images_per_step=self.recipe.global_batch * hosted // count,
            images_in_all=self.recipe.training.epochs * self.pixels.num_train * hosted // count,
            forward_flops_per_image=self.cost["forward_flops_per_image"],
        )

    def _noise_meter(self) -> NoiseMeter:
        """It looks back over a tenth of the training."""
        needs_probe = self.workers.count == 1 and self.network.couples_images()
        return NoiseMeter(
            window_updates=self.recipe.training.epochs * self.steps_per_epoch // 10,
            every_updates=PROBE_EVERY_STEPS if needs_probe else MEASURE_EVERY_STEPS,
        )

    def restore(self) -> None:
        """From the newest valid checkpoint; the record is cut back to it. Every process reads the same one."""
        folder = self.directory.checkpoint
        path, self.passed_over = checkpoint.newest_valid(folder)
        if path is None and self.passed_over:
            raise RunDirectoryError(
                f"No checkpoint of {self.directory.path} can be used: {'; '.join(self.passed_over)}. "
                "What was recorded stays; start a new run."
            )
        self.epochs_done, self.status = 0, _status(self.directory)
        clock_s: dict[TimePart, float] = {}
        if path is not None:
            position = checkpoint.restore(path, module=self.network.module, optimizer=self.step.parts.optimizer)
            if position.scaler:  # empty when the device before this one needed no scaling
                self.step.scaler.load_state_dict(position.scaler)
            self.epochs_done, clock_s = position.epoch, position.clock_s
        self.workers.barrier()  # nobody looks for checkpoints any more
        if self.workers.rank == 0:
            checkpoint.remove_leftovers(folder)
            truncate_epochs(self.directory.epochs, self.epochs_done)
        self.clock = Clock(self.workers.device, begun_at_s=self.assignment.begun_at_s, earlier_s=clock_s)
        self.clock.add("decode", self.assignment.decode_time_s)
        started_at = self.status.started_at or utc_now()
        self.status = replace(
            self.status, state="running", cause=None, epochs_done=self.epochs_done, started_at=started_at, ended_at=None
        )

    def describe(self) -> None:
        """machine.json: where this segment runs, and what was chosen for the user, with reasons."""
        step, workers = self.step, self.workers
        mine = {"host": socket.gethostname(), "device": str(workers.device), "workers": list(workers.hosted)}
        ranks = [json.loads(text) for text in workers.gather(json.dumps(mine))]
        if workers.rank != 0:
            return
        engine = f"{self.recipe.workers.engine} {getattr(workers, 'backend', '')}"
        passes = "fused: hosted workers together" if step.fuses_workers else "one for each hosted worker"
        why_passes = "batch norm keeps statistics by worker" if self.network.batch_norms() else "nothing couples images"
        if not step.fuses_workers:
            why_passes = "dropout is seeded by worker" if step.is_random else "the network is compiled"
        choices: dict[str, dict[str, object]] = {
            "device": {"value": str(workers.device), "reason": self.chosen.reason},
            "precision": {"value": self.precision.name, "reason": self.precision.reason},
            "pixels": {"value": self.residency.place, "reason": self.residency.reason},
            "inputs": {"value": self.step.parts.inputs.how[0], "reason": self.step.parts.inputs.how[1]},
            "compile": {"value": self.learner.compiled.value, "reason": self.learner.compiled.reason},
            "features": {"value": self.feed.how[0], "reason": self.feed.how[1]},
            "memory_format": {
                "value": "channels_last",
                "reason": "convolutions run faster on it, on CPUs and GPUs",
            },
            "passes": {"value": passes, "reason": why_passes},
            "scaling": {"value": self.scaling.factor, "reason": self.scaling.reason},
        }
        machine = describe(
            workers=workers.count,
            processes=workers.size,
            engine=engine if workers.size > 1 else type(workers).__name__,
            launch=self.assignment.launch,
            device=str(workers.device),
            choices=choices,
        )
        machine["ranks"] = ranks
        machine["cost"] = self.cost
        machine["passed_over_checkpoints"] = self.passed_over
        write_json(self.directory.machine, machine)

    def warm_up(self) -> None:
        """Everything that only a first pass does, before the first epoch: compiling, loading kernels, choosing them."""
        self.feed = Feed(
            batches=Batches(self.pixels, device=self.workers.device, residency=self.residency),
            inputs=self.step.parts.inputs,
            slicing=self.slicing,
            workers=self.workers,
            timer=self.step.timer,
            backbone=self.learner.backbone,
        )
        self.feed.warm_up()
        if self.workers.device.type == "cuda" and self.learner.backbone is None:
            self.step.warm_up(next(self.feed.steps(epoch=1, first_update=0)))

    def recorder(self, progress: Progress) -> RunRecorder:
        saved = Saved(step=self.step, module=self.network.module)
        self.record = RunRecorder(self.directory, clock=self.clock, saved=saved, status=self.status, progress=progress)
        return self.record

    def run(self, stop_asked: Callable[[], bool]) -> None:
        training = self.recipe.training
        loop = Loop(
            step=self.step,
            feed=self.feed,
            schedule=schedule(training, steps_per_epoch=self.steps_per_epoch, scaled=self.scaling),
            clock=self.clock,
            recorder=self.record,
            steps_per_epoch=self.steps_per_epoch,
            segment=self.status.segments,
            stop_asked=stop_asked,
        )
        self.clock.add("start_up", self.clock.program_s() - self.assignment.decode_time_s)
        self.record.set_status()
        loop.run(first_epoch=self.epochs_done + 1)
        with self.clock.part("evaluation"):
            validation = self.feed.validation()
            counts = evaluate(self.step.parts, validation, num_classes=loop.num_classes, with_confusion=True)
        self.record.finish(final_evaluation(counts, epoch=training.epochs, classes=self.pixels.classes))


def _status(directory: RunDirectory) -> Status:
    return from_json(Status, read_json(directory.status))
