"""What the batch script asks before and after each start of its job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from turnaround.launch.clusters.slurm import batch_hooks
from turnaround.record.layout import RunDirectory
from turnaround.record.writer import write_json

FIRST = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
SECOND = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n3", "SLURM_RESTART_COUNT": "1"}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def held_by(run: RunDirectory, host: str) -> None:
    run.lock.write_text(json.dumps({"format": 1, "host": host, "pid": 5}))


def test_the_lock_of_an_earlier_start_is_freed(run: RunDirectory, logs: Path) -> None:
    assert batch_hooks.before(run, logs, FIRST) is None
    held_by(run, "n2.cluster.example")
    assert batch_hooks.before(run, logs, SECOND) == (
        "An earlier start of this job on n2.cluster.example was ended by Slurm; its lock is free again."
    )
    assert not run.lock.exists()


def test_every_other_lock_stays(run: RunDirectory, logs: Path) -> None:
    held_by(run, "n1")
    assert batch_hooks.before(run, logs, FIRST) is None  # not started before
    held_by(run, "login")
    assert batch_hooks.before(run, logs, SECOND) is None  # not one of the job's hosts
    held_by(run, "n1")
    assert batch_hooks.before(run, logs, {**SECOND, "SLURM_JOB_ID": "8"}) is None  # another job's
    run.lock.write_text("torn")
    assert batch_hooks.before(run, logs, SECOND) is None
    assert run.lock.exists()


def test_the_exit_status_is_that_of_the_record(run: RunDirectory, logs: Path) -> None:
    batch_hooks.before(run, logs, FIRST)
    assert batch_hooks.after(run, logs, 1, FIRST) == 1  # it never came to a record
    write_json(run.status, {"state": "interrupted", "segments": 1})
    assert batch_hooks.after(run, logs, 1, FIRST) == 75
    assert batch_hooks.after(run, logs, 0, FIRST) == 0
    batch_hooks.before(run, logs, SECOND)
    assert batch_hooks.after(run, logs, 1, SECOND) == 1  # interrupted, but not by this start
    write_json(run.status, {"state": "interrupted", "segments": 2})
    assert batch_hooks.after(run, logs, 1, SECOND) == 75
    write_json(run.status, {"state": "failed", "segments": 2})
    assert batch_hooks.after(run, logs, 1, SECOND) == 1
    write_json(run.status, {"state": "finished", "segments": 2})
    assert batch_hooks.after(run, logs, 1, SECOND) == 0  # a launcher that stumbles over the end of its processes


@pytest.mark.fault(9, "requeues are counted over all starts of a job")
def test_requeues_are_counted_over_all_starts(run: RunDirectory, logs: Path) -> None:
    batch_hooks.before(run, logs, FIRST)
    assert batch_hooks.refusal(logs, 2, FIRST) is None
    batch_hooks.before(run, logs, SECOND)
    assert batch_hooks.refusal(logs, 2, SECOND) is None
    assert "2 times (max_requeues) and stops here" in str(batch_hooks.refusal(logs, 2, SECOND))


def test_a_job_that_never_comes_to_a_checkpoint_stops(run: RunDirectory, logs: Path) -> None:
    (run.checkpoint / "epoch-00001").mkdir(parents=True)
    batch_hooks.before(run, logs, FIRST)
    for _ in range(batch_hooks.MAX_IN_VAIN - 1):
        batch_hooks.before(run, logs, SECOND)
        assert batch_hooks.refusal(logs, 100, SECOND) is None
    batch_hooks.before(run, logs, SECOND)
    assert "3 starts in a row came to no checkpoint" in str(batch_hooks.refusal(logs, 100, SECOND))
    (run.checkpoint / "epoch-00001").rename(run.checkpoint / "epoch-00002")
    batch_hooks.before(run, logs, SECOND)
    assert batch_hooks.refusal(logs, 100, SECOND) is None


def test_as_the_script_calls_it(
    run: RunDirectory, logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in FIRST.items():
        monkeypatch.setenv(name, value)
    assert batch_hooks.main(["before", str(run.path), str(logs)]) == 0
    held_by(run, "n1")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert batch_hooks.main(["before", str(run.path), str(logs)]) == 0
    assert "its lock is free again" in capsys.readouterr().err
    assert batch_hooks.main(["after", str(run.path), str(logs), "3"]) == 0
    assert capsys.readouterr().out == "3\n"
    assert batch_hooks.main(["requeue", str(logs), "1"]) == 0
    assert batch_hooks.main(["requeue", str(logs), "1"]) == 1
    assert "back into the queue 1 times (max_requeues) and stops here" in capsys.readouterr().err
    assert batch_hooks.main(["again"]) == 2
    assert "received: ['again']" in capsys.readouterr().err


def test_a_disk_that_refuses(run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = tmp_path / "file"
    logs.write_text("")
    assert batch_hooks.main(["before", str(run.path), str(logs)]) == 2
    assert str(logs) in capsys.readouterr().err
