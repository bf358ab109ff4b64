"""From a recipe to decoded pixels: what is found wrong before any process starts, and where the cache is."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnaround import recipes
from turnaround.data.pixels import default_cache
from turnaround.data.prepare import Prepared, cache_root, prepare_images
from turnaround.errors import DataError
from turnaround.recipe import Recipe


def recipe(*overrides: str, source: str = "fruitbowl") -> Recipe:
    return recipes.find(source, ["data.images=24", "data.size_px=16", *overrides]).resolved()


def prepared(made: Recipe, cache: Path, shown: list[tuple[str, int, int]] | None = None) -> Prepared:
    return prepare_images(made, cache=cache, show=lambda *what: None if shown is None else shown.append(what))


def test_generated_images_are_drawn_decoded_and_then_reused(tmp_path: Path) -> None:
    shown: list[tuple[str, int, int]] = []
    first = prepared(recipe(), tmp_path, shown)
    assert {what for what, _, _ in shown} == {"drawing images", "decoding images"}
    assert all(0 <= done <= total == 24 for _, done, total in shown)
    assert not first.pixels.from_cache
    shown.clear()
    second = prepared(recipe(), tmp_path, shown)
    assert second.pixels.from_cache
    assert second.pixels.fingerprint == first.pixels.fingerprint
    assert shown == []


def test_table_and_pixels_belong_together(tmp_path: Path) -> None:
    found = prepared(recipe(), tmp_path)
    assert found.pixels.images.shape == (24, 16, 16, 3)
    assert found.pixels.labels.tolist() == found.table.labels.tolist()
    assert found.pixels.num_train == found.table.num_train == 18  # a fifth of four images is one in each class
    assert len(found.pixels.classes) == 6


def test_too_many_workers_are_refused_before_anything_is_decoded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="10 workers need at least 20 training images"):
        prepared(recipe("workers.count=10"), tmp_path)
    assert not list(tmp_path.glob("pixels-*"))


def test_the_hold_out_follows_the_seed_of_the_training(tmp_path: Path) -> None:
    splits = [prepared(recipe(f"training.seed={seed}"), tmp_path).table.files for seed in (1, 1, 2)]
    assert splits[0] == splits[1] != splits[2]


def test_cache_on_off_and_in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNAROUND_CACHE", str(tmp_path / "own"))
    temporary = tmp_path / "run" / ".pixels"
    assert cache_root(recipe(), temporary=temporary) == tmp_path / "own" == default_cache()
    assert cache_root(recipe("data.cache=off"), temporary=temporary) == temporary
    assert cache_root(recipe(f"data.cache={tmp_path / 'mine'}"), temporary=temporary) == tmp_path / "mine"


def test_a_cache_below_the_home_directory_is_below_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root(recipe("data.cache=~/pixels"), temporary=tmp_path / "t") == tmp_path / "pixels"


def test_pixels_go_where_the_cache_is(tmp_path: Path, fruit_folder: Path) -> None:
    found = prepared(recipe(source=str(fruit_folder)), tmp_path / "a")
    assert found.pixels.cache_dir.parent == tmp_path / "a"
    assert found.table.root == fruit_folder
