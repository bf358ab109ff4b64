"""The best epoch's weights: written with the next checkpoint, whole or invisible, the two newest kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from training.test_saving import taken
from turnaround.errors import DiskFullError
from turnaround.record.layout import CheckpointFiles, CheckpointName
from turnaround.record.schema import BestEpoch
from turnaround.training import checkpoint
from turnaround.training.best import BestWeights, best_epoch, newest_best, remove_later, write_best
from turnaround.training.checkpoint import load_tensors
from turnaround.training.saving import Saver


def kept(epoch: int) -> BestWeights:
    best = BestEpoch(epoch=epoch, val_accuracy=epoch / 100, val_loss=0.5)
    return BestWeights(best=best, weights={"weight": torch.full((2, 3), float(epoch))})


def names(folder: Path) -> list[str]:
    return [files.path.name for files in CheckpointFiles.all_in(folder)]


def test_it_comes_back_and_the_two_newest_are_kept(tmp_path: Path) -> None:
    for epoch in (1, 4, 7):
        path = write_best(tmp_path / "best", kept(epoch))
    assert names(tmp_path / "best") == ["epoch-00004", "epoch-00007"]
    assert newest_best(tmp_path / "best") == (path, None)
    assert best_epoch(path) == kept(7).best
    assert torch.equal(load_tensors(CheckpointFiles(path).weights, tmp_path)["weight"], kept(7).weights["weight"])


def test_what_is_trained_again_is_removed(tmp_path: Path) -> None:
    for epoch in (4, 7):
        write_best(tmp_path / "best", kept(epoch))
    remove_later(tmp_path / "best", than_epoch=6)
    assert names(tmp_path / "best") == ["epoch-00004"]


def test_none_is_no_problem(tmp_path: Path) -> None:
    assert newest_best(tmp_path / "best") == (None, None)
    remove_later(tmp_path / "best", than_epoch=0)


def test_a_write_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = write_best(tmp_path / "best", kept(1))

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(DiskFullError, match="save the best weights"):
        write_best(tmp_path / "best", kept(2))
    assert newest_best(tmp_path / "best") == (before, None)
    assert [p.name for p in (tmp_path / "best").iterdir()] == ["epoch-00001"]


def test_a_manifest_of_another_epoch_is_damage(tmp_path: Path) -> None:
    path = write_best(tmp_path / "best", kept(3))
    path.rename(path.with_name(str(CheckpointName(5))))
    found, problem = newest_best(tmp_path / "best")
    assert found is None
    assert problem == "the best weights, epoch-00005, are damaged (their manifest is that of another epoch)"


def test_it_is_written_with_the_next_checkpoint_and_only_once(tmp_path: Path) -> None:
    saver = Saver(tmp_path / "checkpoint", best_folder=tmp_path / "best")
    saver.hold(kept(1))
    saver.hold(kept(2))  # better, before anything was written: the first never reaches the disk
    assert not (tmp_path / "best").exists()
    saver.begin(taken(2, nn.Linear(3, 2)))
    saver.wait()
    assert names(tmp_path / "best") == ["epoch-00002"]
    written = CheckpointFiles(tmp_path / "best" / "epoch-00002").manifest.stat().st_mtime_ns
    saver.begin(taken(3, nn.Linear(3, 2)))
    saver.wait()
    assert CheckpointFiles(tmp_path / "best" / "epoch-00002").manifest.stat().st_mtime_ns == written


def test_what_had_no_room_is_held_for_the_next_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[DiskFullError] = []
    saver = Saver(tmp_path / "checkpoint", best_folder=tmp_path / "best", on_full_disk=told.append)
    saver.hold(kept(1))

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        saver.begin(taken(1, nn.Linear(3, 2)))
        saver.wait()
    assert len(told) == 1
    saver.begin(taken(2, nn.Linear(3, 2)))
    saver.wait()
    assert names(tmp_path / "best") == ["epoch-00001"]
