"""The state of a cluster's job in the run's status.json. Enters: a JobState, or a start. Leaves: the run's Status.

Written only while no process of the job can run: before it is released, at the beginning of its script, after its end.
Between those the training alone writes there. The first submission's time stays, whatever is requeued.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import UTC, datetime

from turnaround.errors import InterruptedRunError
from turnaround.launch.clusters.contract import Cluster, JobStart, JobState
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import status_of
from turnaround.record.schema import JobStatus, Status, utc_now
from turnaround.record.writer import write_status


def submitted(directory: RunDirectory, job: JobStatus, *, submitted_at: str) -> None:
    """Note a new job, on the login node, before it may start."""
    before = status_of(directory) or Status(state="queued", submitted_at=submitted_at)
    job = replace(job, requeued_s=before.job.requeued_s if before.job else 0.0)
    if before.started_at is None:  # it never ran: the wait for this job is the one that counts
        before = replace(before, submitted_at=submitted_at)
    write_status(directory, replace(before, state="queued", cause=None, ended_at=None, job=job))


def started(directory: RunDirectory, start: JobStart, *, cluster: str, seen: JobState | None) -> None:
    """Note a start, on the job's first host, before the program: which it is, and how long the job has waited again.

    `seen` is what the cluster says of the job; None when it is too busy to answer: the run goes on without its word.
    """
    status = status_of(directory)
    if status is None:  # somebody has submitted the script by hand, or the file system shows files late
        status = Status(state="queued", submitted_at=_instant(seen.submitted_at if seen else None))
    job = status.job
    if job is None or job.job_id != start.job_id:
        job = JobStatus(job_id=start.job_id, cluster=cluster)
    # Of the first start the wait is submitted_at to started_at already; only later ones add to it.
    waited_again_s = (seen.queue_time_s() if seen else None) or 0.0
    job = replace(
        job,
        state="RUNNING",
        reason=None,
        starts=start.starts,
        requeued_s=job.requeued_s + (waited_again_s if status.started_at else 0.0),
        hosts=list(start.hosts),
    )
    write_status(directory, replace(status, job=job))


def ended(directory: RunDirectory, job: JobState, cluster: Cluster, *, go_on: str | None = None) -> Status:
    """Note an end, on the login node: the cluster's last word, and the cause where the run could not say it itself.

    `go_on` is a sentence for that cause: how to go on. None: as a training does.
    """
    status = status_of(directory) or Status(state="queued")
    before = status.job or JobStatus(job_id=job.job_id, cluster=cluster.name)
    if job.is_forgotten and JobState(job_id=job.job_id, state=before.state).is_over:
        return status  # its last word is known already
    after = replace(
        before,
        state=job.state,
        reason=job.reason,
        exit_code=job.exit_code,
        hosts=list(job.hosts) or before.hosts,
    )
    status = replace(status, job=after)
    # A run that has written its own end knows the cause better than the cluster does.
    if status.state in ("queued", "running"):
        go_on = go_on or f"The last checkpoint is kept. Go on with {how_to_rejoin(directory, cluster)}."
        error = cluster.why_lost(job, go_on=go_on) or InterruptedRunError(
            f"{cluster.title} job {job.job_id} has ended ({job.state}: {job.reason or 'no reason given'}), and the run "
            f"has not. {go_on}"
        )
        is_lost = isinstance(error, InterruptedRunError)
        status = replace(
            status, state="interrupted" if is_lost else "failed", cause=str(error), ended_at=_instant(job.ended_at)
        )
    write_status(directory, status)
    return status


def how_to_rejoin(directory: RunDirectory, cluster: Cluster) -> str:
    """Return the command that follows the job, or submits it again."""
    return f"`turnaround resume {shlex.quote(str(directory.path))} --on {cluster.name}`"


def _instant(at_s: float | None) -> str:
    return utc_now() if at_s is None else datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
