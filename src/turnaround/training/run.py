"""One start of a run on one process: connect, agree, build, restore, warm up, train, record.

Enters: an `Assignment`, as the launcher gives it to every process. Leaves: the finished run directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from turnaround.choice import recorded
from turnaround.data.pixels import Pixels, open_pixels
from turnaround.errors import InputError, RunDirectoryError
from turnaround.recipe import Recipe
from turnaround.record.files import read_json
from turnaround.record.heartbeat import Heartbeat, HeartbeatFile
from turnaround.record.host import host_name
from turnaround.record.layout import RunDirectory
from turnaround.record.machine import changed_since, describe
from turnaround.record.places import with_passed_paths, without_paths
from turnaround.record.recipe_changes import BATCH_TO_FIT
from turnaround.record.schema import Status, from_json, utc_now
from turnaround.record.telemetry import Telemetry
from turnaround.record.writer import truncate_epochs, write_json
from turnaround.training import checkpoint, faults
from turnaround.training.assembly import Assembly, TrainingCore, build_core, warm_up
from turnaround.training.checkpoint import Manifest
from turnaround.training.choices import ProcessDevice, choose_device
from turnaround.training.clock import Clock, StartUp, with_lost
from turnaround.training.energy import GPU, EpochEnergy, gpu_of, with_gpu_numbers
from turnaround.training.evaluate import Evaluator, final_evaluation
from turnaround.training.fitting import TrialSite, fitting_batch, out_of_memory_explained
from turnaround.training.loop import Agreement, Loop
from turnaround.training.neighbours import watched_neighbours
from turnaround.training.plan import EpochPlan
from turnaround.training.recording import Progress, RunRecorder
from turnaround.training.saving import CheckpointSchedule, interval_choice, remove_later
from turnaround.training.schedule import Schedule, choose_scaling, make_schedule
from turnaround.training.sharing import go_on_with_shares, sharing_by_speed
from turnaround.workers.contract import Workers
from turnaround.workers.engines import connect
from turnaround.workers.environment import RankInfo
from turnaround.workers.shares import AUTO, EVEN, shares_of

StableRule = Callable[[Sequence[float], int], bool]
"""Tells by the validation accuracy of all epochs, and the number of validation images, whether it is stable."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The launcher's message to every process."""

    directory: RunDirectory
    pixels_dir: Path
    device: str = "auto"
    share: str = EVEN
    """How the workers are shared out among the processes: even, auto, or a number for each."""
    launch: str = "local"
    begun_at_s: float
    """Start of the user's command by this host's monotonic clock: imports and scanning are start-up too."""
    decode_time_s: float = 0.0
    """Seconds spent waiting for decoding; code that was loaded meanwhile counts as start-up."""
    import_time_s: float = 0.0
    """Seconds from the start of this process until all its code was loaded."""
    preloaded_s: float = 0.0
    """Seconds that a fork server had spent on loading that code before the command began."""
    start_up: StartUp = field(default_factory=StartUp)
    """What was noted of the start so far."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One start of a run, from the checkpoint it goes on from: a run that is resumed has several."""

    start: Manifest
    status: Status
    clock: Clock
    plan: EpochPlan
    passed_over: list[str]
    """A sentence for each checkpoint that was damaged."""


def train(
    assignment: Assignment,
    rank_info: RankInfo,
    progress: Progress,
    *,
    heartbeat: Heartbeat,
    stop_asked: Callable[[], bool],
    is_stable: StableRule,
) -> None:
    """Train from the newest valid checkpoint, or from the beginning, to the end of the recipe.

    `is_stable` is the rule of `training.stop = stable`: analysis, which has it, is a room that training does not see.
    """
    directory, start_up = assignment.directory, assignment.start_up
    record = with_passed_paths(read_json(directory.recipe))
    recipe = Recipe.from_record(record)
    device = choose_device(assignment.device, rank_info)
    with ExitStack() as open_parts:
        workers = connected(recipe, rank_info, device.value)
        # Before anything is built: passes, slices and compiled shapes follow the number of hosted workers.
        workers.share_out(shares_of(assignment.share, workers=workers.count, processes=workers.size))
        start_up.ended("connect")
        # One process of each host reads its GPUs and processors, from here on: start-up is a part of the record.
        telemetry = Telemetry(directory.telemetry(host_name())) if rank_info.local_rank == 0 else None
        if telemetry is not None:
            open_parts.enter_context(telemetry)
        pixels = open_pixels(assignment.pixels_dir)
        agree(workers, recipe, pixels)  # before anything is computed that would only differ later
        start_up.ended("open pixels")
        site = TrialSite(workers=workers, pixels=pixels, rank_info=rank_info, device=device)
        if BATCH_TO_FIT in record:
            recipe = _fitted(record, recipe, site, directory, progress)
            start_up.ended("try the batch")
        # After the trials, in which a device that refuses is an answer and not an error.
        open_parts.enter_context(out_of_memory_explained(recipe, workers, heartbeat, site, run=directory.path))
        core = build_core(recipe, workers, pixels, rank_info=rank_info, device=device, heartbeat=heartbeat)
        start_up.ended("build network and optimizer")
        faults.arm(rank=rank_info.rank, segment=_status(directory).segments)
        faults.strike("start")
        segment = _restore(assignment, core, is_stable)
        start_up.ended("restore")
        if segment.plan.note is not None:
            progress.warn(segment.plan.note)
        program_s = segment.clock.total_program_s
        open_parts.enter_context(HeartbeatFile(directory, rank=workers.rank, heartbeat=heartbeat, program_s=program_s))
        open_parts.enter_context(watched_neighbours())
        assembly = warm_up(core, start_up=start_up)  # after the heartbeat began: compiling takes up to a minute
        ranks = _ranks(workers)
        energy = EpochEnergy(workers, ranks, telemetry=telemetry, host=host_name())
        _write_machine(assignment, assembly, segment, ranks)  # the warm-up made the last choices: kernels, graphs
        recorder = open_parts.enter_context(
            RunRecorder(
                directory,
                recipe=recipe,
                plan=segment.plan,
                clock=segment.clock,
                step=core.step,
                status=segment.status,
                progress=progress,
            )
        )
        _train_segment(assignment, assembly, segment, recorder, energy=energy, stop_asked=stop_asked)
    workers.close()  # not after an error: the others would report that we are gone before we have said why


def _fitted(
    record: dict[str, Any], recipe: Recipe, site: TrialSite, directory: RunDirectory, progress: Progress
) -> Recipe:
    """Try the batch, and return the recipe with the one that fits; process 0 writes it down: a resume tries nothing."""
    choice = fitting_batch(recipe, site)
    asked = record[BATCH_TO_FIT]
    rate = asked.get("learning_rate") if isinstance(asked, dict) else recipe.training.learning_rate
    # A rate that nobody asked for follows the batch, as if this batch had been given.
    recipe = recipe.replace("training", batch_per_worker=choice.value, learning_rate=rate).resolved()
    reasons = record.get("automatic")
    reasons = dict(reasons) if isinstance(reasons, dict) else {}
    key = "training.batch_per_worker"
    reasons[key] = "; ".join(filter(None, (reasons.get(key), choice.reason)))
    if site.workers.rank == 0:
        facts = {name: value for name, value in record.items() if name != BATCH_TO_FIT}
        write_json(directory.recipe, without_paths({**facts, **recipe.to_dict(), "automatic": reasons}))
    progress.note(f"{key} = {choice.value}: {choice.reason}.")
    return recipe


def connected(recipe: Recipe, rank_info: RankInfo, device: ProcessDevice) -> Workers:
    return connect(
        recipe.workers.engine,
        place=rank_info,
        count=recipe.workers.count,
        device=device.device,
        shares_device=device.shares_device,
    )


def agree(workers: Workers, recipe: Recipe, pixels: Pixels) -> None:
    """Refuse to train unless all processes have the same recipe and the same images; both values are named."""
    mine = {"recipe": json.dumps(recipe.to_dict(), sort_keys=True), "images": pixels.fingerprint}
    everyone = [json.loads(text) for text in workers.gather(json.dumps(mine))]
    for what, value in mine.items():
        for rank, theirs in enumerate(everyone):
            if theirs[what] != value:
                raise InputError(
                    f"Processes {rank} and {workers.rank} disagree about the {what}: {theirs[what]} against {value}. "
                    "All must read the same run directory and the same images."
                )


def _restore(assignment: Assignment, core: TrainingCore, is_stable: StableRule) -> Segment:
    """Go on from the newest valid checkpoint, the same one on every process; the record is cut back to it."""
    directory, workers = assignment.directory, core.workers
    path, passed_over = checkpoint.agree_on_newest(directory.checkpoint, workers)
    if path is None and passed_over:
        raise RunDirectoryError(
            f"No checkpoint of {directory.path} can be used: {'; '.join(passed_over)}. "
            "What was recorded stays; start a new run."
        )
    status = _status(directory)
    start = Manifest() if path is None else core.state.restore(path)
    epochs_done = start.position.epochs_done
    go_on_with_shares(start, core, share=assignment.share)
    # Nobody looks for checkpoints any more, so process 0 may remove what a killed save left behind.
    workers.barrier()
    if workers.rank == 0:
        checkpoint.remove_leftovers(directory.checkpoint)
        remove_later(directory.best, than_epoch=epochs_done)
        copies = 1 + core.state.num_sets_of_weights  # of the best epoch, and of a checkpoint
        checkpoint.require_room(directory.checkpoint, core.network.module, copies_of_weights=copies)
        truncate_epochs(directory.epochs, epochs_done)  # lines that were written after the checkpoint come again
    # What was computed after the checkpoint is computed again: its time counts as lost, not as never spent.
    earlier_s = with_lost(start.clock_s, until_s=status.time_s.get("program", 0.0))
    clock = Clock(workers.device, begun_at_s=assignment.begun_at_s, earlier_s=earlier_s)
    clock.add("decode", assignment.decode_time_s)
    status = replace(
        status,
        state="running",
        cause=None,
        epochs_done=epochs_done,
        started_at=status.started_at or utc_now(),
        ended_at=None,
        not_saved=None,
        share_changes=[change for change in status.share_changes if change.after_epoch <= epochs_done],
    )
    plan = _plan(core, start, clock, is_stable)  # after the clock, by which a time limit is counted over all starts
    return Segment(start=start, status=status, clock=clock, plan=plan, passed_over=passed_over)


def _plan(core: TrainingCore, start: Manifest, clock: Clock, is_stable: StableRule) -> EpochPlan:
    training, num_validation = core.recipe.training, len(core.pixels.labels) - core.pixels.num_train

    def schedule_over(epochs: int) -> Schedule:
        began = replace(training, epochs=epochs)
        scaled = choose_scaling(began, workers=core.workers.count).value
        return make_schedule(began, steps_per_epoch=core.steps_per_epoch, scaled=scaled)

    return EpochPlan(
        training,
        core.workers,
        start=start,
        make_schedule=schedule_over,
        steps_per_epoch=core.steps_per_epoch,
        clock=clock,
        is_stable=(lambda curve: is_stable(curve, num_validation)) if training.stop == "stable" else None,
    )


def _ranks(workers: Workers) -> list[dict[str, Any]]:
    """Return host, device, GPU and hosted workers of every process, by rank."""
    mine = {"host": host_name(), "device": str(workers.device), "workers": list(workers.hosted)}
    return [json.loads(text) for text in workers.gather(json.dumps({**mine, GPU: gpu_of(workers.device)}))]


def _write_machine(
    assignment: Assignment, assembly: Assembly, segment: Segment, ranks: Sequence[dict[str, Any]]
) -> None:
    """Write machine.json: where this segment runs, and what was chosen for the user, with reasons."""
    core, directory = assembly.core, assignment.directory
    workers = core.workers
    if workers.rank != 0:
        return
    machine = describe(
        workers=workers.count,
        processes=workers.size,
        engine=type(workers).__name__ if workers.size == 1 else f"{core.recipe.workers.engine} {workers.backend}",
        launch=assignment.launch,
        device=str(workers.device),
        choices=recorded(
            {**assembly.choices(), **segment.plan.choices(), **interval_choice(core.recipe.training, segment.status)}
        ),
    )
    machine["ranks"] = with_gpu_numbers(ranks)
    machine |= {} if assignment.share == EVEN else {"share": assignment.share}
    machine["cost"] = core.cost
    machine["start_up_s"] = {part: round(seconds, 3) for part, seconds in assignment.start_up.parts_s.items()}
    machine["passed_over_checkpoints"] = segment.passed_over
    machine["changed"] = changed_since(directory.machine, machine, start=segment.status.segments)
    write_json(directory.machine, machine)


def _train_segment(
    assignment: Assignment,
    assembly: Assembly,
    segment: Segment,
    recorder: RunRecorder,
    *,
    energy: EpochEnergy,
    stop_asked: Callable[[], bool],
) -> None:
    """Train to the end of the recipe, evaluate once more with a confusion matrix, and write the last files."""
    core, clock = assembly.core, segment.clock
    training, classes = core.recipe.training, core.pixels.classes
    evaluator = Evaluator(
        components=core.step.components, feed=assembly.feed, num_classes=len(classes), heartbeat=core.heartbeat
    )
    loop = Loop(
        network=core.network,
        workers=core.workers,
        step=core.step,
        feed=assembly.feed,
        evaluator=evaluator,
        clock=clock,
        energy=energy,
        recorder=recorder,
        agreement=Agreement(core.workers, stop_asked=stop_asked),
        checkpoints=CheckpointSchedule(training, segment.status),
        heartbeat=core.heartbeat,
        plan=segment.plan,
        steps_per_epoch=core.steps_per_epoch,
        segment=segment.status.segments,
        sharing=sharing_by_speed(assembly) if assignment.share == AUTO else None,
    )
    # Everything since the command began, except waiting for decoding, which has a part of its own.
    clock.add("start_up", clock.program_s() - assignment.decode_time_s)
    clock.add("import", assignment.import_time_s)
    if assignment.preloaded_s:
        clock.add("preloaded", assignment.preloaded_s)
    recorder.set_status()
    loop.run(segment.start)
    with clock.part("evaluation"):
        counts = evaluator.validation(with_confusion=True)
    plan = segment.plan
    evaluation = final_evaluation(counts, epoch=plan.epochs, classes=classes, files=core.pixels.files)
    recorder.finish(replace(evaluation, best=plan.best))


def _status(directory: RunDirectory) -> Status:
    return from_json(Status, read_json(directory.status))
