"""Watt-hours of an epoch: over all hosts, through a save within it, and not known where one host does not know."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from turnaround.record.layout import RunDirectory
from turnaround.record.telemetry import Telemetry
from turnaround.training.checkpoint import Manifest
from turnaround.training.energy import EpochEnergy, gpu_of, with_gpu_numbers
from turnaround.training.position import TrainingPosition
from turnaround.workers.single import Single

GPUS = [
    {"host": "here", "device": "cuda:0", "gpu": "GPU-a"},
    {"host": "here", "device": "cuda:0", "gpu": "GPU-a"},
    {"host": "there", "device": "cuda:0", "gpu": "GPU-b"},
]


class FakeTelemetry:
    """The energy that this host's GPUs have used so far, as a test sets it."""

    def __init__(self) -> None:
        self.joules: float | None = 0.0
        self.used: Mapping[str, int] = {}
        self.hidden: set[str] = set()

    def tell_used(self, processes_by_uuid: Mapping[str, int]) -> list[str]:
        self.used = dict(processes_by_uuid)
        return [uuid for uuid in processes_by_uuid if uuid in self.hidden]

    def used_energy_j(self) -> float | None:
        return self.joules


class WithAnother(Single):
    """One process, and the answer of another host to each sum."""

    def __init__(self, other: Callable[[], tuple[float, float]]) -> None:
        super().__init__(count=1, device=torch.device("cpu"))
        self.other, self.sums = other, 0

    def sum(self, tensor: Tensor) -> None:
        self.sums += 1
        tensor += torch.tensor(self.other(), dtype=torch.float64)


def energy_of(telemetry: Any, workers: Single, ranks: list[dict[str, str]] = GPUS) -> EpochEnergy:
    return EpochEnergy(workers, ranks, telemetry=telemetry, host="here")


def test_two_processes_on_one_gpu_are_told_as_one_gpu_and_hosts_are_added() -> None:
    telemetry, theirs = FakeTelemetry(), [500.0]
    energy = energy_of(telemetry, WithAnother(lambda: (theirs[0], 0.0)))
    assert telemetry.used == {"GPU-a": 2}
    energy.begin(Manifest())
    telemetry.joules, theirs[0] = 3600.0, 500.0 + 7200.0
    assert energy.end_epoch_wh() == pytest.approx(3.0)
    telemetry.joules = 5400.0
    assert energy.end_epoch_wh() == pytest.approx(0.5)


def test_an_epoch_goes_on_where_a_checkpoint_within_it_stopped() -> None:
    telemetry = FakeTelemetry()
    energy = energy_of(telemetry, Single(count=1, device=torch.device("cpu")), GPUS[:1])
    energy.begin(Manifest())
    telemetry.joules = 1800.0
    so_far_j = energy.so_far_j()
    saved = Manifest(position=TrainingPosition(step_in_epoch=3, global_step=3), energy_j=so_far_j)
    again = Manifest.from_json(saved.to_json())
    assert again.is_sound
    telemetry = FakeTelemetry()
    telemetry.joules = 50.0  # start-up
    resumed = energy_of(telemetry, Single(count=1, device=torch.device("cpu")), GPUS[:1])
    resumed.begin(again)
    telemetry.joules = 50.0 + 1800.0
    assert resumed.end_epoch_wh() == pytest.approx(1.0)


def test_a_checkpoint_of_an_earlier_version_within_an_epoch_leaves_that_epoch_unknown() -> None:
    telemetry = FakeTelemetry()
    energy = energy_of(telemetry, Single(count=1, device=torch.device("cpu")), GPUS[:1])
    energy.begin(Manifest(position=TrainingPosition(step_in_epoch=3, global_step=3)))
    telemetry.joules = 3600.0
    assert energy.end_epoch_wh() is None
    telemetry.joules = 7200.0
    assert energy.end_epoch_wh() == pytest.approx(1.0)


def test_a_host_that_does_not_know_makes_the_sum_unknown() -> None:
    energy = energy_of(FakeTelemetry(), WithAnother(lambda: (0.0, 1.0)))
    energy.begin(Manifest())
    assert (energy.so_far_j(), energy.end_epoch_wh()) == (None, None)


class Process(Single):
    """One of several processes, which has heard already what the others tell."""

    def __init__(self, rank: int, told: list[str]) -> None:
        super().__init__(count=1, device=torch.device("cpu"))
        self.rank, self.told = rank, told

    def gather(self, value: str) -> list[str]:
        return [*self.told[: self.rank], value, *self.told[self.rank + 1 :]]


@pytest.mark.parametrize("has_telemetry", [True, False])
def test_a_gpu_that_is_hidden_from_the_telemetry_is_read_once_by_its_own_process(
    has_telemetry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [{"host": "here", "device": "cuda:0", "gpu": gpu} for gpu in ("GPU-a", "GPU-b", "GPU-b", "")]
    ranks.append({"host": "there", "device": "cuda:0", "gpu": "GPU-b"})
    opened: list[str] = []
    monkeypatch.setattr(
        "turnaround.training.energy.OwnGpuEnergy", lambda uuid: (opened.append(uuid), FakeTelemetry())[1]
    )
    telemetry = FakeTelemetry()
    telemetry.hidden = {"GPU-b", ""}
    unread = ["GPU-b", ""] if has_telemetry else None
    told = [json.dumps({"host": "here", "unread": unread})]
    told += [json.dumps({"host": host, "unread": None}) for host in ("here", "here", "here")]
    told += [json.dumps({"host": "there", "unread": []})]
    for rank, facts in enumerate(ranks):
        mine = telemetry if has_telemetry and rank == 0 else FakeTelemetry() if rank == 4 else None
        EpochEnergy(Process(rank, told), ranks, telemetry=mine, host=facts["host"])
    assert opened == (["GPU-b", ""] if has_telemetry else ["GPU-a", "GPU-b", ""])


def test_the_record_numbers_gpus_by_host_and_keeps_no_serial_number() -> None:
    gpus = [("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-3"), ("a", "GPU-1"), ("b", None)]
    rows = with_gpu_numbers([{"host": host, "device": "cuda:0", "gpu": gpu} for host, gpu in gpus])
    assert [row.get("gpu") for row in rows] == [0, 1, 0, 0, None]
    assert rows[4] == {"host": "b", "device": "cuda:0"}


def test_without_gpus_nothing_is_asked() -> None:
    workers = WithAnother(lambda: (0.0, 0.0))
    energy = energy_of(FakeTelemetry(), workers, [{"host": "here", "device": "cpu"}])
    energy.begin(Manifest())
    assert (energy.end_epoch_wh(), workers.sums, gpu_of(torch.device("cpu"))) == (None, 0, None)


@pytest.mark.parametrize("energy_j", [-1.0, float("nan"), "many", True])
def test_a_manifest_with_an_energy_that_cannot_be_is_not_sound(energy_j: Any) -> None:
    assert not Manifest(energy_j=energy_j).is_sound


@pytest.mark.gpu
def test_a_real_gpu_is_found_by_its_uuid_and_uses_energy(tmp_path: Any) -> None:
    device = torch.device("cuda:0")
    directory = RunDirectory.create(tmp_path / "run")
    workers = Single(count=1, device=device)
    with Telemetry(directory.telemetry("here"), 0.1) as telemetry:
        time.sleep(0.5)  # its thread has asked the driver for the GPUs
        energy = energy_of(telemetry, workers, [{"host": "here", "device": "cuda:0", "gpu": gpu_of(device) or ""}])
        energy.begin(Manifest())
        matrix, end_s = torch.randn(4096, 4096, device=device), time.monotonic() + 2.0
        while time.monotonic() < end_s:
            matrix = torch.nn.functional.normalize(matrix @ matrix)
            torch.cuda.synchronize()
        used_wh = energy.end_epoch_wh()
    assert used_wh is not None
    assert 20 < used_wh * 3600 / 2.0 < 1500  # watts
