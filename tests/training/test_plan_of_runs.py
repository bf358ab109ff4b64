"""Whole runs that end before their last epoch, or get more of them: the same on any processes, and after a kill."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forking import ForkingLauncher
from running import EXACT, largest_difference, request, traced, train, weights
from turnaround.errors import InputError, ProcessFailedError, RunDirectoryError
from turnaround.launch import lifecycle
from turnaround.record.coding import own_digest
from turnaround.record.layout import CheckpointFiles, RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import BestEpoch
from turnaround.training.checkpoint import load_tensors
from turnaround.training.saving import best_epoch, newest_best

pytestmark = pytest.mark.usefixtures("one_thread")

NEW_KEYS = ("training.patience", "training.stop", "training.time_limit_s")
# At 16 px the statistics of batch norm alone, which come with every epoch, change answers.
STEADY = (*EXACT, "data.size_px=32")
# A rate of 0 leaves the weights as they are: no epoch is better than the first.
STANDS_STILL = (*STEADY, "training.learning_rate=0", "training.epochs=5", "training.patience=2", "training.ema=0.9")
IMPATIENT = (*STEADY, "training.learning_rate=0.01", "training.epochs=8", "training.patience=1", "training.ema=0.9")


@pytest.fixture(scope="module")
def stopped(fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory, forking: ForkingLauncher) -> Run:
    return train(fruit_folder, tmp_path_factory.mktemp("stopped") / "run", *STANDS_STILL, launcher=forking)


def test_a_run_that_stops_early_is_finished(stopped: Run, forking: ForkingLauncher) -> None:
    assert (stopped.status.state, stopped.status.epochs_done, len(stopped.epochs)) == ("finished", 3, 3)
    assert stopped.status.stopped_early == "Stopped early after epoch 3 of 5: no better for 2 epochs."
    assert stopped.status.best is not None
    assert stopped.status.best.epoch == 1
    assert stopped.evaluation is not None
    assert (stopped.evaluation.epoch, stopped.evaluation.best) == (3, stopped.status.best)
    assert lifecycle.resume(request(stopped.path, launcher=forking)).status == stopped.status


@pytest.fixture(scope="module")
def learning(few_fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory, forking: ForkingLauncher) -> Run:
    return train(few_fruit_folder, tmp_path_factory.mktemp("learning") / "run", *IMPATIENT, launcher=forking)


@pytest.mark.parametrize("processes", [2, 4])
def test_all_processes_stop_alike_with_the_same_weights(
    processes: int, learning: Run, few_fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    assert len(learning.epochs) < 8
    assert learning.epochs[-1].train_loss < learning.epochs[0].train_loss
    several = train(few_fruit_folder, tmp_path / "run", *IMPATIENT, processes=processes, launcher=forking)
    assert several.status.stopped_early == learning.status.stopped_early is not None
    assert largest_difference(weights(several), weights(learning)) < 1e-12
    assert [e.val_accuracy for e in several.epochs] == [e.val_accuracy for e in learning.epochs]
    one, other = (newest_best(run.directory.best)[0] for run in (learning, several))
    assert one is not None
    assert other is not None
    tensors = (load_tensors(CheckpointFiles(path).weights, path.parent.parent) for path in (one, other))
    assert largest_difference(*tensors) < 1e-12


def test_stable_ends_a_run_on_two_processes(fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> None:
    settings = (*STEADY, "training.learning_rate=0", "training.epochs=9", "training.stop=stable")
    run = train(fruit_folder, tmp_path / "run", *settings, processes=2, launcher=forking)
    assert run.status.stopped_early == "Stopped early after epoch 7 of 9: the validation accuracy is stable."
    assert len(run.epochs) == 7


def test_the_weights_of_the_best_epoch_are_kept_and_survive_a_kill(
    few_fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    # Good for two epochs, then a rate that ruins it: the best is early, and known after the kill.
    ruined = ("training.epochs=4", "training.schedule=constant", "training.optimizer=sgd", "training.warmup_epochs=3")
    settings = (*EXACT, *ruined, "training.learning_rate=0.2")
    whole = train(few_fruit_folder, tmp_path / "whole", *settings, launcher=forking)
    best = max(whole.epochs, key=lambda e: (e.val_accuracy, -e.val_loss, -e.epoch))
    assert best.epoch < 4
    assert whole.status.best == BestEpoch(epoch=best.epoch, val_accuracy=best.val_accuracy, val_loss=best.val_loss)
    with pytest.MonkeyPatch.context() as patch:
        traced(patch, kill_after_epoch="3")
        with pytest.raises(ProcessFailedError):
            train(few_fruit_folder, tmp_path / "killed", *settings, launcher=forking)
    resumed = lifecycle.resume(request(tmp_path / "killed", launcher=forking))
    assert resumed.status.best == whole.status.best
    one, other = (newest_best(run.directory.best)[0] for run in (whole, resumed))
    assert one is not None
    assert other is not None
    assert best_epoch(one) == best_epoch(other) == whole.status.best
    a, b = (load_tensors(CheckpointFiles(path).weights, path.parent.parent) for path in (one, other))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_with_a_time_limit_ends_in_time_on_two_processes(
    few_fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    settings = (*EXACT, "training.epochs=2000", "training.learning_rate=0.01", "training.time_limit_s=3")
    run = train(few_fruit_folder, tmp_path / "run", *settings, processes=2, launcher=forking)
    assert run.status.state == "finished"
    assert run.status.epochs_planned == len(run.epochs) == run.evaluation.epoch < 2000
    assert f"{len(run.epochs)} of 2000 epochs fit into the time limit of 3 s, decided after epoch" in (
        run.status.stopped_early or ""
    )
    rates = [epoch.learning_rate for epoch in run.epochs]
    assert len(rates) < 4 or rates[-1] < 0.1 * max(rates)


def test_a_run_of_an_earlier_version_goes_on(
    stopped: Run, fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        traced(patch, kill_after_epoch="3")
        with pytest.raises(ProcessFailedError):
            train(fruit_folder, tmp_path / "run", *STANDS_STILL, launcher=forking)
    directory = RunDirectory(tmp_path / "run")
    shutil.rmtree(directory.best)
    for files in directory.checkpoints():
        manifest = json.loads(files.manifest.read_text())
        old = {key: value for key, value in manifest.items() if key not in ("plan", "digest")}
        old["recipe"] = {key: value for key, value in old["recipe"].items() if key not in NEW_KEYS}
        files.manifest.write_text(json.dumps({**old, "digest": own_digest(old)}))
    recipe = json.loads(directory.recipe.read_text())
    recipe["training"] = {k: v for k, v in recipe["training"].items() if f"training.{k}" not in NEW_KEYS}
    directory.recipe.write_text(json.dumps({**recipe, "training": {**recipe["training"], "epochs": 4, "ema": 0.9}}))
    with pytest.raises(RunDirectoryError, match=r"training\.epochs was 5, is 4"):
        lifecycle.resume(request(directory.path, launcher=forking))
    directory.recipe.write_text(json.dumps({**recipe, "training": {**recipe["training"], "ema": 0.9}}))
    resumed = lifecycle.resume(request(directory.path, launcher=forking))
    assert (resumed.status.state, len(resumed.epochs), resumed.status.stopped_early) == ("finished", 5, None)
    assert [e.val_loss for e in resumed.epochs[:3]] == [e.val_loss for e in stopped.epochs]
    assert resumed.status.best is not None
    assert resumed.status.best.epoch >= 3  # of the epochs whose weights it could keep


COSINE = (*EXACT, "training.epochs=2", "training.learning_rate=0.01", "training.ema=0.9")


@pytest.fixture(scope="module")
def two_epochs(fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory, forking: ForkingLauncher) -> Run:
    return train(fruit_folder, tmp_path_factory.mktemp("two") / "run", *COSINE, launcher=forking)


def more(run: Run, out: Path, epochs: int, launcher: ForkingLauncher, *, processes: int = 1) -> Run:
    if not out.exists():
        shutil.copytree(run.path, out)
    return lifecycle.resume(replace(request(out, processes=processes, launcher=launcher), epochs=epochs))


@pytest.fixture(scope="module")
def longer(two_epochs: Run, tmp_path_factory: pytest.TempPathFactory, forking: ForkingLauncher) -> Run:
    return more(two_epochs, tmp_path_factory.mktemp("longer") / "run", 5, forking)


def test_a_finished_run_gets_more_epochs_the_same_on_any_processes(
    two_epochs: Run, longer: Run, tmp_path: Path, forking: ForkingLauncher
) -> None:
    assert (longer.status.state, len(longer.epochs), longer.recipe["training"]["epochs"]) == ("finished", 5, 5)
    change = {"segment": 2, "after_epoch": 2, "keys": {"training.epochs": [2, 5]}}
    assert longer.recipe["changes"] == [change]
    rates = [epoch.learning_rate for epoch in longer.epochs]
    assert rates[1] < 0.5 * rates[2]  # it had fallen, and is warmed anew
    assert rates[-1] < 0.1 * max(rates[2:])
    assert "a new cosine starts from" in longer.machine["choices"]["learning_rate"]["reason"]
    assert [e.val_loss for e in longer.epochs[:2]] == [e.val_loss for e in two_epochs.epochs]
    assert (longer.evaluation.epoch, longer.status.epochs_planned) == (5, None)
    several = more(two_epochs, tmp_path / "two", 5, forking, processes=2)
    assert largest_difference(weights(longer), weights(several)) < 1e-12


def test_more_epochs_survive_a_kill_to_the_bit(
    two_epochs: Run, longer: Run, tmp_path: Path, forking: ForkingLauncher
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        traced(patch, kill_after_epoch="4")
        with pytest.raises(ProcessFailedError):
            more(two_epochs, tmp_path / "killed", 5, forking)
    resumed = lifecycle.resume(request(tmp_path / "killed", launcher=forking))
    assert [e.val_loss for e in resumed.epochs] == [e.val_loss for e in longer.epochs]
    assert all(torch.equal(tensor, weights(longer)[name]) for name, tensor in weights(resumed).items())
    assert len(resumed.recipe["changes"]) == 1
    again = more(resumed, resumed.path, 6, forking)
    assert [change["keys"] for change in again.recipe["changes"]] == [
        {"training.epochs": [2, 5]},
        {"training.epochs": [5, 6]},
    ]


def test_epochs_that_are_behind_it_or_were_asked_for_before_are_refused(two_epochs: Run, stopped: Run) -> None:
    def refused(run: Run, epochs: int) -> str:
        with pytest.raises(InputError) as caught:
            lifecycle.resume(replace(request(run.path), epochs=epochs))
        return str(caught.value)

    assert refused(two_epochs, 1).endswith("has 2 epochs behind it already. Ask for more than 2.")
    assert "Stopped early after epoch 3 of 5: no better for 2 epochs. Ask for more than 5" in refused(stopped, 5)
    assert two_epochs.status.state == Run.load(two_epochs.path).status.state == "finished"


def test_more_epochs_lift_a_time_limit(fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> None:
    settings = (*COSINE, "training.time_limit_s=1", "training.epochs=4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNAROUND_FAULT", "kind=slow,ms=200")  # on no machine a second epoch of six steps fits
        run = train(fruit_folder, tmp_path / "run", *settings, launcher=forking)
    assert len(run.epochs) == 1  # the least that is trained
    assert run.status.stopped_early == "1 of 4 epochs fit into the time limit of 1 s, decided after epoch 1."
    longer = more(run, run.path, 3, forking)
    assert len(longer.epochs) == 3
    assert longer.recipe["changes"][0]["keys"]["training.time_limit_s"] == [1.0, None]
    reason = longer.machine["choices"]["learning_rate"]["reason"]
    assert reason.startswith("3 epochs instead of 1: the learning rate goes on from ")
    assert reason.endswith(" The time limit is lifted.")
