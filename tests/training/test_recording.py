"""What process 0 writes while it trains, on a disk that is full."""

from __future__ import annotations

import time
from collections.abc import Iterator
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
from turnaround.training.recording import MIN_STEPS, Outlook, RunRecorder, keeps_features, quicker

NO_ROOM = DiskFullError("Cannot save a checkpoint runs/a: the disk or your quota is full.")
PRETRAINED = {"model": {"name": "resnet18", "weights": "imagenet"}, "data": {"size_px": 224}}


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
    made.step = SimpleNamespace(state=SimpleNamespace(snapshot=lambda manifest: "state"))  # type: ignore[assignment]
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


# --- how long it will take: said once, after the first steps, where that is long


def recipe_of(**sections: dict[str, object]) -> Recipe:
    return Recipe.from_dict({**PRETRAINED, **sections}).resolved()


def announced(recipe: Recipe, *, step_s: float, steps: int = 100, is_cpu: bool = True, epoch: int = 1) -> list[str]:
    """What is said in 20 steps of the first epoch and one of the second."""
    times: Iterator[float] = (number * step_s for number in range(1000))
    outlook = Outlook(recipe, is_cpu=is_cpu, now_s=lambda: next(times))
    outlook.epoch_begins(epoch=epoch, epochs=10, steps=steps)
    said = [outlook.step_done(images=32) for _ in range(20)]
    assert said[: 1 + MIN_STEPS - 1] == [None] * MIN_STEPS  # the first one counts for nothing
    outlook.epoch_begins(epoch=epoch + 1, epochs=10, steps=steps)
    return [each for each in (*said, outlook.step_done(images=32)) if each is not None]


def test_an_hour_is_said_with_what_is_quicker() -> None:
    (said,) = announced(recipe_of(), step_s=4.0)
    assert said.startswith("All of it will take about 1 h 07 min, at 8 images/s without a GPU")
    assert "--set model.fine_tune=false" in said
    assert "--size 112" in said
    assert "--time-limit 10min" in said


def test_of_a_frozen_network_the_first_epoch_is_all_that_takes_long() -> None:
    frozen = recipe_of(model={**PRETRAINED["model"], "fine_tune": False}, augment={"preset": "none"})
    assert keeps_features(frozen)
    assert not keeps_features(recipe_of(model={**PRETRAINED["model"], "fine_tune": False}, augment={"preset": "light"}))
    assert announced(frozen, step_s=4.0) == []  # 400 s
    (said,) = announced(frozen, step_s=8.0)
    assert said.startswith("The first epoch, in which the features are computed, will take about 13 min")
    assert "fine_tune" not in said


@pytest.mark.parametrize(
    ("training", "step_s", "is_cpu", "epoch"),
    [({}, 0.5, True, 1), ({}, 4.0, False, 1), ({"time_limit_s": 60.0}, 4.0, True, 1), ({}, 2.9, True, 9)],
    ids=["quick", "on a GPU", "limited", "nearly done"],
)
def test_nothing_is_said(training: dict[str, object], step_s: float, is_cpu: bool, epoch: int) -> None:
    assert announced(recipe_of(training=training), step_s=step_s, is_cpu=is_cpu, epoch=epoch) == []


def test_from_scratch_the_small_network_is_quicker() -> None:
    ways = quicker(Recipe.from_dict({"model": {"name": "resnet18", "weights": "none"}}).resolved())
    assert ways[0].startswith("--model small")
    assert not any("fine_tune" in way for way in ways)
