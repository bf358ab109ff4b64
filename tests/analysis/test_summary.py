"""One run in a dozen numbers, as far as it got."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnaround.analysis.summary import device_name, steady_epochs, summarise
from turnaround.recipe import Recipe
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import EpochRecord, Evaluation, Status, to_json
from turnaround.record.writer import Lines, write_json


def epoch(number: int, *, accuracy: float = 0.5, time_s: float = 2.0, segment: int = 1) -> EpochRecord:
    return EpochRecord(
        epoch=number,
        train_loss=1.0,
        train_accuracy=0.4,
        val_loss=1.1,
        val_accuracy=accuracy,
        epoch_time_s=time_s,
        images_per_s=100 / time_s,
        learning_rate=0.1,
        segment=segment,
    )


def recorded(path: Path, *epochs: EpochRecord, processes: int = 1, recipe: Recipe | None = None, **status: Any) -> Run:
    """A run directory with these epochs, as training writes it."""
    directory = RunDirectory.create(path)
    recipe = recipe or Recipe.from_dict({"name": "mine", "workers": {"count": 2}})
    write_json(directory.recipe, recipe.resolved().to_dict())
    write_json(directory.machine, {"workers": recipe.workers.count, "processes": processes, "device": "cpu"})
    write_json(directory.status, to_json(Status(**{"state": "finished", **status})))
    with Lines(directory.epochs, sync=False) as lines:
        for record in epochs:
            lines.write(to_json(record))
    return Run.load(path)


def test_the_numbers_of_a_run(tmp_path: Path) -> None:
    epochs = (epoch(1, accuracy=0.3, time_s=9), epoch(2, accuracy=0.8), epoch(3, accuracy=0.7, time_s=4))
    run = recorded(
        tmp_path / "run",
        *epochs,
        time_s={"start_up": 1.0, "training_cold": 9.0, "training_steady": 6.0, "program": 18.0},
    )
    summary = summarise(run)
    assert (summary.name, summary.state, summary.directory) == ("mine", "finished", str(tmp_path / "run"))
    assert (summary.workers, summary.processes, summary.is_rehearsal) == (2, 1, True)
    assert (summary.global_batch, summary.epochs, summary.device) == (64, 3, "CPU")
    assert summary.epoch_time_s == 3.0  # the median of 2 and 4: the first epoch is cold
    assert summary.images_per_s == (50 + 25) / 2
    assert (summary.best_val_accuracy, summary.best_epoch, summary.final_val_accuracy) == (0.8, 2, 0.7)
    assert summary.final_top5_accuracy is None
    assert summary.turnaround_parts_s == {
        "start_up": 1.0,
        "training_cold": 9.0,
        "training_steady": 6.0,
        "other": 2.0,
    }
    assert summary.turnaround_s == 18.0


def test_a_single_epoch_is_better_than_none(tmp_path: Path) -> None:
    assert summarise(recorded(tmp_path / "run", epoch(1, time_s=9))).epoch_time_s == 9


def test_a_run_that_has_no_epoch_yet(tmp_path: Path) -> None:
    summary = summarise(recorded(tmp_path / "run", state="failed", cause="why"))
    assert (summary.state, summary.epochs) == ("failed", 0)
    unknown = (summary.epoch_time_s, summary.images_per_s, summary.best_val_accuracy, summary.best_epoch)
    assert unknown == (None, None, None, None)
    assert (summary.final_val_accuracy, summary.turnaround_s) == (None, None)


def test_of_equal_epochs_the_first_is_the_best(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", epoch(1, accuracy=0.1), epoch(2, accuracy=0.9), epoch(3, accuracy=0.9))
    assert summarise(run).best_epoch == 2


def test_an_epoch_without_an_accuracy_is_never_the_best(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", epoch(1, accuracy=float("nan")), epoch(2, accuracy=0.4))
    assert (summarise(run).best_epoch, summarise(run).best_val_accuracy) == (2, 0.4)


def test_the_final_evaluation_gives_the_top_five(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", epoch(1))
    evaluation = Evaluation(
        epoch=1, num_images=10, top1=0.5, top5=0.9, loss=1.0, classes=[], per_class=[], confusion=[]
    )
    write_json(run.directory.evaluation, to_json(evaluation))
    assert summarise(Run.load(run.path)).final_top5_accuracy == 0.9


def test_a_total_batch_is_the_global_batch(tmp_path: Path) -> None:
    recipe = Recipe.from_dict({"training": {"batch_total": 96}, "workers": {"count": 4}})
    assert summarise(recorded(tmp_path / "run", recipe=recipe)).global_batch == 96


@pytest.mark.parametrize(
    ("segments", "expected"),
    [([1, 1, 1], [2, 3]), ([1, 1, 2, 2], [2, 4]), ([1], []), ([], []), ([1, 2, 3], [])],
)
def test_the_first_epoch_of_every_start_is_cold(segments: list[int], expected: list[int]) -> None:
    epochs = [epoch(number, segment=segment) for number, segment in enumerate(segments, start=1)]
    assert [e.epoch for e in steady_epochs(epochs)] == expected


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ({"device": "cpu"}, "CPU"),
        ({"device": "cpu", "gpus": [{"name": "T4"}]}, "CPU"),
        ({"device": "cuda:0", "gpus": [{"name": "T4"}]}, "T4"),
        ({"device": "cuda:0", "gpus": []}, "cuda:0"),
        ({"device": "mps"}, "mps"),
    ],
)
def test_the_device_by_name(machine: dict[str, Any], expected: str) -> None:
    assert device_name(machine) == expected
