"""When a checkpoint is due, that it is written beside the training, and with it the weights of the best epoch."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from training.test_checkpoint import manifest, optimizer_of
from turnaround.errors import DiskFullError, StorageError
from turnaround.recipe import TrainingRecipe
from turnaround.record.layout import CheckpointFiles, CheckpointName
from turnaround.record.schema import BestEpoch, Status
from turnaround.training import checkpoint, saving
from turnaround.training.checkpoint import StateSnapshot, load_tensors, newest_valid, snapshot
from turnaround.training.position import TrainingPosition
from turnaround.training.saving import (
    BestWeights,
    CheckpointSchedule,
    Saver,
    best_epoch,
    interval_choice,
    newest_best,
    remove_later,
    write_best,
)


def taken(epoch: int, module: nn.Module | None = None) -> StateSnapshot:
    module = module or nn.Linear(3, 2)
    return snapshot(module=module, optimizer=optimizer_of(module), manifest=manifest(epoch))


def due(**keys: object) -> CheckpointSchedule:
    return CheckpointSchedule(TrainingRecipe(**keys))  # type: ignore[arg-type]


def test_by_seconds_an_epoch_that_ends_soon_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [50.0]
    monkeypatch.setattr(saving, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    made = due(checkpoint_every_s=0.05)
    assert not made.after_epoch()
    assert not made.within_epoch(rest_s=100)
    now_s[0] += 0.06
    assert made.after_epoch()
    assert made.within_epoch(rest_s=100)
    assert not made.within_epoch(rest_s=0.004)
    made.saved(pause_s=0.01)
    assert not made.after_epoch()
    assert made.every_s == 0.05  # what was asked for stays


def test_auto_follows_the_rate_of_interruptions_and_the_measured_pause() -> None:
    assert due(checkpoint_every_s="auto").every_s == due().every_s == 60
    often = due(checkpoint_every_s="auto", interruptions_per_h=2.0)
    assert often.every_s == pytest.approx(60, rel=0.02)  # soon enough to measure a pause
    for _ in range(3):
        often.saved(pause_s=0.25)
    assert often.every_s == pytest.approx(30, rel=0.01)  # sqrt(2 x 0.25 s x 1,800 s), Young's rule
    often.saved(pause_s=1.0)  # a mean of 0.44 s
    assert 35 < often.every_s < 42
    assert due(checkpoint_every_s="auto", interruptions_per_h=360.0).every_s < 10
    never = due(checkpoint_every_s="auto", interruptions_per_h=0.0)
    never.saved(pause_s=1.0)
    assert not never.after_epoch()
    given = due(checkpoint_every_s=5.0, interruptions_per_h=360.0)
    given.saved(pause_s=1.0)
    assert given.every_s == 5


def test_a_resume_knows_the_pauses_of_before() -> None:
    recipe = TrainingRecipe(checkpoint_every_s="auto", interruptions_per_h=2.0)
    before = Status(state="running", time_s={"checkpoint": 0.75}, saves=3)
    resumed = CheckpointSchedule(recipe, before)
    assert resumed.every_s == pytest.approx(30, rel=0.01)  # from its first step on
    assert interval_choice(recipe, before)["checkpoint_every_s"].value == resumed.every_s
    resumed.saved(pause_s=1.0)  # a mean of 0.44 s
    assert 35 < resumed.every_s < 42
    for unknown in (
        Status(state="running"),
        replace(before, saves=0),
        replace(before, time_s={"checkpoint": math.nan}),
    ):
        assert CheckpointSchedule(recipe, unknown).every_s == CheckpointSchedule(recipe).every_s


def test_the_interval_that_was_left_to_us_has_its_reason_in_the_record() -> None:
    assert interval_choice(TrainingRecipe()) == {}
    unknown = interval_choice(TrainingRecipe(checkpoint_every_s="auto"))["checkpoint_every_s"]
    assert (unknown.value, "no rate of interruptions" in unknown.reason) == (60, True)
    known = interval_choice(TrainingRecipe(checkpoint_every_s="auto", interruptions_per_h=2.0))["checkpoint_every_s"]
    assert known.reason.startswith("2 interruptions an hour")


def test_no_seconds_are_every_epoch_and_not_every_step() -> None:
    made = due(checkpoint_every_s=0.0)
    assert made.after_epoch()
    assert not made.within_epoch(rest_s=100)


def test_by_steps() -> None:
    def saved_after(schedule: CheckpointSchedule) -> list[int]:
        return [n for n in range(1, 100) if schedule.after_step(TrainingPosition(global_step=n))]

    assert saved_after(due(checkpoint_every_steps=40)) == [40, 80]
    assert saved_after(due()) == []


class Slow:
    """A disk that waits until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_write, self.writing = threading.Event(), 0
        self.most = 0
        plain = checkpoint.save_file

        def slow(tensors: dict[str, torch.Tensor], path: Path) -> None:
            self.writing += 1
            self.most = max(self.most, self.writing)
            self.may_write.wait(60)
            plain(tensors, path)
            self.writing -= 1

        monkeypatch.setattr(checkpoint, "save_file", slow)


def test_training_goes_on_while_it_is_written_and_what_it_changes_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, saver, module = Slow(monkeypatch), Saver(tmp_path), nn.Linear(3, 2)
    wanted = module.weight.detach().clone()
    saver.begin(taken(1, module))
    nn.init.zeros_(module.weight)  # the next step
    assert saver.last is None
    assert newest_valid(tmp_path) == (None, [])
    disk.may_write.set()
    saver.wait()
    assert saver.last == manifest(1).position
    other = nn.Linear(3, 2)
    checkpoint.restore(tmp_path / "epoch-00001", module=other, optimizer=optimizer_of(other))
    assert torch.equal(other.weight, wanted)


def test_one_write_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, saver = Slow(monkeypatch), Saver(tmp_path)
    saver.begin(taken(1))
    threading.Timer(0.05, disk.may_write.set).start()
    for epoch in (2, 3):
        saver.begin(taken(epoch))
    saver.wait()
    assert disk.most == 1
    assert newest_valid(tmp_path) == (tmp_path / "epoch-00003", [])


def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
    raise OSError(28, "No space left on device")


def test_of_a_full_disk_somebody_may_be_told_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[DiskFullError] = []
    saver = Saver(tmp_path, on_full_disk=told.append)
    with monkeypatch.context() as disk:
        disk.setattr(checkpoint, "save_file", full)
        saver.begin(taken(1))
        saver.wait()
        saver.begin(taken(2))
        with pytest.raises(DiskFullError, match="Cannot save a checkpoint"):
            saver.wait(must_hold=True)
    (error,) = told
    assert "is full" in str(error)
    saver.begin(taken(3))
    saver.wait(must_hold=True)
    assert newest_valid(tmp_path) == (tmp_path / "epoch-00003", [])


def test_other_troubles_of_a_disk_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def readonly(tensors: dict[str, torch.Tensor], path: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(checkpoint, "save_file", readonly)
    saver = Saver(tmp_path, on_full_disk=lambda error: None)
    saver.begin(taken(1))
    with pytest.raises(StorageError, match="the file system is read-only"):
        saver.wait()


def test_what_goes_wrong_is_raised_in_the_training_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = Saver(tmp_path)
    saver.begin(taken(1))
    saver.wait()
    monkeypatch.setattr(checkpoint, "save_file", full)
    saver.begin(taken(2))
    with pytest.raises(StorageError, match="Cannot save a checkpoint"):
        saver.wait()
    saver.check()
    assert saver.last == manifest(1).position


# --- the weights of the best epoch: written with the next checkpoint, whole or invisible, the two newest kept


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
