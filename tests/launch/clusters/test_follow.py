"""Following jobs: a silent controller, files that are late, somebody who wants to leave. Real jobs: tests/slurm."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from turnaround.errors import InputError
from turnaround.launch.clusters import follow
from turnaround.launch.clusters.contract import JobState
from turnaround.launch.clusters.follow import JobFollower, Stop, listening, settle
from turnaround.launch.clusters.slurm.cluster import Slurm
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import JobStatus, Status, to_json
from turnaround.record.writer import write_json


class Cluster:
    """Commands at the head of PATH that know one job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._write("sbatch", "exit 1")

    def says(self, state: str, **more: object) -> None:
        jobs = [{"job_id": 7, "job_state": state, "nodes": "n1", "start_time": 5, **more}]
        (self.folder / "jobs.json").write_text(json.dumps({"jobs": jobs}))
        self._write("squeue", f"cat {self.folder}/jobs.json")

    def is_silent(self) -> None:
        for name in ("squeue", "scontrol"):
            self._write(name, "echo 'error: Unable to contact slurm controller' >&2; exit 1")

    def _write(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (self.folder / name).chmod(0o755)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return Cluster(tmp_path)


def state(follower: JobFollower) -> str | None:
    job = follower.states({"7": None}).get("7")
    return job.state if job else None


def test_a_silent_controller_is_waited_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    follower = JobFollower(Slurm(), told.append)
    cluster.says("RUNNING")
    assert state(follower) == "RUNNING"
    cluster.is_silent()
    assert [state(follower), state(follower)] == ["RUNNING", "RUNNING"]
    assert len(told) == 1
    assert "Unable to contact slurm controller" in told[0]
    cluster.says("RUNNING")
    assert state(follower) == "RUNNING"
    assert told[1:] == ["Slurm answers again."]
    cluster.is_silent()
    state(follower)
    monkeypatch.setattr(follow, "PATIENCE_S", 0.0)
    with pytest.raises(InputError, match="Unable to contact"):
        state(follower)


def test_an_end_that_may_be_a_requeue_is_believed_when_seen_twice(cluster: Cluster) -> None:
    follower = JobFollower(Slurm(), lambda line: None)
    cluster.says("NODE_FAIL", end_time=int(time.time()))
    assert state(follower) == "COMPLETING"
    cluster.says("PENDING")
    assert state(follower) == "PENDING"
    for word, seen in (("NODE_FAIL", "NODE_FAIL"), ("COMPLETED", "COMPLETED"), ("CANCELLED", "CANCELLED")):
        cluster.says(word, end_time=int(time.time()))
        assert state(follower) == seen
    cluster.says("FAILED", end_time=int(time.time()) - 60)  # long ago
    assert state(JobFollower(Slurm(), lambda line: None)) == "FAILED"


def test_it_asks_less_often_while_nothing_changes(cluster: Cluster) -> None:
    follower = JobFollower(Slurm(), lambda line: None)
    cluster.says("RUNNING")
    state(follower)
    stop = Stop()
    stop.terminated = True  # nobody waits
    for _ in range(30):
        follower.wait(stop)
        state(follower)
    assert follower._wait_s == follow.MAX_POLL_S
    cluster.says("PENDING", state_reason="Resources")
    state(follower)
    assert follower._wait_s == follow.FIRST_POLL_S


def test_a_file_that_shows_late(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    running = Status(state="running", job=JobStatus(job_id="7", state="RUNNING", hosts=["n1"]))
    write_json(directory.status, to_json(running))
    finished = to_json(Status(state="finished", job=running.job))
    threading.Timer(0.5, write_json, (directory.status, finished)).start()
    ended = settle(directory, JobState(job_id="7", state="COMPLETED", exit_code=0, hosts=("n1",)), Slurm())
    assert ended.state == "finished"
    assert ended.job is not None
    assert ended.job.state == "COMPLETED"


def test_a_record_that_never_ends(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    write_json(directory.status, to_json(Status(state="running", job=JobStatus(job_id="7"))))
    job = JobState(job_id="7", state="COMPLETED", exit_code=0, hosts=("n1",))
    ended = settle(directory, job, Slurm(), patience_s=0.3)
    assert ended.state == "interrupted"
    assert "has ended (COMPLETED: no reason given), and the run has not" in str(ended.cause)


def test_once_leaves_and_twice_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SECOND_THOUGHT_S", 0.3)
    told: list[str] = []
    before = signal.getsignal(signal.SIGINT)  # a shell's background jobs ignore it
    with listening() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_asked
        assert not stop.cancels(told.append)
        assert told == ["Leaving; the jobs go on. Ctrl-C again within 0.3 s cancels them."]
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.cancels(told.append)
    with listening() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_asked
        assert not stop.cancels(told.append)
    assert len(told) == 1  # somebody who terminates it does not think twice
    assert signal.getsignal(signal.SIGINT) is before
