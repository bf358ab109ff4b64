"""Which keys of a recipe must stay, and what is said when one did not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnaround import recipes
from turnaround.errors import RunDirectoryError
from turnaround.record.coding import own_digest
from turnaround.record.recipe_changes import began_with, deciding_keys, recorded_change, refuse_changes

RUN = Path("runs/a")


def recipe(*settings: str) -> dict[str, Any]:
    return recipes.find("fruitbowl", list(settings)).resolved().to_dict()


@pytest.mark.parametrize(
    "setting",
    [
        *("training.checkpoint_every_s=5", "training.checkpoint_every_steps=5", "training.stop_on_full_disk=true"),
        *("training.checkpoint_every_s=auto", "training.interruptions_per_h=2"),
        *("training.compile=on", "workers.engine=horovod", "data.cache=off", "data.source=/elsewhere"),
    ],
)
def test_what_may_change(setting: str) -> None:
    refuse_changes(deciding_keys(recipe()), recipe(setting), RUN)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("training.seed=3", "training.seed was 0, is 3"),
        ("training.optimizer=adam", ", is 'adam'"),
        ("training.batch_total=64", "training.batch_total was None, is 64"),
        ("augment.zoom=0.5", "augment.zoom was "),
        ("workers.count=2", "workers.count was 1, is 2"),
        ("data.size_px=96", "data.size_px was 64, is 96"),
        ("data.holdout=0.3", "data.holdout was 0.2, is 0.3"),
        ("model.name=resnet18", "model.name was 'small', is 'resnet18'"),
    ],
)
def test_what_must_stay(setting: str, said: str) -> None:
    with pytest.raises(RunDirectoryError, match="was changed after the run began") as caught:
        refuse_changes(deciding_keys(recipe()), recipe(setting), RUN)
    assert said in str(caught.value)
    assert "Put it back to go on, or start a new run" in str(caught.value)


def test_what_a_resume_has_changed_is_on_record() -> None:
    keys = {"training.epochs": (10, 40), "training.time_limit_s": (600.0, None)}
    change = recorded_change(keys, segment=2, after_epoch=10)
    assert change == {
        "segment": 2,
        "after_epoch": 10,
        "keys": {"training.epochs": [10, 40], "training.time_limit_s": [600.0, None]},
    }
    before = {**deciding_keys(recipe()), "training.epochs": 10, "training.time_limit_s": 600.0}
    more = recorded_change({"training.epochs": (40, 50)}, segment=3, after_epoch=40)
    refuse_changes(before, recipe("training.epochs=40"), RUN, changes=[change])
    refuse_changes(before, recipe("training.epochs=50"), RUN, changes=[change, more])
    refuse_changes({**before, "training.epochs": 40}, recipe("training.epochs=50"), RUN, changes=[change, more])
    with pytest.raises(RunDirectoryError, match=r"training\.epochs was 40, is 41"):
        refuse_changes(before, recipe("training.epochs=41"), RUN, changes=[change])
    damaged = [None, {}, {"keys": 3}, {"keys": {"training.epochs": 40}}]
    with pytest.raises(RunDirectoryError, match=r"training\.epochs was 10, is 40"):
        refuse_changes(before, recipe("training.epochs=40"), RUN, changes=damaged)


def test_a_checkpoint_of_an_older_turnaround_knows_fewer_keys() -> None:
    refuse_changes({}, recipe(), RUN)
    refuse_changes({"training.seed": 0, "training.key_of_tomorrow": 1}, recipe(), RUN)


def test_what_checkpoints_say(tmp_path: Path) -> None:
    assert began_with(tmp_path / "none") == {}
    whole = {"recipe": {"a.b": 1}}
    said = ["nonsense", "[" * 100_000, "[]", "{}", '{"recipe": 3}', '{"recipe": {"a.b": 2}}']
    said += ['{"recipe": {"a.b": 2}, "digest": 7}', json.dumps({"format": 1, **whole, "digest": own_digest(whole)})]
    for number, content in enumerate(said):
        (tmp_path / f"epoch-{number:05d}").mkdir()
        (tmp_path / f"epoch-{number:05d}" / "manifest.json").write_text(content)
    assert began_with(tmp_path) == {"a.b": 1}


def test_long_values_are_cut() -> None:
    before = deciding_keys(recipe())
    with pytest.raises(RunDirectoryError) as caught:
        refuse_changes({**before, "model.name": "x" * 50_000}, recipe(), RUN)
    assert len(str(caught.value)) < 500
