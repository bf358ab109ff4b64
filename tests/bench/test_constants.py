"""The subsets on which constants are tried: so many training images, every class, one validation part for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import constants

    return constants.Trials(work=tmp_path, device="cpu", seeds=1, photos=None, weights=None, small_images=None)


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.rglob("*.*") if file.is_file()}


def test_subsets_differ_in_their_training_images_alone(trials: Any, fruit_folder: Path) -> None:
    few, more = trials.subset(fruit_folder, 20), trials.subset(fruit_folder, 60)
    assert (len(names(few / "train")), len(names(more / "train"))) == (20, 60)
    assert names(few / "train") < names(more / "train")
    assert names(few / "test") == names(more / "test") != set()
    assert not names(more / "train") & names(more / "test")
    classes = {folder.name for folder in (more / "test").iterdir()}
    assert {folder.name for folder in (few / "train").iterdir()} == classes


def test_no_class_is_missing_from_a_tiny_subset(trials: Any, fruit_folder: Path) -> None:
    tiny = trials.subset(fruit_folder, 1)
    assert all(len(list(folder.iterdir())) == 2 for folder in (tiny / "train").iterdir())
