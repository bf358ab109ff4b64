"""A real training as a real job: two hosts that meet over the network, and torch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm.cluster import Cluster
from turnaround.launch.slurm import client
from turnaround.launch.slurm.script import SlurmJob, job_script
from turnaround.launch.slurm.settings import SlurmSettings
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run

pytestmark = pytest.mark.slurm


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmJob:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # both "hosts" share this machine's cores
    return SlurmJob(
        directory=tmp_path / "run",
        train=("fruitbowl", "--workers", "2", "--set", "data.images=60", "--set", "data.size_px=32"),
        working_directory=tmp_path,
        settings=SlurmSettings(gpus_per_host=0, hosts=2, time="10", python=sys.executable),
        logs=tmp_path / "logs",
    )


def submit(job: SlurmJob, *, epochs: int) -> str:
    script = job.working_directory / "job.sh"
    words = (*job.train, "--set", f"training.epochs={epochs}")
    script.write_text(job_script(SlurmJob(**{**vars(job), "train": words})))
    job.log_folder.mkdir()
    return client.submit_script(script)


def wait_for(condition: Callable[[], object], job: SlurmJob, timeout_s: float = 120) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        printed = "\n".join(file.read_text(errors="replace") for file in job.log_folder.glob("*.out"))
        assert time.monotonic() < end_s, printed
        time.sleep(0.2)


def printed(job: SlurmJob, job_id: str) -> str:
    return (job.log_folder / f"slurm-{job_id}.out").read_text()


def test_two_hosts_train_one_run(job: SlurmJob) -> None:
    job_id = submit(job, epochs=2)
    wait_for(lambda: client.job_state(job_id).is_over, job)
    assert client.job_state(job_id).succeeded, printed(job, job_id)
    run = Run.load(job.directory)
    assert run.status.state == "finished"
    assert len(run.epochs) == 2
    assert (run.machine["workers"], run.machine["processes"], run.machine["engine"]) == (2, 2, "torch gloo")
    assert sorted(run.directory.telemetry_hosts()) == ["n1", "n2"]


def test_a_warned_training_saves_waits_and_goes_on(job: SlurmJob) -> None:
    """USR2 as Slurm sends it before the time limit; the rest happens by itself."""
    job_id = submit(job, epochs=500)
    directory = RunDirectory(job.directory)
    wait_for(lambda: directory.epochs.exists() or client.job_state(job_id).is_over, job)
    client.call("scancel", "--signal=USR2", "--batch", job_id)
    wait_for(lambda: (state := client.job_state(job_id)).is_waiting or state.is_over, job)
    assert client.job_state(job_id).is_waiting, printed(job, job_id)
    stopped = Run.load(job.directory)
    assert stopped.status.state == "interrupted"
    recipe = json.loads(directory.recipe.read_text())
    recipe["training"]["epochs"] = stopped.status.epochs_done + 2  # that is enough
    directory.recipe.write_text(json.dumps(recipe))
    wait_for(lambda: client.job_state(job_id).is_over, job)
    state = client.job_state(job_id)
    assert (state.state, state.restarts) == ("COMPLETED", 1), printed(job, job_id)
    run = Run.load(job.directory)
    assert (run.status.state, run.status.segments) == ("finished", 2)
