"""Runs what is missing of a study, as jobs of a cluster. Enters: the planned runs. Leaves: their run directories.

All jobs are submitted at once and the cluster decides their order; only a budget makes one wait for another. Whoever
follows them may leave or be killed at any time: the jobs go on, and the same command finds them again by the numbers in
their runs' status.json. A job is cancelled only when somebody asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from turnaround.errors import InputError, InterruptedRunError
from turnaround.launch.clusters.contract import Cluster, ClusterJob, JobState, TrainingJob, Wishes
from turnaround.launch.clusters.follow import JobFollower, Stop, listening, require_seen, settle
from turnaround.launch.clusters.submission import let_go, refuse_living, submit_again, submit_run
from turnaround.record.layout import RunDirectory, StudyDirectory
from turnaround.record.reader import status_of
from turnaround.record.schema import Status
from turnaround.study.lifecycle import StudyConductor, Work, is_paid_for
from turnaround.study.outside import clear
from turnaround.study.plan import PlannedRun, counts, plan_there
from turnaround.study.state import RunState, log_of, state_of
from turnaround.words import counted

BEGINS_ANEW = "The same command starts it anew; one that has failed, with --retry."
"""The advice for somebody else's program, which we cannot resume."""
REFUSED_AGAIN_S = 60.0
"""A cluster may allow a user only so many jobs at a time: the others are tried again after this."""


@dataclass(kw_only=True)
class ClusterConductor(StudyConductor):
    """Submits, follows, and leaves the jobs to the cluster."""

    cluster: Cluster
    jobs: Mapping[PlannedRun, ClusterJob]
    tell: Callable[[str], None]
    _jobs: dict[str, JobState] = field(default_factory=dict, init=False)
    """The cluster's last word of each job, by the name of its run."""
    _not_before_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._follower = JobFollower(self.cluster, self.tell)

    def run(self) -> list[RunState]:
        """Follow the study to its end; raise InterruptedRunError when somebody leaves before: the jobs go on."""
        with listening() as stop:
            while True:
                self._look()
                states = self.states()
                self.on_change(states)
                if stop.is_asked:
                    self._leave(stop)
                self._submit_what_fits(states)
                states = self.states()
                if not any(state.is_alive for state in states) and not self._wanted(states):
                    return states
                self._follower.wait(stop)

    def submit(self) -> list[RunState]:
        """Submit what is missing, without following it."""
        self._look()
        self._submit_what_fits(self.states())
        return self.states()

    def cancel(self) -> list[str]:
        """Cancel all jobs, each of which saves what it has; return the labels of their runs."""
        self._look()
        return self._cancel()

    def _state(self, planned: PlannedRun) -> RunState:
        """Return the state of a run: by the cluster while its job is there, then by its record."""
        state, job = state_of(planned, self.work.folder), self._jobs.get(planned.name)
        if job is None or job.is_over:
            return state
        if job.is_waiting:
            return replace(state, standing="queued", cause=job.reason)
        return replace(state, standing="running", cause=None)

    def _directory(self, planned: PlannedRun) -> RunDirectory:
        return RunDirectory((self.work.folder / planned.name).absolute())

    def _look(self) -> None:
        """Ask the cluster about all jobs at once; what has ended is written into its run's status."""
        statuses = {planned.name: status_of(self._directory(planned)) for planned in self.planned}
        open_ones = {name: s.job for name, s in statuses.items() if s and s.job and self._is_open(name, s)}
        numbers = {job.job_id: name for name, job in open_ones.items()}
        for job_id, job in self._follower.states(numbers).items():
            name = numbers[job_id]
            self._jobs[name] = job
            if job.is_over:
                go_on = BEGINS_ANEW if self.work.program else None
                settle(RunDirectory((self.work.folder / name).absolute()), job, self.cluster, go_on=go_on)
            elif name not in self._tried:
                self._tried.add(name)  # of an earlier call of this study: it is not submitted again
                let_go(job, self.cluster)

    def _is_open(self, name: str, status: Status) -> bool:
        """Return whether the cluster must be asked: not when it has said its last word of a run that will not go on."""
        if name in self._jobs:
            return not self._jobs[name].is_over
        assert status.job is not None
        known = JobState(job_id=status.job.job_id, state=status.job.state)
        return not known.is_over or status.state == "interrupted"

    def _wanted(self, states: Sequence[RunState]) -> list[RunState]:
        if self.left_out:
            return []
        fresh = [state for state in states if state.planned.name not in self._tried and not state.is_done]
        return [state for state in fresh if state.standing != "failed" or self.work.retries_failed]

    def _submit_what_fits(self, states: Sequence[RunState]) -> None:
        wanted = self._wanted(states)
        for state in wanted:
            # With a budget one job at a time: what a run costs is known only when it has ended.
            alive = any(other.is_alive for other in self.states())
            if time.monotonic() < self._not_before_s or (alive and self.work.budget_gpu_s is not None):
                return
            if not is_paid_for(self.work.budget_gpu_s, state, states):
                self.left_out = [other.planned.label for other in wanted if other.planned.name not in self._tried]
                return
            if not self._submit(state, is_alone=not alive):
                return

    def _submit(self, state: RunState, *, is_alone: bool) -> bool:
        planned, directory = state.planned, self._directory(state.planned)
        try:
            if self.work.program is not None:
                # Before `clear`, which moves the directory's files away: a living job still writes there.
                refuse_living(directory, self.cluster)
                clear(directory.path)
            if directory.is_run():
                job_id = submit_again(directory, self.cluster)
            else:
                job_id = submit_run(self.jobs[planned], self.cluster)
        except InputError as error:
            # With no other job alive a refusal cannot be the limit of jobs for each user: it would come back for ever.
            if is_alone:
                raise
            self._not_before_s = time.monotonic() + REFUSED_AGAIN_S
            self.tell(f"{planned.label}: {error} It is tried again when others have ended.")
            return False
        self._tried.add(planned.name)
        self._jobs[planned.name] = JobState(job_id=job_id, state="PENDING")
        return True

    def _leave(self, stop: Stop) -> None:
        if not stop.cancels(self.tell):
            raise InterruptedRunError("The jobs go on. The same command joins them again; with --cancel it ends them.")
        cancelled = self._cancel()
        raise InterruptedRunError(f"Cancelled: {'; '.join(cancelled) or 'nothing was left'}. The same command goes on.")

    def _cancel(self) -> list[str]:
        there = {name: job for name, job in self._jobs.items() if not job.is_over}
        for job in there.values():
            self.cluster.cancel(job.job_id)
        if there:
            self.tell(f"{counted(len(there), 'job')} cancelled; each saves what it has.")
        # Until the cluster says that they have ended: they are saving, and the final status is theirs to write.
        while any(not self._jobs[name].is_over for name in there):
            time.sleep(0.5)
            self._look()
        return [planned.label for planned in self.planned if planned.name in there]


# --- which job each run is


def plan_jobs(
    base: Sequence[PlannedRun], work: Work, wishes: Wishes, cluster: Cluster, inventory: Any | None
) -> dict[PlannedRun, ClusterJob]:
    """Return the runs for every kind of GPU and number of hosts that was asked for, in order, and the job of each."""
    hosts = counts(str(wishes.hosts), flag="--hosts") if wishes.hosts is not None else None
    kinds: list[str | None] = [kind.strip() for kind in (wishes.gpu or "").split(",") if kind.strip()]
    plain = replace(wishes, gpu=None, hosts=None)
    if inventory is not None:  # a run's name has its kind: T4 and t4 are one
        kinds = [cluster.spelled(kind, plain, inventory) for kind in kinds if kind]

    def job(run: PlannedRun, hosts: int | None) -> ClusterJob:
        return cluster.job(_training(run, work), replace(plain, gpu=run.gpu, hosts=hosts), inventory)

    def hosts_for(run: PlannedRun) -> list[int]:
        """Return the numbers of hosts that were asked for and give each process a GPU; else the fewest hosts."""
        least = job(run, None).hosts
        if hosts is None:
            return [least]
        even = [count for count in hosts if run.processes % count == 0]
        fitting = [count for count in even if count >= least] or even
        return fitting or [job(run, hosts[0]).hosts]  # the cluster says why that cannot be

    planned = plan_there(base, kinds=kinds or [None], hosts_for=hosts_for)
    return {run: job(run, run.hosts) for run in planned}


def require_possible(
    jobs: Sequence[ClusterJob], folder: StudyDirectory, cluster: Cluster, inventory: Any, tell: Callable[[str], None]
) -> None:
    """Check everything before anything is submitted; nodes are asked once, unless they have been there before."""
    for note in dict.fromkeys(note for job in jobs for note in cluster.check(job, inventory)):
        tell(f"note: {note}")
    if jobs and not folder.has_job_notes():
        require_seen(folder.path.absolute(), max(jobs, key=lambda job: job.hosts), cluster, tell)


def _training(run: PlannedRun, work: Work) -> TrainingJob:
    """Return one run as it would be typed; of somebody else's program, under a watcher in place of the training."""
    settings = [*work.overrides, f"training.seed={run.seed}"]
    words = (work.source, "--workers", str(run.workers), *(part for value in settings for part in ("--set", value)))
    watcher: list[str] = []
    if work.program is not None:
        folder = work.folder.absolute()
        _, *watcher = work.program.watched(run, folder / run.name, log_of(run, folder))
    return TrainingJob(
        words=words,
        out=work.folder / run.name,
        processes=run.processes,
        device=work.device,
        watcher=tuple(watcher),
    )
