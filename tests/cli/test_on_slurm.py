"""The verbs on a login node: no torch, no GPU, and here no Slurm either. With a cluster: tests/slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnaround.launch.clusters.slurm.script import SlurmJob, job_script
from turnaround.launch.clusters.slurm.settings import SlurmSettings

SETTINGS = """\
partition = "gpu"
account = "physics"
time = "04:00:00"
cpus_per_gpu = 8
memory_per_gpu = "32G"
setup = ["module load cuda", "source ~/venv/bin/activate"]
"""


@pytest.fixture
def login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, where importing torch, or asking for Slurm, cannot work."""
    blocked = tmp_path / "blocked"
    for name in ("torch", "timm", "torchvision", "triton"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text(f"raise ImportError('there is no {name} on a login node')\n")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "slurm.toml").write_text(SETTINGS)
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "date"):
        (tmp_path / "bin" / tool).symlink_to(f"/bin/{tool}")
    monkeypatch.setenv("PYTHONPATH", str(blocked), prepend=os.pathsep)
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    work = tmp_path / "ada"
    work.mkdir()
    return work


def turnaround(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "turnaround", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def test_a_dry_run_prints_the_script(login_node: Path) -> None:
    """As tests/launch/slurm reads it whole; here: that flags and the settings' file are in it."""
    flags = ("--workers", "8", "--on", "slurm", "--gpu", "v100", "--hosts", "2", "--slurm", "qos=normal")
    done = turnaround("train", "fruitbowl", *flags, "--set", "training.epochs=5", "--dry-run", cwd=login_node)
    assert done.returncode == 0, done.stderr
    job = SlurmJob(
        directory=login_node / "runs" / "fruitbowl-8w",
        train=("fruitbowl", "--set", "training.epochs=5", "--set", "workers.count=8"),
        working_directory=login_node,
        settings=SlurmSettings.load({"gpu": "v100", "hosts": 2, "gpus_per_host": 4, "qos": "normal"}),
        processes_per_host=4,
    )
    assert (job.settings.account, job.settings.cpus_per_gpu, len(job.settings.setup)) == ("physics", 8, 2)
    assert done.stdout == job_script(job)
    assert done.stderr == ""
    checked = subprocess.run(["bash", "-n"], input=done.stdout, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert list(login_node.iterdir()) == []


def test_a_dry_run_of_a_study_prints_every_script(login_node: Path) -> None:
    flags = ("--workers", "1,2,4", "--rehearse", "8", "--on", "slurm", "--gpu", "t4,v100", "--hosts", "1,2")
    done = turnaround("study", "fruitbowl", *flags, "--dry-run", cwd=login_node)
    assert done.returncode == 0, done.stderr
    headings = [line for line in done.stdout.splitlines() if line.startswith("# ") and line.endswith(": missing")]
    assert headings[:6] == [
        "# 1 worker on t4, seed 0: missing",
        "# 1 worker on v100, seed 0: missing",
        "# 4 workers on t4, seed 0: missing",
        "# 4 workers on 2 hosts with t4, seed 0: missing",
        "# 4 workers on v100, seed 0: missing",
        "# 4 workers on 2 hosts with v100, seed 0: missing",
    ]
    assert len(headings) == 2 + 4 + 2 + 4  # one worker, and a rehearsal, cannot be on two hosts
    assert done.stdout.count("#SBATCH --gres=gpu:t4:2") == 2  # 2 workers on a host, 4 on two
    assert f"run={login_node}/runs/fruitbowl-study/4w-t4-2hosts-seed0\n" in done.stdout
    for script in done.stdout.split("#!/bin/bash")[1:]:
        checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")
    assert list(login_node.iterdir()) == []


def test_a_program_of_others_as_jobs(login_node: Path) -> None:
    words = ("--command", "srun python 'my lab.py'", "--workers", "1,4", "--gpu", "t4", "--hosts", "1,2")
    done = turnaround("study", *words, "--on", "slurm", "--dry-run", cwd=login_node)
    assert done.returncode == 0, done.stderr
    headings = [line for line in done.stdout.splitlines() if line.endswith(": missing")]
    assert len(headings) == 3  # one worker on one host, four on one and on two
    assert [done.stdout.count(f"#SBATCH --ntasks-per-node={tasks}\n") for tasks in (1, 2, 4)] == [1, 1, 1]
    assert done.stdout.count("-- srun python 'my lab.py') &\n") == 3
    assert list(login_node.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--command", "python x.py | tee log", "--workers", "1"), "--command is not run by a shell"),
        (("--command", "python x.py {workers}", "--rehearse", "8"), "nobody else's program can be rehearsed"),
        (("fruitbowl", "--workers", "1", "--hosts", "2"), "1 process cannot be spread evenly over 2 hosts"),
        (("fruitbowl", "--workers", "1", "--hosts", "x"), "--hosts takes whole numbers from 1"),
        (("fruitbowl", "--workers", "1", "--set", "workers.engine=horovod"), "--on slurm starts the engine torch"),
    ],
)
def test_studies_that_cannot_be(words: tuple[str, ...], message: str, login_node: Path) -> None:
    done = turnaround("study", *words, "--on", "slurm", "--dry-run", cwd=login_node)
    assert done.returncode == 2
    assert message in done.stderr


def test_no_slurm_here(login_node: Path) -> None:
    for words in (("train", "fruitbowl"), ("resume", "runs/x"), ("study", "fruitbowl", "--workers", "1")):
        done = turnaround(*words, "--on", "slurm", cwd=login_node)
        assert done.returncode == 2
        assert "There is no Slurm here: sbatch is not installed" in done.stderr
    assert list(login_node.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--on", "cloud"), "Unknown --on 'cloud'. Valid: local, slurm."),
        (("--gpu", "v100"), "--gpu is for clusters: add --on slurm, or leave it out."),
        (("--slurm", "qos=x"), "--slurm is for clusters"),
        (("--no-wait",), "--no-wait is for clusters"),
        (("--on", "slurm", "--slurm", "qos"), "--slurm wants key=value, for example cpus_per_gpu=8. Received: 'qos'."),
        (("--on", "slurm", "--slurm", "cpus=4"), "Slurm settings: Unknown key 'cpus'."),
        (("--on", "slurm", "--slurm", "cpus_per_gpu=x"), "cpus_per_gpu = 'x' must be a whole number"),
        (("--on", "slurm", "--slurm", "sbatch=--wait"), "sbatch has the line '--wait', but turnaround decides --wait"),
        (("--on", "slurm", "--time", "soon"), "time = 'soon' is not a time limit"),
        (("--on", "slurm", "--engine", "horovod"), "--on slurm starts the engine torch, not horovod"),
        (("--on", "slurm", "--restarts", "2"), "--restarts 2 is for this machine"),
        (("--on", "slurm", "--processes", "2"), "--processes must be from 1 to the number of workers (1)"),
        (("--on", "slurm", "--hosts", "2"), "1 process cannot be spread evenly over 2 hosts"),
    ],
)
def test_flags_that_cannot_be(words: tuple[str, ...], message: str, login_node: Path) -> None:
    done = turnaround("train", "fruitbowl", *words, "--dry-run", cwd=login_node)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_submission_is_made_once(login_node: Path) -> None:
    """Inside a launcher's processes it would be made by each of them."""
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    words = [sys.executable, "-m", "turnaround", "train", "fruitbowl", "--on", "slurm", "--out", "x"]
    done = subprocess.run(words, cwd=login_node, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "it was itself started by a launcher" in done.stderr


def test_how_a_job_goes_on_stands_in_its_script(login_node: Path) -> None:
    pytest.importorskip("tensorboard")
    for flag, value in (("processes", "2"), ("restarts", "2"), ("log", "tensorboard")):
        done = turnaround("resume", "runs/x", "--on", "slurm", f"--{flag}", value, cwd=login_node)
        assert done.returncode == 2
        assert f"--{flag} {value}: a job goes on as its script says" in done.stderr
