"""`turnaround study --on slurm` on a real cluster: over kinds and hosts, killed, rejoined, cancelled, reported."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from slurm.cluster import Cluster
from slurm.running_there import begin, has_saved, job_of, printed, settings, status, turnaround, wait_for
from turnaround.launch.clusters.slurm import client
from turnaround.record.reader import Run, find_runs

pytestmark = pytest.mark.slurm

SMALL = settings("training.batch_per_worker=4")
THERE = ("fruitbowl", "--device", "cpu", "--on", "slurm", "--out", "s", *SMALL)


@pytest.fixture(autouse=True)
def one_thread(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def printed_by(folder: Path) -> str:
    return "\n".join(f"=== {run.name}\n{printed(run)}" for run in sorted(folder.glob("*-seed*")))


def submitted(folder: Path) -> list[str]:
    """The numbers of all jobs that have a run here."""
    return sorted(
        str(path).rpartition("slurm-")[2].removesuffix(".json") for path in folder.glob("*/logs/slurm-*.json")
    )


def test_two_kinds_of_nodes_killed_on_the_way_and_started_again(cluster: Cluster, tmp_path: Path) -> None:
    asked = (*THERE, "--workers", "1,2,4", "--gpu", "t4,v100", "--set", "training.epochs=3")
    folder = tmp_path / "s"
    first = begin("study", *asked, cwd=tmp_path)
    wait_for(lambda: len(list(folder.glob("*-seed0/status.json"))) >= 3, folder)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=180)
    before = {path.parent.name: job_of(path.parent).job_id for path in folder.glob("*-seed0/status.json")}
    done = turnaround("study", *asked, cwd=tmp_path, timeout_s=500)
    assert done.returncode == 0, done.stderr + printed_by(folder)

    # every configuration once, those with four workers on two hosts
    runs = {path.name: Run.load(path) for path in find_runs(folder)}
    kinds = {"t4": {"n1", "n2"}, "v100": {"n3", "n4"}}
    assert sorted(runs) == sorted(
        f"{name}-seed0" for kind in kinds for name in (f"1w-{kind}", f"2w-{kind}", f"4w-{kind}-2hosts")
    )
    for name, run in runs.items():
        slurm = run.status.job
        assert slurm is not None
        assert (run.status.state, run.status.segments, slurm.state, slurm.starts) == ("finished", 1, "COMPLETED", 1)
        assert set(slurm.hosts) <= kinds[str(slurm.gpu)]
        assert len(slurm.hosts) == (2 if name.startswith("4w") else 1)
        assert run.machine["processes"] == int(name[0])

    # nothing was lost and nothing ran twice: one job for each run, and those of the first call are still theirs
    jobs = {name: job_of(folder / name).job_id for name in runs}
    assert jobs.items() >= before.items()
    ours = [job for job in client.job_states().values() if str(job.command).startswith(str(folder))]
    assert len([job for job in ours if job.started_at is not None]) == len(runs)  # one may have been taken back

    # the report compares them, and the queue is in the turnaround
    assert "6 of 6 runs done" in done.stderr
    for words in ("on a node with t4", "on a node with v100", "2 hosts"):
        assert words in done.stdout
    for run in runs.values():
        parts = run.turnaround_parts()
        assert parts["queue"] > 0
        assert run.first_step_parts().keys() == {"queue", "import", "start_up"}
    again = turnaround("study", *asked, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert {name: job_of(folder / name).job_id for name in runs} == jobs


def test_left_cancelled_and_taken_up_again(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "s" / "1w-t4-seed0"
    asked = (*THERE, "--workers", "1", "--gpu", "t4", "--set", "training.epochs=12")
    with monkeypatch.context() as slow:
        slow.setenv("TURNAROUND_FAULT", "kind=slow,ms=500")
        following = begin("study", *asked, cwd=tmp_path)
        wait_for(lambda: has_saved(run, 1), run)
    following.send_signal(signal.SIGINT)
    told, _ = following.communicate(timeout=180)
    assert following.returncode == 75, told
    assert "Ctrl-C again within 3 s cancels them" in told
    assert "The jobs go on. The same command joins them again; with --cancel it ends them." in told
    assert job_of(run).state == "RUNNING"
    assert turnaround("study", *asked, "--no-wait", cwd=tmp_path).returncode == 0
    assert len(submitted(tmp_path / "s")) == 1  # it is there already
    cancelled = turnaround("study", *asked, "--cancel", cwd=tmp_path)
    assert cancelled.returncode == 0, cancelled.stderr
    assert "cancelled: 1 worker on t4, seed 0" in cancelled.stderr
    stopped = status(run)
    assert stopped.job is not None
    assert (stopped.state, stopped.job.state) == ("interrupted", "CANCELLED"), printed(run)
    assert "No job of it is there." in turnaround("study", *asked, "--cancel", cwd=tmp_path).stderr
    done = turnaround("study", *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + printed(run)
    assert (status(run).state, status(run).segments) == ("finished", 2)
    assert "1 worker on t4, seed 0: finished" in done.stderr


def test_a_job_cancelled_from_outside_is_named_at_the_end(cluster: Cluster, tmp_path: Path) -> None:
    busy = tmp_path / "busy.sh"
    busy.write_text("#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:t4:2 --output=/dev/null\nsleep 900\n")
    client.submit_script(busy)
    run = tmp_path / "s" / "1w-t4-seed0"
    following = begin("study", *THERE, "--workers", "1", "--gpu", "t4", "--set", "training.epochs=1", cwd=tmp_path)
    assert following.stdout is not None
    while "queued (Resources)" not in (line := following.stdout.readline()):
        assert line, "it ended"
    client.cancel(job_of(run).job_id)
    told, _ = following.communicate(timeout=180)
    assert following.returncode == 1
    assert "was cancelled from outside" in told
    assert "1 of 1 runs did not finish" in told


def test_a_budget_makes_one_wait_for_the_other(cluster: Cluster, tmp_path: Path) -> None:
    asked = (*THERE, "--workers", "1", "--gpu", "t4,v100", "--budget", "0.1gpu-seconds", "--set", "training.epochs=1")
    done = turnaround("study", *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + printed_by(tmp_path / "s")
    assert [path.name for path in find_runs(tmp_path / "s")] == ["1w-t4-seed0"]
    assert "The budget does not pay for: 1 worker on v100, seed 0." in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--gpu", "t4,h100"), "Unknown GPU kind 'h100'. Did you mean 'v100'? Valid: t4, v100."),
        (("--gpu", "t4", "--hosts", "3"), "2 processes cannot be spread evenly over 3 hosts"),
        (("--gpu", "t4", "--workers", "16"), "8 hosts are asked for, but partition gpu has 2 that fit"),
    ],
)
def test_what_can_never_start(flags: tuple[str, ...], message: str, cluster: Cluster, tmp_path: Path) -> None:
    """Everything is checked before anything is submitted."""
    done = turnaround("study", *THERE, "--workers", "2", *flags, cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert client.job_states() == {} or all(state.is_over for state in client.job_states().values())
