"""What a run brings along from its time in a queue."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from turnaround.cli import options
from turnaround.errors import DataError, RunDirectoryError
from turnaround.launch import job_origin
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run, job_status
from turnaround.record.schema import JobStatus, Status, to_json
from turnaround.record.writer import write_json

AT = "2026-03-01T09:00:00.000+00:00"
JOB = Status(state="queued", submitted_at=AT, job=JobStatus(job_id="7", requeued_s=30.0))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """As a job finds it when it starts."""
    directory = RunDirectory(tmp_path / "run")
    directory.logs.mkdir(parents=True)
    directory.job_script.write_text("#!/bin/bash\n")
    (directory.logs / "slurm-7.out").write_text("printed\n")
    write_json(directory.logs / "slurm-7.json", {})
    write_json(directory.status, to_json(JOB))
    return directory


def test_when_the_program_began() -> None:
    before_s = time.monotonic()
    assert before_s <= job_origin.begun_at_s(variables={}) <= time.monotonic()
    assert job_origin.begun_at_s(before_s - 5, {}) == before_s - 5  # of the command, which has loaded its code since
    script = {job_origin.BEGUN_VARIABLE: f"{time.time() - 3600:.6f}"}
    assert job_origin.begun_at_s(before_s - 5, script) < before_s - 3000  # the script has started the command
    for nonsense in ("soon", str(time.time() + 3600)):
        assert job_origin.begun_at_s(before_s - 5, {job_origin.BEGUN_VARIABLE: nonsense}) == before_s - 5


def test_only_a_process_of_its_own_began_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options.command_began_s() is None  # a test, a notebook: its process did other things before
    monkeypatch.setattr(options, "owns_process", True)
    began_s = options.command_began_s()
    assert began_s is not None
    assert began_s < time.monotonic()


def test_a_run_of_ones_own_is_submitted_when_it_begins(tmp_path: Path) -> None:
    status = job_origin.first_status(RunDirectory(tmp_path), begun_at_s=time.monotonic() - 5)
    assert status.submitted_at == status.started_at
    assert status.job is None
    begun_s = datetime.fromisoformat(str(status.started_at)).timestamp()
    assert begun_s == pytest.approx(time.time() - 5, abs=4)


def test_a_job_keeps_when_it_was_submitted(run: RunDirectory) -> None:
    status = job_origin.first_status(run, begun_at_s=time.monotonic())
    assert (status.submitted_at, status.job) == (AT, JOB.job)
    assert str(status.started_at) > AT
    write_json(run.recipe, {"data": {}})
    write_json(run.status, to_json(status))
    assert Run.load(run.path).turnaround_parts()["queue"] > 30


def test_its_directory_is_the_jobs_own(run: RunDirectory) -> None:
    RunDirectory.create(run.path, job_id="7")
    for other in (None, "8"):
        with pytest.raises(RunDirectoryError, match=r"belongs to job 7 of a Slurm cluster\..* --on slurm`; or choose"):
            RunDirectory.create(run.path, job_id=other)
    (run.path / "notes.txt").write_text("mine")
    with pytest.raises(RunDirectoryError, match=r"is not empty: it holds other files \(notes.txt\)"):
        RunDirectory.create(run.path, job_id="7")


def test_the_script_alone_is_no_run(tmp_path: Path) -> None:
    """Somebody has submitted it by hand, and its status is still to come."""
    directory = RunDirectory(tmp_path)
    directory.logs.mkdir()
    directory.job_script.write_text("#!/bin/bash\n")
    (directory.logs / "slurm-7.out").write_text("")
    RunDirectory.create(tmp_path, job_id="7")
    with pytest.raises(RunDirectoryError, match=r"is not empty: it holds parts of a run without its recipe\.json"):
        RunDirectory.create(tmp_path)


def test_bad_input_leaves_the_job_and_the_reason(run: RunDirectory) -> None:
    write_json(run.recipe, {"data": {}})
    (run.logs / "processes.log").write_text("x")
    (run.logs / "torchrun").mkdir()
    job_origin.give_up(run, DataError("No images."))
    assert sorted(path.name for path in run.path.iterdir()) == ["job.sh", "logs", "status.json"]
    assert sorted(path.name for path in run.logs.iterdir()) == ["slurm-7.json", "slurm-7.out"]
    status = job_status(run)
    assert status is not None
    assert (status.state, status.cause, status.submitted_at) == ("failed", "No images.", AT)
    job_origin.give_up(run, KeyboardInterrupt())
    assert (status := job_status(run)) is not None
    assert status.state == "interrupted"


def test_bad_input_of_any_other_run_leaves_nothing(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    write_json(directory.recipe, {"data": {}})
    write_json(directory.status, to_json(Status(state="queued")))
    job_origin.give_up(directory, DataError("No images."))
    assert list(directory.path.iterdir()) == []


@pytest.mark.parametrize(("job_id", "is_told"), [("7", True), ("8", False), (None, False)])
def test_what_is_refused_before_a_job_is_a_run_is_told_in_its_status(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, job_id: str | None, is_told: bool
) -> None:
    """Only by the job itself: a command typed within another job leaves this one as it is."""
    for name in ("TURNAROUND_JOB_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    if job_id is not None:
        monkeypatch.setenv("SLURM_JOB_ID", job_id)
    with pytest.raises(DataError, match="one class"), job_origin.refusal_recorded(run):
        raise DataError("The folder has one class.")
    found = job_status(run)
    assert found is not None
    assert (found.state, found.cause) == (("failed", "The folder has one class.") if is_told else ("queued", None))
    assert run.job_script.exists()
