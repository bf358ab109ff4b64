"""When would it start? A real cluster with a filled queue answers, and nothing is submitted."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import turnaround
from analysis.build import LAB, import_table
from console import Console, Done
from forecast.test_estimate import HERE
from slurm.cluster import Cluster
from turnaround.errors import InputError
from turnaround.forecast.queue import CYCLE_S
from turnaround.launch.clusters.contract import NoAnswerError, TrainingJob, Wishes
from turnaround.launch.clusters.slurm import client
from turnaround.launch.clusters.slurm.cluster import Slurm
from turnaround.launch.clusters.submission import submit_run
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import status_of

pytestmark = pytest.mark.slurm

LIMIT_S = 3600.0


@pytest.fixture
def filled(cluster: Cluster, tmp_path: Path) -> Cluster:
    """Both GPUs of n4 are taken, by a job that may run for an hour; those of n3 are free."""
    (tmp_path / "fill.sh").write_text("#!/bin/bash\nsleep 600\n")
    asked = ("--gres=gpu:v100:2", "--nodelist=n4", "--time=60", "--output=/dev/null")
    job_id = cluster.run("sbatch", "--parsable", *asked, str(tmp_path / "fill.sh"))
    latest_s = time.monotonic() + 240
    while client.job_state(job_id).is_waiting:
        assert time.monotonic() < latest_s, "a job that fits on an idle node does not start"
        time.sleep(0.1)
    return cluster


@pytest.fixture
def predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path / "no-settings"))
    lab = str(import_table(LAB, tmp_path / "lab"))
    return Console(monkeypatch, capsys, always=("predict", lab, "--job", "cal", "--gpu", "V100", "--on", "slurm"))


def test_two_gpus_now_before_four_in_an_hour(filled: Cluster, predict: Callable[..., Done]) -> None:
    before = filled.run("squeue", "-h", "-o", "%A")
    done = predict("--workers", "2,4")
    said = " ".join(done.out.split())
    assert done.code == 0, done.err
    assert said.startswith("2 V100, which would start at once, are ready before 4 V100, which would wait about ")
    answers = {p["workers"]: p["queue"] for p in json.loads(predict("--workers", "2-8", "--json").out)["predictions"]}
    assert answers[2]["estimated_wait_s"] < CYCLE_S
    assert LIMIT_S - 2 * CYCLE_S < answers[4]["estimated_wait_s"] <= LIMIT_S + CYCLE_S  # as the limit says
    assert answers[4]["wait_s"]["low"] < answers[4]["wait_s"]["value"] < LIMIT_S  # jobs end before their limit
    assert "4 hosts are asked for, but partition gpu has 2 that fit" in answers[8]["refused"]
    assert filled.run("squeue", "-h", "-o", "%A") == before  # nothing was submitted


def test_an_estimate_from_zero_runs_asks_the_same_queue(
    filled: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path / "no-settings"))
    monkeypatch.setattr("turnaround.study.estimate.try_here", lambda recipe, **asked: HERE)
    before = filled.run("squeue", "-h", "-o", "%A")
    report = turnaround.estimate("fruitbowl", gpus=["v100"], workers=[2, 4, 8], on="slurm")
    waits = {p.workers: p.queue for p in (e.prediction for e in report.estimates) if p.gpu == "V100"}
    two, four, eight = (waits[n] for n in (2, 4, 8))
    assert two is not None
    assert four is not None
    assert eight is not None
    assert two.estimated_wait_s is not None
    assert four.estimated_wait_s is not None
    assert two.estimated_wait_s < CYCLE_S
    assert LIMIT_S - 2 * CYCLE_S < four.estimated_wait_s <= LIMIT_S + CYCLE_S
    assert "4 hosts are asked for, but partition gpu has 2 that fit" in (eight.refused or "")
    assert filled.run("squeue", "-h", "-o", "%A") == before  # nothing was submitted


def test_what_it_refuses(filled: Cluster, predict: Callable[..., Done]) -> None:
    for more, message in (
        (("--workers", "8"), "4 hosts are asked for, but partition gpu has 2 that fit"),
        (("--workers", "2", "--partition", "gpus"), "Unknown partition 'gpus'"),
        (("--workers", "2", "--slurm", "sbatch=--nodelist=n99"), "Slurm would refuse such a job: "),
    ):
        done = predict(*more)
        assert (done.code, done.out) == (2, "")
        assert message in " ".join(done.err.split())
    with pytest.raises(NoAnswerError, match="Slurm does not answer: `sbatch` had nothing to say"):
        client.start_estimate_s("#!/bin/bash\n", timeout_s=0.0001)
    with pytest.raises(InputError, match="Slurm would refuse such a job"):
        client.start_estimate_s("#!/bin/bash\n#SBATCH --nodes=99\n")
    assert Slurm().past_waits() == []  # this cluster keeps no accounts


def test_the_estimate_is_kept_with_the_job(filled: Cluster, tmp_path: Path) -> None:
    slurm, training = Slurm(), TrainingJob(words=("photos",), out=tmp_path / "asked", processes=4, device="cuda")
    job = slurm.job(training, Wishes(gpu="v100", time="5"), slurm.inventory())
    job_id = submit_run(job, slurm)
    status = status_of(RunDirectory(tmp_path / "asked"))
    client.cancel(job_id)
    assert status is not None
    assert status.job is not None
    assert status.job.estimated_wait_s == pytest.approx(LIMIT_S, abs=2 * CYCLE_S)


def test_the_real_command(filled: Cluster, tmp_path: Path) -> None:
    lab = import_table(LAB, tmp_path / "lab")
    asked = ("--job", "cal", "--gpu", "v100", "--workers", "4", "--on", "slurm", "--time", "30")
    done = subprocess.run(
        [sys.executable, "-m", "turnaround", "predict", str(lab), *asked],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 V100 would wait about ")
