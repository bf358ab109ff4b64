"""One run in a dozen numbers, as far as it got."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnaround.analysis.curves import Curve
from turnaround.analysis.summary import device_name, steady_epochs, summarise
from turnaround.errors import RunDirectoryError, TurnaroundError
from turnaround.recipe import Recipe
from turnaround.record.importers.values import ImportedRun, epoch_record
from turnaround.record.importers.write import write_runs
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
        ({"device": None, "gpus": []}, "unknown"),
        ({"device": "cuda", "gpus": "many"}, "cuda"),
    ],
)
def test_the_device_by_name(machine: dict[str, Any], expected: str) -> None:
    assert device_name(machine) == expected


# --- what the work is, and where


def changed(run: Run, file: str, *keys: str, to: Any) -> Run:
    """The run with one value of a file replaced."""
    path = run.path / file
    content = json.loads(path.read_text())
    place = content
    for key in keys[:-1]:
        place = place.setdefault(key, {})
    place[keys[-1]] = to
    path.write_text(json.dumps(content))
    return Run.load(run.path)


@pytest.mark.parametrize(
    ("sections", "job"),
    [
        ({"data": {"source": "fruitbowl"}}, "fruitbowl, small, from scratch, 64 px"),
        (
            {
                "data": {"source": "/home/me/photos/", "size_px": 160},
                "model": {"name": "resnet50", "weights": "imagenet"},
            },
            "photos, resnet50, fine-tuned, 160 px",
        ),
        (
            {"data": {"source": "a"}, "model": {"name": "resnet50", "weights": "imagenet", "fine_tune": False}},
            "a, resnet50, frozen, 224 px",
        ),
    ],
)
def test_the_job_in_words(sections: dict[str, Any], job: str, tmp_path: Path) -> None:
    assert summarise(recorded(tmp_path / "run", recipe=Recipe.from_dict(sections))).job == job


def test_what_our_own_run_ran_on(tmp_path: Path) -> None:
    run = changed(recorded(tmp_path / "run", processes=2), "machine.json", "ranks", to=[{"host": "a"}, {"host": "b"}])
    run = changed(run, "machine.json", "device", to="cuda:0")
    run = changed(run, "machine.json", "gpus", to=[{"name": "NVIDIA H100 80GB HBM3", "index": 0}])
    run = changed(run, "recipe.json", "images", to={"num_train": 1440, "num_validation": 360})
    summary = summarise(run)
    assert (summary.hosts, summary.device, summary.gpu) == (2, "NVIDIA H100 80GB HBM3", "H100")
    assert (summary.batch_per_worker, summary.global_batch, summary.epochs_planned) == (32, 64, 10)
    assert (summary.images_per_epoch, summary.num_validation, summary.is_imported) == (1440, 360, False)


def test_counts_that_the_recipe_lacks_come_from_the_epochs_and_the_evaluation(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", replace(epoch(1), images=960))
    result = Evaluation(epoch=1, num_images=240, top1=0.5, top5=None, loss=1.0, classes=[], per_class=[], confusion=[])
    write_json(run.directory.evaluation, to_json(result))
    summary = summarise(Run.load(run.path))
    assert (summary.images_per_epoch, summary.num_validation) == (960, 240)


def test_the_curve_has_training_in_evaluation_mode(tmp_path: Path) -> None:
    measured = replace(epoch(1), train_eval_accuracy=0.6, train_eval_loss=0.9, noise_scale=300.0)
    summary = summarise(recorded(tmp_path / "run", measured, replace(epoch(2, accuracy=0.7), train_eval_accuracy=0.8)))
    assert (summary.curve.epochs, summary.curve.val_accuracy) == ((1, 2), (0.5, 0.7))
    assert summary.curve.train_accuracy == (0.6, 0.8)
    assert summary.curve.train_loss[0] == 0.9
    assert math.isnan(summary.curve.train_loss[1])  # and not the running one: never a mixture
    assert (summary.final_train_accuracy, summary.noise_scale) == (0.8, 300.0)


def test_without_such_evaluations_the_running_ones_stand_in(tmp_path: Path) -> None:
    summary = summarise(recorded(tmp_path / "run", epoch(1)))
    assert (summary.curve.train_accuracy, summary.curve.train_loss) == ((0.4,), (1.0,))
    assert summary.final_train_accuracy == 0.4


def test_a_run_without_epochs_has_an_empty_curve(tmp_path: Path) -> None:
    summary = summarise(recorded(tmp_path / "run"))
    assert (summary.curve, summary.final_train_accuracy, summary.noise_scale) == (Curve(), None, None)


def test_a_job_takes_from_submit_to_finish(tmp_path: Path) -> None:
    submitted = {"submitted_at": "2026-03-01T09:00:00+00:00", "started_at": "2026-03-01T09:02:00+00:00"}
    summary = summarise(recorded(tmp_path / "run", epoch(1), time_s={"program": 60.0}, **submitted))
    assert summary.job_time_s == summary.turnaround_s == 180.0


# --- runs of others

TOLD = ImportedRun(
    name="told",
    source="runs.csv",
    format="table",
    workers=4,
    gpu="Tesla T4",
    dataset="caltech256",
    fine_tune=False,
    batch_per_worker=32,
    images_per_epoch=24_300,
    epochs=30,
    job_time_s=2594.0,
    epoch_time_s=81.0,
    train_accuracy=0.8678,
    val_accuracy=0.676,
)


def imported(tmp_path: Path, run: ImportedRun) -> Run:
    return Run.load(write_runs([run], tmp_path / "imported")[0])


def test_an_imported_run_without_a_curve(tmp_path: Path) -> None:
    summary = summarise(imported(tmp_path, TOLD))
    assert (summary.is_imported, summary.name, summary.state, summary.job) == (
        True,
        "told",
        "finished",
        "caltech256, frozen",
    )
    assert (summary.workers, summary.processes, summary.hosts, summary.is_rehearsal) == (4, 4, 1, False)
    assert (summary.device, summary.gpu) == ("Tesla T4", "T4")
    assert (summary.batch_per_worker, summary.global_batch, summary.images_per_epoch) == (32, 128, 24_300)
    assert (summary.epochs, summary.epochs_planned, summary.num_validation) == (30, 30, None)
    assert (summary.epoch_time_s, summary.images_per_s) == (81.0, 300.0)
    assert (summary.final_val_accuracy, summary.final_train_accuracy) == (0.676, 0.8678)
    assert (summary.best_val_accuracy, summary.best_epoch, summary.curve) == (None, None, Curve())
    assert (summary.job_time_s, summary.turnaround_s, summary.turnaround_parts_s) == (2594.0, 2594.0, {"other": 2594.0})


def test_an_imported_run_with_a_curve(tmp_path: Path) -> None:
    curve = (
        epoch_record(1, accuracy=(0.5, 0.4), time_s=90.0),
        epoch_record(2, accuracy=(0.6, 0.7), time_s=60.0),
        epoch_record(3, accuracy=(0.7, 0.6)),
    )
    summary = summarise(imported(tmp_path, replace(TOLD, epoch_time_s=None, curve=curve)))
    assert (summary.epoch_time_s, summary.images_per_s) == (60.0, 405.0)
    assert (summary.best_val_accuracy, summary.best_epoch, summary.final_val_accuracy) == (0.7, 2, 0.6)
    assert summary.curve.train_accuracy == (0.5, 0.6, 0.7)
    assert summary.epochs == 30


def test_an_imported_run_of_which_nothing_is_known(tmp_path: Path) -> None:
    summary = summarise(imported(tmp_path, ImportedRun(name="x", source="log", format="keras", workers=2)))
    assert (summary.job, summary.gpu, summary.device, summary.hosts) == ("unknown images", "unknown", "unknown", 1)
    assert (summary.batch_per_worker, summary.global_batch, summary.images_per_epoch) == (None, None, None)
    assert (summary.epochs, summary.epochs_planned, summary.epoch_time_s, summary.images_per_s) == (0, None, None, None)
    assert (summary.job_time_s, summary.final_val_accuracy, summary.final_train_accuracy) == (None, None, None)


def test_a_whole_batch_and_a_network_stand_in(tmp_path: Path) -> None:
    run = ImportedRun(name="x", source="log", format="mllog", workers=3, network="resnet", batch_total=256)
    summary = summarise(imported(tmp_path, run))
    assert (summary.job, summary.global_batch, summary.batch_per_worker) == ("resnet", 256, None)


# --- damage


@pytest.mark.parametrize(
    ("file", "keys", "value", "words"),
    [
        ("machine.json", ("workers",), "many", "workers must be a whole number from 1, received 'many'"),
        ("machine.json", ("workers",), 0, "workers must be a whole number from 1, received 0"),
        ("machine.json", ("hosts",), "two", "hosts must be a whole number from 0, or null, received 'two'"),
        ("recipe.json", ("training",), [], "training must be an object, received []"),
        ("recipe.json", ("training",), {"epochs": 3}, "training.batch_per_worker is missing"),
        ("recipe.json", ("training",), {"batch_per_worker": 3}, "training.epochs is missing"),
        ("recipe.json", ("workers",), {}, "workers.count is missing"),
        ("recipe.json", ("images",), {"num_validation": -1}, "images.num_validation must be a whole number from 0"),
        ("recipe.json", ("images",), {"num_train": 1.5}, "images.num_train must be a whole number from 0, or null"),
        (
            "recipe.json",
            ("data", "size_px"),
            True,
            "data.size_px must be a whole number from 0, or null, received True",
        ),
    ],
)
def test_a_damaged_file_and_its_key_are_named(
    file: str, keys: tuple[str, ...], value: Any, words: str, tmp_path: Path
) -> None:
    run = changed(recorded(tmp_path / "run"), file, *keys, to=value)
    with pytest.raises(RunDirectoryError) as caught:
        summarise(run)
    assert str(run.path / file) in str(caught.value)
    assert words in str(caught.value)


KEYS = ("name", "data", "model", "training", "workers", "images", "processes", "gpus", "device", "ranks", "hosts")
INNER = (
    "source",
    "size_px",
    "name",
    "fine_tune",
    "weights",
    "epochs",
    "batch_per_worker",
    "batch_total",
    "count",
    "host",
)
values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
sections = (
    values | st.dictionaries(st.sampled_from(INNER), values) | st.lists(values | st.dictionaries(st.text(), values))
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    recipe=st.dictionaries(st.sampled_from(KEYS), sections), machine=st.dictionaries(st.sampled_from(KEYS), sections)
)
def test_whatever_is_in_the_files_only_our_errors_come_out(
    recipe: dict[str, Any], machine: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "run"
    if not path.exists():
        recorded(path, epoch(1))
    whole = Recipe.from_dict({}).resolved().to_dict()
    (path / "recipe.json").write_text(json.dumps({**whole, **recipe}))
    (path / "machine.json").write_text(json.dumps({"workers": 1, "processes": 1, **machine}))
    message = str(path)
    try:
        summarise(Run.load(path))
    except TurnaroundError as error:
        message = str(error)
    assert str(path) in message


def test_the_rate_of_an_imported_run_is_that_of_its_stated_epoch_time(tmp_path: Path) -> None:
    curve = tuple(epoch_record(number, accuracy=(0.5, 0.5), time_s=80.0, images=1000) for number in (1, 2, 3))
    run = ImportedRun(
        name="a", source="t", format="table", workers=1, images_per_epoch=1000, epoch_time_s=200.0, curve=curve
    )
    summary = summarise(Run.load(write_runs([run], tmp_path)[0]))
    assert (summary.epoch_time_s, summary.images_per_s) == (200.0, 5.0)
