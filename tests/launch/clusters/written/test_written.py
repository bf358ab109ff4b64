"""Files for Kubernetes, Kubeflow and SkyPilot: their shape, bad wishes, and their commands as two local processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from functools import partial
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
from turnaround.launch.clusters.written.kubeflow import kubeflow_file
from turnaround.launch.clusters.written.kubernetes import kubernetes_file
from turnaround.launch.clusters.written.skypilot import skypilot_file
from turnaround.launch.clusters.written.task import PORT, job_name
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run, status_of

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


def test_a_train_job_and_its_runtime() -> None:
    """Pods start again as those of the Indexed Job do, and the container has the name that Kubeflow looks for."""
    runtime, job = yaml.safe_load_all(kubeflow_file(training(), wishes()))
    _, indexed = yaml.safe_load_all(kubernetes_file(training(), wishes()))
    assert (runtime["kind"], job["kind"]) == ("TrainingRuntime", "TrainJob")
    assert job["spec"]["runtimeRef"] == {"kind": "TrainingRuntime", "name": runtime["metadata"]["name"]}
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 2, "torch": {}}
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert (node["name"], node["replicas"]) == ("node", 1)
    assert node["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    spec, pod, of_job = node["template"]["spec"], node["template"]["spec"]["template"]["spec"], indexed["spec"]
    assert spec["backoffLimit"] == of_job["backoffLimit"]
    rules = json.dumps(of_job["podFailurePolicy"]).replace('"containerName": "train"', '"containerName": "node"')
    assert spec["podFailurePolicy"] == json.loads(rules)
    assert {name: pod[name] for name in ("restartPolicy", "volumes", "nodeSelector")} == {
        name: of_job["template"]["spec"][name] for name in ("restartPolicy", "volumes", "nodeSelector")
    }
    assert [container["name"] for container in pod["containers"]] == ["node"]
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 4)
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": "4"}}
    assert 'rank="$PET_NODE_RANK"' in trainer["args"][0]


def test_each_file_says_that_no_cloud_has_run_it() -> None:
    written = (kubernetes_file(training(), wishes()), kubeflow_file(training(), wishes()))
    written += (skypilot_file(training(), wishes(*SHARED)),)
    assert all("never run on a real cl" in text.partition("\nname:")[0] for text in written)


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
    for write in (kubernetes_file, kubeflow_file):
        with pytest.raises(InputError, match=words):
            write(training(), wishes(*settings, **flags))


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
        console("study", "fruitbowl", "--workers", "1", "--on", "kubeflow"),
        console("resume", "runs/x", "--on", "kubeflow"),
    ):
        assert refused.code == 2
        assert "writes the file of one training and follows nothing" in refused.err
    assert "prints a file and waits for nothing" in console("train", *words, "--on", "skypilot", "--no-wait").err
    assert (
        "export TURNAROUND_NOTIFY where SkyPilot"
        in console("train", *words, "--on", "skypilot", "--notify", "true").err
    )


CLIENT = """\
#!/bin/sh
# What SkyPilot's client does as far as we see it: words, a file, an exit status.
echo "$*" > asked; cp "$5" task.yaml
printf '\\033[33mChoosing resources\\033[0m\\n'
[ ! -e refused ] || { echo "sky.exceptions.ResourcesUnavailableError: No V100 anywhere." >&2; exit 1; }
"""


def test_a_task_is_submitted_through_skypilots_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """.ci/clusters does it with the real one, which refuses: no cloud can be reached from there."""
    monkeypatch.chdir(tmp_path)
    console = Console(monkeypatch, capsys)
    words = ("train", "fruitbowl", "--gpu", "V100", "--job", "shared=/mnt", "--out", "runs/Fruit_1w")
    words += ("--on", "skypilot", "--submit")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    missing = console(*words)
    assert (missing.code, "there is no `sky` in PATH" in missing.err) == (2, True)
    client = tmp_path / "bin/sky"
    client.parent.mkdir()
    client.write_text(CLIENT)
    client.chmod(0o700)
    monkeypatch.setenv("PATH", f"{client.parent}:/usr/bin:/bin")
    printed = console(*words, "--dry-run")
    assert (printed.code, (tmp_path / "asked").exists()) == (0, False)
    done = console(*words)
    assert done.code == 0, done.err
    assert (tmp_path / "task.yaml").read_text() == printed.out
    assert (tmp_path / "asked").read_text().startswith("jobs launch --yes --detach-run /")
    assert "Choosing resources\n" in done.err
    assert "SkyPilot has the job fruit-1w" in done.err
    assert "seen none on a real cloud" in " ".join(done.err.split())
    assert json.loads(console(*words, "--json").out) == {"cluster": "skypilot", "job_name": "fruit-1w"}
    (tmp_path / "refused").touch()
    refused = console(*words, "--json")
    assert (refused.code, refused.out) == (2, "")
    assert "SkyPilot has not taken the job: No V100 anywhere. `sky check` tells" in " ".join(refused.err.split())


def test_who_is_not_submitted_to(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(monkeypatch, capsys)
    for on, words in (
        ("local", "--submit is for clusters"),
        ("slurm", "--on slurm submits without it"),
        ("kubernetes", "not for --on kubernetes: turnaround train ... --on kubernetes > job.yaml, then kubectl apply"),
        ("kubeflow", "not for --on kubeflow"),
    ):
        refused = console("train", "fruitbowl", "--on", on, "--submit")
        assert (refused.code, words in " ".join(refused.err.split())) == (2, True)


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


Script = tuple[str, Callable[[int], dict[str, str]]]


def scripts(job: TrainingJob, *settings: str) -> dict[str, Script]:
    """Return the commands of each file, and the variables that its cluster gives to each of two hosts."""

    def documents(write: Callable[[TrainingJob, Wishes], str], *more: str) -> list[Any]:
        return list(yaml.safe_load_all(write(job, wishes(*settings, *more, gpu=None))))

    indexed, train_job = documents(kubernetes_file, IMAGE)[1], documents(kubeflow_file, IMAGE)[1]
    first = {"TURNAROUND_FIRST_HOST": "127.0.0.1"}
    policy = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(PORT),
    }
    return {
        "kubernetes": (
            indexed["spec"]["template"]["spec"]["containers"][0]["args"][0],
            lambda host: {**first, "JOB_COMPLETION_INDEX": str(host)},
        ),
        "kubeflow": (
            train_job["spec"]["trainer"]["args"][0],
            lambda host: {**policy, "PET_NODE_RANK": str(host)},
        ),
        "skypilot": (
            documents(skypilot_file)[0]["run"],
            lambda host: {"SKYPILOT_NODE_RANK": str(host), "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1"},
        ),
    }


def test_two_hosts_are_killed_and_go_on(tmp_path: Path, fruit_folder: Path, forking_parent: ForkingParent) -> None:
    """The commands of each file, as two local processes with its cluster's variables: stopped with TERM, and resumed.

    All in one run: the files differ in the two lines that read those variables, and in nothing else.
    """
    settings = ("data.size_px=16", "training.batch_per_worker=48", "training.epochs=12", "workers.count=2")
    settings += ("training.checkpoint_every_s=0",)
    words = (str(fruit_folder), *(part for one in settings for part in ("--set", one)))
    job = training(words=words, processes=2, device="cpu", out=Path("run"))
    told = (f"shared={tmp_path}", "volume=x", f"python={forking_parent.python_with_agent}")
    commands, directory = scripts(job, *told), RunDirectory(tmp_path / "run")
    assert len({re.sub(r"(?m)^(rank|first_host)=.*", "", script).strip() for script, _ in commands.values()}) == 1

    def start(name: str, fault: str) -> list[subprocess.Popen[str]]:
        script, variables = commands[name]
        script = script.replace(str(PORT), str(free_port()))  # other tests run beside this one
        own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TURNAROUND_FAULT": fault}
        return [
            subprocess.Popen(
                ["bash", "-c", script],
                env={**os.environ, **own, **variables(host)},
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
            for host in (0, 1)
        ]

    def ended(hosts: list[subprocess.Popen[str]]) -> tuple[list[int], str]:
        said = [host.communicate(timeout=240)[1] for host in hosts]
        return [host.returncode for host in hosts], "\n".join(said)

    def has_trained(hosts: list[subprocess.Popen[str]], segment: int, epochs: int) -> bool:
        status = status_of(directory)
        is_there = status is not None and status.segments == segment and status.epochs_done > epochs
        return is_there or any(host.poll() is not None for host in hosts)

    for segment, name in enumerate(("kubernetes", "skypilot"), start=1):
        before = 0 if segment == 1 else status_of(directory).epochs_done  # type: ignore[union-attr]
        # So slow that 12 epochs of 2 steps are far from their end when the signal comes.
        hosts = start(name, f"kind=slow,step=3,ms=1000,segment={segment}")
        waits_for(partial(has_trained, hosts, segment, before), seconds=240)
        for host in hosts:
            host.send_signal(signal.SIGTERM)
        codes, said = ended(hosts)
        assert codes[0] == 75, f"{name}: {status_of(directory)}\n{said[-1500:]}"
        assert status_of(directory).state == "interrupted"  # type: ignore[union-attr]
    codes, said = ended(start("kubeflow", ""))
    assert codes == [0, 0], said
    run = Run.load(directory.path)
    assert (run.status.state, run.status.segments, len(run.epochs)) == ("finished", 3, 12)
