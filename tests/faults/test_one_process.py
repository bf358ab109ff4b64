"""Faults on purpose in trainings of one process: nothing is lost that was saved, and the first cause is named.

The markers `fault(row, what)` of this folder, and of others, are what docs/reliability.md is made of.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forking import ForkingLauncher
from running import train
from struck import (
    SETTINGS,
    goes_on_to_the_same_end,
    newest,
    struck,
)
from turnaround import cli
from turnaround.errors import InterruptedRunError, ProcessFailedError
from turnaround.record.reader import Run

KILLED_AFTER_SAVING = "kind=slow,step=19,ms=1000;kind=kill,step=20"
"""The checkpoint of update 15 is written in a thread: on a slow disk, too, it is there before the kill."""


@pytest.mark.fault(37, "killed within an epoch: goes on at the exact sample")
def test_killed_within_an_epoch(fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher) -> None:
    error = struck(KILLED_AFTER_SAVING, fruit_folder, tmp_path / "run", ProcessFailedError)
    assert "signal 9" in str(error)
    assert newest(tmp_path / "run") == "epoch-00001-step-00003"  # update 15 of 12 + 12
    resumed = goes_on_to_the_same_end(tmp_path / "run", whole, forking)
    assert [e.segment for e in resumed.epochs] == [1, 2]
    epoch = resumed.epochs[1]
    assert epoch.images == 192  # of the whole epoch, not of what was left of it
    assert epoch.images_per_s == pytest.approx(192 / epoch.epoch_time_s)


@pytest.mark.fault(37, "killed within an epoch whose images are mixed: the same pairs, the same soft labels")
def test_killed_within_an_epoch_of_mixed_images(fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> None:
    mixed = (*SETTINGS, "augment.crop=0.4", "augment.cutout=0.3", "augment.mixup=0.4", "augment.cutmix=1")
    undisturbed = train(fruit_folder, tmp_path / "whole", *mixed, launcher=forking)
    struck(KILLED_AFTER_SAVING, fruit_folder, tmp_path / "run", ProcessFailedError, launcher=forking, settings=mixed)
    assert newest(tmp_path / "run") == "epoch-00001-step-00003"
    goes_on_to_the_same_end(tmp_path / "run", undisturbed, forking)


@pytest.mark.fault(3, "killed while a checkpoint is written: it stays invisible, the one before is used")
def test_killed_while_saving(fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher) -> None:
    out = tmp_path / "run"
    struck("kind=torn,step=15", fruit_folder, out, ProcessFailedError, launcher=forking)
    assert newest(out) == "epoch-00000-step-00010"
    assert [p.name for p in (out / "checkpoint").glob(".*")] != []  # half a checkpoint, under its temporary name
    goes_on_to_the_same_end(out, whole, forking)
    assert [p.name for p in (out / "checkpoint").glob(".*")] == []


@pytest.mark.fault(4, "killed right after a checkpoint has its name: the newest is found by looking")
def test_killed_after_the_rename(fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher) -> None:
    struck("kind=kill,phase=saved,step=15", fruit_folder, tmp_path / "run", ProcessFailedError, launcher=forking)
    assert newest(tmp_path / "run") == "epoch-00001-step-00003"
    goes_on_to_the_same_end(tmp_path / "run", whole, forking)


@pytest.mark.fault(11, "a process ends early with exit status 0: a failure all the same")
def test_an_early_clean_exit(fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher) -> None:
    error = struck("kind=exit0,step=7", fruit_folder, tmp_path / "run", ProcessFailedError, launcher=forking)
    assert "(exit status 0)" in str(error)
    assert Run.load(tmp_path / "run").status.state == "failed"


@pytest.mark.fault(8, "asked to stop (SIGTERM, SIGUSR2) within an epoch: saved after the step")
@pytest.mark.parametrize("kind", ["sigterm", "sigusr2"])
def test_a_signal_stops_after_the_step(
    kind: str, fruit_folder: Path, tmp_path: Path, whole: Run, forking: ForkingLauncher
) -> None:
    fault = f"kind={kind},step=3;kind=slow,ms=200"  # a decision about every five steps
    error = struck(fault, fruit_folder, tmp_path / "run", InterruptedRunError, launcher=forking)
    assert re.search(r"Stopped after step \d+ of 12 in epoch 1 of 2; everything up to there is saved", str(error))
    assert "turnaround resume" in str(error)
    assert Run.load(tmp_path / "run").status.state == "interrupted"
    step = int(newest(tmp_path / "run").rpartition("-")[2])
    assert f"after step {step} of" in str(error)
    goes_on_to_the_same_end(tmp_path / "run", whole, forking)


@pytest.mark.fault(32, "another number of workers would be another training: a resume cannot be asked for one")
def test_the_workers_of_a_run_never_change(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["resume", str(tmp_path), "--workers", "4"])
    assert done.exit_code == 2
    assert "No such option: --workers" in done.output
