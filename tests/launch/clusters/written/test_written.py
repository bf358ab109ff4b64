"""Files for Kubernetes and SkyPilot: their shape, bad wishes, and their commands as two local processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from console import Console
from forking import ForkingParent
from http_client import free_port
from struck import waits_for
from turnaround.errors import InputError
from turnaround.launch.clusters.contract import TrainingJob, Wishes
from turnaround.launch.clusters.written import hooks
from turnaround.launch.clusters.written.kubernetes import kubernetes_file
from turnaround.launch.clusters.written.skypilot import skypilot_file
from turnaround.launch.clusters.written.task import PORT, job_name
from turnaround.record.job import status_of
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run

yaml = pytest.importorskip("yaml")
SHARED = ("shared=/mnt/shared", "volume=lab")
IMAGE = "image=registry.example/turnaround:1"


def training(**changes: Any) -> TrainingJob:
    known = {"words": ("photos/my set", "--set", "workers.count=8"), "out": Path("runs/photos-8w")}
    return TrainingJob(**{**known, "processes": 8, "device": "cuda", **changes})


def wishes(*settings: str, **flags: Any) -> Wishes:
    return Wishes(**{"gpu": "NVIDIA-A100-SXM4-80GB", "hosts": 2, **flags}, settings=settings or (*SHARED, IMAGE))


def test_an_indexed_job() -> None:
    service, job = yaml.safe_load_all(kubernetes_file(training(), wishes()))
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["name"] == job["metadata"]["name"] == "photos-8w"
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    rules = [(rule["action"], rule.get("onExitCodes", {}).get("values")) for rule in spec["podFailurePolicy"]["rules"]]
    assert rules == [("FailJob", [2, 3]), ("Ignore", [75]), ("Ignore", None)]
    assert (pod["restartPolicy"], pod["subdomain"]) == (
        "Never",
        "photos-8w",
    )  # what a podFailurePolicy and the names need
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert "--nnodes 2 --nproc-per-node 4" in container["args"][0]
    assert "train 'photos/my set' --set workers.count=8 --out" in container["args"][0]
    assert "run=/mnt/shared/photos-8w" in container["args"][0]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "lab"}


def test_a_task_of_skypilot() -> None:
    text = skypilot_file(training(), wishes(*SHARED, "spot=yes", "setup=pip install turnaround", gpu="V100"))
    task = yaml.safe_load(text)
    assert (task["name"], task["num_nodes"], task["volumes"]) == ("photos-8w", 2, {"/mnt/shared": "lab"})
    assert task["resources"] == {
        "accelerators": "V100:4",
        "use_spot": True,
        "job_recovery": {"max_restarts_on_errors": 20, "recover_on_exit_codes": [75]},
    }
    assert task["setup"] == "pip install turnaround\n"
    assert 'rank="$SKYPILOT_NODE_RANK"' in task["run"]


@pytest.mark.parametrize(
    ("settings", "flags", "words"),
    [
        ((IMAGE,), {}, "needs a folder that all hosts see"),
        (("shared=mnt", IMAGE), {}, "takes an absolute path"),
        (SHARED, {}, "needs an image"),
        (("shared=/mnt", IMAGE), {}, "Several hosts need a volume"),
        ((*SHARED, IMAGE, "spot=yes"), {}, "are for SkyPilot"),
        ((*SHARED, IMAGE, "spot=maybe"), {}, "spot takes yes or no"),
        ((*SHARED, IMAGE, "cpus=many"), {}, "cpus takes a whole number from 1"),
        ((*SHARED, IMAGE, "imgae=x"), {}, "Did you mean 'image'"),
        (("shared",), {}, "--job takes KEY=VALUE"),
        ((*SHARED, IMAGE), {"hosts": 3}, "8 processes do not spread evenly over 3 hosts"),
        ((*SHARED, IMAGE), {"time": "01:00:00"}, "--time is for Slurm"),
        ((*SHARED, IMAGE), {"gpu": None}, "give --gpu KIND, or --device cpu"),
    ],
)
def test_what_cannot_be_written(settings: tuple[str, ...], flags: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        kubernetes_file(training(), wishes(*settings, **flags))


def test_names_as_clusters_allow_them() -> None:
    assert [job_name(name) for name in ("Fruit_8w", "8w", "ä" * 99 + "b")] == ["fruit-8w", "run-8w", "b"]


def test_the_command_prints_it_and_other_verbs_refuse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(monkeypatch, capsys)
    words = ("fruitbowl", "--workers", "4", "--hosts", "2", "--gpu", "V100", "--job", "shared=/mnt")
    done = console("train", *words, "--on", "skypilot", "--out", "runs/x")
    assert (done.code, yaml.safe_load(done.out)["num_nodes"]) == (0, 2)
    for refused in (
        console("study", "fruitbowl", "--workers", "1", "--on", "skypilot"),
        console("resume", "runs/x", "--on", "kubernetes"),
    ):
        assert refused.code == 2
        assert "writes the file of one training and follows nothing" in refused.err
    assert "prints a file and waits for nothing" in console("train", *words, "--on", "skypilot", "--no-wait").err
    assert (
        "export TURNAROUND_NOTIFY where SkyPilot"
        in console("train", *words, "--on", "skypilot", "--notify", "true").err
    )


def test_the_status_is_that_of_the_record(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    known = hooks.before(directory, 0)
    assert (known, hooks.after(directory, 1, known)) == ("none", 1)
    for state, status in (("interrupted", 75), ("diverged", 3), ("finished", 0), ("running", 1)):
        directory.status.write_text(json.dumps({"format": 1, "state": state}))
        assert hooks.after(directory, 1, known) == status
    directory.status.write_text(json.dumps({"format": 1, "state": "interrupted"}))
    assert hooks.after(directory, 0, known) == 75
    assert hooks.after(directory, 1, hooks.before(directory, 0)) == 1  # this start has written nothing
    directory.lock.write_text(json.dumps({"format": 1, "host": "elsewhere", "pid": 7}))
    hooks.before(directory, 1)
    assert directory.lock.exists()  # only the first host frees it
    hooks.before(directory, 0)
    assert not directory.lock.exists()
    assert hooks.main(["neither"]) == 2


def test_two_hosts_are_killed_and_go_on(
    tmp_path: Path, fruit_folder: Path, monkeypatch: pytest.MonkeyPatch, forking_parent: ForkingParent
) -> None:
    """The commands of the pods, as two local processes with the job's variables: stopped with TERM, then resumed."""
    port = free_port()
    settings = ("data.size_px=32", "training.batch_per_worker=48", "training.epochs=12", "workers.count=2")
    settings += ("training.checkpoint_every_s=0",)
    words = (str(fruit_folder), *(part for one in settings for part in ("--set", one)))
    job = training(words=words, processes=2, device="cpu", out=Path("run"))
    told = (f"shared={tmp_path}", "volume=x", IMAGE, f"python={forking_parent.python_with_agent}")
    _, manifest = yaml.safe_load_all(kubernetes_file(job, wishes(*told, gpu=None)))
    script = manifest["spec"]["template"]["spec"]["containers"][0]["args"][0].replace(str(PORT), str(port))

    def start(fault: str) -> list[subprocess.Popen[str]]:
        variables = {"TURNAROUND_FIRST_HOST": "127.0.0.1", "OMP_NUM_THREADS": "1", "TURNAROUND_FAULT": fault}
        return [
            subprocess.Popen(
                ["bash", "-c", script],
                env={**os.environ, **variables, "JOB_COMPLETION_INDEX": str(index), "GLOO_SOCKET_IFNAME": "lo"},
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
            for index in (0, 1)
        ]

    def ended(hosts: list[subprocess.Popen[str]]) -> tuple[list[int], str]:
        said = [host.communicate(timeout=120)[1] for host in hosts]
        return [host.returncode for host in hosts], "\n".join(said)

    def has_epoch() -> bool:
        status = status_of(RunDirectory(tmp_path / "run"))
        return status is not None and status.epochs_done >= 1

    hosts = start("kind=slow,step=5,ms=1000")
    waits_for(lambda: has_epoch() or any(host.poll() is not None for host in hosts), seconds=120)
    for host in hosts:
        host.send_signal(signal.SIGTERM)
    codes, said = ended(hosts)
    assert codes[0] == 75, f"{status_of(RunDirectory(tmp_path / 'run'))}\n{said[-1500:]}"
    assert status_of(RunDirectory(tmp_path / "run")).state == "interrupted"  # type: ignore[union-attr]
    codes, said = ended(start(""))
    assert codes == [0, 0], said
    run = Run.load(tmp_path / "run")
    assert (run.status.state, run.status.segments, len(run.epochs)) == ("finished", 2, 12)
