"""Without a batch system: a plain torch.distributed.run, typed once on each of two hosts with networks of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from running import largest_difference, train, weights
from slurm.cluster import Cluster
from slurm.running_there import TINY, settings
from turnaround.record.reader import Run

pytestmark = pytest.mark.slurm

FIRST, SECOND = "n1", "n2"


def test_two_hosts_train_one_run(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out, wishes = tmp_path / "run", settings("training.epochs=3")
    training = ("-m", "turnaround", "train", "fruitbowl", "--device", "cpu", *wishes, "--out", str(out))
    meet = ("--nnodes", "2", "--nproc-per-node", "1", "--master-addr", FIRST, "--master-port", "29500")
    hosts = []
    for rank, host in enumerate((FIRST, SECOND)):
        launch = (sys.executable, "-m", "torch.distributed.run", *meet, "--node-rank", str(rank), *training)
        hosts.append(
            subprocess.Popen(
                cluster.on(host, *launch),
                env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0"},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    printed = [host.communicate(timeout=400)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], "\n".join(printed)
    run = Run.load(out)
    assert (run.status.state, run.machine["workers"], run.machine["processes"]) == ("finished", 2, 2)
    assert [rank["host"] for rank in run.machine["ranks"]] == [FIRST, SECOND]
    assert sorted(run.directory.telemetry_hosts()) == [FIRST, SECOND]
    assert run.status.job is None
    here = train("fruitbowl", tmp_path / "here", *TINY, "workers.count=2", "training.epochs=3", processes=2)
    assert largest_difference(weights(run), weights(here)) == 0
