"""Pixels that were changed in the cache are never trained on: found when they are first read, and decoded again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from turnaround.data import first_read as module
from turnaround.data.batches import Batches, Residency, Slicing
from turnaround.data.folder import scan
from turnaround.data.pixels import Pixels, checksum_of, open_pixels, prepare
from turnaround.data.sums import sums_of
from turnaround.errors import DamagedCacheError

CPU = torch.device("cpu")
SLICING = Slicing(seed=1, global_batch=16, workers=1, hosted=range(1))


@pytest.fixture
def pixels(fruit_folder: Path, tmp_path: Path) -> Pixels:
    return entry_of(fruit_folder, tmp_path)


def entry_of(folder: Path, cache: Path) -> Pixels:
    return prepare(scan(folder, holdout=0.2, seed=0), size_px=16, cache=cache, skip_bad=False)


def flip(pixels: Pixels, number: int) -> None:
    """One bit of a picture, as a disk would: no time of the file tells."""
    path = pixels.cache_dir / "images.npy"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(pixels.images.offset + number * pixels.images[0].nbytes + 99)  # type: ignore[union-attr]
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def steps(pixels: Pixels, place: Residency, device: torch.device = CPU) -> Iterator[Tensor]:
    batches = Batches(pixels, device=device, residency=place)
    try:
        for batch in batches.steps(SLICING, epoch=0):
            yield batch.ids
    finally:
        batches.close()


@pytest.mark.fault(23, "decoded pixels decay in the cache: found when they are first read, before a step has them")
@pytest.mark.parametrize("has_sums", [True, False], ids=["", "of a version without sums"])
@pytest.mark.parametrize("place", ["host", "disk"])
def test_changed_pixels_reach_no_step(
    pixels: Pixels, place: Residency, has_sums: bool, fruit_folder: Path, tmp_path: Path
) -> None:
    flip(pixels, 7)
    pixels = open_pixels(pixels.cache_dir) if has_sums else replace(open_pixels(pixels.cache_dir), pixel_sums=None)
    seen: list[int] = []
    with pytest.raises(DamagedCacheError) as caught:
        seen.extend(number for ids in steps(pixels, place) for number in ids.tolist())
    assert 7 not in seen
    assert repr(pixels.files[7]) in str(caught.value)
    assert "is built again from the images at the next start" in str(caught.value)
    assert not entry_of(fruit_folder, tmp_path).from_cache


def test_validation_images_are_compared_too(pixels: Pixels) -> None:
    flip(pixels, pixels.num_train)
    batches = Batches(pixels, device=CPU, residency="disk")
    with pytest.raises(DamagedCacheError):
        list(batches.validation(rank=0, size=1, batch_size=8))
    batches.close()


@pytest.mark.parametrize("place", ["host", "disk"])
def test_each_row_is_compared_once(pixels: Pixels, place: Residency, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    monkeypatch.setattr(module, "sums_of", lambda rows: (compared.append(len(rows)), sums_of(rows))[1])
    batches = Batches(pixels, device=CPU, residency=place)
    for epoch in range(3):
        list(batches.steps(SLICING, epoch=epoch))
        list(batches.validation(rank=0, size=1, batch_size=8))
        list(batches.train_sample(num_images=20, rank=0, size=1, batch_size=8))
    batches.close()
    assert sum(compared) == len(pixels.labels)


def test_a_cache_of_others_is_named(pixels: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(pixels, 0)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(DamagedCacheError, match=r"its owner must remove that folder.* --set data.cache=DIR"):
        list(steps(pixels, "host"))


def test_entries_without_sums_are_still_used(pixels: Pixels, fruit_folder: Path, tmp_path: Path) -> None:
    path = pixels.cache_dir / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksums"]["pixel_sums.npy"]
    manifest["checksum"] = checksum_of(manifest)
    path.write_text(json.dumps(manifest))
    (pixels.cache_dir / "pixel_sums.npy").unlink()
    old = entry_of(fruit_folder, tmp_path)
    assert (old.from_cache, old.pixel_sums) == (True, None)
    assert len(list(steps(old, "host"))) > 1


@pytest.mark.parametrize("size_px", [7, 8, 30])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_torch_and_numpy_agree(size_px: int, device: str) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (5, size_px, size_px, 3), dtype=np.uint8)
    assert module._sums_on_device(torch.from_numpy(rows).to(device)).tolist() == sums_of(rows).tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_changed_pixels_reach_no_step_of_a_gpu(pixels: Pixels, place: Residency) -> None:
    assert len(list(steps(pixels, place, torch.device("cuda", 0)))) > 1
    flip(pixels, 7)
    with pytest.raises(DamagedCacheError):
        list(steps(pixels, place, torch.device("cuda", 0)))
