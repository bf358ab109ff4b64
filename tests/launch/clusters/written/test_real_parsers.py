"""The written files in the hands of the programs that they are for; .ci/clusters installs those and runs this."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from turnaround.errors import InputError
from turnaround.launch.clusters.contract import TrainingJob, Wishes
from turnaround.launch.clusters.written.kubeflow import kubeflow_file
from turnaround.launch.clusters.written.kubernetes import kubernetes_file
from turnaround.launch.clusters.written.skypilot import skypilot_file, submit_task

pytestmark = pytest.mark.skipif(
    "TURNAROUND_REQUIRE_CLUSTERS" not in os.environ,
    reason="needs SkyPilot, kubernetes-validate and Kubeflow's models; .ci/clusters runs this",
)
WORDS = ("photos/it's", "--set", "workers.count=8")
TRAINING = TrainingJob(words=WORDS, out=Path("runs/photos-8w"), processes=8, device="cuda")
MORE = ("shared=/mnt/shared", "volume=lab", "image=registry.example/turnaround:1", "cpus=8", "memory_gb=64")
MORE += ("setup=pip install turnaround",)


def test_skypilots_own_parser(tmp_path: Path) -> None:
    import sky
    import yaml

    text = skypilot_file(TRAINING, Wishes(gpu="V100", hosts=2, settings=(*MORE, "spot=yes")))
    (tmp_path / "task.yaml").write_text(text)
    task = sky.Task.from_yaml(str(tmp_path / "task.yaml"))
    (resources,) = task.resources
    assert (task.name, task.num_nodes, resources.use_spot, resources.accelerators) == (
        "photos-8w",
        2,
        True,
        {"V100": 4},
    )
    assert resources.job_recovery["recover_on_exit_codes"] == [75]
    assert "photos/it" in str(task.run)
    for wrong in ({"num_nodes": "two"}, {"resources": {"use_spot": "perhaps"}}, {"nodes": 2}):
        with pytest.raises(Exception, match=r"(?i)invalid|not|unexpected"):  # the parser does see errors
            sky.Task.from_yaml_config({**yaml.safe_load(text), **wrong})


@pytest.fixture
def api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SkyPilot's own API server, on a port of its own, with no cloud set up: whoever runs this may have another."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    home, address = tmp_path / "home", f"http://127.0.0.1:{port}"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", address)
    command = [sys.executable, "-m", "sky.server.server", "--host=127.0.0.1", f"--port={port}"]
    with (home / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(600):
            assert server.poll() is None, (home / "server.log").read_text()
            try:
                urllib.request.urlopen(f"{address}/api/health", timeout=10).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        else:
            pytest.fail((home / "server.log").read_text())
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.usefixtures("api_server")
def test_skypilot_without_a_cloud_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitted through the real client to the real server, which refuses: its reason, and no stack trace."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # the folder that goes along
    # Without a GPU: SkyPilot would fetch its catalog of them from the Internet first.
    training = TrainingJob(words=WORDS, out=Path("runs/x"), processes=2, device="cpu")
    said: list[str] = []
    with pytest.raises(InputError, match=r"^SkyPilot has not taken the job: (?!no reason)\w.*`sky check` tells"):
        submit_task(skypilot_file(training, Wishes(hosts=2, settings=("shared=/mnt/shared",))), said.append)
    assert "YAML to run" in said[0]
    assert not any("Traceback" in line for line in said)


def prices_from_skypilot(home: Path) -> subprocess.CompletedProcess[str]:
    """Read SkyPilot's own catalog of one cloud in a process of its own, as it looks at the home folder when it is
    imported; whatever it wants from the Internet is refused at once."""
    code = "from turnaround.analysis.prices import prices_text, skypilot_prices\n"
    code += "print(prices_text(skypilot_prices('lambda')))"
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment = {**os.environ, **nowhere, "HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_prices_of_skypilots_own_catalog(tmp_path: Path) -> None:
    from sky.skylet import constants

    columns = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice"
    info = "\"{'Gpus': [{'Name': 'V100', 'MemoryInfo': {'SizeInMiB': 16384}}]}\""
    rows = [
        f"gpu_8x_v100,V100,8.0,92.0,448.0,4.4,us-east-1,{info},",
        f"gpu_1x_v100,V100,1.0,30.0,200.0,0.79,us-west-1,{info},0.5",
        f"gpu_1x_v100,V100,1.0,30.0,200.0,0.89,us-east-1,{info},0.4",
        "cpu_4x,,,4.0,16.0,0.1,us-east-1,,",
    ]
    catalog = tmp_path / ".sky" / "catalogs" / constants.CATALOG_SCHEMA_VERSION / "lambda" / "vms.csv"
    catalog.parent.mkdir(parents=True)
    catalog.write_text("\n".join([columns, *rows]) + "\n")
    done = prices_from_skypilot(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "price = 0.55\n" in done.stdout  # an eighth of the large machine
    assert "spot_price = 0.4\n" in done.stdout  # of a region that is not the cheapest to keep
    assert "gpu_8x_v100 in us-east-1, spot Lambda gpu_1x_v100 in us-east-1" in done.stdout


def test_skypilots_catalog_that_cannot_be_fetched(tmp_path: Path) -> None:
    done = prices_from_skypilot(tmp_path)
    assert done.returncode != 0
    assert "InputError: SkyPilot's catalog does not answer: " in done.stderr


@pytest.mark.parametrize("gpu", ["NVIDIA-A100-SXM4-80GB", "any", None])
def test_the_schema_of_kubernetes(gpu: str | None) -> None:
    import kubernetes_validate
    import yaml

    device = "cpu" if gpu is None else "cuda"
    training = TrainingJob(words=WORDS, out=Path("runs/x"), processes=8, device=device)
    documents = list(yaml.safe_load_all(kubernetes_file(training, Wishes(gpu=gpu, hosts=2, settings=MORE))))
    for document in documents:
        kubernetes_validate.validate(document, "1.31", strict=True)
    spoilt: list[Callable[[dict[str, Any]], object]] = [
        lambda job: job["spec"].update(completions="two"),
        lambda job: job["spec"].update(completion=2),
        lambda job: job["spec"]["podFailurePolicy"]["rules"][0].pop("action"),
    ]
    for spoil in spoilt:
        job = next(yaml.safe_load_all(yaml.safe_dump(documents[1])))
        spoil(job)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(job, "1.31", strict=True)


def read_by_kubeflow(document: dict[str, Any]) -> None:
    """Read a document with Kubeflow's own models; ValueError for what they refuse, and for what they leave out."""
    from kubeflow_trainer_api import models

    assert document["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    read = getattr(models, f"TrainerV1alpha1{document['kind']}").from_dict(document)
    if read.to_dict() != document:  # the models pass over a field that they do not know
        raise ValueError(f"Kubeflow has understood {read.to_dict()}")


@pytest.mark.parametrize("gpu", ["NVIDIA-A100-SXM4-80GB", "any", None])
def test_kubeflows_own_models(gpu: str | None) -> None:
    import kubernetes_validate
    import yaml

    device = "cpu" if gpu is None else "cuda"
    training = TrainingJob(words=WORDS, out=Path("runs/x"), processes=8, device=device)
    text = kubeflow_file(training, Wishes(gpu=gpu, hosts=2, settings=MORE))
    runtime, job = yaml.safe_load_all(text)
    for document in (runtime, job):
        read_by_kubeflow(document)
    # The controller makes this Job of both; Kubernetes holds it to its schema.
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pods = replicated["template"]["spec"]["template"]["spec"]
    (container,) = pods["containers"]
    trainer = job["spec"]["trainer"]
    container |= {"image": trainer["image"], "command": trainer["command"], "args": trainer["args"]}
    container["resources"] = trainer["resourcesPerNode"]
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x-node-0"}, **replicated["template"]}
    made["spec"] |= {"completionMode": "Indexed", "completions": 2, "parallelism": 2}
    kubernetes_validate.validate(made, "1.31", strict=True)

    def node(runtime: dict[str, Any]) -> Any:
        return runtime["spec"]["template"]["spec"]["replicatedJobs"][0]

    spoilt: list[tuple[int, Callable[[dict[str, Any]], object]]] = [
        (0, lambda runtime: runtime["spec"]["mlPolicy"].update(numNodes="two")),
        (0, lambda runtime: runtime["spec"]["mlPolicy"].update(nodes=2)),
        (0, lambda runtime: node(runtime).pop("name")),
        (0, lambda runtime: node(runtime)["template"]["spec"].update(backofLimit=3)),
        (1, lambda job: job["spec"]["trainer"].update(numNodes="two")),
        (1, lambda job: job["spec"]["trainer"].update(processes=4)),
        (1, lambda job: job["spec"]["trainer"].update(args="set -u")),
        (1, lambda job: job["spec"]["runtimeRef"].pop("name")),
        (1, lambda job: job["spec"].update(podTemplateOverrides=[])),
    ]
    for which, spoil in spoilt:
        document = list(yaml.safe_load_all(text))[which]
        spoil(document)
        with pytest.raises(ValueError, match=r"validation error|Kubeflow has understood"):
            read_by_kubeflow(document)
