"""The contract of a cluster, and the values that pass between it and the code that knows no cluster by name.

Enters: a training and the user's wishes. Leaves: a readable script, a job, and its `JobState` whenever it is asked for.
Everything else (a run becomes a job once, who follows may leave and come back, a study is many jobs) is written once,
for all clusters: submission.py, follow.py, job_status.py, study/on_cluster.py. One folder and one row of `CLUSTERS`
(__init__.py) are another cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from turnaround.errors import InputError, TurnaroundError

# The words for where a job stands are Slurm's, which has the most of them; another cluster translates its own.
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
ALIVE = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")

UNKNOWN = "UNKNOWN"


class NoAnswerError(InputError):
    """The cluster has said nothing in time: it need not be asked again at once."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """One job as its cluster sees it. Times are seconds since 1970."""

    job_id: str
    state: str
    """PENDING, RUNNING, COMPLETING, COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL, PREEMPTED, OUT_OF_MEMORY ...;
    UNKNOWN when the cluster has forgotten the job."""
    reason: str | None = None
    """Why it waits or failed, as the cluster says it: Resources, Priority, NonZeroExitCode ..."""
    submitted_at: float | None = None
    """Time of submission; of the requeue, for a requeued job, since Slurm forgets the first time."""
    started_at: float | None = None
    """The present or last start; None while it waits."""
    ended_at: float | None = None
    """None until it has ended."""
    exit_code: int | None = None
    """Exit status of the script, once it has ended; a signal n is -n."""
    restarts: int | None = None
    """Number of requeues; None where the source does not say."""
    hosts: tuple[str, ...] = ()
    command: str | None = None
    """The script that was submitted; None where the source does not say."""

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING

    @property
    def is_over(self) -> bool:
        """True when it will not run any more, unless somebody requeues it."""
        return not self.is_waiting and self.state not in ALIVE

    @property
    def is_forgotten(self) -> bool:
        """True when the cluster knows nothing of it any more."""
        return self.state == UNKNOWN

    @property
    def succeeded(self) -> bool:
        return self.state == "COMPLETED"

    def queue_time_s(self, now_s: float | None = None) -> float | None:
        """Return seconds from the (last) submission to the start, or until now; None for a job that never started."""
        if self.submitted_at is None:
            return None
        if self.is_waiting:
            return max(0.0, (time.time() if now_s is None else now_s) - self.submitted_at)
        return None if self.started_at is None else max(0.0, self.started_at - self.submitted_at)


def unknown(job_id: str, reason: str) -> JobState:
    return JobState(job_id=job_id, state=UNKNOWN, reason=reason)


@dataclass(frozen=True, kw_only=True)
class PastWait:
    """One job in the cluster's accounts: what it asked for, and how long it waited for it."""

    gpus: int
    """0 of a job without GPUs."""
    wait_s: float
    gpu: str | None = None
    """The kind, as the cluster calls it; None where any would do."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The user's flags about the cluster; None leaves a thing to the user's settings, or to the cluster."""

    gpu: str | None = None
    hosts: int | str | None = None
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    settings: tuple[str, ...] = ()
    """Any other key=value that the cluster knows."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training as it would be typed, and where it goes."""

    words: tuple[str, ...]
    """After `turnaround train`, without --out, --processes and --device."""
    out: Path
    processes: int
    device: str
    watcher: tuple[str, ...] = ()
    """Instead of `words`: those after `python` that run somebody else's program and leave a run of it."""


@dataclass(frozen=True, kw_only=True)
class JobStart:
    """One start of a job, as its own script sees it."""

    job_id: str
    starts: int
    """1 for the first, one more at each requeue."""
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FileWriter:
    """A cluster for which a file is written that its own tools submit and start again; nothing of it is followed."""

    name: str
    title: str
    text: Callable[[TrainingJob, Wishes], str]
    submit: Callable[[str, Callable[[str], None]], None] | None = None
    """Hands a text to the cluster's own client and tells what that prints; None where a person does it."""


class ClusterJob(Protocol):
    """One run as one job: what code that knows no cluster by name must know of it."""

    @property
    def directory(self) -> Path:
        """The run directory, absolute, on a file system that the compute nodes see."""

    @property
    def log_folder(self) -> Path:
        """The folder for what the job prints."""

    @property
    def hosts(self) -> int: ...

    @property
    def processes_here(self) -> int:
        """Processes on each host."""

    @property
    def gpu(self) -> str | None:
        """The kind that is asked for, as the cluster calls it."""

    @property
    def has_setup(self) -> bool:
        """True when the script prepares its environment: the nodes may then have programs that are not here."""


class Cluster(Protocol):
    """A batch system. Jobs and inventories are its own values: it alone looks inside."""

    name: str
    """After --on, and in a run's status.json."""
    title: str
    """In sentences."""

    def require(self) -> None:
        """Raise MissingPartError when this machine cannot reach the cluster."""

    def inventory(self) -> Any:
        """Return what the cluster has."""

    def gpus_per_host(self, inventory: Any) -> dict[str, int]:
        """Return the most GPUs that one host has, by kind as the cluster spells it; empty where it has none."""

    def spelled(self, gpu: str, wishes: Wishes, inventory: Any) -> str:
        """Return a kind of GPU as this cluster spells it."""

    def job(self, training: TrainingJob, wishes: Wishes, inventory: Any | None) -> ClusterJob:
        """Return the job of a training, spread over as few hosts as have room; without an inventory, any has room."""

    def check(self, job: Any, inventory: Any) -> list[str]:
        """Return what is unlikely to start soon, as sentences; InputError for what can never start."""

    def start_estimate_s(self, job: Any) -> float | None:
        """Return in how many seconds the cluster would start this job if it were submitted now; nothing is submitted.
        None where it does not tell; InputError for a job that it would refuse."""

    def past_waits(self) -> list[PastWait]:
        """Return the waits of this user's jobs in the cluster's accounts; none where it keeps or shows no accounts."""

    def why_unseen(self, folder: Path, job: Any) -> str | None:
        """Return why nobody knows whether the compute nodes see the folder; InputError when they do not."""

    def script(self, job: Any) -> str:
        """Return the batch script, which a person can read, change and submit by hand. Pure."""

    def submit(self, job: Any) -> str:
        """Write the job's script into its run directory and submit it, held. The job's id."""

    def submit_script(self, script: Path) -> str:
        """Submit a script as it is, held."""

    def release(self, job_id: str) -> None:
        """Let a held job start."""

    def is_held(self, job: JobState) -> bool:
        """Return whether a job waits for nothing but its release."""

    def state(self, job_id: str) -> JobState:
        """Return where a job stands; UNKNOWN when nobody remembers it."""

    def states(self) -> dict[str, JobState]:
        """Return all of this user's jobs that the cluster remembers, by id: one question for any number."""

    def cancel(self, job_id: str) -> None:
        """End a job; nothing happens to one that has ended already."""

    def requeue(self, job_id: str) -> None:
        """Put a running or ended job back into the queue."""

    def step_environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the engine's variables for this process, where the cluster's own launcher has started several that
        find no meeting point; empty where it has not, or where another launcher has said it already."""

    def cancel_command(self, job_id: str) -> str:
        """Return what a person types to cancel it."""

    def why_lost(self, job: JobState, *, go_on: str) -> TurnaroundError | None:
        """Return the error of a job that ended before its program could say why; None while it lives, or went well."""
