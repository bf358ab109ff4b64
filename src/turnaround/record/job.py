"""A run that is a job of a batch system: what was written into its status before its program began."""

from __future__ import annotations

import os
from collections.abc import Mapping

from turnaround.errors import RunDirectoryError
from turnaround.record.files import read_json
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import Status, from_json

JOB_VARIABLES = ("TURNAROUND_JOB_ID", "SLURM_JOB_ID")
"""The script of any cluster may set the first; Slurm sets the second itself."""


def own_job(variables: Mapping[str, str] = os.environ) -> str | None:
    """Return the job that this process belongs to."""
    return next((variables[name] for name in JOB_VARIABLES if name in variables), None)


def status_of(directory: RunDirectory) -> Status | None:
    """Return the status of a run; None where there is none yet, or none that can be read."""
    try:
        return from_json(Status, read_json(directory.status))
    except RunDirectoryError:
        return None


def job_status(directory: RunDirectory) -> Status | None:
    """Return the status of a run that is a job of a cluster, started or not; None of any other."""
    status = status_of(directory)
    return status if status and status.job else None
