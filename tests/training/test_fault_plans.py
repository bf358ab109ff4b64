"""TURNAROUND_FAULT: what can be said, and that nothing strikes where nothing was said."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from turnaround.errors import InputError
from turnaround.training import faults
from turnaround.training.faults import Fault, FaultTarget, arm, planned, strike


@pytest.fixture(autouse=True)
def disarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_armed", [])


def test_what_can_be_said() -> None:
    assert planned("") == []
    assert planned("rank=1,step=37,kind=kill") == [Fault(kind="kill", rank=1, step=37)]
    assert planned("kind=torn; kind=slow,ms=20,segment=2") == [
        Fault(kind="torn", phase="checkpoint"),
        Fault(kind="slow", ms=20, segment=2),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind=kil", "Unknown kind 'kil'. Did you mean 'kill'"),
        ("step=3", "Unknown kind ''"),
        ("kind=kill,stp=3", "Unknown key 'stp'. Did you mean 'step'"),
        ("kind=kill,step=soon", "rank, step, segment and ms are whole numbers"),
        ("kind=kill,phase=lunch", "Unknown phase 'lunch'"),
    ],
)
def test_what_cannot_be_said(text: str, words: str) -> None:
    with pytest.raises(InputError, match="TURNAROUND_FAULT") as error:
        planned(text)
    assert words in str(error.value)


def test_a_fault_strikes_its_process_its_start_its_step_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=raise,rank=1,step=5,segment=2")
    for rank, segment in ((0, 2), (1, 1), (1, 3)):
        arm(rank=rank, segment=segment)
        strike("step", step=9)
    arm(rank=1, segment=2)
    strike("step", step=4)
    strike("checkpoint", step=5)
    with pytest.raises(RuntimeError, match="a fault on purpose"):
        strike("step", step=5)
    strike("step", step=6)


@pytest.mark.parametrize(
    ("kind", "error"), [("oom", torch.OutOfMemoryError), ("disk_full", OSError), ("readonly", OSError)]
)
def test_faults_that_raise(kind: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNAROUND_FAULT", f"kind={kind},phase=step")
    arm(rank=0, segment=1)
    with pytest.raises(error) as caught:
        strike("step", step=1)
    assert kind != "disk_full" or getattr(caught.value, "errno", None) == errno.ENOSPC


def test_a_poisoned_weight_makes_the_loss_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=nan")
    arm(rank=0, segment=1)
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    strike("step", step=1, target=FaultTarget(module=module))
    assert torch.isnan(module(torch.ones(1, 3))).all()


def test_nothing_strikes_where_nothing_was_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TURNAROUND_FAULT", raising=False)
    arm(rank=0, segment=1)
    for phase in faults.PHASES:
        strike(phase, step=1, target=FaultTarget(path=tmp_path))


def test_a_file_system_that_shows_files_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_first_look_s", {})
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=slowfs,ms=50")
    arm(rank=0, segment=1)
    with pytest.raises(FileNotFoundError):
        strike("look")
    time.sleep(0.06)
    strike("look")


def test_a_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", time.time)  # put back at the end
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=clock,ms=-3600000")
    before_s, steady_s = time.time(), time.monotonic()
    arm(rank=0, segment=1)
    strike("start")
    assert time.time() < before_s - 3500
    assert time.monotonic() >= steady_s
