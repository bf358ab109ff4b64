"""One run from its recipe to its end: directory, images, processes, and what the status says afterwards.

Enters: a `Request`. Leaves: a recorded `Run`, or an error with nothing half-written: a new run that bad input stops
before it trained leaves no directory behind, every other keeps everything and says why it stopped.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import isqrt
from pathlib import Path
from statistics import median
from typing import Any

from turnaround.data.decoders import DecodeTarget, decode_into
from turnaround.errors import (
    DamagedCacheError,
    DivergedError,
    InputError,
    InterruptedRunError,
    ProcessFailedError,
    RunDirectoryError,
    TurnaroundError,
)
from turnaround.launch import contract, handshake, job_origin
from turnaround.launch.automatic import AutomaticChoice, decide
from turnaround.launch.checks import changed_images, code_notes, refuse_early, refuse_other_code, with_epochs
from turnaround.launch.contract import Launcher, LaunchPlan, MoreProcessesError, StartedProcesses, choose_processes
from turnaround.launch.handshake import StartMessage, wait_for_directory
from turnaround.launch.last_start import LAST_START, LastStart
from turnaround.launch.local import LocalLauncher, clear_traces
from turnaround.launch.prepare import Prepared, Show, cache_of_record, cache_root, image_facts, prepare_images
from turnaround.launch.restart import Restarts, grown, grown_sentence
from turnaround.recipe import Recipe
from turnaround.record import heartbeat, places
from turnaround.record.files import read_json, remove_folder
from turnaround.record.host import command_line, is_private, own_job, private
from turnaround.record.layout import RunDirectory
from turnaround.record.lock import RunLock
from turnaround.record.reader import Run
from turnaround.record.recipe_changes import BATCH_TO_FIT, CHANGES, began_with, refuse_changes
from turnaround.record.schema import State, Status, TimePart, utc_now
from turnaround.record.writer import write_json, write_status
from turnaround.words import harmless
from turnaround.workers.engines import require
from turnaround.workers.environment import LAUNCHERS, RankInfo
from turnaround.workers.shares import EVEN, checked_share, shares_of

DECODED_TO_MEASURE, DECODE_ROUNDS = 1000, 3


@dataclass(frozen=True, kw_only=True)
class Request:
    """The user's wishes besides the recipe."""

    out: Path
    show: Show
    processes: int | None = None
    device: str | None = None
    """None means auto for a new run, and the device of before for a resumed one."""
    share: str | None = None
    """Workers of each process: even, auto, or numbers. None means even for a new run, as before for a resumed one."""
    engine: str | None = None
    """Another engine than before, for a resumed run; a new run has it in its recipe."""
    epochs: int | None = None
    """Another number of epochs than before, for a resumed run, also one that has finished."""
    place: RankInfo = field(default_factory=RankInfo)
    """Rank and size of this command when a launcher of others has started it once for each process."""
    accepts_data_change: bool = False
    """Go on with images that are not those that the run began with, and write that down."""
    is_strict: bool = False
    """Refuse to go on with another version of turnaround or of a library."""
    is_private: bool = False
    """Leave host names and command lines out of the record; a resume stays as private as its run."""
    shows_progress: bool = True
    command_s: float | None = None
    """The start of this process, by the monotonic clock, where it was started for this training alone: loading its code
    is a part of every start. None: the training begins with the request."""
    restarts: int = 0
    """Maximum number of new starts, from the last checkpoint, after a process has failed."""
    launcher: Launcher = field(default_factory=LocalLauncher)
    announce: Callable[[Recipe, Prepared, int], None] = lambda recipe, prepared, processes: None
    """Called once everything is known and before the processes start."""


def start(recipe: Recipe, request: Request) -> Run:
    """Train a new run to its end."""
    with private(request.is_private):
        return _start(recipe, request)


def _start(recipe: Recipe, request: Request) -> Run:
    begun_at_s, asked_rate = job_origin.begun_at_s(request.command_s), recipe.training.learning_rate
    with job_origin.refusal_recorded(RunDirectory(request.out)):
        refuse_early(recipe, device=request.device or "auto")
    plan = _plan(recipe, request, processes=_processes(recipe, request), begun_at_s=begun_at_s)
    if request.place.rank > 0:
        return _follow(plan, request)  # all that follows is done once: directory, lock, choices, images
    # Noted before they are made: what is given up removes these, and no folder of the user.
    new_folders = [folder for folder in (request.out, *request.out.parents) if not folder.exists()]
    directory = RunDirectory.create(request.out, job_id=own_job())
    with RunLock(directory.lock):  # when another run holds it, nothing here is ours to remove
        try:
            # The processes load their code while we look at the images and decode them; they are gone before the
            # directory is.
            with request.launcher.started(plan) as processes:
                decision = _decided(recipe, request)
                # The network before the images are decoded: its code is loaded meanwhile.
                plan = plan.for_model(decision.recipe.model)
                processes.tell(plan.message)
                with _images(decision.recipe, request, directory) as prepared:
                    _begin(decision, prepared, plan, request, asked_rate=asked_rate)
                    _train(processes, plan, prepared, request, decision.recipe)
        except (InputError, KeyboardInterrupt) as error:
            # Bad input and Ctrl-C alone: after any other failure its traces are what is needed to find the cause.
            if not directory.epochs.exists():
                _remove(directory, new_folders, error)
            raise
    return Run.load(directory.path)


def _begin(
    decision: AutomaticChoice, prepared: Prepared, plan: LaunchPlan, request: Request, *, asked_rate: float | None
) -> None:
    """Write the first files of a new run, and say what it is."""
    facts = {"command": command_line(), "images": image_facts(prepared), "automatic": decision.reasons}
    if decision.tries_memory:
        facts[BATCH_TO_FIT] = {"learning_rate": asked_rate}
    # The recipe last: it makes the directory a run, and a run without a status can neither go on nor begin.
    write_status(plan.directory, job_origin.first_status(plan.directory, begun_at_s=plan.message.begun_at_s))
    _write_recipe(plan.directory, {**decision.recipe.to_dict(), **facts}, plan)
    request.announce(decision.recipe, replace(prepared, notes=decision.notes()), plan.processes)


def resume(request: Request) -> Run:
    """Go on with a run that was stopped, on as many processes as asked for; the workers stay the same.

    With `request.epochs` also one that has finished: recipe.json keeps what it was before.
    """
    run = Run.load(RunDirectory.open(request.out).path)
    last = LastStart.of(run.recipe)
    with private(request.is_private or last.is_private):
        return _resume(run, request, last)


def _resume(run: Run, request: Request, last: LastStart) -> Run:
    begun_at_s, directory = job_origin.begun_at_s(request.command_s), run.directory
    if run.imported is not None:
        raise InputError(
            f"{request.out} was imported from {run.imported.source}: there are no weights to go on with. Train it here "
            "(turnaround train), or look at it: turnaround report."
        )
    if run.status.state == "finished" and request.epochs is None:
        _remove_leftovers(directory)
        return run
    if run.is_of_others:
        raise InputError(
            f"{request.out} is the record of another program, which alone can go on with it: start that program again."
        )
    recipe = Recipe.from_record(places.with_paths(run.recipe))
    recipe = recipe.replace("workers", engine=request.engine or recipe.workers.engine)
    recipe, changes = with_epochs(recipe, run, request.epochs)
    asked = request.processes if request.place.is_alone else request.place.size
    device, share = last.place(processes=asked)
    request = replace(request, device=request.device or device, share=request.share or share)
    processes = _processes(recipe, request, before=last.processes or _processes_before(run))
    plan = _plan(recipe, request, processes=processes, begun_at_s=begun_at_s)
    if request.processes is None and request.place.is_alone and last.wanted is not None:
        plan = replace(plan, wanted=last.wanted)
        plan = grown(plan, workers=recipe.workers.count) or plan
    if request.place.rank > 0:
        return _follow(plan, request)
    # Before the lock and the processes: a resume that is refused has changed nothing.
    directory.refuse_linked_folders()
    if request.is_strict:
        refuse_other_code(directory)
    notes = code_notes(directory)  # before the start, which describes its machine anew
    refuse_changes(began_with(directory.checkpoint), recipe.to_dict(), directory.path, changes=changes)
    with (
        RunLock(directory.lock),
        request.launcher.started(plan) as started,
        _images(recipe, request, directory) as prepared,
    ):
        changed = changed_images(run, prepared, recipe, is_accepted=request.accepts_data_change)
        facts: dict[str, Any] = {} if changed is None else {"images": image_facts(prepared)}
        changes = changes if changed is None else [*changes, changed]
        # After the check of the images: a resume that is refused leaves recipe and status as they were.
        facts |= {CHANGES: changes} if changes else {}
        _write_recipe(directory, {**run.recipe, **recipe.to_dict(), **facts}, plan)
        write_status(directory, _next_segment(directory, run.status))
        if changed is not None:
            notes = (*notes, f"Going on with other images: {changed['images']}.")
        prepared = replace(prepared, notes=(*prepared.notes, *notes))
        request.announce(recipe, prepared, plan.processes)
        _train(started, plan, prepared, request, recipe)
    return Run.load(directory.path)


def measure(recipe: Recipe, request: Request, *, part_s: float, fits_batch: bool = False) -> dict[str, Any]:
    """Measure the parts of a training on this machine, each alone and all together, in images/s; nothing is kept.

    With `fits_batch`, at the largest half, quarter, ... of the batch that this machine has the memory for.
    `request.out` is a folder for the time being, which the caller removes.
    """
    begun_at_s, recipe = time.monotonic(), _decided(recipe, request).recipe
    plan = _plan(recipe, request, processes=_processes(recipe, request), begun_at_s=begun_at_s)
    plan = replace(plan, message=replace(plan.message, bench_part_s=part_s))
    directory = RunDirectory.create(request.out)
    with request.launcher.started(plan) as processes, _images(recipe, request, directory) as prepared:
        more = {BATCH_TO_FIT: {"learning_rate": recipe.training.learning_rate}} if fits_batch else {}
        write_json(directory.recipe, {**recipe.to_dict(), "images": image_facts(prepared), **more})
        write_status(directory, Status(state="queued"))
        request.announce(recipe, prepared, plan.processes)
        processes.run(_with_images(plan, prepared))
        facts = read_json(directory.bench)
        return {**facts, "processes": plan.processes, "decode": _decode_rate(prepared)}


def _decided(recipe: Recipe, request: Request) -> AutomaticChoice:
    """Make the choices that the recipe leaves to us: once, by the process that writes the recipe for all of them."""
    if request.place.rank > 0:
        return AutomaticChoice(recipe=recipe.resolved())
    cache, device = cache_root(recipe, temporary=request.out), request.device or "auto"
    decision = decide(recipe, cache=cache, device=device, runs=request.out.parent)
    decision = replace(decision, recipe=decision.recipe.resolved())
    refuse_early(decision.recipe, device=device, tries_memory=decision.tries_memory)
    return decision


def _decode_rate(prepared: Prepared) -> dict[str, float]:
    """Measure decoding on this machine's cores, on files from all over the set; the cache may be another machine's."""
    pixels, table = prepared.pixels, prepared.table
    every = max(1, len(pixels.files) // DECODED_TO_MEASURE)
    size_px = pixels.num_bytes // len(pixels.labels)
    target = DecodeTarget(path=None, offset_bytes=0, root=table.root.absolute(), size_px=isqrt(size_px // 3))
    # Other files in each round: those of the round before are in memory.
    rates = sorted(decode_into(target, pixels.files[i::every]).images_per_s for i in range(DECODE_ROUNDS))
    return {"images_per_s": median(rates), "low": rates[0], "high": rates[-1], "rounds": DECODE_ROUNDS}


@contextmanager
def _images(recipe: Recipe, request: Request, directory: RunDirectory) -> Iterator[Prepared]:
    """Yield the decoded images; with the cache off they live only as long as the run."""
    temporary = directory.pixels
    remove_folder(temporary)  # what somebody has packed with the run, or a killed start has left
    cache, notes = cache_root(recipe, temporary=temporary), tuple[str, ...]()
    if directory.is_run():  # the recipe of a new run is this user's own, that of a record may be anybody's
        cache, notes = cache_of_record(recipe, temporary=temporary)
    try:
        prepared = _prepared(recipe, request, cache=cache)
        yield replace(prepared, notes=(*prepared.notes, *notes))
    finally:
        remove_folder(temporary)


def _prepared(recipe: Recipe, request: Request, *, cache: Path) -> Prepared:
    """Prepare the images, again when a process that helps is killed: as often as a training would be started again."""
    for num_left in range(request.restarts, 0, -1):
        try:
            return prepare_images(recipe, cache=cache, show=request.show)
        except ProcessFailedError as error:
            sys.stderr.write(
                f"{harmless(str(error))}\nPreparing the images again by itself: {num_left} more times at most.\n"
            )
    return prepare_images(recipe, cache=cache, show=request.show)


def _processes(recipe: Recipe, request: Request, *, before: int | None = None) -> int:
    """Return the number of processes: as asked, as before, as the devices allow, or as a launcher has started."""
    place, engine = request.place, recipe.workers.engine
    # A launcher has decided the number: shares for another number are refused as such.
    share = request.share if place.is_alone else None
    asked = contract.asked_processes(request.processes, share, workers=recipe.workers.count)
    require(engine)
    if not place.is_alone:
        if request.restarts:
            raise InputError(
                f"--restarts {request.restarts}, but {LAUNCHERS[engine]} has started the processes, so it must start "
                "them again: use its own option, or a loop around `turnaround resume`."
            )
        if engine not in place.engines:
            launcher = LAUNCHERS[place.engines[0]]
            raise InputError(
                f"{launcher} has started {place.size} processes, but the engine is {engine}, which {launcher} does not "
                f"serve. Use --engine {place.engines[0]}, or {LAUNCHERS[engine]}."
            )
        if asked not in (None, place.size):
            raise InputError(
                f"--processes {asked}, but {LAUNCHERS[engine]} has started {place.size} of them. Leave --processes out."
            )
        asked = place.size
    asked = before if asked is None else asked
    return choose_processes(asked=asked, workers=recipe.workers.count, device=request.device or "auto")


def _follow(plan: LaunchPlan, request: Request) -> Run:
    """Run what all processes but the first run under a launcher of others: their worker waits for the start message."""
    wait_for_directory(plan.directory, plan.place)
    try:
        with request.launcher.started(plan) as process:
            process.run(plan.message)
    except TurnaroundError:
        if not plan.directory.is_run():
            raise InputError("Process 0 has given this run up; its message says why.") from None
        raise
    return Run.load(plan.directory.path)


def _plan(recipe: Recipe, request: Request, *, processes: int, begun_at_s: float) -> LaunchPlan:
    """Return the plan, with everything that is known before there are images."""
    place, engine, share = request.place, recipe.workers.engine, checked_share(request.share or EVEN)
    shares_of(share, workers=recipe.workers.count, processes=processes)  # refuses what does not fit, before all else
    message = StartMessage(
        device=request.device or "auto",
        share=share,
        shows_progress=request.shows_progress,
        begun_at_s=begun_at_s,
    )
    if not place.is_alone:
        message = replace(message, start=place.start, launch=LAUNCHERS[engine].split(" -m ")[-1])
    plan = LaunchPlan(
        directory=RunDirectory(request.out), message=message, processes=processes, engine=engine, place=place
    )
    return plan.for_model(recipe.model)


def _with_images(plan: LaunchPlan, prepared: Prepared) -> StartMessage:
    pixels = prepared.pixels
    decode_time_s = 0.0 if pixels.from_cache else pixels.decode_time_s
    return plan.message.with_images(pixels.cache_dir, decode_time_s=decode_time_s)


def _train(processes: StartedProcesses, plan: LaunchPlan, prepared: Prepared, request: Request, recipe: Recipe) -> None:
    """Train to the end or to an error; start again after the failure of a process, as often as was asked for."""
    directory, workers, num_restarts, is_rebuilt = plan.directory, recipe.workers.count, 0, False
    restarts, message = Restarts(plan, workers=workers), _with_images(plan, prepared)
    with ExitStack() as restarted:
        while True:
            try:
                processes.run(message, can_grow=partial(_can_grow, plan, workers))
                return
            except TurnaroundError as error:
                if not directory.is_run():
                    raise  # it has vanished, and with it the status
                # Read after the end: process 0 has written epochs and times into it meanwhile.
                status = Run.load(directory.path).status
                before, more = plan, grown(plan, workers=workers) if isinstance(error, MoreProcessesError) else None
                counted = "."
                # Only the death of a process is worth another start: bad input and divergence would come back.
                if more is not None:
                    plan, cause = more, f"{error} {grown_sentence(before, more)}"
                elif isinstance(error, ProcessFailedError) and num_restarts < request.restarts:
                    num_restarts += 1
                    counted = f": {num_restarts} of {request.restarts}."
                    plan, others = restarts.after(error, plan)
                    cause = " ".join(filter(None, (str(error), others)))
                elif isinstance(error, DamagedCacheError) and plan.place.is_alone and not is_rebuilt:
                    # Once: a disk that has damaged what was just written will do it again.
                    is_rebuilt, cause = True, str(error)
                    write_status(directory, _ended(status, error))  # stays, should the images be gone too
                    prepared = _prepared(recipe, request, cache=prepared.pixels.cache_dir.parent)
                    changed_images(Run.load(directory.path), prepared, recipe, is_accepted=False)
                else:
                    write_status(directory, _ended(status, error))
                    raise
            restarts_so_far = [*status.restarts, places.redacted(cause)]
            write_status(directory, replace(_next_segment(directory, status), restarts=restarts_so_far))
            # Read anew: a batch that was tried has been written into it by process 0.
            _write_recipe(directory, read_json(directory.recipe), plan)
            sys.stderr.write(f"{harmless(cause)}\nStarting again by itself{counted}\n")
            # A new token: a process must not take the message of the start that failed for its own. Decoding takes 0 s
            # now: the first start has counted it.
            again = replace(plan.message, start=secrets.token_hex(8), begun_at_s=time.monotonic())
            plan = replace(plan, message=again)
            message = again.with_images(prepared.pixels.cache_dir, decode_time_s=0.0)
            processes = restarted.enter_context(request.launcher.started(plan))


def _can_grow(plan: LaunchPlan, workers: int) -> bool:
    return grown(plan, workers=workers) is not None


def _next_segment(directory: RunDirectory, status: Status) -> Status:
    """Return the status of a run that is started again; its time is the heartbeat's where that is longer."""
    program_s = max(status.time_s.get("program", 0.0), heartbeat.program_s(directory))
    time_s: dict[TimePart, float] = {**status.time_s, "program": program_s}
    return replace(
        status, segments=status.segments + 1, state="queued", cause=None, ended_at=None, not_saved=None, time_s=time_s
    )


def _ended(status: Status, error: TurnaroundError) -> Status:
    """Return the status of a run that stopped before its end."""
    states: dict[type[TurnaroundError], State] = {
        DivergedError: "diverged",
        InterruptedRunError: "interrupted",
    }
    return replace(
        status, state=states.get(type(error), "failed"), cause=places.redacted(str(error)), ended_at=utc_now()
    )


def _write_recipe(directory: RunDirectory, recipe: dict[str, Any], plan: LaunchPlan) -> None:
    """Write recipe.json with the launch facts that a resume needs: machine.json has them too, but seconds later."""
    facts: dict[str, Any] = {"processes": plan.processes, "device": plan.message.device}
    facts |= {} if plan.message.share == EVEN else {"share": plan.message.share}
    facts |= {} if plan.wanted is None else {"wanted": plan.wanted}
    facts |= {"private": True} if is_private() else {}
    write_json(directory.recipe, places.without_paths({**recipe, LAST_START: facts}))


def _processes_before(run: Run) -> int | None:
    """Return the processes of a run that is older than what recipe.json says of its start."""
    try:
        return int(run.machine["processes"])
    except (RunDirectoryError, KeyError, TypeError, ValueError, OverflowError):
        return None  # it stopped before it had described its machine


def _remove_leftovers(directory: RunDirectory) -> None:
    """Remove what a launcher that was killed after the last epoch has left; a living one keeps its lock.

    Also where there is no lock: the page is written after it was given back, and a second Ctrl-C may interrupt the end.
    """
    with suppress(TurnaroundError, OSError), RunLock(directory.lock):
        handshake.clear(directory)
        clear_traces(directory)


def _remove(directory: RunDirectory, new_folders: list[Path], error: BaseException) -> None:
    """Remove what we put there, and the folders that we made for it; those that were the user's stay."""
    job_origin.give_up(directory, error)
    with suppress(OSError):  # not empty: somebody else's work is in there by now
        for folder in new_folders:
            folder.rmdir()
