"""The batch script: one that is read here as a whole, and any other as bash and shellcheck read it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnaround.launch.clusters.slurm.probe import probe_script
from turnaround.launch.clusters.slurm.script import SlurmJob, job_script, quote
from turnaround.launch.clusters.slurm.settings import SlurmSettings
from turnaround.workers.engines import TORCH_AGENT

GOLDEN = Path(__file__).parent / "job.sh"
# What a file system allows in a name: anything but / and NUL. Surrogates stand for bytes that are no UTF-8.
NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=()), min_size=1, max_size=30)
ODD = [
    "two words",
    'it\'s "quoted"',
    "a\nb\r\nc",
    "-rf",
    "$(reboot) `x` \\ %j",
    "ä 果物 \u202e",
    "\udcff",
    "\x7f\x1b[0m",
]


def job(name: str = "fruit 8w", *, train: tuple[str, ...] = ("photos", "--workers", "8"), **wishes: Any) -> SlurmJob:
    return SlurmJob(
        directory=Path("/home/ada/runs") / name,
        train=train,
        working_directory=Path("/home/ada"),
        settings=SlurmSettings(**wishes),
    )


FULL: dict[str, Any] = {
    "partition": "gpu",
    "account": "physics",
    "qos": "normal",
    "time": "04:00:00",
    "gpu": "v100",
    "gpus_per_host": 4,
    "hosts": 2,
    "cpus_per_gpu": 8,
    "memory_per_gpu": "32G",
    "setup": ("module load cuda", "source ~/venv/bin/activate"),
    "sbatch": ("--mail-type=FAIL",),
}
VARIANTS: list[dict[str, Any]] = [
    FULL,
    {"gpus_per_host": 0},
    {"gpus_per_host": 0, "hosts": 3, "interface": "ib0"},
    {"gpus_per_host": 2, "cpus_per_gpu": 2, "python": "/opt/my python/bin/python3"},
    {"gpus_per_host": 1, "hosts": 2, "max_requeues": 0},
]


def scripts(name: str, **wishes: Any) -> list[str]:
    """Of a training, and of somebody else's program."""
    training = job(name, train=(name,), **wishes)
    return [job_script(training), job_script(replace(training, watcher=("-m", "watcher", "--", name)))]


def words(text: str) -> list[str]:
    """What bash makes of a list of words."""
    encoded = f"printf '%s\\0' {text}".encode("utf-8", "surrogateescape")
    done = subprocess.run(["bash"], input=encoded, capture_output=True, timeout=20, check=True)
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


def test_a_whole_script() -> None:
    """Read it when it changes: this is what users see."""
    assert job_script(job(**FULL)) == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("wishes", VARIANTS, ids=range(len(VARIANTS)))
@pytest.mark.parametrize("name", ["run", *ODD], ids=ascii)
def test_bash_accepts_every_variant(name: str, wishes: dict[str, Any]) -> None:
    for script in scripts(name, **wishes):
        text = script.encode("utf-8", "surrogateescape")
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, timeout=20, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"\r" not in text  # sbatch refuses such scripts


@pytest.mark.slurm
@pytest.mark.parametrize("wishes", VARIANTS, ids=range(len(VARIANTS)))
def test_shellcheck_has_nothing_to_say(wishes: dict[str, Any], tmp_path: Path) -> None:
    shellcheck = shutil.which("shellcheck")
    assert shellcheck is not None, "bash .ci/slurm installs it"
    files = []
    for number, name in enumerate(["run", *(name for name in ODD if name.isprintable() or name.isascii())]):
        texts = [*scripts(name, **wishes), probe_script(Path("/home") / name, SlurmSettings(**wishes))]
        for kind, text in zip(("training", "program", "probe"), texts, strict=True):
            files.append(tmp_path / f"{number}-{kind}.sh")
            files[-1].write_text(text)
    # 1090, 1091: it cannot look into the files that the user's own lines read; 2016: `bash -c '...'` is meant so
    command = [shellcheck, "--exclude=SC1090,SC1091,SC2016", "--shell=bash", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(NAMES, min_size=1, max_size=3))
def test_a_word_stays_what_it_is(names: list[str]) -> None:
    text = " ".join(quote(name.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")) for name in names)
    expected = [name.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape") for name in names]
    assert words(text) == expected


@settings(max_examples=60, deadline=None)
@given(NAMES)
def test_a_script_with_any_name_is_bash(name: str) -> None:
    name = name.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    text = job_script(job(name, train=(name,), gpus_per_host=0)).encode("utf-8", "surrogateescape")
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    header = [line for line in text.split(b"\n") if line.startswith(b"#SBATCH")]
    assert len(header) == 7  # a name cannot become an option


def test_what_the_gpus_decide() -> None:
    on_cpu, on_gpu = job_script(job(gpus_per_host=0)), job_script(job(gpus_per_host=2))
    assert "--gres" not in on_cpu
    assert "--device cpu" in on_cpu
    assert "torch.distributed.run -" not in on_cpu  # a single process
    assert "#SBATCH --gres=gpu:2\n" in on_gpu
    assert "--processes 2 --device cuda" in on_gpu
    shared = SlurmJob(**{**vars(job(gpus_per_host=0, cpus_per_gpu=2)), "processes_per_host": 3, "device": "mps"})
    assert "#SBATCH --cpus-per-task=6\n" in job_script(shared)
    assert "--nproc-per-node 3" in job_script(shared)
    assert "--processes 3 --device mps" in job_script(shared)


@pytest.mark.parametrize("hosts", [1, 2])
def test_processes_meet_where_nothing_is_unpickled(hosts: int) -> None:
    """What stands in the store of a c10d rendezvous is unpickled, and every user of the cluster can write it."""
    text = job_script(job(gpus_per_host=2, hosts=hosts))
    assert "c10d" not in text
    assert "--standalone" not in text
    meeting = {1: f"-m {TORCH_AGENT} --nproc-per-node 2 ", 2: '--rdzv-backend static --master-addr "$first_host" '}
    assert meeting[hosts] in text
    assert ("$port" in text) == (hosts > 1)  # on one host nothing waits at a port that can be guessed


def test_a_program_of_others_has_a_task_for_each_worker() -> None:
    watched = replace(job(**FULL), watcher=("-m", "watcher", "--", "mpirun", "my lab.py"))
    script = job_script(watched)
    assert "#SBATCH --ntasks-per-node=4\n" in script
    assert "#SBATCH --cpus-per-task=8\n" in script
    assert "#SBATCH --gres=gpu:v100:4\n" in script
    assert """(trap '' USR2 && exec "$python" -m watcher -- mpirun 'my lab.py') &\n""" in script
    assert "resume" not in script


def test_which_python() -> None:
    assert job().python == sys.executable
    assert job(setup=("source venv/bin/activate",)).python == "python"
    assert job(setup=("source venv/bin/activate",), python="/opt/python").python == "/opt/python"


def test_what_squeue_shows() -> None:
    assert [job(name).name for name in ("fruit 8w", "果物", "--", "a" * 99)] == [
        *("fruit-8w", "turnaround", "turnaround", "a" * 60)
    ]


def test_paths_are_absolute() -> None:
    with pytest.raises(AssertionError, match="absolute"):
        SlurmJob(directory=Path("run"), train=(), working_directory=Path("/"), settings=SlurmSettings())
