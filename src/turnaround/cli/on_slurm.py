"""What train, resume and study share when a cluster does the work. No torch: this runs on a login node.

Enters: the flags, as typed. Leaves: checked jobs, submitted and followed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnaround.errors import InputError, InterruptedRunError, TurnaroundError, one_of
from turnaround.words import counted

if TYPE_CHECKING:
    from turnaround.launch.clusters.slurm.cluster import Partition
    from turnaround.launch.clusters.slurm.script import SlurmJob
    from turnaround.launch.clusters.slurm.settings import SlurmSettings
    from turnaround.launch.clusters.slurm.states import JobState
    from turnaround.record.layout import RunDirectory
    from turnaround.record.schema import Status

PLACES = ("local", "slurm")


@dataclass(frozen=True)
class Flags:
    """What was said about the cluster."""

    on: str = "local"
    gpu: str | None = None
    hosts: int | str | None = None
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    more: tuple[str, ...] = ()
    no_wait: bool = False
    cancel: bool = False
    """Of a study: its jobs are to end."""

    def __post_init__(self) -> None:
        if self.on not in PLACES:
            raise InputError(one_of("--on", self.on, PLACES))
        said = [name for name in ("gpu", "hosts", "partition", "account", "time") if getattr(self, name) is not None]
        said += ["slurm"] * bool(self.more) + ["no-wait"] * self.no_wait + ["cancel"] * self.cancel
        if self.on == "local" and said:
            raise InputError(f"--{said[0]} is for clusters: add --on slurm, or leave it out.")

    @property
    def is_slurm(self) -> bool:
        return self.on == "slurm"

    def wishes(self, **changes: Any) -> dict[str, Any]:
        """For SlurmSettings; `changes` go before what was typed."""
        from turnaround.launch.clusters.slurm.settings import parsed

        typed: dict[str, Any] = parsed(self.more)
        named = {name: getattr(self, name) for name in ("gpu", "hosts", "partition", "account", "time")}
        return {**typed, **{name: value for name, value in {**named, **changes}.items() if value is not None}}


def cluster_here(*, is_dry: bool) -> dict[str, Partition] | None:
    """What the cluster has; None for a dry run where there is none that answers."""
    from turnaround.launch.clusters.slurm.client import require
    from turnaround.launch.clusters.slurm.cluster import partitions

    try:
        require()
        return partitions()
    except InputError:
        if not is_dry:
            raise
        return None


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training as it would be typed, and where it goes."""

    words: tuple[str, ...]
    """After `turnaround train`, without --out, --processes and --device."""
    out: Path
    processes: int
    device: str


def job_for(training: TrainingJob, wishes: dict[str, Any], there: dict[str, Partition] | None) -> SlurmJob:
    """The job of one training; InputError for what this cluster can never give."""
    from turnaround.launch.clusters.slurm.script import SlurmJob
    from turnaround.launch.clusters.slurm.spread import settings_for

    settings = settings_for(wishes, processes=training.processes, device=training.device, there=there)
    return SlurmJob(
        directory=training.out.absolute(),
        train=training.words,
        working_directory=Path.cwd(),
        settings=settings,
        processes_per_host=training.processes // settings.hosts,
        device=None if training.device == "auto" else training.device,
    )


def require_possible(job: SlurmJob, there: dict[str, Partition], tell: Callable[[str], None]) -> None:
    """Before anything is submitted: the cluster has what is asked for, and its nodes see the directory."""
    from turnaround.launch.clusters.slurm.cluster import check

    for note in check(job, there):
        tell(f"note: {note}")
    require_seen(job.directory, job.settings, tell)


def require_seen(directory: Path, settings: SlurmSettings, tell: Callable[[str], None]) -> None:
    """InputError when the compute nodes do not see the directory; a note when they are too busy to look."""
    from turnaround.launch.clusters.slurm.probe import require_visible

    seen = require_visible(directory, settings)
    if seen.answer == "unknown":
        tell(f"note: whether the compute nodes see {directory} could not be found out: {seen.reason}.")


def train_there(job: SlurmJob, flags: Flags, there: dict[str, Partition], tell: Callable[[str], None]) -> bool:
    """Submits one run and follows it; whether it was followed to its end. An error of errors.py when it failed."""
    from turnaround.launch.clusters.slurm.submission import how_to_rejoin, refuse_living, submit_run
    from turnaround.record.layout import RunDirectory

    directory = RunDirectory(job.directory)
    refuse_living(directory)
    require_possible(job, there, tell)
    job_id = submit_run(job)
    hosts, each = job.settings.hosts, job.processes_here
    where = f"{counted(hosts, 'host')} with {counted(each, 'process')}{' each' * (hosts > 1)}"
    kind = f" on {job.settings.gpu}" if job.settings.gpu else ""
    tell(f"Job {job_id}: {where}{kind}. Its script is {directory.job_script}, its output goes to {job.log_folder}.")
    tell(f"Ctrl-C leaves it alone. Rejoin: {how_to_rejoin(directory)}. Cancel: `scancel {job_id}`.")
    if flags.no_wait:
        return False
    follow(directory, job_id, tell)
    return True


def rejoin(path: Path, tell: Callable[[str], None]) -> None:
    """Follows the job of a run; submits it again when it has ended and the run has not."""
    from turnaround.launch.clusters.slurm import client
    from turnaround.launch.clusters.slurm.follow import settle
    from turnaround.launch.clusters.slurm.submission import let_go, living_job, submit_again
    from turnaround.record.job import status_of
    from turnaround.record.layout import RunDirectory

    client.require()
    directory = RunDirectory(path.absolute())
    if not directory.job_script.exists():
        RunDirectory.open(directory.path)
    status, alive = status_of(directory), living_job(directory)
    if alive is None and status is not None and status.state == "finished":
        if status.job is not None:  # nobody was there at its end to write down what Slurm says
            settle(directory, client.job_state(status.job.job_id))
        return
    if alive is None:
        alive_id = submit_again(directory)
        tell(f"Job {alive_id} goes on with {directory.path}.")
    else:
        alive_id = alive.job_id
        let_go(alive)
    follow(directory, alive_id, tell)


def refuse_if_queued(path: Path) -> None:
    """InputError when a job of this run waits or runs somewhere else: two must not train it."""
    from turnaround.launch.clusters.slurm.submission import refuse_living
    from turnaround.record.job import job_status, own_job
    from turnaround.record.layout import RunDirectory

    status = job_status(RunDirectory(path))
    if status and status.job and status.job.job_id != own_job() and shutil.which("scontrol"):
        refuse_living(RunDirectory(path))


def follow(directory: RunDirectory, job_id: str, tell: Callable[[str], None]) -> None:
    """To the job's end; InterruptedRunError when somebody leaves it, the run's own error when it has failed."""
    from turnaround.launch.clusters.slurm import client
    from turnaround.launch.clusters.slurm.follow import JobFollower, listening, settle
    from turnaround.launch.clusters.slurm.submission import how_to_rejoin
    from turnaround.record.job import status_of

    follower, lines, was_cancelled = JobFollower(tell), _Lines(tell), False
    with listening() as stop:
        while True:
            job = follower.states({job_id: None}).get(job_id)
            if job is not None and job.is_over:
                return _raise_unless_finished(settle(directory, job), directory)
            if job is not None:
                lines.show(job, status_of(directory))
            if stop.is_asked and not was_cancelled:
                if not stop.cancels(tell):
                    raise InterruptedRunError(f"Job {job_id} goes on. Rejoin: {how_to_rejoin(directory)}.")
                was_cancelled = True
                client.cancel(job_id)
                tell(f"Job {job_id} is cancelled; it saves what it has.")
                stop.interrupts, stop.terminated = 0, False
            follower.wait(stop)


def _raise_unless_finished(status: Status, directory: RunDirectory) -> None:
    from turnaround.errors import DivergedError, TrainingError
    from turnaround.launch.clusters.slurm.submission import how_to_rejoin

    if status.state == "finished":
        return
    cause, slurm = status.cause or "It ended, and did not say why.", status.job
    kinds: dict[str, type[TurnaroundError]] = {"interrupted": InterruptedRunError, "diverged": DivergedError}
    was_refused = slurm is not None and slurm.exit_code == InputError.exit_code
    kind = kinds.get(status.state, InputError if was_refused else TrainingError)
    said = [f"Slurm: job {slurm.job_id} {slurm.state}, exit status {slurm.exit_code}."] if slurm else []
    said += [f"What it printed is in {directory.logs}."] if directory.logs.is_dir() else []
    said += [] if "--on slurm" in cause or kind is DivergedError else [f"Go on with {how_to_rejoin(directory)}."]
    raise kind(f"{cause}{chr(10) if chr(10) in cause else ' '}{' '.join(said)}")


class _Lines:
    """A line for every change."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell, self.last, self.epochs = tell, "", 0

    def show(self, job: JobState, status: Status | None) -> None:
        line = job_line(job)
        if line != self.last:
            self.tell(f"Job {job.job_id}: {line}.")
            self.last = line
        if status and status.epochs_done > self.epochs:
            self.epochs = status.epochs_done
            self.tell(f"{counted(self.epochs, 'epoch')} saved.")


def job_line(job: JobState) -> str:
    """Where it stands, in a few words."""
    if job.is_waiting:
        return f"in the queue ({job.reason})" if job.reason else "in the queue"
    on = f" on {', '.join(job.hosts)}" if job.hosts else ""
    return {"RUNNING": "running", "COMPLETING": "ending"}.get(job.state, job.state.lower()) + on
