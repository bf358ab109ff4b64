"""Facts of a run from its time in a queue: when it was submitted, as which job, when the job's script began.

A run that the user starts has none of it: its status begins with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from turnaround.errors import InputError, TurnaroundError
from turnaround.record.files import remove_file, remove_folder
from turnaround.record.host import own_job
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import job_status
from turnaround.record.schema import State, Status, utc_now
from turnaround.record.writer import write_status

BEGUN_VARIABLE = "TURNAROUND_BEGUN_AT_S"
"""Set by a job's script: its first line is where the program begins, in seconds since 1970."""


def begun_at_s(command_s: float | None = None, variables: Mapping[str, str] = os.environ) -> float:
    """Return the begin of the program, by this host's monotonic clock: that of the job's script, else of the command
    that this process was started for (`command_s`), else now."""
    now_s = time.monotonic()
    try:
        ago_s = time.time() - float(variables.get(BEGUN_VARIABLE, "inf"))
    except ValueError:
        ago_s = 0.0
    return now_s - ago_s if ago_s > 0 else now_s if command_s is None else min(command_s, now_s)


def first_status(directory: RunDirectory, *, begun_at_s: float) -> Status:
    """Return the status of a new run: submitted when it began, or as long ago as its job was."""
    ago = timedelta(seconds=time.monotonic() - begun_at_s)
    started_at = (datetime.now(UTC) - ago).isoformat(timespec="milliseconds")
    job = job_status(directory)
    if job is None:
        return Status(state="queued", submitted_at=started_at, started_at=started_at)
    return replace(job, state="queued", cause=None, started_at=started_at, ended_at=None)


@contextmanager
def refusal_recorded(directory: RunDirectory) -> Iterator[None]:
    """Write into a job's status why it was refused, where nothing of the run is there yet to give up."""
    try:
        yield
    except InputError as error:
        status = job_status(directory)
        # Of this very job, and before it was a run: a command typed within a job must not touch the run of another.
        if status and status.job and status.job.job_id == own_job() and not directory.is_run():
            give_up(directory, error)
        raise


def give_up(directory: RunDirectory, error: BaseException) -> None:
    """Removes what a start has written that never trained; of a job its script, its output and why it ended stay."""
    job = job_status(directory)
    for path in (directory.recipe, directory.status, directory.machine, directory.lock):
        remove_file(path)
    for path in directory.line_files():
        remove_file(path)
    if job is None:
        remove_folder(directory.logs)
        return
    for path in directory.other_logs():
        remove_folder(path, directory.path) if path.is_dir() else remove_file(path, directory.path)
    was_refused = isinstance(error, TurnaroundError)
    state: State = "failed" if was_refused else "interrupted"
    cause = str(error) if was_refused else "It was stopped before it had begun."
    write_status(directory, replace(job, state=state, cause=cause, ended_at=utc_now()))
