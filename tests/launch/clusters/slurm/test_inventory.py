"""What sinfo prints on clusters of all kinds; on a real one: tests/slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnaround.errors import InputError
from turnaround.launch.clusters.slurm.inventory import check, gpus_per_host, parse
from turnaround.launch.clusters.slurm.script import SlurmJob
from turnaround.launch.clusters.slurm.settings import SlurmSettings

SINFO = """\
batch|c1|(null)|64|256000|infinite|mixed
gpu*|g1|gpu:a100:4(S:0-1),nvme:1|64+|512000+|2-00:00:00|idle
gpu*|g2|gpu:a100:2,gpu:t4:1|32|256000|2-00:00:00|drained*
old|o1|gpu:8|16|64000|12:00:00|allocated
"""


def job(**wishes: Any) -> SlurmJob:
    settings = SlurmSettings(**wishes)
    return SlurmJob(directory=Path("/x"), train=(), working_directory=Path("/"), settings=settings)


def test_what_is_read() -> None:
    there = parse(SINFO)
    assert {name: partition.gpu_kinds for name, partition in there.items()} == {
        "batch": (),
        "gpu": ("a100", "t4"),
        "old": ("gpu",),
    }
    assert [node.gpus for node in there["gpu"].nodes] == [{"a100": 4}, {"a100": 2, "t4": 1}]
    assert (there["gpu"].nodes[0].cpus, there["gpu"].nodes[0].memory_mb) == (64, 512000)
    assert [node.is_usable for node in there["gpu"].nodes] == [True, False]
    assert (there["batch"].time_limit_s, there["old"].time_limit_s) == (None, 43200)


def test_gpus_without_a_kind() -> None:
    assert check(job(partition="old", gpus_per_host=8), parse(SINFO)) == []
    with pytest.raises(
        InputError, match=r"9 GPUs on each host .* more than 8. Use more hosts: hosts = 2 with gpus_per_host"
    ):
        check(job(partition="old", gpus_per_host=9), parse(SINFO))


def test_no_gpu_at_all() -> None:
    with pytest.raises(InputError, match=r"No node of partition batch has a GPU. .* or train with --device cpu"):
        check(job(partition="batch"), parse(SINFO))
    assert check(job(partition="batch", gpus_per_host=0, time="30-00"), parse(SINFO)) == []


def test_several_partitions() -> None:
    there = parse(SINFO)
    assert check(job(partition="gpu,old", time="1-00"), there) == []
    with pytest.raises(InputError, match=r"longer than partitions gpu, old allows \(2-00:00:00\)"):
        check(job(partition="gpu,old", time="3-00"), there)


def test_a_cluster_without_a_default_partition() -> None:
    assert check(job(gpu="whatever"), parse(SINFO.replace("*|", "|"))) == []


def test_another_sinfo() -> None:
    with pytest.raises(InputError, match="This version of sinfo"):
        parse("gpu up 2-00:00:00 3 idle")


def test_the_most_gpus_of_each_kind_on_one_host() -> None:
    lines = ["gpu*|n1|gpu:v100:4(S:0-1)|8|1000|infinite|idle", "gpu*|n2|gpu:v100:8,gpu:t4:2|8|1000|infinite|down"]
    lines += ["other|n2|gpu:v100:8,gpu:t4:2|8|1000|infinite|down", "other|n3|(null)|8|1000|infinite|idle"]
    assert gpus_per_host(parse("\n".join(lines))) == {"v100": 8, "t4": 2}
    assert gpus_per_host(parse(lines[-1])) == {}
