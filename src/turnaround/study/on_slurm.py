"""Runs what is missing of a study, as jobs of a cluster. Enters: the planned runs. Leaves: their run directories.

All jobs are submitted at once and the cluster decides their order; only a budget makes one wait for another. Whoever
follows them may leave or be killed at any time: the jobs go on, and the same command finds them again by the numbers in
their runs' status.json. A job is cancelled only when somebody asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from turnaround.errors import InputError, InterruptedRunError
from turnaround.launch.clusters.slurm import client
from turnaround.launch.clusters.slurm.follow import JobFollower, Stop, listening, settle
from turnaround.launch.clusters.slurm.script import SlurmJob
from turnaround.launch.clusters.slurm.states import JobState
from turnaround.launch.clusters.slurm.submission import let_go, refuse_living, submit_again, submit_run
from turnaround.record.job import status_of
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import Status
from turnaround.study.lifecycle import Work, is_paid_for
from turnaround.study.outside import clear
from turnaround.study.plan import PlannedRun
from turnaround.study.state import RunState, state_of
from turnaround.words import counted

BEGINS_ANEW = "The same command starts it anew; one that has failed, with --retry."
"""Of somebody else's program, which nobody else can resume."""
REFUSED_AGAIN_S = 60.0
"""A cluster may allow a user only so many jobs at a time: the others are tried again after this."""


@dataclass
class SlurmConductor:
    """Submits, follows, and leaves the jobs to the cluster."""

    work: Work
    planned: Sequence[PlannedRun]
    job_for: Callable[[PlannedRun], SlurmJob]
    tell: Callable[[str], None]
    on_change: Callable[[list[RunState]], None] = lambda states: None
    left_out: list[str] = field(default_factory=list)
    """Labels of the runs that the budget does not pay for."""
    _tried: set[str] = field(default_factory=set)
    _not_before_s: float = 0.0

    def __post_init__(self) -> None:
        self._follower = JobFollower(self.tell)
        self._jobs: dict[str, JobState] = {}

    def run(self) -> list[RunState]:
        """To the end of the study; InterruptedRunError when somebody leaves before."""
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
        """What is missing, without following it."""
        self._look()
        self._submit_what_fits(self.states())
        return self.states()

    def cancel(self) -> list[str]:
        """The labels of the runs whose jobs were there; each saves what it has."""
        self._look()
        return self._cancel()

    def states(self) -> list[RunState]:
        """Of every planned run: what Slurm says while its job is there, then what its record says."""
        return [self._state(planned) for planned in self.planned]

    def _state(self, planned: PlannedRun) -> RunState:
        state, job = state_of(planned, self.work.folder), self._jobs.get(planned.name)
        if job is None or job.is_over:
            return state
        if job.is_waiting:
            return replace(state, standing="queued", cause=job.reason)
        return replace(state, standing="running", cause=None)

    def _directory(self, planned: PlannedRun) -> RunDirectory:
        return RunDirectory((self.work.folder / planned.name).absolute())

    def _look(self) -> None:
        """Asks Slurm about all jobs at once; what has ended is written into its run's status."""
        statuses = {planned.name: status_of(self._directory(planned)) for planned in self.planned}
        open_ones = {name: s.job for name, s in statuses.items() if s and s.job and self._is_open(name, s)}
        numbers = {slurm.job_id: name for name, slurm in open_ones.items()}
        for job_id, job in self._follower.states(numbers).items():
            name = numbers[job_id]
            self._jobs[name] = job
            if job.is_over:
                go_on = BEGINS_ANEW if self.work.program else None
                settle(RunDirectory((self.work.folder / name).absolute()), job, go_on=go_on)
            elif name not in self._tried:
                self._tried.add(name)  # of an earlier call of this study: it is not submitted again
                let_go(job)

    def _is_open(self, name: str, status: Status) -> bool:
        """Whether Slurm must be asked: not when it has said its last word of a run that will not go on."""
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
                refuse_living(directory)
                clear(directory.path)
            job_id = submit_again(directory) if directory.is_run() else submit_run(self.job_for(planned))
        except InputError as error:
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
            client.cancel(job.job_id)
        if there:
            self.tell(f"{counted(len(there), 'job')} cancelled; each saves what it has.")
        while any(not self._jobs[name].is_over for name in there):
            time.sleep(0.5)
            self._look()
        return [planned.label for planned in self.planned if planned.name in there]
