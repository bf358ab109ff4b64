"""How these tests use the verbs on a cluster: as a user does, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from turnaround.launch.clusters.contract import JobState
from turnaround.launch.clusters.slurm import client
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import status_of
from turnaround.record.schema import Status

TINY = ("data.images=60", "data.size_px=32", "training.checkpoint_every_s=0")
"""One step an epoch with two workers."""


def settings(*overrides: str) -> list[str]:
    return [part for override in (*TINY, *overrides) for part in ("--set", override)]


def command(verb: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "turnaround", verb, *arguments]


def turnaround(verb: str, *arguments: str, cwd: Path, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    """A verb on the login node, to its end."""
    return subprocess.run(
        command(verb, *arguments), cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def begin(verb: str, *arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """The same, while it goes on."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command(verb, *arguments), cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def status(run: Path) -> Status:
    found = status_of(RunDirectory(run))
    assert found is not None, f"no status in {run}"
    return found


def job_of(run: Path) -> JobState:
    slurm = status(run).job
    assert slurm is not None
    return client.job_state(slurm.job_id)


def printed(run: Path) -> str:
    """What the jobs of a run have printed, for the message of a failed test."""
    files = [*sorted((run / "logs").glob("slurm-*.out")), run / "logs" / "processes.log", run / "status.json"]
    return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')}" for file in files if file.exists())


def wait_for(condition: Callable[[], object], run: Path, timeout_s: float = 300) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"waited {timeout_s:g} s\n{printed(run)}"
        time.sleep(0.1)


def has_saved(run: Path, epochs: int = 2) -> bool:
    """Whether it trains, and would lose something."""
    found = status_of(RunDirectory(run))
    return found is not None and found.epochs_done >= epochs
