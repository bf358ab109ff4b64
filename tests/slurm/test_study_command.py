"""`turnaround study --command ... --on slurm` on a real cluster: somebody else's program, recorded or not."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from slurm.cluster import Cluster
from slurm.running_there import begin, job_of, printed, status, turnaround, wait_for
from turnaround.launch.clusters.slurm import client
from turnaround.record.reader import Run, find_runs

pytestmark = pytest.mark.slurm

PLAIN = """
import os, pathlib, subprocess, sys, time
workers = int(sys.argv[1])
hosts = subprocess.run(["srun", "hostname"], capture_output=True, text=True, check=True).stdout.split()
with pathlib.Path("ran").open("a") as file:
    file.write(f"{workers} {' '.join(sorted(hosts))}\\n")
while pathlib.Path("wait").exists():
    time.sleep(0.1)
"""
RECORDED = """
import os, pathlib, sys, time
from turnaround import Recorder
workers = int(sys.argv[1])
with Recorder("runs/mine", workers=workers, batch_per_worker=8, epochs=3, num_train=80, device="cpu") as rec:
    for epoch in range(3):
        for step in range(10 // workers):
            time.sleep(0.01)
            rec.step()
        rec.epoch(train_loss=1.0, val_accuracy=0.5 + epoch / 10)
        while pathlib.Path("wait").exists():
            time.sleep(0.1)
"""
COMMAND = f"{sys.executable} mine.py {{workers}}"


def asked(*arguments: str) -> tuple[str, ...]:
    return ("--command", COMMAND, "--on", "slurm", "--out", "s", *arguments)


def said(folder: Path) -> str:
    return "\n".join([printed(folder), *(path.read_text() for path in folder.parent.glob("*.log"))])


def test_a_plain_program_on_one_host_and_on_two(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLAIN)
    done = turnaround("study", *asked("--workers", "1,2,4", "--gpu", "v100"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr + said(tmp_path / "s" / "1w-v100-seed0")
    runs = {path.name: Run.load(path) for path in find_runs(tmp_path / "s")}
    assert sorted(runs) == ["1w-v100-seed0", "2w-v100-seed0", "4w-v100-2hosts-seed0"]
    # its own steps run on all hosts of the job, a task for each worker
    ran = sorted(line.split() for line in (tmp_path / "ran").read_text().splitlines())
    assert [len(line) - 1 for line in ran] == [1, 2, 4]
    assert sorted(ran[2][1:]) == ["n3", "n3", "n4", "n4"]
    for run in runs.values():
        slurm = run.status.job
        assert slurm is not None
        assert (run.status.state, slurm.state, slurm.starts, slurm.gpu) == ("finished", "COMPLETED", 1, "v100")
        assert run.machine["hosts"] == len(slurm.hosts)
        assert run.turnaround_parts()["queue"] > 0
    for words in ("job time", "2 hosts", "no accuracies, no epochs", "3 of 3 runs done"):
        assert words in done.stdout + done.stderr


def test_a_recorded_program_killed_rejoined_and_put_back(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECORDED)
    (tmp_path / "wait").touch()
    run = tmp_path / "s" / "2w-t4-seed0"
    words = asked("--workers", "1,2", "--gpu", "t4")
    first = begin("study", *words, cwd=tmp_path)
    wait_for(lambda: (run / "epochs.jsonl").exists() and (run / "epochs.jsonl").read_text().count("\n") == 1, run)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=180)
    before = job_of(run).job_id  # the recorder has kept whose job it is
    client.requeue(before)
    wait_for(lambda: status(run).job and status(run).job.starts == 2, run)  # type: ignore[union-attr]
    (tmp_path / "wait").unlink()
    done = turnaround("study", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + said(run)
    again = Run.load(run)
    assert again.status.job is not None
    assert (again.status.job.job_id, again.status.job.state) == (before, "COMPLETED")
    assert [epoch.val_accuracy for epoch in again.epochs] == [0.5, 0.6, 0.7]  # anew, once
    assert (again.status.state, len(list((tmp_path / "s" / ".earlier").iterdir()))) == ("finished", 1)
    assert "2 of 2 runs done" in done.stderr


def test_time_that_is_up_and_a_study_that_is_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLAIN)
    (tmp_path / "wait").touch()
    run = tmp_path / "s" / "1w-t4-seed0"
    limit = ("--time", "1", "--slurm", "signal_lead_s=30")
    short = turnaround("study", *asked("--workers", "1", "--gpu", "t4", *limit), cwd=tmp_path)
    assert short.returncode == 1, short.stderr
    assert "its job's time limit was near, or others go first. Give it more time (--time)" in short.stderr
    longer = asked("--workers", "1", "--gpu", "t4", "--time", "10", "--retry")
    submitted = turnaround("study", *longer, "--no-wait", cwd=tmp_path)
    assert submitted.returncode == 0, submitted.stderr
    wait_for(lambda: (tmp_path / "ran").read_text().count("\n") == 2, run)
    cancelled = turnaround("study", *longer, "--cancel", cwd=tmp_path)
    assert "cancelled: 1 worker on t4, seed 0" in cancelled.stderr
    assert status(run).state == "interrupted"
    assert "The same command starts it anew" in str(status(run).cause)
    (tmp_path / "wait").unlink()
    done = turnaround("study", *longer, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + said(run)
    assert (tmp_path / "ran").read_text().count("\n") == 3


def test_a_program_that_is_not_there(cluster: Cluster, tmp_path: Path) -> None:
    words = ("--command", "no-such-program {workers}", "--on", "slurm", "--workers", "1", "--out", "s")
    done = turnaround("study", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "--command starts with 'no-such-program'" in done.stderr
    assert not (tmp_path / "s").exists()
