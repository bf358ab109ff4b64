"""Files that were added, removed or changed since a run began are named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from turnaround.data.changes import changes_since
from turnaround.data.folder import scan
from turnaround.data.pixels import Pixels, prepare


@pytest.fixture
def fruit_photos(fruit_folder: Path, tmp_path: Path) -> Path:
    for name in ("fresh_apple", "fresh_banana"):
        for file in sorted((fruit_folder / name).iterdir())[:6]:
            (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, tmp_path / "photos" / name)
    return tmp_path / "photos"


def small_pixels(fruit_photos: Path) -> Pixels:
    table = scan(fruit_photos, holdout=0.2, seed=0)
    return prepare(table, size_px=8, cache=fruit_photos.parent / "cache", skip_bad=False)


@pytest.mark.fault(30, "what was added, removed and changed is named, as long as the cache knows what was there")
def test_added_removed_and_changed_files_are_named(fruit_photos: Path) -> None:
    before = small_pixels(fruit_photos).fingerprint
    first, second, third, *_ = sorted((fruit_photos / "fresh_apple").iterdir())
    for number in range(4):
        shutil.copy(first, fruit_photos / "fresh_banana" / f"new-{number}.bmp")
    shutil.copy(third, second)
    first.unlink()
    words = changes_since(before, small_pixels(fruit_photos))
    assert words.startswith(
        "4 added ('fresh_banana/new-0.bmp', 'fresh_banana/new-1.bmp', 'fresh_banana/new-2.bmp' and 1"
    )
    assert f"1 removed ('fresh_apple/{first.name}'), 1 changed ('fresh_apple/{second.name}')" in words


def test_the_same_files_in_other_classes(fruit_photos: Path) -> None:
    before = small_pixels(fruit_photos).fingerprint
    now = small_pixels(fruit_photos)
    assert changes_since(before, now) == "the same files in other classes or parts"


def test_without_the_cache_of_then_nobody_knows(fruit_photos: Path) -> None:
    now = small_pixels(fruit_photos)
    (now.cache_dir.parent / "damaged").mkdir()
    (now.cache_dir.parent / "damaged" / "manifest.json").write_text("[")
    assert changes_since("0" * 64, now) == ""
