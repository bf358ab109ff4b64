"""From a recipe to decoded pixels: what is found wrong before any process starts, and where the cache is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from turnaround import recipes
from turnaround.data.pixels import default_cache
from turnaround.data.reading import rows_of
from turnaround.errors import DataError, ProcessFailedError
from turnaround.launch import lifecycle
from turnaround.launch.prepare import Prepared, cache_root, prepare_images
from turnaround.recipe import Recipe


def recipe(*overrides: str, source: str = "fruitbowl") -> Recipe:
    return recipes.find(source, ["data.images=24", "data.size_px=16", *overrides]).resolved()


def prepared(made: Recipe, cache: Path, shown: list[tuple[str, int, int]] | None = None) -> Prepared:
    return prepare_images(made, cache=cache, show=lambda *what: None if shown is None else shown.append(what))


def not_kept(made: Recipe) -> Recipe:
    return made.replace("data", cache="none")


def all_rows(found: Prepared) -> np.ndarray:
    rows = rows_of(found.pixels)
    size_px = 16
    out = np.zeros((len(found.pixels.labels), size_px, size_px, 3), np.uint8)
    rows.take(np.arange(len(out)), out)
    rows.close()
    return out


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


def test_a_batch_that_is_larger_than_the_set_is_said(tmp_path: Path) -> None:
    found = prepared(recipe("training.batch_per_worker=100", "workers.count=2"), tmp_path)
    (told,) = [warning for warning in found.table.warnings if "global batch" in warning]
    assert told == (
        "The global batch of 200 is larger than the 18 training images: each epoch is one update. Take a smaller one: "
        "--batch 2."
    )
    fitting = prepared(recipe("training.batch_per_worker=18"), tmp_path)
    assert not [warning for warning in fitting.table.warnings if "global batch" in warning]


def test_the_hold_out_follows_the_seed_of_the_training(tmp_path: Path) -> None:
    splits = [prepared(recipe(f"training.seed={seed}"), tmp_path).table.files for seed in (1, 1, 2)]
    assert splits[0] == splits[1] != splits[2]


def test_cache_on_off_and_in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNAROUND_CACHE", str(tmp_path / "own"))
    temporary = tmp_path / "run" / ".pixels"
    assert cache_root(recipe(), temporary=temporary) == tmp_path / "own" == default_cache()
    assert cache_root(recipe("data.cache=off"), temporary=temporary) == temporary
    assert cache_root(not_kept(recipe()), temporary=temporary) == tmp_path / "own"
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


def test_images_that_are_decoded_anew_are_the_same_images(tmp_path: Path) -> None:
    kept, unkept = prepared(recipe(), tmp_path), prepared(not_kept(recipe()), tmp_path)
    assert unkept.pixels.images is None
    assert unkept.pixels.fingerprint == kept.pixels.fingerprint  # so a run goes on after its cache has changed
    assert unkept.table.warnings == kept.table.warnings  # asked for: nothing to warn of
    assert np.array_equal(all_rows(unkept), kept.pixels.images)
    assert np.array_equal(all_rows(kept), kept.pixels.images)
    shown: list[tuple[str, int, int]] = []
    assert prepared(not_kept(recipe()), tmp_path, shown).pixels.from_cache
    assert shown == []


def test_a_disk_without_room_is_told_with_its_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    kept = prepared(recipe(), tmp_path / "large")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10_000))
    found = prepared(recipe(), tmp_path / "small")
    assert found.pixels.images is None
    assert found.pixels.fingerprint == kept.pixels.fingerprint
    *others, sentence = found.table.warnings
    assert tuple(others) == kept.table.warnings
    rate = found.pixels.decode_images_per_s
    for words in (
        f"do not fit into the cache '{tmp_path / 'small'}' (0.00 GB needed, 0.00 GB free)",
        "all 24 images are decoded again at every start",
        f"at {rate:,.0f} images/s that takes {24 / rate:,.1f} s on this machine",
        "a cache directory with 0.00 GB free (--set data.cache=DIR)",
        "--set data.size_px=N",
    ):
        assert words in sentence
    assert not re.search(r"data\.cache=none", sentence)
    assert np.array_equal(all_rows(found), kept.pixels.images)
    # The sentence comes with every start, not only with the first.
    assert len(prepared(recipe(), tmp_path / "small").table.warnings) == len(found.table.warnings)


@pytest.mark.fault(15, "killed with --restarts: the images are prepared again, and only then is it an error")
def test_a_killed_decoder_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def killed(*_: object, **__: object) -> None:
        calls.append("prepare")
        raise ProcessFailedError("A process that decodes images was killed (signal 9).")

    monkeypatch.setattr(lifecycle, "prepare_images", killed)
    for restarts in (0, 2):
        calls.clear()
        request = lifecycle.Request(out=tmp_path / "run", show=lambda *_: None, restarts=restarts)
        with pytest.raises(ProcessFailedError, match="was killed"):
            lifecycle._prepared(recipe(), request, cache=tmp_path)
        assert len(calls) == restarts + 1
