"""Pictures in every wrapping give the same pixels; what is none is named with its reason."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from turnaround.data.decode import UnreadableImage, decode
from turnaround.errors import DataError
from turnaround.use.images import decode_all, find_images, square_of

RAMP = np.linspace(0, 255, 40 * 30 * 3).astype(np.uint8).reshape(40, 30, 3)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.fromarray(RAMP).save(tmp_path / "ramp.png")
    return tmp_path / "ramp.png"


def test_a_path_bytes_an_image_and_an_array_are_the_same_picture(picture: Path) -> None:
    wanted = decode(picture, size_px=16)[0]
    for wrapped in (picture, str(picture), picture.read_bytes(), Image.open(picture), RAMP):
        np.testing.assert_array_equal(square_of(wrapped, size_px=16), wanted)


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA", "CMYK", "YCbCr", "I;16", "F"])
def test_a_pillow_image_of_any_mode(mode: str, tmp_path: Path) -> None:
    image = Image.fromarray(RAMP[..., 0]).convert("F" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.fromarray(RAMP[..., 0].astype(np.uint16) << 8)
    carried = square_of(image, size_px=16)
    image.save(tmp_path / "same.tif")
    np.testing.assert_array_equal(carried, decode(tmp_path / "same.tif", size_px=16)[0])


def test_transparency_and_orientation_of_a_pillow_image(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (8, 8), (10, 20, 30, 0))
    assert square_of(clear, size_px=4).min() == 255  # white, whatever colour lies under it
    palette = Image.new("P", (8, 8), 0)
    palette.info["transparency"] = 0
    assert square_of(palette, size_px=4).min() == 255
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(RAMP).save(tmp_path / "turned.png", exif=exif)
    turned = square_of(Image.open(tmp_path / "turned.png"), size_px=16)
    difference = np.abs(turned.astype(int) - decode(tmp_path / "turned.png", size_px=16)[0])
    assert difference.max() <= 1  # turned before or after it was made small


@pytest.mark.parametrize("values", [RAMP.astype(np.float32), RAMP[None], RAMP[:, :, :2], RAMP[:0]])
def test_an_array_that_is_no_picture(values: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"an array must be uint8 of shape .* Received: "):
        square_of(values, size_px=16)


def huge_png() -> bytes:
    """A header that promises 100,000 x 100,000 pixels."""
    carrier = BytesIO()
    Image.new("1", (100_000, 1)).save(carrier, "PNG")
    content = bytearray(carrier.getvalue())
    content[20:24] = (100_000).to_bytes(4, "big")
    import zlib

    content[29:33] = zlib.crc32(bytes(content[12:29])).to_bytes(4, "big")
    return bytes(content)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (b"<!DOCTYPE html>", "not an image (starts with '<!DOCTYPE')"),
        (b"\xff\xd8\xff nothing", "damaged header"),
        (huge_png(), "too large"),
        (b"\x80\x04cposix\nsystem\n", "not an image"),
    ],
    ids=["empty", "html", "header", "huge", "pickle"],
)
def test_bytes_that_are_no_picture(data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(UnreadableImage) as from_file:
        square_of(tmp_path / "file", size_px=16)
    with pytest.raises(UnreadableImage) as from_bytes:
        square_of(data, size_px=16)
    assert reason in from_bytes.value.reason
    assert from_bytes.value.reason == from_file.value.reason


def test_a_truncated_picture(picture: Path) -> None:
    carrier = BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(carrier, "JPEG")
    with pytest.raises(UnreadableImage, match="truncated"):
        square_of(carrier.getvalue()[:1500], size_px=16)


def test_devices_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in ((tmp_path / "pipe", "not a plain file"), (Path("/dev/zero"), "not a plain file")):
        with pytest.raises(UnreadableImage, match=reason):
            square_of(path, size_px=16)
    with pytest.raises(UnreadableImage, match="a folder"):
        square_of(tmp_path, size_px=16)


def test_one_bad_file_does_not_touch_the_others(picture: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"nothing")
    found = decode_all([picture, tmp_path / "bad.jpg", tmp_path / "gone.jpg", picture], size_px=16)
    assert [one.square is not None for one in found] == [True, False, False, True]
    assert [one.problem for one in found[1:3]] == ["not an image (starts with 'nothing')", "no such file or directory"]


def test_a_folder_stands_for_the_images_below_it(picture: Path, tmp_path: Path) -> None:
    for name in ("b/2.JPG", "b/1.webp", "b/.hidden.png", ".cache/3.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    found = find_images([tmp_path, Path("-"), tmp_path / "notes.txt"])
    names = [path.name for path in found]
    assert names == ["1.webp", "2.JPG", "ramp.png", "-", "notes.txt"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no image. Looked for: bmp, gif"):
        find_images([tmp_path / "empty"])
