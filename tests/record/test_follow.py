"""A folder of runs while they come, grow, are cut, die and go: what a follower says is what the reader would say."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from analysis.build import Plan, build, rising
from turnaround.analysis.summary import summarise
from turnaround.analysis.workloads import survey_runs
from turnaround.errors import RunDirectoryError
from turnaround.record import folder as folder_module
from turnaround.record.folder import FollowedFolder
from turnaround.record.follow import GONE_AFTER_S, KILLED
from turnaround.record.layout import RunDirectory
from turnaround.record.lock import RunLock
from turnaround.record.reader import Run
from turnaround.record.schema import EpochRecord, JobStatus, Status, TelemetrySample, to_json
from turnaround.record.writer import Lines, truncate_epochs, write_json, write_lines

FULL = {
    "gpu": "Tesla T4",
    "busy_percent": 80.0,
    "parts_s": {0: (0.01, 0.01, 0.1, 0.02, 0.01), 1: (0.01, 0.01, 0.1, 0.02, 0.01)},
    "per_class": {"a": 3, "b": 4},
    "workers": 2,
}


class Clock:
    """Moves when told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def look(tmp_path: Path, clock: Clock) -> Callable[[], dict[str, Run]]:
    """Looks at tmp_path a while later; the runs by name."""
    (tmp_path / "runs").mkdir()
    folder = FollowedFolder(tmp_path / "runs", now_s=clock)

    def looked() -> dict[str, Run]:
        clock.now_s += 10
        folder.look()
        return {run.label: run.snapshot for run in folder.runs}

    looked.folder = folder  # type: ignore[attr-defined]
    return looked


def epoch(number: int, accuracy: float = 0.5) -> dict[str, Any]:
    loss = 1 - accuracy
    values = {"train_loss": loss, "train_accuracy": accuracy, "val_loss": loss, "val_accuracy": accuracy}
    return to_json(EpochRecord(epoch=number, **values, epoch_time_s=1.0, images_per_s=100.0, learning_rate=0.1))


def test_a_snapshot_says_what_the_reader_says(tmp_path: Path, look: Callable[[], dict[str, Run]]) -> None:
    path = build(tmp_path / "runs" / "a", Plan(**FULL))
    snapshot, run = look()["a"], Run.load(path)
    assert asdict(summarise(snapshot)) == asdict(summarise(run))
    assert snapshot.ranks == run.ranks == [0, 1]
    assert [snapshot.spans(rank) for rank in (0, 1)] == [run.spans(rank) for rank in (0, 1)]
    assert snapshot.telemetry() == run.telemetry()
    assert snapshot.telemetry_notes() == run.telemetry_notes()
    assert (snapshot.evaluation, snapshot.imported, snapshot.machine) == (run.evaluation, None, run.machine)
    assert (snapshot.bad_lines, snapshot.is_torn) == (0, False)


def test_the_same_lines_are_bad_in_a_snapshot_and_for_the_reader(
    tmp_path: Path, look: Callable[[], dict[str, Run]]
) -> None:
    path = build(tmp_path / "runs" / "a", Plan(**FULL))
    (telemetry,) = path.glob("telemetry-*.jsonl")
    for file in (path / "spans-1.jsonl", telemetry):
        with file.open("a") as lines:
            lines.write('{"format": 1, "no": "field of ours"}\nno JSON\n')
    snapshot, run = look()["a"], Run.load(path)
    assert run.bad_measurements() == {"spans-1.jsonl": 2, telemetry.name: 2}
    assert snapshot.bad_measurements() == run.bad_measurements()


def test_runs_appear_grow_and_vanish(tmp_path: Path, look: Callable[[], dict[str, Run]]) -> None:
    assert look() == {}
    for name in ("study/2w", "study/10w", "b"):
        (tmp_path / "runs" / name).parent.mkdir(exist_ok=True)
        build(tmp_path / "runs" / name, Plan(accuracy=rising(epochs=3)))
    first = look()
    assert list(first) == ["b", "study/2w", "study/10w"]
    with Lines(tmp_path / "runs" / "b" / "epochs.jsonl", sync=True) as lines:
        lines.write(epoch(4))
    second = look()
    assert [record.epoch for record in second["b"].epochs] == [1, 2, 3, 4]
    assert [record.epoch for record in first["b"].epochs] == [1, 2, 3]  # what was handed out does not change
    assert second["study/2w"] is first["study/2w"]  # by this the server knows that nothing is to be done
    shutil.rmtree(tmp_path / "runs" / "study" / "2w")
    assert list(look()) == ["b", "study/10w"]
    assert not survey_runs(list(look().values())).left_out


def test_a_single_run_is_watched_by_itself(tmp_path: Path) -> None:
    folder = FollowedFolder(build(tmp_path / "fruit", Plan()))
    folder.look()
    assert [(run.label, run.parts) for run in folder.runs] == [("fruit", ())]


def test_a_resume_cuts_epochs_and_they_are_read_anew(tmp_path: Path, look: Callable[[], dict[str, Run]]) -> None:
    path = build(tmp_path / "runs" / "a", Plan(accuracy=rising(epochs=6)))
    assert len(look()["a"].epochs) == 6
    truncate_epochs(path / "epochs.jsonl", 3)
    with Lines(path / "epochs.jsonl", sync=True) as lines:
        lines.write(epoch(4, 0.9))
    assert [record.epoch for record in look()["a"].epochs] == [1, 2, 3, 4]
    assert look()["a"].epochs[-1].val_accuracy == 0.9


def running(path: Path, **status: Any) -> RunDirectory:
    build(path, Plan(accuracy=rising(epochs=3), state="running"))
    directory = RunDirectory(path)
    write_json(directory.status, to_json(Status(state="running", **status)))
    return directory


def test_a_run_that_nobody_holds_is_dead(tmp_path: Path, look: Callable[[], dict[str, Run]], clock: Clock) -> None:
    directory = running(tmp_path / "runs" / "a")
    with RunLock(directory.lock):
        assert look()["a"].status.state == "running"
    clock.now_s -= 10  # so soon it may be the lock that comes late
    assert look()["a"].status.state == "running"
    assert look()["a"].status.state == "interrupted"
    assert look()["a"].status.cause == KILLED
    with RunLock(directory.lock):  # resumed
        assert (look()["a"].status.state, look()["a"].status.cause) == ("running", None)
    assert GONE_AFTER_S < 10


def test_a_run_of_a_dead_process_is_dead(tmp_path: Path, look: Callable[[], dict[str, Run]]) -> None:
    directory = running(tmp_path / "runs" / "a")
    with RunLock(directory.lock):
        owner = json.loads(directory.lock.read_text())
    directory.lock.write_text(json.dumps({**owner, "pid": 2**22 - 1}))
    look()
    assert look()["a"].status.state == "interrupted"
    directory.lock.write_text(json.dumps({**owner, "host": "another-host"}))  # nobody here can ask it
    assert look()["a"].status.state == "running"


def test_a_job_in_the_queue_of_a_cluster_is_not_dead(tmp_path: Path, look: Callable[[], dict[str, Run]]) -> None:
    directory = RunDirectory(tmp_path / "runs" / "a")
    directory.path.mkdir()
    status = Status(state="queued", job=JobStatus(job_id="17", reason="Resources"))
    write_json(directory.status, to_json(status))
    look()
    assert look()["a"].status == status


def test_a_run_that_prepares_its_images_is_there(tmp_path: Path, look: Callable[[], dict[str, Run]]) -> None:
    directory = RunDirectory.create(tmp_path / "runs" / "a")
    assert look() == {}
    with RunLock(directory.lock):
        assert list(look()) == ["a"]
    assert look() == {}


def test_files_of_other_programs_hide_no_run(tmp_path: Path, look: Callable[[], dict[str, Run]]) -> None:
    (tmp_path / "runs" / "status.json").write_text('{"state": "of something else"}')
    build(tmp_path / "runs" / "a", Plan())
    assert list(look()) == ["a"]


# --- records of others


def test_no_link_leads_out_of_the_folder(tmp_path: Path, look: Callable[[], dict[str, Run]]) -> None:
    outside = build(tmp_path / "outside", Plan(**FULL))
    runs = tmp_path / "runs"
    (runs / "link").symlink_to(outside)
    (runs / "dangling").symlink_to(tmp_path / "nowhere")
    inside = build(runs / "inside", Plan(accuracy=rising(epochs=3), state="running"))
    for name in ("epochs.jsonl", "evaluation.json", "machine.json", "spans-0.jsonl", "telemetry-node1.jsonl"):
        (inside / name).unlink(missing_ok=True)
        (inside / name).symlink_to(outside / name)
    shutil.rmtree(inside / "logs")
    (outside / "logs" / "pulse-0.json").write_text("{}")
    (inside / "logs").symlink_to(outside / "logs")
    (inside / "run.lock").symlink_to("/dev/zero")
    found = look()
    assert list(found) == ["inside"]
    assert look.folder.notes == (  # type: ignore[attr-defined]
        "2 links are not followed: only what lies in the folder itself is shown.",
    )
    run = found["inside"]
    reads = (lambda: run.epochs, lambda: run.spans(0), run.telemetry, lambda: run.machine, lambda: run.evaluation)
    for read in reads:
        with pytest.raises(RunDirectoryError, match=r"inside: .* is a symbolic link; put the file itself there"):
            read()
    assert look.folder.runs[0].heartbeats == {}  # type: ignore[attr-defined]


def test_a_folder_that_becomes_a_link_is_left(tmp_path: Path, look: Callable[[], dict[str, Run]]) -> None:
    build(tmp_path / "runs" / "a", Plan())
    assert list(look()) == ["a"]
    (tmp_path / "runs" / "a").rename(tmp_path / "away")
    (tmp_path / "runs" / "a").symlink_to(tmp_path / "away")
    assert look() == {}


def test_a_lock_that_waits_for_ever_is_not_opened(tmp_path: Path, look: Callable[[], dict[str, Run]]) -> None:
    directory = running(tmp_path / "runs" / "a")
    os.mkfifo(directory.lock)
    os.mkfifo(directory.logs / "pulse-0.json")
    look()
    assert look()["a"].status.state == "interrupted"


def test_hostile_bytes_are_a_run_that_cannot_be_read(tmp_path: Path, look: Callable[[], dict[str, Run]]) -> None:
    directory = running(tmp_path / "runs" / "a")
    directory.status.write_text("[" * 100_000)
    directory.epochs.write_bytes(os.urandom(200_000))
    directory.machine.write_text('{"workers": {"a": []}}')
    found = look()
    survey = survey_runs([found["a"]])
    assert survey.workloads == ()
    assert "a: " in str(survey.left_out[0].error)


def test_of_more_runs_than_fit_the_latest_are_shown(
    tmp_path: Path, look: Callable[[], dict[str, Run]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "MAX_RUNS", 3)
    for number in range(5):
        path = build(tmp_path / "runs" / f"r{number}", Plan(accuracy=rising(epochs=2)))
        for name in ("recipe.json", "status.json"):
            os.utime(path / name, (1_000_000 + number, 1_000_000 + number))
    assert list(look()) == ["r2", "r3", "r4"]
    assert look.folder.notes[0].startswith("2 more runs are here; the 3 that changed last are shown.")  # type: ignore[attr-defined]


def test_what_is_thinned_out_is_said(
    tmp_path: Path, look: Callable[[], dict[str, Run]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnaround.record.follow.MAX_SAMPLES", 100)
    path = build(tmp_path / "runs" / "a", Plan())
    samples = (to_json(TelemetrySample(time_s=float(n), at=f"2026-03-01T09:{n:06d}")) for n in range(1000))
    write_lines(path / "telemetry-h.jsonl", samples)
    assert len(look()["a"].telemetry()["h"]) <= 101
    recent = look.folder.runs[0].recent(spans=1, samples=3)  # type: ignore[attr-defined]
    assert [sample.time_s for sample in recent.telemetry()["h"]] == [
        997.0,
        998.0,
        999.0,
    ]  # none left out
    left_out = list(look.folder.runs[0].left_out())  # type: ignore[attr-defined]
    assert left_out == ["a: of telemetry-h.jsonl one line in 16 is shown."]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wrong in ("nowhere", "file"):
        with pytest.raises(RunDirectoryError, match=r"cannot be watched: .*\. Give a run, or a folder of runs\."):
            FollowedFolder(tmp_path / wrong)


def test_a_folder_that_is_removed_while_it_is_watched(tmp_path: Path, look: Callable[[], dict[str, Run]]) -> None:
    build(tmp_path / "runs" / "a", Plan())
    look()
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(OSError):  # noqa: PT011
        look()
    build(tmp_path / "runs" / "b", Plan())
    assert list(look()) == ["b"]
