"""Disks that are full, decay or vanish, clocks that jump, and commands that want the same directory."""

from __future__ import annotations

import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from forking import ForkingLauncher
from running import train
from struck import (
    SETTINGS,
    goes_on_to_the_same_end,
    identical,
    lines,
    newest,
    struck,
)
from turnaround.errors import ProcessFailedError, StorageError
from turnaround.record.reader import Run


@pytest.mark.fault(23, "a checkpoint decays: named, passed over, the one before is used")
def test_a_flipped_bit(fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher) -> None:
    struck("kind=bitflip,step=20", fruit_folder, tmp_path / "run", ProcessFailedError)
    resumed = goes_on_to_the_same_end(tmp_path / "run", whole, forking)
    (passed_over,) = resumed.machine["passed_over_checkpoints"]
    assert passed_over.startswith("epoch-00001-step-00008 is damaged (weights.safetensors has another SHA-256")


@pytest.mark.fault(19, "the disk is full when a checkpoint is saved: said plainly, the one before is kept")
def test_a_full_disk(fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher) -> None:
    error = struck("kind=disk_full,step=15", fruit_folder, tmp_path / "run", StorageError, launcher=forking)
    assert "Cannot save a checkpoint" in str(error)
    assert "is full" in str(error)
    assert Run.load(tmp_path / "run").status.state == "failed"
    assert newest(tmp_path / "run") == "epoch-00000-step-00010"
    goes_on_to_the_same_end(tmp_path / "run", whole, forking)


@pytest.mark.fault(26, "the run directory becomes read-only: said plainly, what was saved is kept")
def test_a_folder_that_becomes_read_only(fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> None:
    error = struck("kind=readonly,step=15", fruit_folder, tmp_path / "run", StorageError, launcher=forking)
    assert "Cannot save a checkpoint" in str(error)
    assert "the file system is read-only" in str(error)
    assert newest(tmp_path / "run") == "epoch-00000-step-00010"


@pytest.mark.fault(26, "the run directory vanishes: said plainly; put back, the run goes on from what was saved")
def test_a_folder_that_vanishes(fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher) -> None:
    error = struck("kind=vanish,step=15", fruit_folder, tmp_path / "run", StorageError)
    assert f"{tmp_path / 'run'} is not there any more" in str(error)
    assert "turnaround resume" in str(error)
    (tmp_path / "run.gone").rename(tmp_path / "run")
    goes_on_to_the_same_end(tmp_path / "run", whole, forking)


@pytest.mark.fault(27, "the clock jumps by an hour, forth and back: no duration notices, nothing else changes")
def test_the_clock_jumps(fruit_folder: Path, tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = "kind=clock,ms=3600000;kind=clock,phase=step,step=14,ms=-7200000"
    monkeypatch.setenv("TURNAROUND_FAULT", jumps)
    run = train(fruit_folder, tmp_path / "run", *SETTINGS)
    assert identical(run, whole)
    assert lines(run) == lines(whole)
    assert {part for part, seconds in run.status.time_s.items() if not 0 <= seconds < 600} == set()
    assert all(0 < e.epoch_time_s < 600 for e in run.epochs)


@pytest.mark.fault(24, "three commands start at once in one directory: exactly one trains, the others say who has it")
@pytest.mark.fault(29, "a run directory with spaces, quotes, a newline, a leading dash and NFD letters: it trains")
def test_of_commands_that_start_at_once_exactly_one_trains(fruit_folder: Path, tmp_path: Path) -> None:
    name = '-a "run\'s"\n<b>' + unicodedata.normalize("NFD", "Äpfel")
    out = tmp_path / f"{name}{'x' * (255 - len(name.encode()))}"
    settings = [word for setting in (*SETTINGS, "training.epochs=1") for word in ("--set", setting)]
    command = [sys.executable, "-m", "turnaround", "train", str(fruit_folder), f"--out={out.name}", "--device", "cpu"]
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
