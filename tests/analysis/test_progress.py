"""Where a run is, by its steps and epochs, and what counts as trouble: values, without words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from turnaround.analysis.progress import (
    GIB,
    Concern,
    Position,
    disk_concerns,
    idle_concerns,
    loss_concerns,
    stall_concerns,
)
from turnaround.record.heartbeat import ProcessHeartbeat
from turnaround.record.schema import EpochRecord

RECIPE = {"training": {"epochs": 10, "batch_per_worker": 25}, "workers": {"count": 4}, "images": {"num_train": 1010}}
EPOCH = EpochRecord(
    epoch=4,
    train_loss=1.0,
    train_accuracy=0.5,
    val_loss=1.0,
    val_accuracy=0.5,
    epoch_time_s=10.0,
    images_per_s=1000.0,
    learning_rate=0.1,
    steps=100,
    images=10_000,
    evaluation_time_s=2.0,
)


def test_a_run_without_epochs_goes_by_its_recipe() -> None:
    at = Position.of(22, RECIPE, None)
    assert (at.steps_per_epoch, at.batch, at.epoch, at.share) == (11, 100, 2, 0.2)
    assert at.left_s([], 4.0) == pytest.approx(0.8 * 10 * 11 / 4)
    assert at.left_s([], None) is None
    assert at.images_per_s(4.0, None) == 400


def test_measured_epochs_come_before_the_recipe() -> None:
    at = Position.of(450, RECIPE, EPOCH)
    assert (at.steps_per_epoch, at.batch, at.epoch, at.share) == (100, 100, 5, 0.45)
    assert at.left_s([EPOCH], 1.0) == pytest.approx(5.5 * 12)
    assert at.images_per_s(None, EPOCH) == 1000


@pytest.mark.parametrize("recipe", [None, {}, {"training": None}, {"training": {"epochs": True}}])
def test_what_the_recipe_does_not_say_is_not_known(recipe: dict[str, object] | None) -> None:
    at = Position.of(5, recipe, None)
    assert (at.share, at.epoch, at.left_s([], 1.0), at.images_per_s(1.0, None)) == (None, 0, None, None)


def test_the_epochs_of_a_time_limit_come_before_those_of_the_recipe() -> None:
    at = Position.of(450, RECIPE, EPOCH, epochs_planned=5)
    assert (at.epochs_planned, at.epoch, at.share) == (5, 5, 0.9)
    assert at.left_s([EPOCH], 1.0) == pytest.approx(0.5 * 12)


def test_a_run_is_never_beyond_its_end() -> None:
    at = Position.of(5000, RECIPE, replace(EPOCH, epoch=10))
    assert (at.share, at.epoch) == (1.0, 10)


def test_troubles_are_kinds_and_figures() -> None:
    (nan,) = loss_concerns([replace(EPOCH, val_loss=math.nan)])
    assert nan == Concern(trouble="loss is no number", subject="validation", figures={"epoch": 4.0}, is_problem=True)
    (rising,) = loss_concerns([EPOCH, replace(EPOCH, epoch=5, train_loss=2.0)])
    assert (rising.trouble, rising.figures) == ("loss rises", {"loss": 2.0, "epoch": 5.0, "lowest": 1.0})
    (filling,) = disk_concerns([(0.0, 110 * GIB), (100.0, 100 * GIB)], 3600.0)
    assert (filling.trouble, filling.figures) == ("disk fills up", {"free_gib": 100.0, "full_in_s": 1000.0})
    assert list(stall_concerns([], 10_000.0)) == []


def test_gpus_that_wait_more_than_they_compute() -> None:
    def told(beats: int, busy: float | None) -> list[Concern]:
        process = ProcessHeartbeat(
            rank=0, host="n", pid=1, step=1, doing="computes", beats=beats, ticks=1, program_s=1.0
        )
        return list(idle_concerns([process], busy))

    assert told(2, 0.4) == [Concern(trouble="GPUs idle", figures={"busy": 0.4})]
    # Half of the time is enough, one beat is that of the start, and what is not known is no trouble.
    assert (told(2, 0.5), told(1, 0.0), told(2, None), list(idle_concerns([], 0.0))) == ([], [], [], [])
