"""Follows jobs to their end: one question to Slurm for any number of them, seldom while nothing happens.

Who follows can leave at any time: the jobs go on, and the same command joins them again by their numbers in the runs'
status.json.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from turnaround.errors import InputError
from turnaround.launch.clusters.slurm import client, job_status
from turnaround.launch.clusters.slurm.states import JobState
from turnaround.record.job import status_of
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import Status

FIRST_POLL_S, MAX_POLL_S, GROWTH = 0.5, 10.0, 1.2
"""A controller serves a whole cluster: it is asked less often the longer nothing changes."""
PATIENCE_S = 600.0
"""A controller may be restarted; jobs go on meanwhile."""
LATE_FILES_S = 60.0
"""A network file system may show the end of a run so much later than Slurm."""
SECOND_THOUGHT_S = 3.0
"""After a first Ctrl-C there is so much time for the second one."""
SETTLED_S = 10.0
"""What has ended so long ago, Slurm is not about to requeue; the clocks of two hosts may differ by less."""
FINAL = ("finished", "failed", "diverged", "interrupted")


class Stop:
    """Whether somebody wants to leave, or to cancel as well: Ctrl-C once, or twice. A SIGTERM leaves at once."""

    def __init__(self) -> None:
        self.interrupts, self.terminated = 0, False

    @property
    def is_asked(self) -> bool:
        return self.interrupts > 0 or self.terminated

    def cancels(self, tell: Callable[[str], None]) -> bool:
        """Called when it is asked: waits a moment for a second Ctrl-C."""
        if not self.terminated and self.interrupts == 1:
            tell(f"Leaving; the jobs go on. Ctrl-C again within {SECOND_THOUGHT_S:g} s cancels them.")
            latest_s = time.monotonic() + SECOND_THOUGHT_S
            while self.interrupts == 1 and not self.terminated and time.monotonic() < latest_s:
                time.sleep(0.05)
        return self.interrupts > 1


@contextmanager
def listening() -> Iterator[Stop]:
    """Inside it a Ctrl-C is a question, not an end."""
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

    tell: Callable[[str], None]
    _wait_s: float = FIRST_POLL_S
    _last: dict[str, JobState] = field(default_factory=dict)
    _silent_since_s: float | None = None
    _seen_over: set[str] = field(default_factory=set)

    def states(self, job_ids: Mapping[str, object]) -> dict[str, JobState]:
        """Of those that are asked for; the last known ones while Slurm does not answer."""
        try:
            known = client.job_states()
            found = {number: self._sure(known.get(number) or client.job_state(number)) for number in job_ids}
            if self._silent_since_s is not None:
                self.tell("Slurm answers again.")
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
        """Until it is time to ask again, or somebody wants to leave."""
        latest_s = time.monotonic() + self._wait_s
        self._wait_s = min(MAX_POLL_S, self._wait_s * GROWTH)
        while not stop.is_asked and time.monotonic() < latest_s:
            time.sleep(0.1)

    def _sure(self, job: JobState) -> JobState:
        """A job that Slurm is about to requeue may look ended for a moment: such an end is believed when seen twice."""
        is_old = job.ended_at is not None and time.time() - job.ended_at > SETTLED_S
        if not job.is_over or is_old or job.state in ("COMPLETED", "CANCELLED") or job.job_id in self._seen_over:
            return job
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
    directory: RunDirectory, job: JobState, *, patience_s: float = LATE_FILES_S, go_on: str | None = None
) -> Status:
    """The run's status when its job is over, with Slurm's last word in it; `go_on` as in `job_status.ended`."""
    latest_s = time.monotonic() + (patience_s if job.succeeded else min(patience_s, 5.0))
    status = status_of(directory)
    while (status is None or status.state not in FINAL) and time.monotonic() < latest_s and job.hosts:
        time.sleep(0.2)
        status = status_of(directory)
    if status and status.state in FINAL and status.job and status.job.state == job.state:
        return status
    return job_status.ended(directory, job, go_on=go_on)
