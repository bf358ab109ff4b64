"""What process 0 writes while it trains, on a disk that is full."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training.test_plan import plan
from turnaround.errors import DiskFullError
from turnaround.recipe import Recipe, TrainingRecipe
from turnaround.record.growing import read_lines
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import read_epoch
from turnaround.record.schema import EpochRecord, Status
from turnaround.record.writer import Lines
from turnaround.training import recording
from turnaround.training.position import TrainingPosition
from turnaround.training.recording import RunRecorder

NO_ROOM = DiskFullError("Cannot save a checkpoint runs/a: the disk or your quota is full.")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What reaches status.json; an error in it is raised instead."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(recording, "write_json", lambda path, payload: found.append(payload))
    return found


def recorder(told: list[str], *, stops: bool = False) -> RunRecorder:
    return RunRecorder(
        RunDirectory(Path("runs/a")),
        clock=SimpleNamespace(totals_s=dict),  # type: ignore[arg-type]
        recipe=Recipe(training=TrainingRecipe(stop_on_full_disk=stops)).resolved(),
        plan=plan(),
        step=SimpleNamespace(),  # type: ignore[arg-type]
        status=Status(state="running"),
        progress=SimpleNamespace(warn=told.append),  # type: ignore[arg-type]
    )


def test_it_is_said_once_until_a_checkpoint_has_room_again(written: list[dict[str, Any]]) -> None:
    told: list[str] = []
    made = recorder(told)
    made._not_saved(NO_ROOM)
    made._not_saved(NO_ROOM)
    assert len(told) == 1
    assert "there is none yet of this start" in told[0]
    assert written[-1]["not_saved"] == str(NO_ROOM)
    made.saver.last = TrainingPosition(epochs_done=2)
    made.set_status()
    assert written[-1]["not_saved"] is None
    made._not_saved(NO_ROOM)
    assert "the last one is epoch-00002" in told[1]
    assert written[-1]["not_saved"] == str(NO_ROOM)


def test_an_epoch_that_the_disk_does_not_take_waits_for_it_and_no_checkpoint_comes_before(
    written: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    made, troubles = recorder(told), [NO_ROOM] * 2
    began: list[object] = []
    monkeypatch.setattr(made.saver, "begin", began.append)
    made.step = SimpleNamespace(snapshot=lambda manifest: "state")  # type: ignore[assignment]
    made.epochs = Lines(tmp_path / "epochs.jsonl", sync=True)
    real = made.epochs.write

    def write(payload: Any) -> None:
        if troubles:
            raise troubles.pop()
        real(payload)

    monkeypatch.setattr(made.epochs, "write", write)
    made._unwritten += [epoch_record(1), epoch_record(2)]
    made._write_epochs()
    made.save(TrainingPosition(epochs_done=2), totals=[], epoch_time_s=0.0, energy_j=None, waits=False)
    assert (began, len(told), len(made._unwritten)) == ([], 1, 2)
    made.save(TrainingPosition(epochs_done=2), totals=[], epoch_time_s=0.0, energy_j=None, waits=False)
    assert (began, made._unwritten) == (["state"], [])
    assert [record.epoch for record in read_lines(made.epochs.path, read_epoch).records] == [1, 2]
    troubles.append(NO_ROOM)
    made._unwritten.append(epoch_record(3))
    with pytest.raises(DiskFullError):  # the last checkpoint: nothing follows that could try again
        made.save(TrainingPosition(epochs_done=3), totals=[], epoch_time_s=0.0, energy_j=None, waits=True)


def epoch_record(epoch: int) -> EpochRecord:
    numbers = dict.fromkeys(("train_loss", "train_accuracy", "val_loss", "val_accuracy", "learning_rate"), 0.5)
    return EpochRecord(epoch=epoch, epoch_time_s=1.0, images_per_s=8.0, **numbers)


def test_a_status_without_room_is_written_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, payload: object) -> None:
        raise NO_ROOM

    monkeypatch.setattr(recording, "write_json", full)
    recorder([]).set_status()
    with pytest.raises(DiskFullError):
        recorder([], stops=True).set_status()
    with pytest.raises(DiskFullError):
        recorder([]).set_status(state="finished")


def test_a_long_training_is_announced_on_the_display(written: list[dict[str, Any]]) -> None:
    told: list[str] = []
    made, times = recorder([]), iter(range(0, 1000, 30))
    nothing = lambda **_: None  # noqa: E731
    made.progress = SimpleNamespace(note=told.append, epoch_begins=nothing, step_done=nothing)  # type: ignore[assignment]
    made.step = SimpleNamespace(timer=SimpleNamespace(spans=lambda waits: []))  # type: ignore[assignment]
    assert made.outlook.now_s is time.monotonic
    made.outlook.now_s = lambda: float(next(times))
    made.epoch_begins(epoch=1, steps=100)
    for _ in range(10):
        made.step_done(SimpleNamespace(global_size=32))  # type: ignore[arg-type]
    assert len(told) == 1
    assert "images/s without a GPU" in told[0]
