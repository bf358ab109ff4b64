"""What a resume says about images that are not those of the start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from turnaround.data.changes import changes
from turnaround.data.folder import scan
from turnaround.data.pixels import Pixels, prepare


@pytest.fixture
def folder(fruit_folder: Path, tmp_path: Path) -> Path:
    for name in ("fresh_apple", "fresh_banana"):
        for file in sorted((fruit_folder / name).iterdir())[:6]:
            (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, tmp_path / "photos" / name)
    return tmp_path / "photos"


def pixels(folder: Path) -> Pixels:
    table = scan(folder, holdout=0.2, seed=0)
    return prepare(table, size_px=8, cache=folder.parent / "cache", skip_bad=False)


@pytest.mark.fault(30, "what was added, removed and changed is named, as long as the cache knows what was there")
def test_added_removed_and_changed_files_are_named(folder: Path) -> None:
    before = pixels(folder).fingerprint
    first, second, third, *_ = sorted((folder / "fresh_apple").iterdir())
    for number in range(4):
        shutil.copy(first, folder / "fresh_banana" / f"new-{number}.bmp")
    shutil.copy(third, second)
    first.unlink()
    said = changes(before, pixels(folder))
    assert said.startswith(
        "4 added ('fresh_banana/new-0.bmp', 'fresh_banana/new-1.bmp', 'fresh_banana/new-2.bmp' and 1"
    )
    assert f"1 removed ('fresh_apple/{first.name}'), 1 changed ('fresh_apple/{second.name}')" in said


def test_the_same_files_in_other_classes(folder: Path) -> None:
    before = pixels(folder).fingerprint
    now = pixels(folder)
    assert changes(before, now) == "the same files in other classes or parts"


def test_without_the_cache_of_then_nobody_knows(folder: Path) -> None:
    now = pixels(folder)
    (now.cache_dir.parent / "damaged").mkdir()
    (now.cache_dir.parent / "damaged" / "manifest.json").write_text("[")
    assert changes("0" * 64, now) == ""
