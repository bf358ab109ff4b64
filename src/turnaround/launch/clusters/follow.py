"""Follows jobs to their end: one question to the cluster for any number of them, seldom while nothing happens.

Who follows can leave at any time: the jobs go on, and the same command joins them again by their numbers in the runs'
status.json.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from turnaround.errors import DivergedError, InputError, InterruptedRunError, TrainingError, TurnaroundError
from turnaround.launch.clusters import job_status
from turnaround.launch.clusters.contract import Cluster, ClusterJob, JobState
from turnaround.launch.clusters.job_status import how_to_rejoin
from turnaround.launch.clusters.submission import let_go, living_job, refuse_living, submit_again, submit_run
from turnaround.record.files import kind_of
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import status_of
from turnaround.record.schema import Status
from turnaround.words import counted

# At this growth the longest pause is reached after 17 questions, about a minute.
FIRST_POLL_S, MAX_POLL_S, GROWTH = 0.5, 10.0, 1.2
"""A controller serves a whole cluster: it is asked less often the longer nothing changes."""
PATIENCE_S = 600.0
"""A controller may be restarted; jobs go on meanwhile."""
LATE_FILES_S = 60.0
"""A network file system may show the end of a run so much later than the cluster."""
SECOND_THOUGHT_S = 3.0
"""After a first Ctrl-C there is so much time for the second one."""
SETTLED_S = 10.0
"""A job that has ended so long ago is not about to be requeued; the clocks of two hosts may differ by less."""
FINAL = ("finished", "failed", "diverged", "interrupted")


class Stop:
    """The wish to leave (Ctrl-C once), or to cancel the jobs as well (twice). A SIGTERM leaves at once."""

    def __init__(self) -> None:
        self.interrupts, self.terminated = 0, False

    @property
    def is_asked(self) -> bool:
        return self.interrupts > 0 or self.terminated

    def cancels(self, tell: Callable[[str], None]) -> bool:
        """Wait a moment for a second Ctrl-C and return whether it came; called when a stop is asked for."""
        if not self.terminated and self.interrupts == 1:
            tell(f"Leaving; the jobs go on. Ctrl-C again within {SECOND_THOUGHT_S:g} s cancels them.")
            latest_s = time.monotonic() + SECOND_THOUGHT_S
            while self.interrupts == 1 and not self.terminated and time.monotonic() < latest_s:
                time.sleep(0.05)
        return self.interrupts > 1


@contextmanager
def listening() -> Iterator[Stop]:
    """Yield a Stop that collects signals: inside, a Ctrl-C is a question and not an end."""
    stop = Stop()

    def interrupted(_number: int, _frame: object) -> None:
        stop.interrupts += 1

    def terminated(_number: int, _frame: object) -> None:
        stop.terminated = True

    handlers = {signal.SIGINT: interrupted, signal.SIGTERM: terminated, signal.SIGHUP: terminated}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class JobFollower:
    """The present states of some jobs, by number."""

    cluster: Cluster
    tell: Callable[[str], None]
    _wait_s: float = FIRST_POLL_S
    _last: dict[str, JobState] = field(default_factory=dict)
    _silent_since_s: float | None = None
    _seen_over: set[str] = field(default_factory=set)

    def states(self, job_ids: Mapping[str, object]) -> dict[str, JobState]:
        """Return the states of these jobs; the last known ones while the cluster does not answer."""
        try:
            known = self.cluster.states()
            found = {number: self._sure(known.get(number) or self.cluster.state(number)) for number in job_ids}
            if self._silent_since_s is not None:
                self.tell(f"{self.cluster.title} answers again.")
            self._silent_since_s = None
        except InputError as error:
            self._bear(error)
            found = {number: self._last[number] for number in job_ids if number in self._last}
        if {n: (s.state, s.reason) for n, s in found.items()} != {
            n: (s.state, s.reason) for n, s in self._last.items()
        }:
            self._wait_s = FIRST_POLL_S
        self._last = found
        return found

    def wait(self, stop: Stop) -> None:
        """Sleep until it is time to ask again, or somebody wants to leave."""
        latest_s = time.monotonic() + self._wait_s
        self._wait_s = min(MAX_POLL_S, self._wait_s * GROWTH)
        while not stop.is_asked and time.monotonic() < latest_s:
            time.sleep(0.1)

    def _sure(self, job: JobState) -> JobState:
        """Believe a failed end only when it is seen twice: a job that is being requeued may look ended for a moment."""
        is_old = job.ended_at is not None and time.time() - job.ended_at > SETTLED_S
        if not job.is_over or is_old or job.state in ("COMPLETED", "CANCELLED") or job.job_id in self._seen_over:
            return job
        # The first sighting counts as still ending; the next poll decides.
        self._seen_over.add(job.job_id)
        return replace(job, state="COMPLETING")

    def _bear(self, error: InputError) -> None:
        now_s = time.monotonic()
        if self._silent_since_s is None:
            self._silent_since_s = now_s
            self.tell(f"{error} Waiting for it; the jobs go on.")
        elif now_s - self._silent_since_s > PATIENCE_S:
            raise error


def settle(
    directory: RunDirectory,
    job: JobState,
    cluster: Cluster,
    *,
    patience_s: float = LATE_FILES_S,
    go_on: str | None = None,
) -> Status:
    """Return the run's status when its job is over, with the cluster's last word; `go_on` as in `job_status.ended`."""
    # A job that succeeded has written its end, so the file is only late; one that was killed may never have. A job
    # without a host never ran and has nothing to wait for.
    latest_s = time.monotonic() + (patience_s if job.succeeded else min(patience_s, 5.0))
    status = status_of(directory)
    while (status is None or status.state not in FINAL) and time.monotonic() < latest_s and job.hosts:
        time.sleep(0.2)
        status = status_of(directory)
    if status and status.state in FINAL and status.job and status.job.state == job.state:
        return status
    return job_status.ended(directory, job, cluster, go_on=go_on)


# --- one run from its submission to its end


def inventory_of(cluster: Cluster, *, is_dry: bool) -> Any | None:
    """Return what the cluster has; None for a dry run where there is none that answers."""
    try:
        cluster.require()
        return cluster.inventory()
    except InputError:
        if not is_dry:
            raise
        return None


def require_seen(folder: Path, job: ClusterJob, cluster: Cluster, tell: Callable[[str], None]) -> None:
    """Raise InputError when the compute nodes do not see the folder; a note when they are too busy to look."""
    reason = cluster.why_unseen(folder, job)
    if reason is not None:
        tell(f"note: whether the compute nodes see {folder} could not be found out: {reason}.")


def submit_checked(job: ClusterJob, cluster: Cluster, inventory: Any, tell: Callable[[str], None]) -> str:
    """Submit one run when the cluster has what it asks for, and its nodes see the directory. The job's number."""
    directory = RunDirectory(job.directory)
    refuse_living(directory, cluster)
    for note in cluster.check(job, inventory):
        tell(f"note: {note}")
    require_seen(job.directory, job, cluster, tell)
    job_id = submit_run(job, cluster)
    hosts, each = job.hosts, job.processes_here
    where = f"{counted(hosts, 'host')} with {counted(each, 'process')}{' each' * (hosts > 1)}"
    kind = f" on {job.gpu}" if job.gpu else ""
    tell(f"Job {job_id}: {where}{kind}. Its script is {directory.job_script}, its output goes to {job.log_folder}.")
    rejoin_with, cancel_with = how_to_rejoin(directory, cluster), cluster.cancel_command(job_id)
    tell(f"Ctrl-C leaves it alone. Rejoin: {rejoin_with}. Cancel: `{cancel_with}`.")
    return job_id


def rejoin(path: Path, cluster: Cluster, tell: Callable[[str], None], *, accepts_script: bool = False) -> None:
    """Follow the job of a run; submit it again when it has ended and the run has not."""
    cluster.require()
    directory = RunDirectory(path.absolute())
    if kind_of(directory.job_script) is None:
        RunDirectory.open(directory.path)
    status, alive = status_of(directory), living_job(directory, cluster)
    if alive is None and status is not None and status.state == "finished":
        if status.job is not None:  # nobody was there at its end to write down what the cluster says
            settle(directory, cluster.state(status.job.job_id), cluster)
        return
    if alive is None:
        alive_id = submit_again(directory, cluster, accepts_script=accepts_script)
        tell(f"Job {alive_id} goes on with {directory.path}.")
    else:
        alive_id = alive.job_id
        let_go(alive, cluster)
    follow(directory, alive_id, cluster, tell)


def follow(directory: RunDirectory, job_id: str, cluster: Cluster, tell: Callable[[str], None]) -> None:
    """Return at the job's end; InterruptedRunError when somebody leaves it, the run's own error when it has failed."""
    follower, lines, was_cancelled = JobFollower(cluster, tell), _Lines(tell), False
    with listening() as stop:
        while True:
            job = follower.states({job_id: None}).get(job_id)
            if job is not None and job.is_over:
                return _raise_unless_finished(settle(directory, job, cluster), directory, cluster)
            if job is not None:
                lines.show(job, status_of(directory))
            if stop.is_asked and not was_cancelled:
                if not stop.cancels(tell):
                    raise InterruptedRunError(f"Job {job_id} goes on. Rejoin: {how_to_rejoin(directory, cluster)}.")
                was_cancelled = True
                cluster.cancel(job_id)
                tell(f"Job {job_id} is cancelled; it saves what it has.")
                # Cleared, or `wait` would return at once and the controller be asked without a pause.
                stop.interrupts, stop.terminated = 0, False
            follower.wait(stop)


def _raise_unless_finished(status: Status, directory: RunDirectory, cluster: Cluster) -> None:
    if status.state == "finished":
        return
    cause, job = status.cause or "It ended, and did not say why.", status.job
    kinds: dict[str, type[TurnaroundError]] = {"interrupted": InterruptedRunError, "diverged": DivergedError}
    was_refused = job is not None and job.exit_code == InputError.exit_code
    kind = kinds.get(status.state, InputError if was_refused else TrainingError)
    go_on = how_to_rejoin(directory, cluster)
    sentences = [f"{cluster.title}: job {job.job_id} {job.state}, exit status {job.exit_code}."] if job else []
    sentences += [f"What it printed is in {directory.logs}."] if directory.logs.is_dir() else []
    sentences += [] if go_on in cause or kind is DivergedError else [f"Go on with {go_on}."]
    raise kind(f"{cause}{chr(10) if chr(10) in cause else ' '}{' '.join(sentences)}")


class _Lines:
    """Prints a line for every change."""

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
    """Return the state of a job in a few words."""
    if job.is_waiting:
        return f"in the queue ({job.reason})" if job.reason else "in the queue"
    on = f" on {', '.join(job.hosts)}" if job.hosts else ""
    return {"RUNNING": "running", "COMPLETING": "ending"}.get(job.state, job.state.lower()) + on
