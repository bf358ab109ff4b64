"""Which epoch is the best, and when a training ends before its last epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from forking import ForkingLauncher
from running import largest_difference, request, traced, train, weights
from turnaround.analysis.stable import is_stable, stable_epoch
from turnaround.errors import ProcessFailedError
from turnaround.launch import lifecycle
from turnaround.recipe import TrainingRecipe
from turnaround.record.layout import CheckpointFiles
from turnaround.record.reader import Run
from turnaround.record.schema import BestEpoch, EpochRecord
from turnaround.training.best import best_epoch, newest_best
from turnaround.training.checkpoint import load_tensors
from turnaround.training.plan import EpochPlan, IsStable
from turnaround.workers.single import Single

SETTINGS = (
    "data.size_px=32",
    "workers.count=4",
    "training.batch_per_worker=8",
    "training.precision=fp64",
    "training.checkpoint_every_s=0",
)
# A rate of 0 leaves the weights as they are: no epoch is better than the first.
STANDS_STILL = (*SETTINGS, "training.learning_rate=0", "training.epochs=9", "training.patience=2", "training.ema=0.9")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


def record(epoch: int, accuracy: float, loss: float = 1.0) -> EpochRecord:
    figures = {"train_loss": 1.0, "train_accuracy": 0.5, "epoch_time_s": 1.0, "images_per_s": 1.0, "learning_rate": 0.1}
    return EpochRecord(epoch=epoch, val_accuracy=accuracy, val_loss=loss, **figures)


def plan(*, saved: dict[str, object] | None = None, rule: IsStable | None = None, **keys: object) -> EpochPlan:
    recipe = TrainingRecipe(**{"epochs": 9, **keys})  # type: ignore[arg-type]
    return EpochPlan(recipe, Single(count=1, device=torch.device("cpu")), saved=saved or {}, is_stable=rule)


def run_through(made: EpochPlan, *accuracies: float) -> EpochPlan:
    for accuracy in accuracies:
        if len(made.state.val_accuracy) < made.epochs:
            made.after_epoch(record(len(made.state.val_accuracy) + 1, accuracy))
    return made


def test_the_best_is_the_highest_then_of_lower_loss_then_the_earlier() -> None:
    made = plan()
    for epoch, (accuracy, loss) in enumerate([(0.5, 1.0), (0.7, 1.0), (0.7, 0.9), (0.7, 0.9), (0.6, 0.1)], start=1):
        made.after_epoch(record(epoch, accuracy, loss))
    assert made.best == BestEpoch(epoch=3, val_accuracy=0.7, val_loss=0.9)
    assert "val_accuracy" in made.best.measure


def test_patience_ends_it_and_says_so() -> None:
    made = run_through(plan(patience=3), 0.5, 0.6, 0.6, 0.55, 0.6, 0.9)
    assert made.epochs == 5
    assert made.state.stopped_early == "Stopped early after epoch 5 of 9: no better for 3 epochs."
    assert made.best is not None
    assert made.best.epoch == 2


def test_a_lower_loss_alone_is_better_but_no_reason_to_go_on() -> None:
    made = plan(patience=2)
    for epoch in (1, 2, 3):
        made.after_epoch(record(epoch, 0.5, 1 / epoch))
    assert (made.epochs, made.best) == (3, BestEpoch(epoch=3, val_accuracy=0.5, val_loss=1 / 3))


def test_without_patience_or_with_enough_of_it_all_epochs_are_trained() -> None:
    for made in (plan(), plan(patience=8)):
        assert run_through(made, *[0.5] * 9).epochs == 9
        assert made.state.stopped_early is None  # the last epoch is no early one


def test_a_plan_goes_on_from_what_a_checkpoint_keeps() -> None:
    before = run_through(plan(patience=3), 0.5, 0.6, 0.6)
    saved = json.loads(json.dumps(before.state.to_json()))
    after = plan(saved=saved, patience=3)
    assert after.state == before.state
    assert run_through(after, 0.6, 0.6).epochs == 5


def test_stable_is_the_rule_of_the_reports() -> None:
    rng = np.random.default_rng(0)
    curve = list(0.9 - 0.6 * np.exp(-np.arange(30) / 3) + rng.normal(0, 0.004, 30))
    made = plan(epochs=30, rule=lambda known: is_stable(known, num_validation=2000))
    run_through(made, *curve)
    ended = made.epochs
    assert 8 <= ended < 30
    assert made.state.stopped_early == f"Stopped early after epoch {ended} of 30: the validation accuracy is stable."
    for epochs in range(1, 31):
        says = stable_epoch(curve[:epochs], num_validation=2000).status == "stable"
        assert says == is_stable(curve[:epochs], num_validation=2000)
        assert not (says and epochs < ended)


def test_a_curve_that_rises_is_not_stable() -> None:
    made = plan(epochs=30, rule=lambda known: is_stable(known, num_validation=2000))
    assert run_through(made, *np.linspace(0.1, 0.9, 30)).epochs == 30


# --- whole runs


@pytest.fixture(scope="module")
def stopped(fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory, forking: ForkingLauncher) -> Run:
    return train(fruit_folder, tmp_path_factory.mktemp("stopped") / "run", *STANDS_STILL, launcher=forking)


def test_a_run_that_stops_early_is_finished(stopped: Run, forking: ForkingLauncher) -> None:
    assert (stopped.status.state, stopped.status.epochs_done, len(stopped.epochs)) == ("finished", 3, 3)
    assert stopped.status.stopped_early == "Stopped early after epoch 3 of 9: no better for 2 epochs."
    assert stopped.status.best is not None
    assert stopped.status.best.epoch == 1
    assert stopped.evaluation is not None
    assert (stopped.evaluation.epoch, stopped.evaluation.best) == (3, stopped.status.best)
    assert lifecycle.resume(request(stopped.path, launcher=forking)).status == stopped.status


@pytest.mark.parametrize("processes", [2, 4])
def test_all_processes_stop_alike_with_the_same_weights(
    processes: int, stopped: Run, fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    several = train(fruit_folder, tmp_path / "run", *STANDS_STILL, processes=processes, launcher=forking)
    assert several.status.stopped_early == stopped.status.stopped_early
    assert largest_difference(weights(several), weights(stopped)) < 1e-12
    one, other = (newest_best(run.directory.best)[0] for run in (stopped, several))
    assert one is not None
    assert other is not None
    tensors = (load_tensors(CheckpointFiles(path).weights, path.parent.parent) for path in (one, other))
    assert largest_difference(*tensors) < 1e-12


def test_stable_ends_a_run_on_two_processes(fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> None:
    settings = (*SETTINGS, "training.learning_rate=0", "training.epochs=9", "training.stop=stable")
    run = train(fruit_folder, tmp_path / "run", *settings, processes=2, launcher=forking)
    assert run.status.stopped_early == "Stopped early after epoch 6 of 9: the validation accuracy is stable."
    assert len(run.epochs) == 6


def test_the_weights_of_the_best_epoch_are_kept_and_survive_a_kill(
    fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    # Good for two epochs, then a rate that ruins it: the best is early, and known after the kill.
    ruined = ("training.epochs=4", "training.schedule=constant", "training.optimizer=sgd", "training.warmup_epochs=3")
    settings = (*SETTINGS, *ruined, "training.learning_rate=0.2")
    whole = train(fruit_folder, tmp_path / "whole", *settings, launcher=forking)
    best = max(whole.epochs, key=lambda e: (e.val_accuracy, -e.val_loss, -e.epoch))
    assert whole.status.best == BestEpoch(epoch=best.epoch, val_accuracy=best.val_accuracy, val_loss=best.val_loss)
    with pytest.MonkeyPatch.context() as patch:
        traced(patch, kill_after_epoch="3")
        with pytest.raises(ProcessFailedError):
            train(fruit_folder, tmp_path / "killed", *settings, launcher=forking)
    resumed = lifecycle.resume(request(tmp_path / "killed", launcher=forking))
    assert resumed.status.best == whole.status.best
    one, other = (newest_best(run.directory.best)[0] for run in (whole, resumed))
    assert one is not None
    assert other is not None
    assert best_epoch(one) == best_epoch(other) == whole.status.best
    a, b = (load_tensors(CheckpointFiles(path).weights, path.parent.parent) for path in (one, other))
    assert all(torch.equal(a[name], b[name]) for name in a)
