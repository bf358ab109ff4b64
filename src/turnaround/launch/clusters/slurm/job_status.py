"""What Slurm says of a job, in the run's status.json. Enters: a JobState, or a start. Leaves: the run's Status.

Written only while no process of the job can run: before it is released, at the beginning of its script, after its end.
Between those the training alone writes there. The first submission's time stays, whatever is requeued.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from turnaround.errors import InputError, InterruptedRunError
from turnaround.launch.clusters.slurm import client
from turnaround.launch.clusters.slurm.hosts import expand
from turnaround.launch.clusters.slurm.states import JobState, why_lost
from turnaround.record.job import status_of
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import JobStatus, Status, to_json, utc_now
from turnaround.record.writer import write_json


def submitted(directory: RunDirectory, *, job_id: str, gpu: str | None, submitted_at: str) -> None:
    """On the login node, before the job may start."""
    before = status_of(directory) or Status(state="queued", submitted_at=submitted_at)
    waited_s = before.job.requeued_s if before.job else 0.0
    slurm = JobStatus(job_id=job_id, gpu=gpu, requeued_s=waited_s)
    if before.started_at is None:  # it never ran: the wait for this job is the one that counts
        before = replace(before, submitted_at=submitted_at)
    _write(directory, replace(before, state="queued", cause=None, ended_at=None, job=slurm))


def started(directory: RunDirectory, variables: Mapping[str, str]) -> None:
    """On the job's first host, before the program: which start this is, and how long the job has waited again."""
    job_id = variables["SLURM_JOB_ID"]
    job: JobState | None = None
    with suppress(InputError):  # Slurm is busy: the run goes on without its word
        job = client.job_state(job_id)
    status = status_of(directory)
    if status is None:  # somebody has submitted the script by hand, or the file system shows files late
        status = Status(state="queued", submitted_at=_instant(job.submitted_at if job else None))
    slurm = status.job
    if slurm is None or slurm.job_id != job_id:
        slurm = JobStatus(job_id=job_id)
    waited_again_s = (job.queue_time_s() if job else None) or 0.0
    slurm = replace(
        slurm,
        state="RUNNING",
        reason=None,
        starts=int(variables.get("SLURM_RESTART_COUNT", "0")) + 1,
        requeued_s=slurm.requeued_s + (waited_again_s if status.started_at else 0.0),
        hosts=list(expand(variables.get("SLURM_JOB_NODELIST", ""))),
    )
    _write(directory, replace(status, job=slurm))


def ended(directory: RunDirectory, job: JobState, *, go_on: str | None = None) -> Status:
    """On the login node, after its end: Slurm's last word, and the cause where the run could not say it itself.

    `go_on` is a sentence for that cause: how to go on. None: as a training does.
    """
    status = status_of(directory) or Status(state="queued")
    before = status.job or JobStatus(job_id=job.job_id)
    if job.is_forgotten and JobState(job_id=job.job_id, state=before.state).is_over:
        return status  # its last word is known already
    slurm = replace(
        before,
        state=job.state,
        reason=job.reason,
        exit_code=job.exit_code,
        hosts=list(job.hosts) or before.hosts,
    )
    status = replace(status, job=slurm)
    if status.state in ("queued", "running"):
        command = f"turnaround resume {shlex.quote(str(directory.path))} --on slurm"
        go_on = go_on or f"The last checkpoint is kept. Go on with `{command}`."
        error = why_lost(job, go_on=go_on) or InterruptedRunError(
            f"Slurm job {job.job_id} has ended ({job.state}: {job.reason or 'no reason given'}), and the run has not. "
            f"{go_on}"
        )
        is_lost = isinstance(error, InterruptedRunError)
        status = replace(
            status, state="interrupted" if is_lost else "failed", cause=str(error), ended_at=_instant(job.ended_at)
        )
    _write(directory, status)
    return status


def _instant(at_s: float | None) -> str:
    return utc_now() if at_s is None else datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")


def _write(directory: RunDirectory, status: Status) -> None:
    write_json(directory.status, to_json(status))
