"""Whatever stops a job: it comes back by itself and ends with the weights of a run that nobody stopped.

Four jobs at once, each stopped in another way. Their first start is made slow (a fault that sleeps), so that there is
something to interrupt; sleeping changes no number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from running import largest_difference, train, weights
from slurm.cluster import Cluster
from slurm.running_there import TINY, has_saved, job_of, printed, settings, status, turnaround, wait_for
from turnaround.launch.clusters.slurm import client
from turnaround.record.reader import Run

pytestmark = pytest.mark.slurm

EPOCHS = 60
SLOW = "kind=slow,ms=2000"
"""At every step of the first start: more than a minute for all."""
V100 = {"n3", "n4"}

# How each job is asked for: with two workers, on processors; how it is stopped, `happened` knows.
JOBS: dict[str, tuple[str, ...]] = {
    "node down": ("--processes", "1", "--gpu", "v100", "--time", "10"),
    "pre-empted": ("--processes", "1", "--gpu", "v100", "--partition", "scavenge", "--slurm", "sbatch=--exclude=n3"),
    "requeued": ("--processes", "1", "--gpu", "t4", "--time", "10"),
    "time limit": ("--processes", "2", "--gpu", "t4", "--hosts", "2", "--time", "1", "--slurm", "signal_lead_s=20"),
}


@dataclass(frozen=True, kw_only=True)
class Happened:
    """After all four were stopped and have ended."""

    runs: dict[str, Path]
    submitted_at: dict[str, str | None]
    lost_node: str


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Run]:
    """By number of processes, on this machine; two workers each."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNAROUND_CACHE", str(folder / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        wishes = (*TINY, "workers.count=2", f"training.epochs={EPOCHS}")
        return {p: train("fruitbowl", folder / f"{p}", *wishes, processes=p) for p in (1, 2)}


@pytest.fixture(scope="module")
def happened(
    running_cluster: Cluster, undisturbed: dict[int, Run], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Happened]:
    """Nobody follows: the jobs must come back by themselves."""
    folder = tmp_path_factory.mktemp("interrupted")
    running_cluster.cancel_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(running_cluster.commands), prepend=os.pathsep)
        patch.setenv("TURNAROUND_CACHE", str(folder / "cache"))
        patch.setenv("TURNAROUND_CONFIG", str(folder))
        patch.setenv("TURNAROUND_FAULT", SLOW)
        patch.setenv("OMP_NUM_THREADS", "1")
        runs = {name: _submit(folder / name.replace(" ", "-"), *flags) for name, flags in JOBS.items()}
        submitted_at = {name: status(run).submitted_at for name, run in runs.items()}
        for run in (run for name, run in runs.items() if name != "time limit"):  # which needs nobody to strike it
            wait_for(lambda run=run: has_saved(run, 1), run, timeout_s=300)  # type: ignore[misc]
        lost = job_of(runs["node down"]).hosts[0]
        assert lost not in job_of(runs["pre-empted"]).hosts
        client.requeue(job_of(runs["requeued"]).job_id)
        running_cluster.run("scontrol", "update", f"nodename={lost}", "state=down", "reason=test")
        _preempt(folder, runs["pre-empted"])  # last: it waits
        for run in runs.values():
            done = turnaround("resume", str(run), "--on", "slurm", cwd=folder)  # joined for its end only
            assert done.returncode == 0, done.stderr + printed(run)
        yield Happened(runs=runs, submitted_at=submitted_at, lost_node=lost)


def _submit(run: Path, *flags: str) -> Path:
    asked = ("fruitbowl", "--workers", "2", "--device", "cpu", "--on", "slurm", "--no-wait", "--out", str(run))
    done = turnaround("train", *asked, *flags, *settings(f"training.epochs={EPOCHS}"), cwd=run.parent)
    assert done.returncode == 0, done.stderr
    return run


def _preempt(folder: Path, run: Path) -> None:
    """A job of a higher partition wants the whole node for a second."""
    node = job_of(run).hosts[0]
    lines = ["--partition=gpu", f"--nodelist={node}", "--exclusive", "--output=/dev/null"]
    high = folder / "high.sh"
    high.write_text("\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), "sleep 1", ""]))
    other = client.submit_script(high)
    wait_for(lambda: client.job_state(other).succeeded, run)


@pytest.mark.parametrize("name", JOBS)
def test_it_ends_as_if_nobody_had_stopped_it(name: str, happened: Happened, undisturbed: dict[int, Run]) -> None:
    run, path = Run.load(happened.runs[name]), happened.runs[name]
    slurm = run.status.job
    assert slurm is not None
    assert (run.status.state, slurm.exit_code) == ("finished", 0), printed(path)
    # on a machine with much else to do, the limit may come between the end of the training and that of its script
    assert slurm.state in ("COMPLETED", *(["TIMEOUT"] if name == "time limit" else [])), printed(path)
    assert slurm.starts >= 2, printed(path)
    assert run.status.segments >= 2, printed(path)
    assert [epoch.epoch for epoch in run.epochs] == list(range(1, EPOCHS + 1))
    assert largest_difference(weights(run), weights(undisturbed[run.machine["processes"]])) == 0
    # the first submission counts, and so does every wait
    assert run.status.submitted_at == happened.submitted_at[name]
    assert slurm.requeued_s > 0
    assert run.turnaround_parts()["queue"] > slurm.requeued_s
    assert sum(run.turnaround_parts().values()) > slurm.requeued_s + run.status.time_s["program"]


def test_where_they_were(happened: Happened) -> None:
    hosts = {name: set(slurm.hosts) for name, run in happened.runs.items() if (slurm := status(run).job)}
    assert hosts["time limit"] == {"n1", "n2"}
    assert hosts["node down"] == V100 - {happened.lost_node}
    assert Run.load(happened.runs["time limit"]).machine["engine"] == "torch gloo"


def test_those_that_were_warned_have_lost_nothing(happened: Happened) -> None:
    """USR2 before the time limit: what they had done was saved before they ended."""
    run = Run.load(happened.runs["time limit"])
    assert "lost" not in run.status.time_s or run.status.time_s["lost"] < 1.0, printed(run.path)
