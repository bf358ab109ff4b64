"""One cluster for all tests of a session, clean before each; and jobs on it whose program is a stand-in."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurm.cluster import Cluster, missing
from turnaround.launch.clusters.contract import JobState
from turnaround.launch.clusters.slurm import client
from turnaround.launch.clusters.slurm.script import SlurmJob
from turnaround.launch.clusters.slurm.settings import SlurmSettings

STANDIN = Path(__file__).parent / "standin.py"


@pytest.fixture(scope="session")
def running_cluster() -> Iterator[Cluster]:
    problem = missing()
    assert problem is None, problem
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """No jobs, all nodes up, and its commands first in PATH."""
    running_cluster.cancel_all()
    monkeypatch.setenv("PATH", str(running_cluster.commands), prepend=os.pathsep)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return running_cluster


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A job of the stand-in."""

    job: SlurmJob
    job_id: str
    notes: Path

    def state(self) -> JobState:
        return client.job_state(self.job_id)

    def wait(self, condition: Callable[[JobState], object], timeout_s: float = 240) -> JobState:
        """The first state that fulfils the condition."""
        end_s = time.monotonic() + timeout_s
        while not condition(state := self.state()):
            assert time.monotonic() < end_s, f"waited too long: {state}\n{self.printed()}"
            time.sleep(0.1)
        return state

    def wait_for_start(self, restart: int = 0, nodes: int = 1) -> None:
        """Until the program itself runs on every host."""
        names = [self.notes / f"start-{restart}-node-{node}.json" for node in range(nodes)]
        self.wait(lambda state: all(name.exists() for name in names) or state.is_over)
        assert all(name.exists() for name in names), f"{self.state()}\n{self.printed()}"

    def start(self, restart: int = 0, node: int = 0) -> dict[str, Any]:
        """What the program noted on one host."""
        content: dict[str, Any] = json.loads((self.notes / f"start-{restart}-node-{node}.json").read_text())
        return content

    def printed(self) -> str:
        file = self.job.log_folder / f"slurm-{self.job_id}.out"
        return file.read_text(errors="replace") if file.exists() else "(nothing printed)"


Submit = Callable[..., Submitted]


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Submits a script of `job_script` with the stand-in instead of Python; keywords are settings."""
    python = tmp_path / "python"
    real, standin = shlex.quote(sys.executable), shlex.quote(str(STANDIN))
    python.write_text(
        f'#!/bin/bash\ncase "$2" in turnaround.launch.clusters.slurm.*) exec {real} "$@" ;; esac\n'
        f'exec {real} {standin} "$@"\n'
    )
    python.chmod(0o755)

    def submit(run: str = "run", *, do: str = "end", processes: int | None = None, **settings: Any) -> Submitted:
        notes = tmp_path / f"notes-{len(list(tmp_path.glob('notes-*')))}"
        notes.mkdir()
        monkeypatch.setenv("STANDIN_NOTES", str(notes))
        monkeypatch.setenv("STANDIN_DO", do)
        job = SlurmJob(
            directory=tmp_path / run,
            train=("photos", "--workers", "2"),
            working_directory=tmp_path,
            settings=SlurmSettings(**{"python": str(python), "time": "10", "signal_lead_s": 30, **settings}),
            processes_per_host=processes,
        )
        return Submitted(job=job, job_id=client.submit(job), notes=notes)

    return submit
