"""Trainings on data as people have it: a table gives the curve of its folder to the bit; shards are trained on."""

from __future__ import annotations

import shutil
from pathlib import Path

from data.formats.pictures import shard
from forking import ForkingLauncher
from running import train
from turnaround.record.reader import Run

SETTINGS = ("data.size_px=16", "model.name=small", "training.epochs=1", "training.batch_per_worker=32")


def curve(run: Run) -> list[tuple[object, ...]]:
    return [(epoch.train_loss, epoch.val_loss, epoch.val_accuracy) for epoch in run.epochs]


def test_a_table_and_shards_are_trained_on(fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> None:
    photos = Path(shutil.copytree(fruit_folder, tmp_path / "photos"))
    folder = train(photos, tmp_path / "folder", *SETTINGS, launcher=forking)
    files = sorted(photos.rglob("*.bmp"))
    lines = [f"{file.relative_to(photos)},{file.parent.name}" for file in files]
    (photos / "labels.csv").write_text("\n".join(["file,label", *lines]))
    table = train(photos / "labels.csv", tmp_path / "table", *SETTINGS, launcher=forking)
    assert curve(table) == curve(folder)
    assert table.recipe["images"]["fingerprint"] == folder.recipe["images"]["fingerprint"]
    members = [
        member
        for file in files
        for key in [f"{file.parent.name}/{file.stem}"]
        for member in ((f"{key}.bmp", file.read_bytes()), (f"{key}.cls", file.parent.name.encode()))
    ]
    shard(tmp_path / "shards" / "0.tar", members)
    shards = train(tmp_path / "shards", tmp_path / "of-shards", *SETTINGS, launcher=forking)
    assert shards.recipe["images"]["num_train"] == folder.recipe["images"]["num_train"] == 192
    assert shards.recipe["images"]["classes"] == folder.recipe["images"]["classes"]
    assert len(curve(shards)) == 1
