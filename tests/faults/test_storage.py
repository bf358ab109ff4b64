"""Disks that are full, decay or vanish, clocks that jump, and commands that want the same directory."""

from __future__ import annotations

import json
import os
import subprocess
import unicodedata
from pathlib import Path

import pytest

from forking import ForkingLauncher
from running import request, silent, train
from struck import (
    SETTINGS,
    goes_on_to_the_same_end,
    identical,
    lines,
    newest,
    struck,
)
from turnaround import recipes
from turnaround.data import pixels
from turnaround.data.pixels import PIXELS
from turnaround.data.verify import verify_cache
from turnaround.errors import DiskFullError, ProcessFailedError, RunDirectoryError, StorageError
from turnaround.launch import lifecycle
from turnaround.launch.prepare import prepare_images
from turnaround.record.reader import Run


@pytest.mark.fault(23, "a checkpoint decays: named, passed over, the one before is used")
def test_a_flipped_bit(fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher) -> None:
    struck("kind=bitflip,step=20", fruit_folder, tmp_path / "run", ProcessFailedError, launcher=forking)
    resumed = goes_on_to_the_same_end(tmp_path / "run", whole, forking)
    (passed_over,) = resumed.machine["passed_over_checkpoints"]
    assert passed_over.startswith("epoch-00001-step-00008 is damaged (weights.safetensors has another SHA-256")


@pytest.mark.fault(23, "decoded pixels decay in the cache: said, decoded again, and the training goes on by itself")
def test_a_flipped_bit_in_the_cache(
    fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipes.find(str(fruit_folder), [*SETTINGS, f"data.cache={tmp_path / 'cache'}"]).resolved()
    entry = prepare_images(recipe, cache=tmp_path / "cache", show=silent).pixels.cache_dir
    with (entry / PIXELS).open("r+b") as file:
        file.seek(-1, os.SEEK_END)  # of a validation image: the first epoch is trained, not evaluated
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 4]))
    monkeypatch.setattr(pixels, "_check_pixels", lambda _: None)  # a few are looked at before a run: not this one
    run = train(fruit_folder, tmp_path / "run", *SETTINGS, f"data.cache={tmp_path / 'cache'}", launcher=forking)
    (cause,) = run.status.restarts
    assert "are not those that were written there" in cause
    assert (run.status.state, run.status.segments) == ("finished", 2)
    assert identical(run, whole)
    assert lines(run) == lines(whole)
    assert all(file.reason == "as_written" for file in verify_cache(entry))


FULL = "the disk or your quota is full"


@pytest.mark.fault(19, "the disk is full when a checkpoint is saved: said loudly, the training goes on and tries again")
def test_a_full_disk(
    fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=disk_full,step=15")
    run = train(fruit_folder, tmp_path / "run", *SETTINGS, launcher=forking)
    log = (run.directory.logs / "processes.log").read_text()  # these trainings show no progress
    (said,) = [line for line in log.splitlines() if line.startswith("warning: ")]
    assert "Cannot save a checkpoint" in said
    assert FULL in said
    assert "Training goes on without this checkpoint (the last one is epoch-00000-step-00010) and tries again." in said
    assert identical(run, whole)
    assert lines(run) == lines(whole)
    assert (run.status.state, run.status.not_saved) == ("finished", None)
    assert newest(tmp_path / "run") == "epoch-00002"


@pytest.mark.fault(26, "a file server forgets a handle or fails for seconds: tried again, then as with a full disk")
def test_a_file_system_that_does_not_answer(
    fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first is over before the tries are; the second is not, so one checkpoint is lost. The last one is waited for.
    trouble = "kind=stale,phase=checkpoint,step=5,ms=300;kind=eio,phase=checkpoint,step=15,ms=6000"
    monkeypatch.setenv("TURNAROUND_FAULT", trouble)
    run = train(fruit_folder, tmp_path / "run", *SETTINGS, launcher=forking)
    log = (run.directory.logs / "processes.log").read_text()
    said = [line for line in log.splitlines() if line.startswith("warning: ")]
    assert "Cannot save a checkpoint" in said[0]
    assert "Input/output error, on purpose, 4 times within 2.6 s. Look at the disk or the network" in said[0]
    assert (
        "Training goes on without this checkpoint (the last one is epoch-00000-step-00010) and tries again." in said[0]
    )
    assert identical(run, whole)
    assert lines(run) == lines(whole)
    assert (run.status.state, run.status.not_saved) == ("finished", None)


@pytest.mark.fault(19, "after a full disk a crash loses what came since the last checkpoint; the record says why")
def test_a_crash_after_a_full_disk(fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher) -> None:
    # A checkpoint is written in a thread: on a slow disk it must be through (refused, here) before the kill.
    strikes = "kind=disk_full,step=15;kind=slow,step=17,ms=1000;kind=kill,step=18"
    struck(strikes, fruit_folder, tmp_path / "run", ProcessFailedError, launcher=forking)
    assert newest(tmp_path / "run") == "epoch-00000-step-00010"
    assert FULL in (Run.load(tmp_path / "run").status.not_saved or "")
    resumed = goes_on_to_the_same_end(tmp_path / "run", whole, forking)
    assert resumed.status.not_saved is None


@pytest.mark.fault(19, "a full disk ends the training if asked to, and at its last checkpoint; the one before is kept")
@pytest.mark.parametrize(
    ("step", "settings", "kept"),
    [
        (15, ("training.stop_on_full_disk=true",), "epoch-00000-step-00010"),
        (24, (), "epoch-00001-step-00008"),
    ],
)
def test_a_full_disk_that_ends_it(
    step: int,
    settings: tuple[str, ...],
    kept: str,
    fruit_folder: Path,
    tmp_path: Path,
    whole: Run,
    forking: ForkingLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TURNAROUND_FAULT", f"kind=disk_full,step={step}")
    with pytest.raises(DiskFullError, match=f"Cannot save a checkpoint .*{FULL}"):
        train(fruit_folder, tmp_path / "run", *SETTINGS, *settings, launcher=forking)
    assert Run.load(tmp_path / "run").status.state == "failed"
    assert newest(tmp_path / "run") == kept
    monkeypatch.delenv("TURNAROUND_FAULT")
    goes_on_to_the_same_end(tmp_path / "run", whole, forking)


@pytest.mark.fault(33, "recipe.json was edited before a resume: refused, every key that differs is named")
def test_an_edited_recipe(fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher) -> None:
    struck("kind=kill,step=18", fruit_folder, tmp_path / "run", ProcessFailedError, launcher=forking)
    file = tmp_path / "run" / "recipe.json"
    before = file.read_text()
    recipe = json.loads(before)
    recipe["training"] |= {"learning_rate": 0.5, "epochs": 3, "checkpoint_every_steps": 7}
    recipe["augment"]["flip"] = False
    recipe["data"]["size_px"] = 48
    file.write_text(json.dumps(recipe))
    with pytest.raises(RunDirectoryError, match=r"recipe\.json was changed after the run began: ") as caught:
        lifecycle.resume(request(tmp_path / "run", launcher=forking))
    for change in (
        "learning_rate was 0.001, is 0.5",
        "epochs was 2, is 3",
        "flip was True, is False",
        "size_px was 16, is 48",
    ):
        assert change in str(caught.value)
    assert "checkpoint_every_steps" not in str(caught.value)  # how often it is saved may change
    file.write_text(before)
    goes_on_to_the_same_end(tmp_path / "run", whole, forking)


@pytest.mark.fault(26, "the run directory becomes read-only: said plainly, what was saved is kept")
def test_a_folder_that_becomes_read_only(fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> None:
    error = struck("kind=readonly,step=15", fruit_folder, tmp_path / "run", StorageError, launcher=forking)
    assert "Cannot save a checkpoint" in str(error)
    assert "the file system is read-only" in str(error)
    assert newest(tmp_path / "run") == "epoch-00000-step-00010"


@pytest.mark.fault(26, "the run directory vanishes: said plainly; put back, the run goes on from what was saved")
def test_a_folder_that_vanishes(fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher) -> None:
    error = struck("kind=vanish,step=15", fruit_folder, tmp_path / "run", StorageError, launcher=forking)
    assert f"{tmp_path / 'run'} is not there any more" in str(error)
    assert "turnaround resume" in str(error)
    (tmp_path / "run.gone").rename(tmp_path / "run")
    goes_on_to_the_same_end(tmp_path / "run", whole, forking)


@pytest.mark.fault(27, "the clock jumps by an hour, forth and back: no duration notices, nothing else changes")
def test_the_clock_jumps(
    fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = "kind=clock,ms=3600000;kind=clock,phase=step,step=14,ms=-7200000"
    monkeypatch.setenv("TURNAROUND_FAULT", jumps)
    run = train(fruit_folder, tmp_path / "run", *SETTINGS, launcher=forking)
    assert identical(run, whole)
    assert lines(run) == lines(whole)
    assert {part for part, seconds in run.status.time_s.items() if not 0 <= seconds < 600} == set()
    assert all(0 < e.epoch_time_s < 600 for e in run.epochs)


@pytest.mark.fault(24, "three commands start at once in one directory: exactly one trains, the others say who has it")
@pytest.mark.fault(29, "a run directory with spaces, quotes, a newline, a leading dash and NFD letters: it trains")
def test_of_commands_that_start_at_once_exactly_one_trains(
    fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    name = '-a "run\'s"\n<b>' + unicodedata.normalize("NFD", "Äpfel")
    out = tmp_path / f"{name}{'x' * (255 - len(name.encode()))}"
    settings = [word for setting in (*SETTINGS, "training.epochs=1") for word in ("--set", setting)]
    python, where = forking.parent.python, f"--out={out.name}"
    command = [python, "-m", "turnaround", "train", str(fruit_folder), where, "--device", "cpu"]
    started = [
        subprocess.Popen([*command, *settings], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=300)[1] for process in started]
    assert sorted(process.returncode for process in started) == [0, 2, 2], said
    losers = [text for process, text in zip(started, said, strict=True) if process.returncode]
    assert all("in use by another run" in text or "already holds a run" in text for text in losers), losers
    assert Run.load(out).status.state == "finished"
    assert [e.epoch for e in Run.load(out).epochs] == [1]
