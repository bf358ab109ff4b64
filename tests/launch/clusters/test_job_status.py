"""What Slurm says, in status.json: by whom it is written, and what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnaround.launch.clusters import job_status
from turnaround.launch.clusters.contract import JobStart, JobState, unknown
from turnaround.launch.clusters.slurm.cluster import Slurm
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import status_of
from turnaround.record.schema import JobStatus, Status, to_json
from turnaround.record.writer import write_json

AT = "2026-03-01T09:00:00.000+00:00"
LATER = "2026-03-01T10:00:00.000+00:00"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm: whoever asks it goes on without its word
    return RunDirectory.create(tmp_path / "run")


def status(run: RunDirectory) -> Status:
    found = status_of(run)
    assert found is not None
    return found


def slurm(run: RunDirectory) -> JobStatus:
    found = status(run).job
    assert found is not None
    return found


def began(run: RunDirectory, start: JobStart) -> None:
    job_status.started(run, start, cluster="slurm", seen=None)


def ended(state: str, **more: object) -> JobState:
    return JobState(job_id="7", state=state, **more)  # type: ignore[arg-type]


def test_a_new_job(run: RunDirectory) -> None:
    job_status.submitted(run, JobStatus(job_id="7", gpu="t4"), submitted_at=AT)
    assert (status(run).state, status(run).submitted_at, slurm(run).gpu) == ("queued", AT, "t4")
    assert (slurm(run).job_id, slurm(run).state, slurm(run).starts) == ("7", "PENDING", 0)


def test_each_start(run: RunDirectory) -> None:
    job_status.submitted(run, JobStatus(job_id="7", gpu="t4"), submitted_at=AT)
    began(run, JobStart(job_id="7", starts=1, hosts=("n1", "n2")))
    assert (slurm(run).state, slurm(run).starts, slurm(run).hosts) == ("RUNNING", 1, ["n1", "n2"])
    began(run, JobStart(job_id="7", starts=2, hosts=("n3",)))
    assert (slurm(run).starts, slurm(run).hosts, slurm(run).gpu) == (2, ["n3"], "t4")
    assert status(run).submitted_at == AT


def test_a_script_that_was_submitted_by_hand(run: RunDirectory) -> None:
    began(run, JobStart(job_id="9", starts=1))
    assert (status(run).state, slurm(run).job_id) == ("queued", "9")
    assert status(run).submitted_at is not None


def test_submitted_again(run: RunDirectory) -> None:
    """Of a run that never started, the wait for this job counts; otherwise the first submission stays."""
    job_status.submitted(run, JobStatus(job_id="7", gpu="t4"), submitted_at=AT)
    job_status.ended(run, ended("CANCELLED"), Slurm())
    job_status.submitted(run, JobStatus(job_id="8", gpu="t4"), submitted_at=LATER)
    assert (status(run).state, status(run).cause, status(run).submitted_at) == ("queued", None, LATER)
    before = JobStatus(job_id="8", requeued_s=30)
    write_json(run.status, to_json(Status(state="interrupted", submitted_at=AT, started_at=AT, job=before)))
    job_status.submitted(run, JobStatus(job_id="9", gpu="t4"), submitted_at=LATER)
    assert (status(run).submitted_at, slurm(run).job_id, slurm(run).requeued_s) == (AT, "9", 30)


@pytest.mark.parametrize(
    ("job", "state", "cause"),
    [
        (ended("CANCELLED"), "interrupted", "Slurm job 7 was cancelled from outside"),
        (ended("TIMEOUT"), "interrupted", "reached its time limit before it had saved"),
        (ended("NODE_FAIL", hosts=("n1",)), "interrupted", "lost a node on n1"),
        (ended("OUT_OF_MEMORY"), "failed", "ran out of memory"),
        (ended("FAILED", exit_code=1, reason="NonZeroExitCode"), "failed", "failed with exit status 1"),
        (ended("COMPLETED", exit_code=0), "interrupted", "has ended (COMPLETED: no reason given), and the run has not"),
        (unknown("7", "Slurm has forgotten the job"), "interrupted", "(UNKNOWN: Slurm has forgotten the job)"),
    ],
)
def test_a_job_that_ended_before_its_program(run: RunDirectory, job: JobState, state: str, cause: str) -> None:
    job_status.submitted(run, JobStatus(job_id="7", gpu=None), submitted_at=AT)
    done = job_status.ended(run, job, Slurm())
    assert (done.state, done) == (state, status(run))
    assert cause in str(done.cause)
    assert f"turnaround resume {run.path} --on slurm" in str(done.cause)
    assert slurm(run).state == job.state


def test_a_forgotten_job_keeps_its_last_word(run: RunDirectory) -> None:
    """An hour later, on a cluster without accounts."""
    before = Status(state="finished", job=JobStatus(job_id="7", state="COMPLETED", exit_code=0))
    write_json(run.status, to_json(before))
    assert job_status.ended(run, unknown("7", "forgotten"), Slurm()) == before
    write_json(run.status, to_json(Status(state="finished", job=JobStatus(job_id="7", state="RUNNING"))))
    assert job_status.ended(run, unknown("7", "forgotten"), Slurm()).state == "finished"
    assert slurm(run).state == "UNKNOWN"


def test_what_the_run_has_said_itself_stays(run: RunDirectory) -> None:
    before = Status(state="failed", cause="No images.", job=JobStatus(job_id="7", hosts=["n1"]))
    write_json(run.status, to_json(before))
    done = job_status.ended(run, ended("FAILED", exit_code=2), Slurm())
    assert (done.state, done.cause) == ("failed", "No images.")
    assert (slurm(run).state, slurm(run).exit_code, slurm(run).hosts) == ("FAILED", 2, ["n1"])
