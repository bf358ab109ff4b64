"""The set of JPEGs that speed is measured on: the same bytes every time, the sizes that it states, and whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "bench" / "jpeg_set.py"
SMALL = ("--classes", "3", "--width-px", "60", "--height-px", "50")


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def content(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in sorted(folder.glob("*/*.jpg"))}


def test_the_seed_decides_every_byte(tmp_path: Path) -> None:
    for name, seed in (("one", "5"), ("same", "5"), ("other", "6")):
        assert make(tmp_path / name, "--images", "70", "--seed", seed, *SMALL).returncode == 0
    one, same, other = (content(tmp_path / name) for name in ("one", "same", "other"))
    assert one == same
    assert one.keys() == other.keys()
    assert not set(one.values()) & set(other.values())
    assert len(set(one.values())) == 70


def test_every_class_has_its_share(tmp_path: Path) -> None:
    make(tmp_path / "set", "--images", "31", *SMALL)
    counts = {folder.name: len(list(folder.iterdir())) for folder in (tmp_path / "set").iterdir() if folder.is_dir()}
    assert counts == {"class-000": 11, "class-001": 10, "class-002": 10}


def test_images_have_the_sides_and_the_file_size_of_caltech(tmp_path: Path) -> None:
    make(tmp_path / "set", "--images", "80", "--classes", "257")
    files = list((tmp_path / "set").glob("*/*.jpg"))
    sides, modes = [], set()
    for file in files:
        with Image.open(file) as image:
            image.load()
            sides.append(image.size)
            modes.add((image.format, image.mode))
    assert modes == {("JPEG", "RGB")}
    widths, heights = np.array(sides).T
    assert widths.mean() == pytest.approx(400, abs=30)
    assert heights.mean() == pytest.approx(350, abs=30)
    assert 280 <= widths.min() < 330
    assert 470 < widths.max() <= 520
    assert 20_000 < np.mean([file.stat().st_size for file in files]) < 40_000


def test_the_waves_tell_the_class(tmp_path: Path) -> None:
    """In the spectrum of every image the peak of its class stands out: direction 0 runs across, 8 down."""
    make(tmp_path / "set", "--images", "36", "--classes", "9", "--seed", "1")
    for label, axis in ((0, 1), (8, 0)):
        for file in (tmp_path / "set" / f"class-{label:03d}").iterdir():
            with Image.open(file) as image:
                red = np.asarray(image.convert("RGB"), dtype=float)[..., 0]
            profile = red.mean(axis=1 - axis)
            spectrum = np.abs(np.fft.rfft(profile * np.hanning(len(profile))))
            waves = round(len(profile) / 50)  # 8 of them to 400 px
            assert spectrum[waves - 1 : waves + 2].max() > 3 * np.median(spectrum[4:])


def test_a_complete_set_is_kept_and_another_one_refused(tmp_path: Path) -> None:
    make(tmp_path / "set", "--images", "12", *SMALL)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "set").rglob("*")}
    assert make(tmp_path / "set", "--images", "12", *SMALL).returncode == 0
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "set").rglob("*")} == before
    refused = make(tmp_path / "set", "--images", "13", *SMALL)
    assert refused.returncode == 1
    assert "is not the set that was asked for. Remove it, or name another folder." in refused.stderr
    assert json.loads((tmp_path / "set" / "jpeg_set.json").read_text())["images"] == 12
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_sides_beyond_the_texture_are_refused(tmp_path: Path) -> None:
    refused = make(tmp_path / "set", "--width-px", "900")
    assert "Sides of up to 787 px on average can be drawn." in refused.stderr
