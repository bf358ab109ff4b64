"""Which keys of a recipe must stay, and what is said when one did not."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnaround import recipes
from turnaround.errors import RunDirectoryError
from turnaround.recipe import Recipe
from turnaround.training.recipe_changes import deciding_keys, refuse_changes

RUN = Path("runs/a")


def recipe(*settings: str) -> Recipe:
    return recipes.find("fruitbowl", list(settings)).resolved()


@pytest.mark.parametrize(
    "setting",
    [
        *("training.checkpoint_every_s=5", "training.checkpoint_every_steps=5", "training.stop_on_full_disk=true"),
        *("training.compile=on", "workers.engine=horovod", "data.cache=off", "data.source=/elsewhere"),
    ],
)
def test_what_may_change(setting: str) -> None:
    refuse_changes(deciding_keys(recipe()), recipe(setting), RUN)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("training.seed=3", "training.seed was 0, is 3"),
        ("training.optimizer=adam", ", is adam"),
        ("training.batch_total=64", "training.batch_total was None, is 64"),
        ("augment.zoom=0.5", "augment.zoom was "),
        ("workers.count=2", "workers.count was 1, is 2"),
        ("data.size_px=96", "data.size_px was 64, is 96"),
        ("model.name=resnet18", "model.name was small, is resnet18"),
    ],
)
def test_what_must_stay(setting: str, said: str) -> None:
    with pytest.raises(RunDirectoryError, match="was changed after the run began") as caught:
        refuse_changes(deciding_keys(recipe()), recipe(setting), RUN)
    assert said in str(caught.value)
    assert "Put it back to go on, or start a new run" in str(caught.value)


def test_a_checkpoint_of_an_older_turnaround_knows_fewer_keys() -> None:
    refuse_changes({}, recipe(), RUN)
    refuse_changes({"training.seed": 0, "training.key_of_tomorrow": 1}, recipe(), RUN)
