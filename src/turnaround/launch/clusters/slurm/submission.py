"""A run becomes a job: nothing is lost and nothing runs twice, wherever this is killed.

The job is submitted held, its number goes into the run's status.json, and only then it may start. Killed in between,
it waits for ever and has not run: the next attempt finds it by its script.
"""

from __future__ import annotations

import shlex

from turnaround.errors import InputError
from turnaround.launch.clusters.slurm import client, job_status
from turnaround.launch.clusters.slurm.script import SlurmJob
from turnaround.launch.clusters.slurm.states import JobState
from turnaround.record.job import status_of
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import utc_now

HELD = ("JobHeldUser", "JobHeldAdmin")


def submit_run(job: SlurmJob) -> str:
    """The job's number. InputError when the directory holds something else, or a job of it is still there."""
    client.require()
    directory = RunDirectory(job.directory)
    refuse_living(directory)
    status = status_of(directory)
    if directory.is_run() or status is None or status.job is None:
        RunDirectory.create(directory.path, job_id="")  # refuses a run, and whatever is not ours
    _clear_held(directory)
    submitted_at = utc_now()
    job_id = client.submit(job, "--hold")
    return _release(directory, job_id, gpu=job.settings.gpu, submitted_at=submitted_at)


def submit_again(directory: RunDirectory) -> str:
    """The script as it is: it goes on with what the directory holds."""
    if not directory.job_script.is_file():
        raise InputError(
            f"{directory.path} has no {directory.job_script.name}: it was not submitted to a cluster. Go on with "
            f"`turnaround resume {shlex.quote(str(directory.path))}` on a machine that can train."
        )
    _clear_held(directory)
    status, submitted_at = status_of(directory), utc_now()
    gpu = status.job.gpu if status and status.job else None
    job_id = client.submit_script(directory.job_script, "--hold")
    return _release(directory, job_id, gpu=gpu, submitted_at=submitted_at)


def living_job(directory: RunDirectory) -> JobState | None:
    """The job of a run that waits or runs, or will when it is released; None when it has none any more."""
    status = status_of(directory)
    if status is None or status.job is None:
        return None
    state = client.job_state(status.job.job_id)
    return None if state.is_over else state


def refuse_living(directory: RunDirectory) -> None:
    """InputError when a job of this run waits or runs: nobody else may write there."""
    alive = living_job(directory)
    if alive is not None:
        raise InputError(
            f"{directory.path} has a job already: {alive.job_id} ({alive.state}). Follow it: "
            f"{how_to_rejoin(directory)}; or cancel it: `scancel {alive.job_id}`."
        )


def how_to_rejoin(directory: RunDirectory) -> str:
    return f"`turnaround resume {shlex.quote(str(directory.path))} --on slurm`"


def let_go(job: JobState) -> None:
    """Releases a job that this program was killed before it could."""
    if job.is_waiting and job.reason == HELD[0]:
        client.release(job.job_id)


def _release(directory: RunDirectory, job_id: str, *, gpu: str | None, submitted_at: str) -> str:
    try:
        job_status.submitted(directory, job_id=job_id, gpu=gpu, submitted_at=submitted_at)
    except BaseException:
        client.cancel(job_id)  # nobody would find it
        raise
    client.release(job_id)
    return job_id


def _clear_held(directory: RunDirectory) -> None:
    """Cancels what an attempt has submitted that was killed before it could write the number down."""
    script = str(directory.job_script.absolute())
    for job in client.job_states().values():
        if job.command == script and not job.is_over:
            if job.reason not in HELD:
                raise InputError(
                    f"Somebody has submitted {script} by hand: job {job.job_id} ({job.state}). Wait for it, or cancel "
                    f"it: `scancel {job.job_id}`."
                )
            client.cancel(job.job_id)
