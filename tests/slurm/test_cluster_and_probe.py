"""What a real cluster answers: what it has, what it refuses, what its nodes see."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm.cluster import CPUS_PER_NODE, GPUS_PER_NODE, MEMORY_MB, NODES, Cluster
from slurm.conftest import Submit
from turnaround.errors import InputError
from turnaround.launch.clusters import cluster_named
from turnaround.launch.clusters.slurm import client, probe
from turnaround.launch.clusters.slurm.inventory import check, partitions
from turnaround.launch.clusters.slurm.script import SlurmJob
from turnaround.launch.clusters.slurm.settings import SlurmSettings

pytestmark = pytest.mark.slurm


def job(folder: Path, **settings: Any) -> SlurmJob:
    wishes = SlurmSettings(**settings)
    return SlurmJob(directory=folder / "run", train=("photos",), working_directory=folder, settings=wishes)


def test_what_there_is(cluster: Cluster) -> None:
    there = partitions()
    assert sorted(there) == ["gpu", "scavenge"]
    assert (there["gpu"].is_default, there["scavenge"].is_default) == (True, False)
    assert (there["gpu"].time_limit_s, there["scavenge"].time_limit_s) == (3600, 2 * 86400)
    assert there["gpu"].gpu_kinds == ("t4", "v100")
    nodes = {node.name: node for node in there["gpu"].nodes}
    assert {name: node.gpus for name, node in nodes.items()} == {n: {kind: GPUS_PER_NODE} for n, kind in NODES.items()}
    assert (nodes["n1"].cpus, nodes["n1"].memory_mb, nodes["n1"].state) == (CPUS_PER_NODE, MEMORY_MB, "idle")


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"partition": "gpus"}, r"Unknown partition 'gpus'. Did you mean 'gpu'\? Valid: gpu, scavenge."),
        ({"gpu": "h100"}, r"partition gpu: Unknown GPU kind 'h100'.* Valid: t4, v100."),
        ({"gpu": "t4", "gpus_per_host": 4}, r"4 t4 GPUs .* no node of partition gpu has more than 2. .*hosts = 2 with"),
        ({"gpu": "t4", "hosts": 3}, "3 hosts are asked for, but partition gpu has 2 that fit"),
        ({"cpus_per_gpu": 9}, "9 CPUs on each host are asked for, but no node .* has more than 4"),
        ({"memory_per_gpu": "9G"}, "9216 MB of memory on each host .* more than 8000"),
        ({"time": "2:00:00"}, r"time = '2:00:00' is longer than partition gpu allows \(01:00:00\)"),
    ],
)
def test_what_can_never_start(wishes: dict[str, Any], message: str, cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        check(job(tmp_path, **wishes), partitions())


def test_what_can(cluster: Cluster, tmp_path: Path) -> None:
    there = partitions()
    assert check(job(tmp_path), there) == []
    assert check(job(tmp_path, partition="gpu,scavenge", time="1-00", hosts=4, gpus_per_host=2), there) == []
    cluster.run("scontrol", "update", "nodename=n3", "state=down", "reason=test")
    assert check(job(tmp_path, gpu="v100", hosts=2), partitions()) == [
        "The job will wait: of the 2 nodes that fit, n3 (down) cannot be used now."
    ]


def test_slurms_own_refusal_is_quoted(submit: Submit, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has refused the job: invalid partition specified: nope; .*The script is "):
        submit("run", partition="nope")
    with pytest.raises(InputError, match="Requested node configuration is not available"):
        submit("run", gpu="h100")
    with pytest.raises(InputError, match=r"setup lines are no valid bash: .*unexpected EOF.* Received: \"echo 'open"):
        submit("run", setup=("echo 'open",))


def test_a_directory_that_the_nodes_see(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "new and\nodd" / "run"
    seen = probe.require_visible(folder, SlurmSettings(hosts=2))
    assert (seen.answer, len(seen.hosts)) == ("yes", 2)
    assert list(tmp_path.iterdir()) == []  # it leaves nothing behind


def test_a_directory_that_they_do_not_see(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The path exists on the nodes too, but it is a disk of each node's own, as /tmp is on many clusters."""
    monkeypatch.setattr(probe, "NETWORK_FILE_S", 1)
    with pytest.raises(InputError, match=r"compute nodes do not see .*/local/run: a new file does not appear on n\d"):
        probe.require_visible(cluster.node_local / "run", SlurmSettings())
    assert list(cluster.node_local.iterdir()) == []


def test_a_cluster_too_busy_to_look(submit: Submit, cluster: Cluster, tmp_path: Path) -> None:
    busy = submit("busy", do="deaf", gpus_per_host=0, hosts=4, cpus_per_gpu=CPUS_PER_NODE)
    busy.wait_for_start(nodes=4)
    seen = probe.require_visible(tmp_path / "run", SlurmSettings(), patience_s=2)
    assert seen.answer == "unknown"
    assert seen.reason is not None
    assert "did not look within 2 s (PENDING" in seen.reason
    assert [state.job_id for state in client.job_states().values() if not state.is_over] == [busy.job_id]


def test_a_forecast_asks_how_many_gpus_a_host_has(cluster: Cluster) -> None:
    slurm = cluster_named("slurm")
    assert slurm.gpus_per_host(slurm.inventory()) == {"t4": GPUS_PER_NODE, "v100": GPUS_PER_NODE}


def test_the_network_between_two_hosts_is_measured(cluster: Cluster, tmp_path: Path) -> None:
    script, printed = tmp_path / "network.sh", tmp_path / "printed"
    script.write_text(f"#!/bin/bash\nsrun {shlex.quote(sys.executable)} -m turnaround doctor --json\n")
    cluster.run("sbatch", "--wait", "--nodes=2", "--ntasks-per-node=1", f"--output={printed}", str(script))
    facts = json.loads(printed.read_text())
    assert (facts["hosts"], facts["processes"], facts["backend"], facts["is_right"]) == (2, 2, "gloo", True)
    # A ring of two sends the message once through each host.
    assert facts["gb_per_s"] == pytest.approx(0.064 / facts["elapsed_s"])


def test_a_probe_that_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    seen = probe.probe(tmp_path, SlurmSettings(partition="nope"))
    assert seen.answer == "unknown"
    assert "invalid partition specified: nope" in str(seen.reason)
