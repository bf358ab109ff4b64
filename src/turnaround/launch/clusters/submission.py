"""A run becomes a job: nothing is lost and nothing runs twice, wherever this is killed.

The job is submitted held, its number goes into the run's status.json, and only then it may start. Killed in between,
it waits for ever and has not run: the next attempt finds it by its script.
"""

from __future__ import annotations

import shlex

from turnaround.errors import InputError, MissingPartError
from turnaround.launch.clusters import CLUSTERS, cluster_named, job_status, scripts
from turnaround.launch.clusters.contract import Cluster, ClusterJob, JobState
from turnaround.launch.clusters.job_status import how_to_rejoin
from turnaround.record.files import kind_of
from turnaround.record.host import own_job
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import status_of
from turnaround.record.schema import JobStatus, utc_now


def submit_run(job: ClusterJob, cluster: Cluster) -> str:
    """Return the job's number. InputError when the directory holds something else, or a job of it is still there."""
    cluster.require()
    directory = RunDirectory(job.directory)
    refuse_living(directory, cluster)
    status = status_of(directory)
    if directory.is_run() or status is None or status.job is None:
        RunDirectory.create(directory.path, job_id="")  # refuses a run, and whatever is not ours
    _clear_held(directory, cluster)
    estimated_s = _estimated_wait_s(job, cluster)
    submitted_at = utc_now()
    job_id = cluster.submit(job)
    scripts.remember(directory)
    noted = JobStatus(job_id=job_id, gpu=job.gpu, cluster=cluster.name, estimated_wait_s=estimated_s)
    return _release(directory, cluster, noted, submitted_at)


def submit_again(directory: RunDirectory, cluster: Cluster, *, accepts_script: bool = False) -> str:
    """Submit the script as it is: it goes on with what the directory holds. The job's number.

    InputError for a script that this user has not submitted before, unless it was accepted.
    """
    if kind_of(directory.job_script) is None:
        raise InputError(
            f"{directory.path} has no {directory.job_script.name}: it was not submitted to a cluster. Go on with "
            f"`turnaround resume {shlex.quote(str(directory.path))}` on a machine that can train."
        )
    scripts.refuse_unknown(directory, go_on=how_to_rejoin(directory, cluster), is_accepted=accepts_script)
    _clear_held(directory, cluster)
    # Taken before the call: a slow controller is a part of the wait.
    status, submitted_at = status_of(directory), utc_now()
    gpu = status.job.gpu if status and status.job else None
    job_id = cluster.submit_script(directory.job_script)
    scripts.remember(directory)  # a script of an earlier version has been brought up to date
    return _release(directory, cluster, JobStatus(job_id=job_id, gpu=gpu, cluster=cluster.name), submitted_at)


def living_job(directory: RunDirectory, cluster: Cluster) -> JobState | None:
    """Return the job of a run that waits or runs, or will when it is released; None when it has none any more."""
    status = status_of(directory)
    if status is None or status.job is None:
        return None
    state = cluster.state(status.job.job_id)
    return None if state.is_over else state


def refuse_living(directory: RunDirectory, cluster: Cluster) -> None:
    """Raise InputError when a job of this run waits or runs: nobody else may write there."""
    alive = living_job(directory, cluster)
    if alive is not None:
        raise InputError(
            f"{directory.path} has a job already: {alive.job_id} ({alive.state}). Follow it: "
            f"{how_to_rejoin(directory, cluster)}; or cancel it: `{cluster.cancel_command(alive.job_id)}`."
        )


def refuse_if_queued(directory: RunDirectory) -> None:
    """Raise InputError when a job of this run waits or runs somewhere else: two must not train it."""
    status = status_of(directory)
    if status is None or status.job is None or status.job.job_id == own_job() or status.job.cluster not in CLUSTERS:
        return
    cluster = cluster_named(status.job.cluster)
    try:
        cluster.require()
    except MissingPartError:
        return  # there is nobody to ask here
    refuse_living(directory, cluster)


def let_go(job: JobState, cluster: Cluster) -> None:
    """Release a job that this program was killed before it could."""
    if job.is_waiting and cluster.is_held(job):
        cluster.release(job.job_id)


def _estimated_wait_s(job: ClusterJob, cluster: Cluster) -> float | None:
    """Return the wait that the cluster expects, for the record: forecasts of later jobs learn how far it was off."""
    try:
        return cluster.start_estimate_s(job)
    except InputError:  # the submission that follows says it better, or succeeds all the same
        return None


def _release(directory: RunDirectory, cluster: Cluster, job: JobStatus, submitted_at: str) -> str:
    try:
        # The number on disk before the release: a job that runs can always be found again by its run.
        job_status.submitted(directory, job, submitted_at=submitted_at)
    except BaseException:
        cluster.cancel(job.job_id)  # nobody would find it
        raise
    cluster.release(job.job_id)
    return job.job_id


def _clear_held(directory: RunDirectory, cluster: Cluster) -> None:
    """Cancel what an attempt has submitted that was killed before it could write the number down."""
    script = str(directory.job_script.absolute())
    for job in cluster.states().values():
        if job.command == script and not job.is_over:
            if not cluster.is_held(job):
                raise InputError(
                    f"Somebody has submitted {script} by hand: job {job.job_id} ({job.state}). Wait for it, or cancel "
                    f"it: `{cluster.cancel_command(job.job_id)}`."
                )
            cluster.cancel(job.job_id)
