"""Another cluster is one folder and one row: train, resume, requeue and cancel through the shell queue."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from console import Console
from forking import ForkingParent
from shell_queue.cluster import RUNNERS, ShellQueue
from struck import waits_for
from turnaround.launch.clusters import CLUSTERS, cluster_named
from turnaround.record.layout import RunDirectory, job_log
from turnaround.record.reader import Run, status_of
from turnaround.record.schema import JobStatus
from turnaround.record.writer import write_status

QUICK = ("--device", "cpu", "--set", "data.size_px=32", "--set", "training.batch_per_worker=48")


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forking_parent: ForkingParent) -> Iterator[ShellQueue]:
    (tmp_path / "queue").mkdir()
    monkeypatch.setattr(sys, "executable", forking_parent.python)
    monkeypatch.setenv("SHELL_QUEUE", str(tmp_path / "queue"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setitem(CLUSTERS, "shell", "shell_queue.cluster:ShellQueue")
    queue = cluster_named("shell")
    assert isinstance(queue, ShellQueue)
    yield queue
    for job_id in queue.states():
        queue.cancel(job_id)
    while RUNNERS:
        RUNNERS.pop().wait(timeout=60)


@pytest.fixture
def turnaround(
    queue: ShellQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Console:
    monkeypatch.chdir(tmp_path)
    return Console(monkeypatch, capsys)


def test_a_training_through_it(turnaround: Console, queue: ShellQueue, fruit_folder: Path, tmp_path: Path) -> None:
    words = ("train", fruit_folder, *QUICK, "--set", "training.epochs=1", "--on", "shell", "--out", "run")
    dry = turnaround(*words, "--dry-run")
    assert dry.out.startswith("#!/bin/bash\n")
    assert list((tmp_path / "queue").iterdir()) == []
    done = turnaround(*words, "--notify", f"tee {tmp_path / 'SECRET'}")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "SECRET").read_text())["event"] == "finished"  # told by whoever follows the job
    assert not any(b"SECRET" in file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert "Job 1: 1 host with 1 process. Its script is" in done.err
    assert "turnaround resume" in done.err
    assert "--on shell" in done.err
    run = Run.load(tmp_path / "run")
    job = run.status.job
    assert job is not None
    assert (run.status.state, job.cluster, job.job_id, job.state, job.starts) == (
        "finished",
        "shell",
        "1",
        "COMPLETED",
        1,
    )
    assert json.loads(run.directory.status.read_text())["slurm"]["cluster"] == "shell"
    assert run.directory.job_script.read_text() == dry.out
    assert job_log(run.directory.logs, "1").exists()
    assert run.turnaround_parts()["queue"] > 0
    assert turnaround("resume", "run", "--on", "shell").code == 0  # there is nothing left to do
    assert list(queue.states()) == ["1"]
    again = turnaround(*words)
    assert (again.code, "already holds a run" in again.err) == (2, True)


def test_requeued_cancelled_and_submitted_again(
    turnaround: Console, queue: ShellQueue, fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Epochs of four steps: two before there is time to requeue, and two after that before there is time to cancel.
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=slow,step=9,ms=1000;kind=slow,segment=2,step=17,ms=1000")
    long = ("--set", "training.epochs=12", "--set", "training.checkpoint_every_s=0")
    alone = ("--no-wait", "--json", "--notify", f"tee -a {tmp_path / 'SECRET'}")  # nobody follows: the job tells it
    done = turnaround("train", fruit_folder, *QUICK, *long, "--on", "shell", "--out", "run", *alone)
    assert (done.code, json.loads(done.out)["job_id"]) == (0, "1")
    directory = RunDirectory(tmp_path / "run")

    def trains(segment: int) -> bool:
        """Whether this start has saved an epoch; or the job is over, which the test would see."""
        status = status_of(directory)
        is_there = status is not None and (status.segments, status.state) == (segment, "running")
        return (is_there and status is not None and status.epochs_done > segment) or queue.state("1").is_over

    waits_for(lambda: trains(1), seconds=120)
    for refused in (turnaround("resume", "run"), turnaround("train", fruit_folder, "--on", "shell", "--out", "run")):
        assert refused.code == 2
        assert "has a job already: 1 (RUNNING). Follow it: `turnaround resume" in refused.err
    queue.requeue("1")
    waits_for(lambda: trains(2), seconds=120)
    status = status_of(directory)
    assert status is not None
    assert status.job is not None
    assert (status.segments, status.job.starts, status.job.requeued_s > 0) == (2, 2, True)
    queue.cancel("1")
    waits_for(lambda: queue.state("1").is_over)
    assert '"event": "interrupted"' in (tmp_path / "SECRET").read_text()
    assert not any(b"SECRET" in file.read_bytes() for file in directory.path.rglob("*") if file.is_file())
    done = turnaround("resume", "run", "--on", "shell")
    assert done.code == 0, done.err
    assert "Job 2 goes on with" in done.err
    run = Run.load(directory.path)
    assert run.status.job is not None
    assert (run.status.state, run.status.segments, run.status.job.job_id) == ("finished", 3, "2")
    assert [epoch.epoch for epoch in run.epochs] == list(range(1, 13))


@pytest.fixture
def handed_over(trained_run: Path, tmp_path: Path) -> RunDirectory:
    """A run of a cluster that somebody else has stopped, with a script of theirs."""
    directory = RunDirectory(Path(shutil.copytree(trained_run, tmp_path / "run")))
    status = status_of(directory)
    assert status is not None
    job = JobStatus(job_id="7", cluster="shell", state="CANCELLED")
    write_status(directory, replace(status, state="interrupted", job=job))
    directory.job_script.write_text(
        f"#!/bin/bash\ntouch {tmp_path / 'TRAPPED'}\nexit 3\n"
    )  # or its end would be waited for
    return directory


@pytest.mark.parametrize("kind", ["file", "link", "pipe", "folder"])
def test_a_script_of_somebody_else_is_not_submitted(
    kind: str, turnaround: Console, queue: ShellQueue, handed_over: RunDirectory, tmp_path: Path
) -> None:
    script = handed_over.job_script
    if kind != "file":
        script.rename(tmp_path / "theirs.sh")
        make = {"link": lambda: script.symlink_to(tmp_path / "theirs.sh"), "pipe": lambda: os.mkfifo(script)}
        make.get(kind, script.mkdir)()
    done = turnaround("resume", "run", "--on", "shell")
    assert done.code == 2
    assert ("is not as you have submitted it" if kind == "file" else "job.sh is ") in done.err
    assert queue.states() == {}
    assert not (tmp_path / "TRAPPED").exists()


def test_a_script_that_was_changed_on_purpose(
    turnaround: Console, queue: ShellQueue, handed_over: RunDirectory, tmp_path: Path
) -> None:
    done = turnaround("resume", "run", "--on", "shell")
    assert f"Look at it (less {handed_over.job_script})" in done.err
    assert turnaround("resume", "run", "--accept-script").code == 2  # no job of a cluster
    accepted = turnaround("resume", "run", "--on", "shell", "--accept-script")
    assert "Job 1 goes on with" in accepted.err
    assert (tmp_path / "TRAPPED").exists()
    again = turnaround("resume", "run", "--on", "shell")  # the same script: it is known by now
    assert "Job 2 goes on with" in again.err


def test_what_it_does_not_have(turnaround: Console, fruit_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = turnaround("train", fruit_folder, "--on", "shell", "--gpu", "t4", "--dry-run")
    assert (done.code, "The shell queue has no GPU. Received: --gpu t4." in done.err) == (2, True)
    done = turnaround("train", fruit_folder, "--on", "shel", "--dry-run")
    valid = "Valid: local, slurm, shell, skypilot, kubernetes, kubeflow."
    assert (done.code, f"Unknown --on 'shel'. Did you mean 'shell'? {valid}" in done.err) == (2, True)
    with monkeypatch.context() as without:
        without.delenv("SHELL_QUEUE")
        done = turnaround("train", fruit_folder, "--on", "shell")
    assert (done.code, "There is no shell queue here" in done.err) == (2, True)
