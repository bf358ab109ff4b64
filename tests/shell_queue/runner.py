"""The runner of one job, and what its script calls:

python -m shell_queue.runner run JOB_FOLDER SCRIPT
python -m shell_queue.runner started RUN
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from shell_queue.cluster import HELD, ShellQueue
from turnaround.children import die_with_parent
from turnaround.launch.clusters import job_status
from turnaround.launch.clusters.contract import JobStart, JobState
from turnaround.record.layout import RunDirectory, job_log

DELAY_S = 0.3
"""A queue in which nobody waits would prove less."""
STARTS_VARIABLE = "SHELL_QUEUE_STARTS"


def run(folder: Path, script: Path) -> None:
    now = JobState(
        job_id=folder.name,
        state="PENDING",
        reason=HELD,
        submitted_at=time.time(),
        restarts=0,
        hosts=(os.uname().nodename,),
        command=str(script),
    )
    note(folder, now)
    while not (folder / "release").exists():
        if (folder / "cancel").exists():
            return note(folder, replace(now, state="CANCELLED", ended_at=time.time()))
        time.sleep(0.05)
    while True:
        note(folder, replace(now, reason="Delay"))
        time.sleep(DELAY_S)
        now = replace(now, state="RUNNING", reason=None, started_at=time.time())
        note(folder, now)
        exit_code = one_start(folder, script, starts=1 + (now.restarts or 0))
        if not (folder / "requeue").exists() or (folder / "cancel").exists():
            break
        (folder / "requeue").unlink()
        now = replace(now, state="PENDING", submitted_at=time.time(), restarts=1 + (now.restarts or 0))
    state = "CANCELLED" if (folder / "cancel").exists() else "COMPLETED" if exit_code == 0 else "FAILED"
    return note(folder, replace(now, state=state, exit_code=exit_code, ended_at=time.time()))


def one_start(folder: Path, script: Path, *, starts: int) -> int:
    """The exit status; a request to cancel or to requeue ends it politely: it saves what it has."""
    with job_log(RunDirectory(script.parent).logs, folder.name).open("ab") as log:
        process = subprocess.Popen(
            ["bash", str(script)],
            env={**os.environ, "TURNAROUND_JOB_ID": folder.name, STARTS_VARIABLE: str(starts)},
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    was_asked = False
    while True:
        try:
            return process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            if not was_asked and any((folder / name).exists() for name in ("cancel", "requeue")):
                was_asked = True
                os.killpg(process.pid, signal.SIGTERM)


def note(folder: Path, job: JobState) -> None:
    temporary = folder / "job.tmp"
    temporary.write_text(json.dumps(asdict(job)))
    temporary.replace(folder / "job.json")


def started(run: Path) -> None:
    job_id = os.environ["TURNAROUND_JOB_ID"]
    start = JobStart(job_id=job_id, starts=int(os.environ[STARTS_VARIABLE]), hosts=(os.uname().nodename,))
    job_status.started(RunDirectory(run), start, cluster=ShellQueue.name, seen=ShellQueue().state(job_id))


if __name__ == "__main__":
    die_with_parent()
    match sys.argv[1:]:
        case ["run", folder, script]:
            run(Path(folder), Path(script))
        case ["started", directory]:
            started(Path(directory))
