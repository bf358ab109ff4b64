"""`turnaround study`: many configurations of one recipe, or of somebody else's program, and what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnaround.cli.options import (
    LOCAL,
    Account,
    Batch,
    Budget,
    Cancel,
    ClusterFlags,
    Command,
    Device,
    Epochs,
    Gpus,
    HostCounts,
    LearningRate,
    Model,
    More,
    Notify,
    NotifyIdle,
    NoWait,
    On,
    Partition,
    Pretrained,
    Rehearse,
    Set,
    Size,
    StudySource,
    Time,
    WorkerCounts,
    notifier_of,
    overrides_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnaround.launch.clusters.contract import Cluster
    from turnaround.record.notify import Notifier
    from turnaround.study.lifecycle import Conductor, StudyConductor, Work
    from turnaround.study.on_cluster import ClusterConductor
    from turnaround.study.state import RunState
    from turnaround.study.subject import StudyAsked, Subject


def study(
    source: StudySource = None,
    command: Command = None,
    workers: WorkerCounts = None,
    rehearse: Rehearse = None,
    repeat: Annotated[int, typer.Option(help="Runs of each configuration, with different seeds.", min=1)] = 1,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="The study's folder. Default: runs/NAME-study.")] = None,
    set_: Set = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: LearningRate = None,
    model: Model = None,
    pretrained: Pretrained = None,
    size: Size = None,
    budget: Budget = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try runs again that have failed.")] = False,
    notify: Notify = None,
    notify_idle: NotifyIdle = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the planned runs, and do nothing.")] = False,
    on: On = "local",
    gpu: Gpus = None,
    hosts: HostCounts = None,
    partition: Partition = None,
    account: Account = None,
    time: Time = None,
    slurm: More = None,
    no_wait: NoWait = False,
    cancel: Cancel = False,
) -> None:
    """Run many configurations, compare them and forecast others.

    It runs what is missing. Stop it at any time: the same command goes on.

    [bold]turnaround study photos/ --workers 1,2 --rehearse 4,8,16 --repeat 3[/bold]
    [bold]turnaround study photos/ --workers 1,2,4 --on slurm --gpu t4,v100[/bold]
    [bold]turnaround study --command "python lab10.py --gpus {workers}" --workers 1,2,4[/bold]
    """
    from turnaround.launch.contract import checked_device
    from turnaround.study.plan import counts
    from turnaround.study.subject import StudyAsked, gpus_here

    notifier = notifier_of(notify, notify_idle)
    keys = {"epochs": epochs, "batch": batch, "lr": lr, "model": model, "size": size}
    flags = ClusterFlags(on, gpu, hosts, partition, account, time, tuple(slurm or ()), no_wait, cancel)
    device, is_here = checked_device(device), flags.on == LOCAL
    asked = StudyAsked(
        workers=counts(workers, flag="--workers") if workers else [],
        rehearse=counts(rehearse, flag="--rehearse") if rehearse else [],
        repeat=repeat,
        device=device,
        settings=tuple(overrides_of(set_, keys, pretrained=pretrained)),
        is_here=is_here,
        gpus=gpus_here(device) if is_here else (),
    )
    subject = _subject(source, command, asked)
    work = replace(
        subject.work(asked, out=out), retries_failed=retry, budget_gpu_s=_budget_s(budget) if budget else None
    )
    if cluster := flags.cluster():
        return _study_there(work, subject, cluster, flags, is_dry=dry_run, notifier=notifier)
    return _study_here(work, subject, is_dry=dry_run, notifier=notifier)


def _study_here(work: Work, subject: Subject, *, is_dry: bool, notifier: Notifier | None) -> None:
    from turnaround.reporting.terminal import err, preparation
    from turnaround.reporting.training_display import page_on_failure
    from turnaround.study.lifecycle import Conductor
    from turnaround.study.subject import run_here

    conductor = Conductor(work, subject.planned)
    if is_dry:
        return _print_plan(conductor)
    with page_on_failure(work.folder):
        run_here(conductor, subject, preparing=preparation(err()), running=_followed(conductor, notifier))
    if conductor.left_out:
        err().print(f"The budget does not pay for: {'; '.join(conductor.left_out)}.")
    return tell_end(work.folder, conductor)


def _study_there(
    work: Work, subject: Subject, cluster: Cluster, flags: ClusterFlags, *, is_dry: bool, notifier: Notifier | None
) -> None:
    """Plan over GPU kinds and hosts, check everything, then submit what is missing and follow it."""
    from turnaround.errors import InputError
    from turnaround.launch.clusters.follow import inventory_of
    from turnaround.record.layout import StudyDirectory
    from turnaround.record.lock import RunLock
    from turnaround.reporting.terminal import err
    from turnaround.reporting.training_display import page_on_failure
    from turnaround.study.on_cluster import ClusterConductor, plan_jobs, require_possible
    from turnaround.study.state import agree_with_before

    engine = subject.recipe.workers.engine if subject.recipe else "torch"
    if engine != "torch":
        raise InputError(f"--on {cluster.name} starts the engine torch, not {engine}.")
    inventory, console = inventory_of(cluster, is_dry=is_dry), err()
    jobs = plan_jobs(subject.planned, work, flags.wishes, cluster, inventory)
    conductor = ClusterConductor(
        work=work,
        cluster=cluster,
        planned=tuple(jobs),
        jobs=jobs,
        tell=lambda line: console.print(line, markup=False),
    )
    if is_dry:
        return _print_scripts(conductor, inventory)
    if flags.cancel:
        cancelled = conductor.cancel()
        return console.print("\n".join(f"cancelled: {label}" for label in cancelled) or "No job of it is there.")
    if not any(job.has_setup for job in jobs.values()):  # else the nodes have programs that are not here
        subject.refuse_if_missing(work.folder)
    # What is done needs no check: a study may go on after its partition was taken away.
    todo = [jobs[state.planned] for state in conductor.states() if not state.is_done]
    require_possible(todo, StudyDirectory(work.folder), cluster, inventory, conductor.tell)
    agree_with_before(work.folder, subject.compared, conductor.planned)
    with page_on_failure(work.folder), RunLock(StudyDirectory(work.folder).lock):
        if flags.no_wait:
            if notifier is not None:
                notifier.hand_on()  # nobody waits here for the end: the jobs tell it themselves
            conductor.submit()
            return console.print("Submitted. The same command without --no-wait follows the jobs.")
        with _followed(conductor, notifier):
            conductor.run()
    if conductor.left_out:
        console.print(f"The budget does not pay for: {'; '.join(conductor.left_out)}.")
    return tell_end(work.folder, conductor)


def _print_scripts(conductor: ClusterConductor, inventory: object | None) -> None:
    """Print every script, under its run's name."""
    from turnaround.reporting.terminal import print_script

    for state in conductor.states():
        job = conductor.jobs[state.planned]
        if inventory is not None:
            conductor.cluster.check(job, inventory)
        print_script(f"# {state.planned.label}: {state.standing}\n{conductor.cluster.script(job)}\n")


def _print_plan(conductor: Conductor) -> None:
    from turnaround.reporting.terminal import out

    for state in conductor.states():
        shown = conductor.work.shown(state)
        out().print(f"# {state.planned.label}: {state.standing}", shown, sep="\n", markup=False)


def _subject(source: str | None, command: str | None, asked: StudyAsked) -> Subject:
    from turnaround.errors import InputError
    from turnaround.study.subject import of_program, of_recipe

    if source is not None and command is not None:
        raise InputError(
            f"A study is of SOURCE or of --command, not of both. Received: {source!r} and --command {command!r}."
        )
    if source is not None:
        return of_recipe(source, asked)
    if command is not None:
        return of_program(command, asked)
    raise InputError(
        "A study needs SOURCE (a folder of images, a recipe) or, for a program of your own, "
        '--command "python lab10.py --gpus {workers}".'
    )


def _budget_s(text: str) -> float:
    from turnaround.errors import InputError

    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*gpu-?(hour|minute|second)s?\s*", text.lower())
    seconds = float(found[1]) * {"hour": 3600, "minute": 60, "second": 1}[found[2]] if found else 0.0
    if seconds <= 0:
        raise InputError(f"--budget takes a time of GPUs: 3gpu-hours, 90gpu-minutes. Received: {text!r}.")
    return seconds


@contextmanager
def _followed(conductor: StudyConductor, notifier: Notifier | None) -> Iterator[None]:
    """Show the runs, and tell whoever wants to be told."""
    from turnaround.record.notify import study_notified
    from turnaround.reporting.terminal import err

    def tell(note: str) -> None:
        err().print("note:", note, markup=False)

    with study_notified(conductor.work.folder, notifier, tell=tell), _shown(conductor):
        yield


@contextmanager
def _shown(conductor: StudyConductor) -> Iterator[None]:
    """A table that changes in a terminal; elsewhere a line for every change."""
    from rich.live import Live

    from turnaround.reporting.study_text import study_table
    from turnaround.reporting.terminal import err

    console = err()
    if console.is_terminal:
        with Live(console=console, refresh_per_second=2) as live:
            conductor.on_change = lambda states: live.update(study_table(states))
            yield
    else:
        conductor.on_change = _tell_changes(lambda line: console.print(line, markup=False))
        yield


def _tell_changes(tell: Callable[[str], None]) -> Callable[[list[RunState]], None]:
    from turnaround.reporting.study_text import change_line, progress_line

    seen: dict[str, str] = {}

    def on_change(states: list[RunState]) -> None:
        now = {state.planned.name: _told(state) for state in states}
        changed = [state for state in states if seen.get(state.planned.name, "missing") != now[state.planned.name]]
        for state in changed:
            tell(change_line(state))
        if changed:
            tell(progress_line(states))
        seen.update(now)

    return on_change


def _told(state: RunState) -> str:
    """A change of it is worth a line: also of what a job waits for."""
    return f"{state.standing} {state.cause}" if state.standing == "queued" else state.standing


def tell_end(folder: Path, conductor: StudyConductor) -> None:
    """Print the report of what there is, and what went wrong."""
    from turnaround.cli.report import report
    from turnaround.errors import TrainingError
    from turnaround.record.layout import RunDirectory
    from turnaround.reporting.terminal import err
    from turnaround.reporting.training_display import leave_page

    states = conductor.states()
    if any(RunDirectory(state.directory).is_run() for state in states):
        report(directories=[folder], job=None, json_=False)
        if any(state.epochs_done for state in states):
            _forecast(folder, most=max(state.planned.workers for state in states))
        leave_page(folder)
    failed = [state for state in states if state.standing in ("failed", "interrupted")]
    for state in failed:
        err().print(f"{state.planned.label} {state.standing}: {state.cause}", markup=False)
    if failed:
        raise TrainingError(
            f"{len(failed)} of {len(states)} runs did not finish. Their logs are beside them in {folder}; "
            "the same command with --retry tries them again."
        )


def _forecast(folder: Path, *, most: int) -> None:
    """Forecast the numbers of workers up to twice the largest, where the runs allow it."""
    from contextlib import suppress

    from turnaround.cli.predict import predict
    from turnaround.errors import InputError
    from turnaround.reporting.terminal import out

    # Up to twice the most that was run: of numbers beyond, these runs can tell little.
    counts = [2**k for k in range((2 * most).bit_length())]
    with suppress(InputError):  # it has nothing to learn from: the report has said why
        out().print("\n[bold]What other numbers of workers would do[/bold]")
        predict(directories=[folder], workers=",".join(map(str, counts)))
