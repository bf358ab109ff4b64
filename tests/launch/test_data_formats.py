"""Trainings on data as people have it: the weights of the folder to the bit, also when killed and resumed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from data.formats.pictures import shard
from forking import ForkingLauncher
from running import request, train
from struck import identical, lines, newest, struck
from turnaround import fruitbowl
from turnaround.errors import DataError, ProcessFailedError
from turnaround.launch import lifecycle
from turnaround.record.reader import Run

SETTINGS = (
    *("data.size_px=16", "model.name=small", "workers.count=2", "training.batch_per_worker=8", "training.epochs=2"),
    *("training.learning_rate=0.001", "training.checkpoint_every_s=1000", "training.checkpoint_every_steps=4"),
    *("augment.rotation_degrees=10", "augment.flip=true"),
)
PARTS = ("train", "val")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum by several threads would round otherwise."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 images to train on and 24 to validate with, in six classes: six steps an epoch."""
    root = tmp_path_factory.mktemp("formats") / "photos"
    for part, images in zip(PARTS, (96, 24), strict=True):
        fruitbowl.generate(root / part, images=images, size_px=16, seed=len(part))
    return root


@pytest.fixture(scope="module")
def of_folder(photos: Path, forking: ForkingLauncher) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        return train(photos, photos.parent / "of-folder", *SETTINGS, launcher=forking)


def in_order(photos: Path, part: str) -> list[Path]:
    """By class and name: containers that are filled so have the folder's order."""
    return sorted((photos / part).rglob("*.bmp"))


def as_shards(photos: Path, place: Path) -> Path:
    """Two shards of each part; the second begins in the middle of a class."""
    for part in PARTS:
        members = [
            [(f"{key}.bmp", file.read_bytes()), (f"{key}.cls", file.parent.name.encode())]
            for file in in_order(photos, part)
            for key in [f"{file.parent.name}/{file.stem}"]
        ]
        half = len(members) // 2 + 3
        for number, some in enumerate((members[:half], members[half:])):
            shard(place / f"{part}-{number}.tar", [pair for pairs in some for pair in pairs])
    return place


def as_parquet(photos: Path, place: Path) -> Path:
    """Bytes and labels as the `datasets` library writes them, in groups of a few rows."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install 'turnaround[parquet]')")
    pq = pytest.importorskip("pyarrow.parquet")
    place.mkdir()
    for part in PARTS:
        files = in_order(photos, part)
        images = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
        table = pa.table({"image": images, "label": [file.parent.name for file in files]})
        pq.write_table(table, place / f"{part}-00000-of-00001.parquet", row_group_size=20)
    return place


def test_a_table_is_trained_on_as_its_folder(
    photos: Path, of_folder: Run, tmp_path: Path, forking: ForkingLauncher
) -> None:
    files = [(part, file) for part in PARTS for file in in_order(photos, part)]
    rows = [f"{file.relative_to(photos)},{file.parent.name},{part}" for part, file in reversed(files)]
    (photos / "labels.csv").write_text("\n".join(["file,label,split", *rows]))
    table = train(photos / "labels.csv", tmp_path / "table", *SETTINGS, launcher=forking)
    assert identical(table, of_folder)
    assert table.recipe["images"]["fingerprint"] == of_folder.recipe["images"]["fingerprint"]


@pytest.mark.fault(37, "killed within an epoch of images in tar shards or Parquet: the folder's weights all the same")
@pytest.mark.parametrize(
    ("written", "settings"),
    [(as_shards, ()), (as_shards, ("data.cache=none",)), (as_parquet, ())],
    ids=["tar", "tar, no cache", "parquet"],
)
def test_killed_and_resumed_containers_give_the_weights_of_the_folder(
    written: Callable[[Path, Path], Path],
    settings: tuple[str, ...],
    photos: Path,
    of_folder: Run,
    tmp_path: Path,
    forking: ForkingLauncher,
) -> None:
    """The same images in the same order, so every weight and every line of the record is the folder's."""
    source = written(photos, tmp_path / "set")
    out, asked = tmp_path / "run", (*SETTINGS, *settings)
    # By the thread that saves: whatever the speed of the disk, update 8 is the newest that is there.
    struck("kind=kill,phase=saved,step=8", source, out, ProcessFailedError, launcher=forking, settings=asked)
    assert newest(out) == "epoch-00001-step-00002"  # update 8 of 6 + 6
    resumed = lifecycle.resume(request(out, launcher=forking))
    assert identical(resumed, of_folder)
    assert lines(resumed) == lines(of_folder)
    assert resumed.recipe["images"]["num_train"] == of_folder.recipe["images"]["num_train"] == 96
    assert resumed.recipe["images"]["classes"] == of_folder.recipe["images"]["classes"]


def cut_off(photos: Path, place: Path) -> Path:
    path = as_shards(photos, place) / "val-1.tar"
    path.write_bytes(path.read_bytes()[:3000])
    return path


def without_a_file(photos: Path, place: Path) -> Path:
    place.mkdir()
    (place / "labels.csv").write_text("file,label\ngone.bmp,a\n")
    return place / "labels.csv"


def damaged_inside(photos: Path, place: Path) -> Path:
    """The labels can be read, the bytes of an image cannot: found when they are decoded."""
    path = as_parquet(photos, place) / "train-00000-of-00001.parquet"
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)  # the head of the first page
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("written", [cut_off, without_a_file, damaged_inside])
def test_bad_input_leaves_nothing(
    written: Callable[[Path, Path], Path],
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forking: ForkingLauncher,
) -> None:
    """The file is named; there is no run directory afterwards, and nothing half decoded in the cache."""
    monkeypatch.setenv("TURNAROUND_CACHE", str(tmp_path / "cache"))
    path = written(photos, tmp_path / "set")
    with pytest.raises(DataError, match=re.escape(path.name)):
        train(path if path.suffix == ".csv" else path.parent, tmp_path / "run", *SETTINGS, launcher=forking)
    assert not (tmp_path / "run").exists()
    assert [entry.name for entry in tmp_path.glob("cache/*") if entry.is_dir()] == []
