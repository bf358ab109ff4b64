"""A folder with one of everything that can be wrong with an image."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from turnaround.check.copies import identical
from turnaround.check.dataset import Check, check_folder, grey_and_constant, split_by_photo
from turnaround.data.folder import scan
from turnaround.errors import DataError


def picture(number: int, size: tuple[int, int] = (64, 64)) -> Image.Image:
    rng = np.random.default_rng(number)
    return Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("odd") / "photos"
    for part, side, numbers in (("train", "a", range(4)), ("train", "b", range(4, 8)), ("val", "a", range(8, 10))):
        (place / part / side).mkdir(parents=True)
        for number in numbers:
            picture(number).save(place / part / side / f"{number}.png")
    a = place / "train" / "a"
    (a / "empty.jpg").write_bytes(b"")
    (a / "page.jpg").write_text("<!DOCTYPE html><html></html>")
    (a / "cut.png").write_bytes((a / "0.png").read_bytes()[:200])
    picture(20).save(a / "really-a-png.jpg", "PNG")
    picture(21).convert("P").save(a / "palette.png")
    transparent = picture(22).convert("RGBA")
    transparent.putalpha(128)
    transparent.save(a / "transparent.png")
    picture(23).convert("CMYK").save(a / "cmyk.jpg")
    Image.fromarray((np.add.outer(np.arange(64), np.arange(64)) * 500).astype(np.uint16)).save(a / "deep.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(24).save(a / "turned.jpg", exif=exif)
    picture(25).save(a / "moving.gif", save_all=True, append_images=[picture(26)])
    picture(27, (16, 16)).save(a / "small.png")
    picture(28, (200, 40)).save(a / "long.png")
    Image.new("RGB", (64, 64), (200, 200, 200)).save(a / "blank.png")
    Image.new("RGB", (64, 64), (90, 10, 10)).save(a / "blank-too.png")
    shutil.copy(a / "1.png", place / "val" / "a" / "copy.png")
    with Image.open(a / "2.png") as image:
        image.save(place / "train" / "b" / "same-pixels.bmp")
    return place


@pytest.fixture(scope="module")
def found(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Check:
    return check_folder(folder, cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def payload(found: Check) -> dict[str, Any]:
    return found.payload()


def test_unreadable_images_are_named_with_the_reason(payload: dict[str, Any]) -> None:
    reasons = {one["file"]: one["reason"] for one in payload["bad"]}
    assert set(reasons) == {"train/a/empty.jpg", "train/a/page.jpg", "train/a/cut.png"}
    assert reasons["train/a/empty.jpg"] == "empty file"
    assert "<!DOCTYPE" in reasons["train/a/page.jpg"]


@pytest.mark.parametrize(
    ("what", "file"),
    [
        ("wrong extension", "really-a-png.jpg"),
        ("palette", "palette.png"),
        ("transparent", "transparent.png"),
        ("CMYK", "cmyk.jpg"),
        ("16 bits or more", "deep.png"),
        ("turned by EXIF", "turned.jpg"),
        ("several frames", "moving.gif"),
        ("smaller than 32 px", "small.png"),
        ("longer than 3 : 1", "long.png"),
        ("grey among colour", "deep.png"),
    ],
)
def test_odd_images(what: str, file: str, payload: dict[str, Any]) -> None:
    by_what = {one["what"]: one["files"] for one in payload["odd"]}
    assert f"train/a/{file}" in by_what[what]


def test_colour_on_a_white_ground_is_not_grey() -> None:
    """A small red thing on white has little colour on average; grey that was saved as a JPEG has a trace of it."""
    spot = np.full((64, 64, 3), 250, np.uint8)
    spot[30:36, 30:36] = (200, 20, 20)  # 36 of 4,096 pixels
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 1)).repeat(3, axis=2)
    tinted = np.clip(noise + np.array([2, 0, -2]), 0, 255)
    grey, constant = grey_and_constant(np.stack([spot, noise, tinted]).astype(np.uint8))
    assert grey.tolist() == [False, True, True]
    assert not constant.any()


def test_constant_images_are_odd_and_related_to_nothing(payload: dict[str, Any]) -> None:
    by_what = {one["what"]: one["files"] for one in payload["odd"]}
    assert by_what["constant"] == ["train/a/blank-too.png", "train/a/blank.png"]
    assert all("blank" not in name for one in payload["groups"] for name in one["files"])


@pytest.mark.fault(49, "a copy across the split and one under two labels: named")
def test_a_copy_across_the_split_and_one_under_two_classes(payload: dict[str, Any]) -> None:
    groups = {tuple(one["files"]): one for one in payload["groups"]}
    leak = groups["train/a/1.png", "val/a/copy.png"]
    assert (leak["kind"], leak["crosses_split"], leak["classes"]) == ("exact", True, ["a"])
    contradiction = groups["train/a/2.png", "train/b/same-pixels.bmp"]  # other bytes, the same pixels
    assert (contradiction["kind"], contradiction["classes"]) == ("exact", ["a", "b"])
    assert payload["leaks"] == {"num": 1, "of": 3, "by_kind": {"exact": 1}}
    assert payload["serious"]


def test_classes_are_counted_and_a_class_without_validation_images_is_warned_of(payload: dict[str, Any]) -> None:
    assert payload["classes"]["b"] == {"train": 5, "validation": 0, "bad": 0}
    assert payload["classes"]["a"]["bad"] == 3
    assert any("without a validation image" in sentence and "'b'" in sentence for sentence in payload["warnings"])
    assert any("fewer than 20 readable training images" in sentence for sentence in payload["warnings"])


def test_a_class_of_which_nothing_can_be_read_is_still_checked(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
    for number in range(4):
        picture(number).save(tmp_path / "photos" / "a" / f"{number}.png")
        (tmp_path / "photos" / "b" / f"{number}.png").write_bytes(b"no")
    payload = check_folder(tmp_path / "photos", cache=tmp_path / "cache").payload()
    assert len(payload["bad"]) == 4
    assert payload["classes"]["b"]["train"] == 0


def test_a_split_by_photo_has_no_leak(found: Check, folder: Path) -> None:
    parts = split_by_photo(found, holdout=0.25, seed=0)
    assert set(parts) == set(found.table.files)
    table = scan(folder, holdout=0.2, seed=0, given=parts)
    assert table.split == "by photo"
    train = set(table.files[: table.num_train])
    assert {"train/a/1.png", "val/a/copy.png"} <= train or not {"train/a/1.png", "val/a/copy.png"} & train


def test_a_split_that_does_not_fit_the_folder(folder: Path) -> None:
    every = dict.fromkeys(scan(folder, holdout=0.2, seed=0).files, "train")
    with pytest.raises(DataError, match="no validation image"):
        scan(folder, holdout=0.2, seed=0, given=every)
    with pytest.raises(DataError, match="no training image of 'b'"):
        scan(folder, holdout=0.2, seed=0, given={n: "validation" if "/b/" in n else "train" for n in every})
    every.pop("train/a/0.png")
    with pytest.raises(DataError, match=r"1 image not in the given split, e.g. 'train/a/0.png'"):
        scan(folder, holdout=0.2, seed=0, given=every)


def test_identical_rows_are_joined_over_both_digests() -> None:
    files = np.array([[1], [1], [2], [3], [4]], np.uint8)
    pixels = np.array([[7], [8], [8], [9], [5]], np.uint8)
    assert identical(files, pixels) == ((0, 1, 2),)
    assert identical(files[2:], pixels[2:]) == ()
