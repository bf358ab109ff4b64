"""The verbs on a login node: no torch, no GPU, and here no Slurm either. With a cluster: tests/slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="module")
def login_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, where importing torch, or asking for Slurm, cannot work. Nothing may be left in it."""
    tmp_path = tmp_path_factory.mktemp("login-node")
    blocked = tmp_path / "blocked"
    for name in ("torch", "timm", "torchvision", "triton"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text(f"raise ImportError('there is no {name} on a login node')\n")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "slurm.toml").write_text(SETTINGS)
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "date"):
        (tmp_path / "bin" / tool).symlink_to(f"/bin/{tool}")
    work = tmp_path / "ada"
    work.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(blocked), prepend=os.pathsep)
        patch.setenv("TURNAROUND_CONFIG", str(tmp_path / "config"))
        patch.setenv("PATH", str(tmp_path / "bin"))
        yield work


def turnaround(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "turnaround", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def test_a_dry_run_prints_the_script(login_node: Path) -> None:
    """As tests/launch/clusters/slurm reads it whole; here: that flags and the settings' file are in it."""
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


# --- refusals: all of them from one process, since only the sentences differ

STUDIES = [
    (("--command", "python x.py | tee log", "--workers", "1"), "--command is not run by a shell"),
    (("--command", "python x.py {workers}", "--rehearse", "8"), "nobody else's program can be rehearsed"),
    (("fruitbowl", "--workers", "1", "--hosts", "2"), "1 process cannot be spread evenly over 2 hosts"),
    (("fruitbowl", "--workers", "1", "--hosts", "x"), "--hosts takes whole numbers from 1"),
    (("fruitbowl", "--workers", "1", "--set", "workers.engine=horovod"), "--on slurm starts the engine torch"),
]
TRAININGS = [
    (("--on", "cloud"), "Unknown --on 'cloud'. Valid: local, slurm, skypilot, kubernetes, kubeflow."),
    (("--gpu", "v100"), "--gpu is for clusters: add --on slurm or --on skypilot or --on kubernetes or --on kubeflow"),
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
]
SUBMISSIONS = [("train", "fruitbowl"), ("resume", "runs/x"), ("study", "fruitbowl", "--workers", "1")]
HOW = [("processes", "2"), ("restarts", "2"), ("log", "tensorboard")]
ALL_IN_ONE = """
import contextlib, io, json, sys
from turnaround import cli
for words in json.load(sys.stdin):
    sys.argv = ["turnaround", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([words, [code, out.getvalue(), err.getvalue()]]))
"""


def study(words: tuple[str, ...]) -> tuple[str, ...]:
    return ("study", *words, "--on", "slurm", "--dry-run")


def training(words: tuple[str, ...]) -> tuple[str, ...]:
    return ("train", "fruitbowl", *words, "--dry-run")


def going_on(flag: str, value: str) -> tuple[str, ...]:
    return ("resume", "runs/x", "--on", "slurm", f"--{flag}", value)


@pytest.fixture(scope="module")
def refused(login_node: Path) -> Callable[..., str]:
    """What a command says that ends with exit code 2 and prints nothing else."""
    asked = [
        *(study(words) for words, _ in STUDIES),
        *(training(words) for words, _ in TRAININGS),
        *((*words, "--on", "slurm") for words in SUBMISSIONS),
        *(going_on(*how) for how in HOW),
    ]
    command = [sys.executable, "-c", ALL_IN_ONE]
    told = subprocess.run(command, cwd=login_node, input=json.dumps(asked), capture_output=True, text=True, check=True)
    answers = {tuple(words): answer for words, answer in map(json.loads, told.stdout.splitlines())}

    def message(*words: str) -> str:
        code, out, err = answers[words]
        assert (code, out) == (2, "")
        return str(err)

    return message


@pytest.mark.parametrize(("words", "message"), STUDIES)
def test_studies_that_cannot_be(words: tuple[str, ...], message: str, refused: Callable[..., str]) -> None:
    assert message in refused(*study(words))


@pytest.mark.parametrize(("words", "message"), TRAININGS)
def test_flags_that_cannot_be(words: tuple[str, ...], message: str, refused: Callable[..., str]) -> None:
    assert message in refused(*training(words))


@pytest.mark.parametrize("words", SUBMISSIONS)
def test_no_slurm_here(words: tuple[str, ...], refused: Callable[..., str], login_node: Path) -> None:
    assert "There is no Slurm here: sbatch is not installed" in refused(*words, "--on", "slurm")
    assert list(login_node.iterdir()) == []


@pytest.mark.parametrize(("flag", "value"), HOW)
def test_how_a_job_goes_on_stands_in_its_script(flag: str, value: str, refused: Callable[..., str]) -> None:
    if value == "tensorboard":
        pytest.importorskip("tensorboard")
    assert f"--{flag} {value}: a job goes on as its script says" in refused(*going_on(flag, value))


def test_a_submission_is_made_once(login_node: Path) -> None:
    """Inside a launcher's processes it would be made by each of them."""
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    words = [sys.executable, "-m", "turnaround", "train", "fruitbowl", "--on", "slurm", "--out", "x"]
    done = subprocess.run(words, cwd=login_node, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "it was itself started by a launcher" in done.stderr
