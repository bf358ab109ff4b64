"""fruitbowl: the same bytes for the same seed, whole folders or none, and errors that say what to do."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from PIL import Image

from turnaround import fruitbowl
from turnaround.errors import DataError, ProcessFailedError, RecipeError, StorageError


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def small_set(root: Path, **changes: int) -> Path:
    return fruitbowl.generate(root, **({"images": 13, "size_px": 16, "seed": 3} | changes))


def die(*_: object) -> NoReturn:
    os._exit(1)


# ---- drawing


def test_the_bytes_of_a_seed_are_pinned():
    """If this fails, a pixel changed: raise fruitbowl.VERSION, look at the images, put the new hash here."""
    digest = hashlib.sha256()
    for label in range(6):
        for index, size_px in ((0, 64), (1, 32), (7, 17)):
            digest.update(fruitbowl.draw(label=label, index=index, seed=0, size_px=size_px).tobytes())
    assert digest.hexdigest() == "5892f6bc72aa61d43239485a19477f82986905fcf304c861bf50ae60e85133cc"


def test_an_image_depends_on_seed_class_and_index_alone():
    first = fruitbowl.draw(label=1, index=2, seed=3, size_px=32)
    fruitbowl.draw(label=4, index=2, seed=3, size_px=32)
    assert np.array_equal(first, fruitbowl.draw(label=1, index=2, seed=3, size_px=32))
    for change in ({"label": 4}, {"index": 3}, {"seed": 4}, {"seed": -3}):
        other = fruitbowl.draw(**({"label": 1, "index": 2, "seed": 3, "size_px": 32} | change))
        assert not np.array_equal(first, other), change


@pytest.mark.parametrize("size_px", [16, 17, 33, 64, 128])
def test_every_size_is_a_colour_image_with_something_on_it(size_px):
    for label in range(6):
        pixels = fruitbowl.draw(label=label, index=0, seed=0, size_px=size_px)
        assert pixels.shape == (size_px, size_px, 3)
        assert pixels.dtype == np.uint8
        assert pixels.std() > 10


def test_the_same_scene_at_every_size():
    for label in range(6):
        large = fruitbowl.draw(label=label, index=1, seed=0, size_px=128).astype(float)
        small = fruitbowl.draw(label=label, index=1, seed=0, size_px=32).astype(float)
        shrunk = large.reshape(32, 4, 32, 4, 3).mean(axis=(1, 3))
        assert np.abs(shrunk - small).mean() < 8


def test_rotten_fruit_is_darker_on_average_and_no_single_pixel_tells_it():
    def brightness(label):
        centre = slice(12, 20)
        drawn = [fruitbowl.draw(label=label, index=i, seed=0, size_px=32)[centre, centre] for i in range(60)]
        return np.array([pixels.mean() for pixels in drawn])

    for kind in range(3):
        fresh, rotten = brightness(kind), brightness(kind + 3)
        assert rotten.mean() < fresh.mean() - 5
        assert rotten.max() > np.median(fresh), "the classes overlap"


# ---- the folder


def test_classes_are_balanced_and_the_files_are_what_draw_draws(tmp_path):
    root = small_set(tmp_path / "a" / "bowl", images=15)
    assert root == tmp_path / "a" / "bowl"
    counts = {folder.name: len(list(folder.iterdir())) for folder in root.iterdir() if folder.is_dir()}
    assert sorted(counts) == sorted(fruitbowl.CLASSES)
    assert sorted(counts.values()) == [2, 2, 2, 3, 3, 3]
    with Image.open(root / "fresh_orange" / "00002.bmp") as image:
        assert np.array_equal(np.asarray(image), fruitbowl.draw(label=2, index=2, seed=3, size_px=16))
    stated = json.loads((root / "fruitbowl.json").read_text())
    assert stated == {"version": fruitbowl.VERSION, "images": 15, "size_px": 16, "seed": 3}


def test_a_second_call_returns_at_once(tmp_path, monkeypatch):
    root = small_set(tmp_path / "bowl")
    monkeypatch.setattr(fruitbowl, "draw", die)
    assert small_set(root) == root


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "bowl").mkdir()
    assert len(files_of(small_set(tmp_path / "bowl"))) == 14


def test_processes_draw_the_same_files_and_progress_counts_up(tmp_path, monkeypatch):
    serial = small_set(tmp_path / "serial", images=120)
    monkeypatch.setattr(fruitbowl, "PARALLEL_FROM_IMAGES", 100)
    monkeypatch.setattr(fruitbowl.children, "num_helpers", lambda: 2)
    seen: list[int] = []
    parallel = fruitbowl.generate(tmp_path / "parallel", images=120, size_px=16, seed=3, on_progress=seen.append)
    assert files_of(parallel) == files_of(serial)
    assert seen == sorted(set(seen))
    assert seen[-1] == 120


def test_an_exception_halfway_leaves_nothing(tmp_path):
    def stop(num_written: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fruitbowl.generate(tmp_path / "bowl", images=60, size_px=16, seed=0, on_progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_kill_halfway_leaves_no_root_and_the_next_call_succeeds(tmp_path):
    program = (
        "import os, pathlib, sys; from turnaround import fruitbowl;"
        "fruitbowl.generate(pathlib.Path(sys.argv[1]), images=60, size_px=16, seed=3,"
        " on_progress=lambda _: os.kill(os.getpid(), 9))"
    )
    root = tmp_path / "bowl"
    killed = subprocess.run([sys.executable, "-c", program, str(root)], check=False)
    assert killed.returncode == -9
    assert not root.exists()
    assert len(files_of(small_set(root, images=60))) == 61


def test_whoever_comes_second_uses_the_folder_of_the_first(tmp_path):
    root = tmp_path / "bowl"

    def overtake(num_written: int) -> None:
        small_set(root)

    fruitbowl.generate(root, images=13, size_px=16, seed=3, on_progress=overtake)
    assert [path.name for path in tmp_path.iterdir()] == ["bowl"]


# ---- what can be wrong


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": 11}, r"at least 2 images .* Received: images = 11\. Set data\.images to 12"),
        ({"size_px": 15}, r"16 to 1024 px\. Received: size_px = 15\. Set data\.size_px"),
        ({"size_px": 1025}, r"Received: size_px = 1025"),
    ],
)
def test_values_out_of_range(tmp_path, changes, message):
    with pytest.raises(RecipeError, match=message):
        small_set(tmp_path / "bowl", **changes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("changes", [{"images": 14}, {"size_px": 17}, {"seed": 4}])
def test_other_parameters_are_never_overwritten(tmp_path, changes):
    root = small_set(tmp_path / "bowl")
    before = files_of(root)
    with pytest.raises(DataError, match=r"other parameters. Found: .* Wanted: .* Delete .* or choose"):
        small_set(root, **changes)
    assert files_of(root) == before


def test_somebody_elses_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="not a generated fruitbowl data set"):
        small_set(tmp_path)
    assert files_of(tmp_path) == {"thesis.tex": b"years of work"}


def test_a_missing_image_is_noticed(tmp_path):
    root = small_set(tmp_path / "bowl")
    (root / "fresh_apple" / "00001.bmp").unlink()
    with pytest.raises(DataError, match=r"damaged: it holds 12 of 13 images\. Delete"):
        small_set(root)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"Cannot write the generated images to .*another folder"):
        small_set(tmp_path / "file" / "bowl")


def test_a_process_that_dies_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(fruitbowl, "PARALLEL_FROM_IMAGES", 100)
    monkeypatch.setattr(fruitbowl.children, "num_helpers", lambda: 2)
    monkeypatch.setattr(fruitbowl, "_write", die)
    with pytest.raises(ProcessFailedError, match="A process that draws images died"):
        small_set(tmp_path / "bowl", images=120)
    assert list(tmp_path.iterdir()) == []


def test_no_torch_is_needed():
    program = "import sys; import turnaround.fruitbowl; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
