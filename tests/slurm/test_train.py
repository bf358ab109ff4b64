"""`turnaround train --on slurm` on a real cluster: real trainings, left, rejoined, cancelled, refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm.cluster import Cluster
from slurm.running_there import begin, has_saved, job_of, printed, settings, status, turnaround, wait_for
from turnaround.launch.clusters.slurm import client
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import JobStatus, Status, to_json
from turnaround.record.writer import write_json
from turnaround.workers.engines import TORCH_AGENT

pytestmark = pytest.mark.slurm

TWO = ("fruitbowl", "--workers", "2", "--device", "cpu", "--on", "slurm")


def test_two_hosts_from_submission_to_result(cluster: Cluster, tmp_path: Path) -> None:
    asked = (*TWO, "--gpu", "V100", "--hosts", "2", "--time", "10", *settings("training.epochs=3"))
    done = turnaround("train", *asked, "--out", "run", cwd=tmp_path)
    run_path = tmp_path / "run"
    assert done.returncode == 0, done.stderr + printed(run_path)
    run = Run.load(run_path)
    slurm = run.status.job
    assert slurm is not None
    assert (run.status.state, slurm.state, slurm.exit_code, slurm.starts) == ("finished", "COMPLETED", 0, 1)
    assert (slurm.gpu, slurm.hosts, slurm.requeued_s) == ("v100", ["n3", "n4"], 0)
    assert (run.machine["workers"], run.machine["processes"], run.machine["engine"]) == (2, 2, "torch gloo")
    assert sorted(run.directory.telemetry_hosts()) == ["n3", "n4"]
    assert (run_path / "job.sh").is_file()
    # where the time went, from the submission on
    parts, first = run.turnaround_parts(), run.first_step_parts()
    assert parts["queue"] == first["queue"] > 0
    assert first["import"] > 0
    assert first["start_up"] > 0
    assert 1 < sum(first.values()) < sum(parts.values())
    assert "the queue" in done.stdout
    assert "after it was submitted: the queue" in done.stdout
    # what a person is told on the way
    for words in (
        f"Job {slurm.job_id}: 2 hosts with 1 process each on v100.",
        f"Rejoin: `turnaround resume {run_path} --on slurm`. Cancel: `scancel {slurm.job_id}`.",
        "running on n3, n4",
    ):
        assert words in done.stderr
    again = turnaround("train", *asked, "--out", "run", cwd=tmp_path)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr


def test_one_host_with_two_processes(cluster: Cluster, tmp_path: Path) -> None:
    """They meet on loopback: nothing waits at a port of the cluster's network."""
    asked = (*TWO, "--gpu", "T4", "--hosts", "1", "--time", "10", *settings("training.epochs=2"))
    done = turnaround("train", *asked, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + printed(tmp_path / "run")
    run = Run.load(tmp_path / "run")
    assert (run.status.state, run.machine["processes"], run.machine["engine"]) == ("finished", 2, "torch gloo")
    assert len({rank["host"] for rank in run.machine["ranks"]}) == 1
    assert f"-m {TORCH_AGENT} --nproc-per-node 2 " in (tmp_path / "run" / "job.sh").read_text()


def test_left_with_ctrl_c_rejoined_and_cancelled(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One Ctrl-C leaves the job alone; a second one, later and from another command, cancels it; then it goes on."""
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=slow,ms=2000")  # ten minutes: cancelled long before
    run = tmp_path / "run"
    asked = ("fruitbowl", "--device", "cpu", "--on", "slurm", *settings("training.epochs=150"))
    following = begin("train", *asked, "--out", "run", cwd=tmp_path)
    wait_for(lambda: has_saved(run), run)
    following.send_signal(signal.SIGINT)
    told, _ = following.communicate(timeout=180)
    assert following.returncode == 75
    assert "the jobs go on. Ctrl-C again within 3 s cancels them" in told
    assert job_of(run).state == "RUNNING"
    # nobody else may touch it
    for words in (("resume", "run"), ("train", *asked, "--out", "run")):
        refused = turnaround(*words, cwd=tmp_path)
        assert refused.returncode == 2
        assert f"has a job already: {job_of(run).job_id} (RUNNING)" in refused.stderr
    rejoined = begin("resume", "run", "--on", "slurm", cwd=tmp_path)
    assert rejoined.stdout is not None
    while "running on" not in (line := rejoined.stdout.readline()):
        assert line, "it ended"
    rejoined.send_signal(signal.SIGINT)
    while "Ctrl-C again" not in (line := rejoined.stdout.readline()):
        assert line, "it ended"
    rejoined.send_signal(signal.SIGINT)
    told, _ = rejoined.communicate(timeout=180)
    assert rejoined.returncode == 75, told
    assert "is cancelled; it saves what it has" in told
    stopped = status(run)
    assert stopped.job is not None
    assert (stopped.state, stopped.job.state) == ("interrupted", "CANCELLED"), printed(run)
    # submitted again, its script goes on with what is there
    monkeypatch.delenv("TURNAROUND_FAULT")
    done = turnaround("resume", "run", "--on", "slurm", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + printed(run)
    ended = status(run)
    assert ended.job is not None
    assert (ended.state, ended.segments, ended.submitted_at) == ("finished", 2, stopped.submitted_at)
    assert ended.job.job_id != stopped.job.job_id
    assert turnaround("resume", "run", "--on", "slurm", cwd=tmp_path).returncode == 0  # there is nothing left to do


def test_cancelled_from_outside_before_it_started(cluster: Cluster, tmp_path: Path) -> None:
    busy = tmp_path / "busy.sh"
    busy.write_text("#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:t4:2 --output=/dev/null\nsleep 900\n")
    client.submit_script(busy)
    asked = ("fruitbowl", "--device", "cpu", "--on", "slurm", "--gpu", "t4", *settings("training.epochs=1"))
    submitted = turnaround("train", *asked, "--no-wait", "--json", "--out", "run", cwd=tmp_path)
    assert submitted.returncode == 0, submitted.stderr
    assert json.loads(submitted.stdout) == {
        "directory": str(tmp_path / "run"),
        "job_id": job_of(tmp_path / "run").job_id,
    }
    assert (status(tmp_path / "run").state, job_of(tmp_path / "run").state) == ("queued", "PENDING")
    following = begin("resume", "run", "--on", "slurm", cwd=tmp_path)
    assert following.stdout is not None
    while "in the queue (Resources)" not in (line := following.stdout.readline()):
        assert line, "it ended"
    client.cancel(job_of(tmp_path / "run").job_id)
    told, _ = following.communicate(timeout=180)
    assert following.returncode == 75
    assert "was cancelled from outside. " in told
    assert "`turnaround resume" in told
    assert status(tmp_path / "run").state == "interrupted"


def test_slurm_has_forgotten_the_job_and_keeps_no_accounts(cluster: Cluster, tmp_path: Path) -> None:
    """sacct is not available here: what the run has recorded is enough to go on."""
    directory = RunDirectory.create(tmp_path / "run")
    directory.job_script.write_text("#!/bin/bash\n#SBATCH --output=/dev/null\nexit 3\n")
    forgotten = Status(state="running", job=JobStatus(job_id="99999", state="RUNNING"))
    write_json(directory.status, to_json(forgotten))
    done = turnaround("resume", "run", "--on", "slurm", cwd=tmp_path)
    assert (done.returncode, "--accept-script" in done.stderr) == (2, True)  # nobody has submitted this script
    done = turnaround("resume", "run", "--on", "slurm", "--accept-script", cwd=tmp_path)
    assert "goes on with" in done.stderr  # not the old one: a new job
    assert done.returncode == 1
    assert "failed with exit status 3 (NonZeroExitCode)" in done.stderr
    assert job_of(tmp_path / "run").job_id != "99999"


def test_bad_input_inside_the_job_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    """What only the compute node finds out: the folder has one class."""
    (tmp_path / "photos" / "apple").mkdir(parents=True)
    done = turnaround("train", "photos", "--device", "cpu", "--on", "slurm", "--out", "run", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "\nSlurm: job " in done.stderr
    assert "FAILED, exit status 2" in done.stderr
    ended = status(tmp_path / "run")
    assert (ended.state, (tmp_path / "run" / "recipe.json").exists()) == ("failed", False)
    assert ended.cause is not None
    assert ended.cause in done.stderr
    assert (tmp_path / "run" / "job.sh").exists()
    assert list((tmp_path / "run" / "logs").glob("slurm-*.out"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--partition", "gpus"), "Unknown partition 'gpus'. Did you mean 'gpu'? Valid: gpu, scavenge."),
        (("--gpu", "h100"), "Unknown GPU kind 'h100'. Did you mean 'v100'? Valid: t4, v100."),
        (("--workers", "8", "--gpu", "t4"), "4 hosts are asked for, but partition gpu has 2 that fit"),
        (("--workers", "8", "--gpu", "t4", "--hosts", "2"), "4 t4 GPUs on each host are asked for"),
        (("--workers", "4", "--hosts", "3"), "4 processes cannot be spread evenly over 3 hosts"),
        (("--time", "2:00:00"), "is longer than partition gpu allows (01:00:00)"),
    ],
)
def test_what_can_never_start(flags: tuple[str, ...], message: str, cluster: Cluster, tmp_path: Path) -> None:
    for dry in ((), ("--dry-run",)):
        done = turnaround("train", "fruitbowl", "--on", "slurm", *flags, *dry, cwd=tmp_path)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_the_nodes_do_not_see(cluster: Cluster, tmp_path: Path) -> None:
    done = turnaround("train", "fruitbowl", "--on", "slurm", "--out", str(cluster.node_local / "run"), cwd=tmp_path)
    assert done.returncode == 2
    assert "The compute nodes do not see" in done.stderr
    assert list(cluster.node_local.iterdir()) == []
    assert [state for state in client.job_states().values() if not state.is_over] == []


def test_killed_before_it_could_note_the_jobs_number(cluster: Cluster, tmp_path: Path) -> None:
    """The job was submitted held: it has not run, and the next attempt takes it back."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "job.sh").write_text("#!/bin/bash\n#SBATCH --output=/dev/null\nsleep 60\n")
    orphan = client.submit_script(run / "job.sh", "--hold")
    asked = ("fruitbowl", "--device", "cpu", "--on", "slurm", *settings("training.epochs=1"))
    done = turnaround("train", *asked, "--no-wait", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert client.job_state(orphan).state == "CANCELLED"
    assert job_of(run).job_id != orphan


def test_killed_before_it_could_release_the_job(cluster: Cluster, tmp_path: Path) -> None:
    run = tmp_path / "run"
    asked = ("fruitbowl", "--device", "cpu", "--on", "slurm", *settings("training.epochs=1"))
    kill = "import os, sys; from turnaround.launch.clusters.slurm import client; "
    kill += "client.release = lambda job_id: os._exit(9); "
    kill += "sys.argv[0] = 'turnaround'; from turnaround.cli import main; main()"
    words = [sys.executable, "-c", kill, "train", *asked, "--out", "run"]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=300, check=False).returncode == 9
    assert (job_of(run).state, job_of(run).reason) == ("PENDING", "JobHeldUser")
    done = turnaround("resume", "run", "--on", "slurm", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + printed(run)
    assert status(run).state == "finished"
