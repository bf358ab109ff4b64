"""One start of a run on one process: agree, restore, describe, train, record.

Enters: an `Assignment`, as the launcher gives it to every process. Leaves: the finished run directory.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from turnaround import kernels
from turnaround.data.pixels import Pixels, open_pixels
from turnaround.errors import InputError, RunDirectoryError
from turnaround.model.network import load_code
from turnaround.recipe import Recipe
from turnaround.record.files import read_json
from turnaround.record.heartbeat import Heartbeat, HeartbeatFile
from turnaround.record.layout import RunDirectory
from turnaround.record.machine import changed_since, describe
from turnaround.record.recipe_changes import deciding_keys
from turnaround.record.schema import Status, from_json, utc_now
from turnaround.record.telemetry import Telemetry
from turnaround.record.writer import truncate_epochs, write_json
from turnaround.training import checkpoint, faults, memory
from turnaround.training.agreement import Agreement
from turnaround.training.assembly import Assembly
from turnaround.training.bench import measure
from turnaround.training.choices import DeviceChoice, choose_device
from turnaround.training.clock import Clock, with_lost
from turnaround.training.evaluate import evaluate, final_evaluation
from turnaround.training.loop import Loop
from turnaround.training.recording import Progress, RunRecorder
from turnaround.training.saving import CheckpointSchedule
from turnaround.training.schedule import schedule
from turnaround.workers.contract import Workers
from turnaround.workers.engines import connect
from turnaround.workers.environment import RankInfo


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the launcher tells every process."""

    directory: RunDirectory
    pixels_dir: Path
    device: str = "auto"
    launch: str = "local"
    begun_at_s: float
    """When the user's command began, by this host's monotonic clock: imports and scanning are start-up too."""
    decode_time_s: float = 0.0
    """How long decoding was waited for: what this process loaded meanwhile is start-up."""
    import_time_s: float = 0.0
    """From the start of this process until all its code was loaded."""


def train(
    assignment: Assignment, place: RankInfo, progress: Progress, *, heartbeat: Heartbeat, stop_asked: Callable[[], bool]
) -> None:
    """Trains from the newest valid checkpoint, or from the beginning, to the end of the recipe."""
    directory = assignment.directory
    recipe = Recipe.from_record(read_json(directory.recipe))
    chosen = choose_device(assignment.device, place)
    with ExitStack() as open_parts:
        workers = _connected(recipe, place, chosen)
        if place.local_rank == 0:
            open_parts.enter_context(Telemetry(directory.telemetry(socket.gethostname())))
        pixels = open_pixels(assignment.pixels_dir)
        _agree(workers, recipe, pixels)
        open_parts.enter_context(memory.explained(recipe, workers, heartbeat))
        made = Assembly(recipe, workers, pixels, place=place, chosen=chosen, heartbeat=heartbeat)
        session = _Session(assignment, made)
        faults.arm(rank=place.rank, segment=_status(directory).segments)
        faults.strike("start")
        session.restore()
        open_parts.enter_context(
            HeartbeatFile(directory, rank=place.rank, heartbeat=heartbeat, program_s=session.clock.total_program_s)
        )
        made.warm_up()
        session.describe()
        open_parts.enter_context(session.recorder(progress))
        session.run(stop_asked)
    workers.close()  # not after an error: the others would report that we are gone before we have said why


def get_ready(asked: str, place: RankInfo, *, network: str | None) -> None:
    """What takes seconds and needs no images: a GPU's context, its first kernel, the code that networks come from.

    Whatever goes wrong goes wrong again when it is needed, and is said there.
    """
    with suppress(Exception):
        device = choose_device(asked, place).device
        if device.type == "cuda":
            torch.zeros(1, device=device)
            kernels.unavailable_reason()
    with suppress(Exception):
        if network is not None:
            load_code(network)


def bench(assignment: Assignment, place: RankInfo, *, part_s: float) -> None:
    """Measures the parts of this training on this machine; process 0 leaves the rates in bench.json."""
    recipe = Recipe.from_record(read_json(assignment.directory.recipe))
    chosen = choose_device(assignment.device, place)
    workers, pixels = _connected(recipe, place, chosen), open_pixels(assignment.pixels_dir)
    _agree(workers, recipe, pixels)
    made = Assembly(recipe, workers, pixels, place=place, chosen=chosen)
    begun_s = time.perf_counter()
    made.warm_up()
    warm_up_s = time.perf_counter() - begun_s
    rates = {name: asdict(rate) for name, rate in measure(made, part_s=part_s).items()}
    if workers.rank == 0:
        facts = {"rates": rates, "warm_up_s": warm_up_s, "choices": made.choices(), "cost": made.cost}
        write_json(assignment.directory.bench, facts)
    workers.close()


def _connected(recipe: Recipe, place: RankInfo, chosen: DeviceChoice) -> Workers:
    wanted = recipe.workers
    return connect(
        wanted.engine, place=place, count=wanted.count, device=chosen.device, shares_device=chosen.shares_device
    )


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


class _Session:
    """One start of a run on one process: a run that is resumed has several."""

    def __init__(self, assignment: Assignment, made: Assembly) -> None:
        self.assignment, self.made = assignment, made
        self.directory, self.workers, self.step = assignment.directory, made.workers, made.step

    def restore(self) -> None:
        """From the newest valid checkpoint; the record is cut back to it. Every process reads the same one."""
        folder = self.directory.checkpoint
        path, self.passed_over = checkpoint.agreed(folder, self.workers)
        if path is None and self.passed_over:
            raise RunDirectoryError(
                f"No checkpoint of {self.directory.path} can be used: {'; '.join(self.passed_over)}. "
                "What was recorded stays; start a new run."
            )
        self.start, self.status = checkpoint.Position(epoch=0, update=0, clock_s={}, scaler={}), _status(self.directory)
        if path is not None:
            self.start = checkpoint.restore(path, module=self.made.network.module, optimizer=self.step.parts.optimizer)
            self.step.noise.restore(self.start.noise)
            if self.start.scaler:  # empty when the device before this one needed no scaling
                self.step.scaler.load_state_dict(self.start.scaler)
        self.workers.barrier()  # nobody looks for checkpoints any more
        if self.workers.rank == 0:
            checkpoint.remove_leftovers(folder)
            checkpoint.require_room(folder, self.made.network.module)
            truncate_epochs(self.directory.epochs, self.start.epoch)
        earlier_s = with_lost(self.start.clock_s, until_s=self.status.time_s.get("program", 0.0))
        self.clock = Clock(self.workers.device, begun_at_s=self.assignment.begun_at_s, earlier_s=earlier_s)
        self.clock.add("decode", self.assignment.decode_time_s)
        started_at = self.status.started_at or utc_now()
        self.status = replace(
            self.status,
            state="running",
            cause=None,
            epochs_done=self.start.epoch,
            started_at=started_at,
            ended_at=None,
            not_saved=None,
        )

    def describe(self) -> None:
        """machine.json: where this segment runs, and what was chosen for the user, with reasons."""
        workers = self.workers
        mine = {"host": socket.gethostname(), "device": str(workers.device), "workers": list(workers.hosted)}
        ranks = [json.loads(text) for text in workers.gather(json.dumps(mine))]
        if workers.rank != 0:
            return
        engine = f"{self.made.recipe.workers.engine} {getattr(workers, 'backend', '')}"
        machine = describe(
            workers=workers.count,
            processes=workers.size,
            engine=engine if workers.size > 1 else type(workers).__name__,
            launch=self.assignment.launch,
            device=str(workers.device),
            choices=self.made.choices(),
        )
        machine["ranks"] = ranks
        machine["cost"] = self.made.cost
        machine["passed_over_checkpoints"] = self.passed_over
        machine["changed"] = changed_since(self.directory.machine, machine, start=self.status.segments)
        write_json(self.directory.machine, machine)

    def recorder(self, progress: Progress) -> RunRecorder:
        self.record = RunRecorder(
            self.directory,
            clock=self.clock,
            step=self.step,
            status=self.status,
            progress=progress,
            recipe=deciding_keys(self.made.recipe.to_dict()),
        )
        return self.record

    def run(self, stop_asked: Callable[[], bool]) -> None:
        made, training = self.made, self.made.recipe.training
        loop = Loop(
            step=self.step,
            feed=made.feed,
            schedule=schedule(training, steps_per_epoch=made.steps_per_epoch, scaled=made.scaling),
            clock=self.clock,
            recorder=self.record,
            agreement=Agreement(self.workers, stop_asked=stop_asked),
            due=CheckpointSchedule(training),
            heartbeat=made.heartbeat,
            steps_per_epoch=made.steps_per_epoch,
            segment=self.status.segments,
        )
        self.clock.add("start_up", self.clock.program_s() - self.assignment.decode_time_s)
        self.clock.add("import", self.assignment.import_time_s)
        self.record.set_status()
        loop.run(start=self.start)
        with self.clock.part("evaluation"):
            validation = loop.noted(made.feed.validation())
            counts = evaluate(self.step.parts, validation, num_classes=loop.num_classes, with_confusion=True)
        self.record.finish(final_evaluation(counts, epoch=training.epochs, classes=made.pixels.classes))


def _status(directory: RunDirectory) -> Status:
    return from_json(Status, read_json(directory.status))
