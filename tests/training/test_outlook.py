"""How long a training will take is said once, after the first steps, where that is long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from turnaround.recipe import Recipe
from turnaround.training.outlook import MIN_STEPS, Outlook, keeps_features, quicker

PRETRAINED = {"model": {"name": "resnet18", "weights": "imagenet"}, "data": {"size_px": 224}}


def recipe(**sections: dict[str, object]) -> Recipe:
    return Recipe.from_dict({**PRETRAINED, **sections}).resolved()


def told(recipe: Recipe, *, step_s: float, steps: int = 100, is_cpu: bool = True, epoch: int = 1) -> list[str]:
    """What is said in 20 steps of the first epoch and one of the second."""
    times: Iterator[float] = (number * step_s for number in range(1000))
    outlook = Outlook(recipe, is_cpu=is_cpu, now_s=lambda: next(times))
    outlook.epoch_begins(epoch=epoch, epochs=10, steps=steps)
    said = [outlook.step_done(images=32) for _ in range(20)]
    assert said[: 1 + MIN_STEPS - 1] == [None] * MIN_STEPS  # the first one counts for nothing
    outlook.epoch_begins(epoch=epoch + 1, epochs=10, steps=steps)
    return [each for each in (*said, outlook.step_done(images=32)) if each is not None]


def test_an_hour_is_said_with_what_is_quicker() -> None:
    (said,) = told(recipe(), step_s=4.0)
    assert said.startswith("All of it will take about 1 h 07 min, at 8 images/s without a GPU")
    assert "--set model.fine_tune=false" in said
    assert "--size 112" in said
    assert "--time-limit 10min" in said


def test_of_a_frozen_network_the_first_epoch_is_all_that_takes_long() -> None:
    frozen = recipe(model={**PRETRAINED["model"], "fine_tune": False}, augment={"preset": "none"})
    assert keeps_features(frozen)
    assert not keeps_features(recipe(model={**PRETRAINED["model"], "fine_tune": False}, augment={"preset": "light"}))
    assert told(frozen, step_s=4.0) == []  # 400 s
    (said,) = told(frozen, step_s=8.0)
    assert said.startswith("The first epoch, in which the features are computed, will take about 13 min")
    assert "fine_tune" not in said


@pytest.mark.parametrize(
    ("training", "step_s", "is_cpu", "epoch"),
    [({}, 0.5, True, 1), ({}, 4.0, False, 1), ({"time_limit_s": 60.0}, 4.0, True, 1), ({}, 2.9, True, 9)],
    ids=["quick", "on a GPU", "limited", "nearly done"],
)
def test_nothing_is_said(training: dict[str, object], step_s: float, is_cpu: bool, epoch: int) -> None:
    assert told(recipe(training=training), step_s=step_s, is_cpu=is_cpu, epoch=epoch) == []


def test_from_scratch_the_small_network_is_quicker() -> None:
    ways = quicker(Recipe.from_dict({"model": {"name": "resnet18", "weights": "none"}}).resolved())
    assert ways[0].startswith("--model small")
    assert not any("fine_tune" in way for way in ways)
