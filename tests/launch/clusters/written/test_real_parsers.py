"""The written files in the hands of the programs that they are for; .ci/clusters installs those and runs this."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnaround.launch.clusters.contract import TrainingJob, Wishes
from turnaround.launch.clusters.written.kubernetes import kubernetes_file
from turnaround.launch.clusters.written.skypilot import skypilot_file

pytestmark = pytest.mark.skipif(
    "TURNAROUND_REQUIRE_CLUSTERS" not in os.environ,
    reason="needs SkyPilot and kubernetes-validate; .ci/clusters runs this",
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
