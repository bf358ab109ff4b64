"""Hooks that the batch script calls before and after each start of its job; not for people.

    python -m turnaround.launch.clusters.slurm.batch_hooks before RUN LOGS
        frees what an earlier start of this job has locked
    ... after RUN LOGS STATUS    prints the exit status that the run's record gives
    ... requeue LOGS MOST        exit status 0 while the job may requeue itself

A note in LOGS (slurm-JOB.json) keeps what a later start of the same job must know: the hosts, the run's status as it
was, how often the job has put itself back into the queue, and how many starts in a row came to no checkpoint.
Pre-emptions and lost nodes do not count there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from turnaround.errors import InputError, InterruptedRunError, TurnaroundError
from turnaround.launch.clusters import job_status
from turnaround.launch.clusters.contract import JobStart
from turnaround.launch.clusters.slurm import client
from turnaround.launch.clusters.slurm.states import expand
from turnaround.record.files import names_in, read_json_or_nothing, remove_file, storage_error
from turnaround.record.layout import RunDirectory, job_note
from turnaround.record.writer import write_json
from turnaround.words import harmless

MAX_IN_VAIN = 3
"""A job whose start takes longer than its time limit would come back for ever."""


def before(directory: RunDirectory, logs: Path, variables: Mapping[str, str] = os.environ) -> str | None:
    """Note this start, in the run's status too; return a sentence when the lock of an earlier start was freed.

    Slurm has ended that one without a warning. The lock's own rule, never to believe that a process on another host
    is dead, does not know what Slurm knows: that it has ended every process of this job before it starts the job again.
    """
    note = _note(logs, variables)
    known = read_json_or_nothing(note)
    freed = None
    if int(variables.get("SLURM_RESTART_COUNT", "0")) > 0:
        owner = read_json_or_nothing(directory.lock).get("host")
        # Only hosts of our own earlier start: a lock of any other process stays, and refuses this one.
        if owner is not None and _short(owner) in map(_short, known.get("hosts", [])):
            remove_file(directory.lock)
            freed = f"An earlier start of this job on {owner} was ended by Slurm; its lock is free again."
    hosts = expand(variables.get("SLURM_JOB_NODELIST", ""))
    if "SLURM_JOB_ID" in variables:
        job_id, seen = variables["SLURM_JOB_ID"], None
        with suppress(InputError):  # Slurm is busy: the run goes on without its word
            seen = client.job_state(job_id)
        starts = int(variables.get("SLURM_RESTART_COUNT", "0")) + 1
        start = JobStart(job_id=job_id, starts=starts, hosts=hosts)
        job_status.started(directory, start, cluster="slurm", seen=seen)
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error("make the folder for what the job prints,", logs, error) from None
    saved = _saved(directory)
    # The same checkpoints as at the last start: that start came to nothing.
    in_vain = int(known.get("in_vain", 0)) + 1 if known.get("saved") == saved else 0
    status = read_json_or_nothing(directory.status)
    write_json(note, {**known, "hosts": list(hosts), "status": status, "saved": saved, "in_vain": in_vain})
    return freed


def after(directory: RunDirectory, logs: Path, status: int, variables: Mapping[str, str] = os.environ) -> int:
    """Return 75 when this start, and not an earlier one, has left the run interrupted, 0 when it has finished it.

    Otherwise return the exit status as it is: a launcher may stumble over the end of its processes, the record not.
    """
    now = read_json_or_nothing(directory.status)
    # The status as `before` noted it is from an earlier start: its "interrupted" says nothing of this one.
    is_new = now != read_json_or_nothing(_note(logs, variables)).get("status")
    by_record = {"interrupted": InterruptedRunError.exit_code, "finished": 0}
    return by_record.get(now.get("state", ""), status) if status != 0 and is_new else status


def refusal(logs: Path, most: int, variables: Mapping[str, str] = os.environ) -> str | None:
    """Return why the job may not requeue itself once more; None when it may, which is counted."""
    note = _note(logs, variables)
    known = read_json_or_nothing(note)
    count = int(known.get("requeues", 0))
    if count >= most:
        return (
            f"This job has put itself back into the queue {most} times (max_requeues) and stops here. Ask for more "
            "time, or submit it again."
        )
    if int(known.get("in_vain", 0)) >= MAX_IN_VAIN:
        return (
            f"{MAX_IN_VAIN} starts in a row came to no checkpoint, so this job stops here. Ask for more time, for a "
            "shorter warning (signal_lead_s), or for checkpoints more often (training.checkpoint_every_s)."
        )
    # Counted before the script calls scontrol: a job that is ended in between must not come back uncounted.
    write_json(note, {**known, "requeues": count + 1})
    return None


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["before", run, logs]:
                if freed := before(RunDirectory(Path(run)), Path(logs)):
                    sys.stderr.write(f"{harmless(freed)}\n")
            case ["after", run, logs, status]:
                sys.stdout.write(f"{after(RunDirectory(Path(run)), Path(logs), int(status))}\n")
            case ["requeue", logs, most]:
                if why := refusal(Path(logs), int(most)):
                    sys.stderr.write(f"{harmless(why)}\n")
                    return 1
            case _:
                raise InputError(f"before RUN LOGS, after RUN LOGS STATUS or requeue LOGS MOST; received: {arguments}.")
    except TurnaroundError as error:
        sys.stderr.write(f"{harmless(str(error))}\n")
        return error.exit_code
    return 0


def _saved(directory: RunDirectory) -> list[str]:
    """Return the names of the checkpoints that there are: any change is progress."""
    return names_in(directory.checkpoint, directory.path)


def _note(logs: Path, variables: Mapping[str, str]) -> Path:
    return job_note(logs, variables.get("SLURM_JOB_ID", "0"))


def _short(host: object) -> str:
    """Return the host name without its domain: a node may call itself n1 or n1.cluster.example."""
    return str(host).partition(".")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
