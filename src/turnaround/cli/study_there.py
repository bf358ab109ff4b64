"""`turnaround study --on slurm`: the same study as jobs of a cluster. No torch: this runs on a login node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from turnaround.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from turnaround.cli.on_slurm import Flags, TrainingJob
    from turnaround.cli.study import Subject
    from turnaround.launch.clusters.slurm.cluster import Partition
    from turnaround.launch.clusters.slurm.script import SlurmJob
    from turnaround.study.lifecycle import Work
    from turnaround.study.on_slurm import SlurmConductor
    from turnaround.study.plan import PlannedRun


def study_there(work: Work, subject: Subject, flags: Flags, *, is_dry: bool) -> None:
    """Plans over GPU kinds and hosts, checks everything, then submits what is missing and follows it."""
    from turnaround.cli.on_slurm import cluster_here, job_for
    from turnaround.cli.study import shown, tell_end
    from turnaround.record.lock import RunLock
    from turnaround.report.terminal import err
    from turnaround.report.training_display import page_on_failure
    from turnaround.study.on_slurm import SlurmConductor
    from turnaround.study.state import agree_with_before

    engine = subject.recipe.workers.engine if subject.recipe else "torch"
    if engine != "torch":
        raise InputError(f"--on slurm starts the engine torch, not {engine}.")
    cluster, console = cluster_here(is_dry=is_dry), err()
    wishes, planned = _spread(subject.planned, flags, device=work.device, cluster=cluster)
    jobs = {run: _watched(run, work, job_for(_training(run, work), wishes(run), cluster)) for run in planned}
    conductor = SlurmConductor(
        work=work,
        planned=planned,
        job_for=jobs.__getitem__,
        tell=lambda line: console.print(line, markup=False),
    )
    if is_dry:
        return _print_scripts(conductor, jobs, cluster)
    assert cluster is not None, "only a dry run goes on without a cluster"
    if flags.cancel:
        cancelled = conductor.cancel()
        return console.print("\n".join(f"cancelled: {label}" for label in cancelled) or "No job of it is there.")
    if not any(job.settings.setup for job in jobs.values()):  # else the nodes have programs that are not here
        subject.refuse_if_missing(work.folder)
    todo = [jobs[state.planned] for state in conductor.states() if not state.is_done]
    _require_possible(todo, work.folder, cluster, conductor.tell)
    agree_with_before(work.folder, subject.compared, planned)
    with page_on_failure(work.folder), RunLock(work.folder / "study.lock"):
        if flags.no_wait:
            conductor.submit()
            return console.print("Submitted. The same command without --no-wait follows the jobs.")
        with shown(conductor):
            conductor.run()
    if conductor.left_out:
        console.print(f"The budget does not pay for: {'; '.join(conductor.left_out)}.")
    return tell_end(work.folder, conductor)


def _spread(
    base: tuple[PlannedRun, ...], flags: Flags, *, device: str, cluster: dict[str, Partition] | None
) -> tuple[Callable[[PlannedRun], dict[str, object]], tuple[PlannedRun, ...]]:
    """The runs for every kind and number of hosts, and the wishes of each."""
    from turnaround.launch.clusters.slurm.cluster import spelled
    from turnaround.launch.clusters.slurm.settings import SlurmSettings
    from turnaround.launch.clusters.slurm.spread import settings_for, spread
    from turnaround.study.plan import counts, plan_there

    plain = replace(flags, gpu=None, hosts=None)
    hosts = counts(str(flags.hosts), flag="--hosts") if flags.hosts is not None else None
    kinds: list[str | None] = [kind.strip() for kind in (flags.gpu or "").split(",") if kind.strip()]
    if cluster is not None:  # a run's name has its kind: T4 and t4 are one
        usual = SlurmSettings.load(plain.wishes())
        kinds = [spelled(kind, usual, cluster) for kind in kinds if kind]

    def wishes(run: PlannedRun) -> dict[str, object]:
        return plain.wishes(gpu=run.gpu, hosts=run.hosts)

    def hosts_for(run: PlannedRun) -> list[int]:
        """As asked, without those on which a host has fewer GPUs than processes; else the fewest."""
        wished = plain.wishes(gpu=run.gpu)
        least = settings_for(wished, processes=run.processes, device=device, there=cluster).hosts
        if hosts is None:
            return [least]
        even = [count for count in hosts if run.processes % count == 0]
        fitting = [count for count in even if count >= least] or even
        return fitting or [spread(run.processes, hosts=hosts[0], most=None)[0]]

    return wishes, plan_there(base, kinds=kinds or [None], hosts_for=hosts_for)


def _training(run: PlannedRun, work: Work) -> TrainingJob:
    from turnaround.cli.on_slurm import TrainingJob

    settings = [*work.overrides, f"training.seed={run.seed}"]
    words = (work.source, "--workers", str(run.workers), *(part for value in settings for part in ("--set", value)))
    return TrainingJob(words=words, out=work.folder / run.name, processes=run.processes, device=work.device)


def _watched(run: PlannedRun, work: Work, job: SlurmJob) -> SlurmJob:
    """Of somebody else's program: the same hosts and GPUs, and a watcher in place of the training."""
    from turnaround.study.state import log_of

    if work.program is None:
        return job
    _, *words = work.program.watched(run, job.directory, log_of(run, work.folder.absolute()))
    return replace(job, train=(), watcher=tuple(words))


def _print_scripts(
    conductor: SlurmConductor, jobs: dict[PlannedRun, SlurmJob], cluster: dict[str, Partition] | None
) -> None:
    """Every script, under its run's name."""
    from turnaround.launch.clusters.slurm.cluster import check
    from turnaround.launch.clusters.slurm.script import job_script

    for state in conductor.states():
        job = jobs[state.planned]
        if cluster is not None:
            check(job, cluster)
        typer.echo(f"# {state.planned.label}: {state.standing}\n{job_script(job)}")


def _require_possible(
    jobs: Sequence[SlurmJob], folder: Path, cluster: dict[str, Partition], tell: Callable[[str], None]
) -> None:
    """Everything is checked before anything is submitted; nodes are asked once, unless they have been there before."""
    from turnaround.cli.on_slurm import require_seen
    from turnaround.launch.clusters.slurm.cluster import check
    from turnaround.record.layout import StudyDirectory

    for note in dict.fromkeys(note for job in jobs for note in check(job, cluster)):
        tell(f"note: {note}")
    if jobs and not StudyDirectory(folder).has_job_notes():
        require_seen(folder.absolute(), max(jobs, key=lambda job: job.settings.hosts).settings, tell)
