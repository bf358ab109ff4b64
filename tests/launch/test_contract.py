"""How many processes, and what each is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from turnaround.cores import usable_cores
from turnaround.errors import InputError
from turnaround.launch import contract
from turnaround.launch.contract import LaunchPlan, checked_device, choose_processes
from turnaround.launch.handshake import StartMessage
from turnaround.record.layout import RunDirectory


@pytest.mark.fault(18, "fewer devices than workers: each process hosts as many workers as the others")
@pytest.mark.parametrize(
    ("workers", "cores", "gpus", "device", "expected"),
    [
        (1, 8, 0, "auto", 1),
        (4, 2, 0, "auto", 2),
        (4, 3, 0, "cpu", 2),  # three processes would host unequal numbers
        (5, 2, 0, "cpu", 1),  # as would two
        (4, 64, 0, "cpu", 4),  # never more than workers
        (6, 4, 0, "cpu", 3),
        (8, 2, 4, "auto", 4),  # GPUs count, not cores
        (8, 2, 4, "cuda", 4),
        (8, 2, 4, "cpu", 2),
        (8, 16, 0, "mps", 1),  # one Apple GPU
        (3, 1, 8, "cuda", 3),
    ],
)
def test_as_many_processes_as_devices(
    workers: int, cores: int, gpus: int, device: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(contract, "usable_cores", lambda: cores)
    monkeypatch.setattr(contract, "describe_gpus", lambda: [{}] * gpus)
    assert choose_processes(asked=None, workers=workers, device=device) == expected


def test_a_mac_has_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(contract, "describe_gpus", list)
    assert choose_processes(asked=None, workers=4, device="auto") == 1


@pytest.mark.parametrize("asked", [1, 3, 4])
def test_what_is_asked_for_is_done(asked: int) -> None:
    assert choose_processes(asked=asked, workers=4, device="cpu") == asked


@pytest.mark.parametrize("asked", [0, -1, 5])
def test_more_processes_than_workers(asked: int) -> None:
    with pytest.raises(InputError, match=rf"from 1 to the number of workers \(4\).*Received: {asked}\."):
        choose_processes(asked=asked, workers=4, device="cpu")


def test_devices_for_each_process_are_their_number() -> None:
    assert choose_processes(asked=None, workers=16, device="cuda,cpu") == 2
    assert choose_processes(asked=2, workers=16, device="cuda,cpu") == 2
    with pytest.raises(InputError, match=r"--device cuda,cpu names 2 devices, one for each process, and there are 3 "):
        choose_processes(asked=3, workers=16, device="cuda,cpu")
    assert checked_device("GPU, cpu") == "cuda,cpu"
    with pytest.raises(
        InputError, match=r"--device cuda,auto: the devices of several.* as cuda,cpu\. Received: 'auto'"
    ):
        checked_device("cuda,auto")


def test_cores_are_those_we_may_use() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def test_a_worker_is_told_where_and_nothing_else() -> None:
    """The rest is in the start message."""
    message = StartMessage(device="cpu", network="-odd name", begun_at_s=12.3)
    plan = LaunchPlan(directory=RunDirectory(Path("runs/a b")), message=message, processes=1)
    assert plan.worker_arguments() == ["runs/a b"]
