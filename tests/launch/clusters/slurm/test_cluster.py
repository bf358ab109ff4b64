"""Slurm behind the contract: what is not the whole of another file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnaround.launch.clusters import CLUSTERS, cluster_named
from turnaround.launch.clusters.contract import JobState, TrainingJob, Wishes
from turnaround.launch.clusters.slurm.cluster import Slurm


def test_it_is_a_row() -> None:
    assert list(CLUSTERS) == ["slurm"]
    assert isinstance(cluster_named("slurm"), Slurm)


def test_a_flag_goes_before_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path))
    training = TrainingJob(words=("photos",), out=tmp_path / "run", processes=4, device="auto")
    job = Slurm().job(training, Wishes(gpu="v100", settings=("gpu=t4", "qos=normal")), None)
    assert (job.gpu, job.settings.qos, job.hosts, job.processes_here, job.has_setup) == ("v100", "normal", 1, 4, False)


def test_only_a_job_that_we_hold_is_ours_to_release() -> None:
    for reason, is_ours in (("JobHeldUser", True), ("JobHeldAdmin", False), ("Resources", False)):
        assert Slurm().is_held(JobState(job_id="7", state="PENDING", reason=reason)) is is_ours


def test_the_script_of_an_older_run_calls_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    script = tmp_path / "job.sh"
    script.write_text('"$python" -m turnaround.launch.slurm.starts before "$run" "$logs"\n')
    assert Slurm().submit_script(script) == "7"
    assert script.read_text() == '"$python" -m turnaround.launch.clusters.slurm.batch_hooks before "$run" "$logs"\n'
