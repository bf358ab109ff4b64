"""Energy of an epoch over all hosts. Enters: where every process computes. Leaves: watt-hours, equal on every process.

One process of each host has the telemetry and reads its GPUs, each once however many processes compute on it, also
those that CUDA_VISIBLE_DEVICES hides from it. A GPU that the system hides from it (a job that gives each task its own)
is read by the first of the processes that compute on it; the others add nothing to the sum.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from turnaround.record.energy import JOULES_PER_WH, OwnGpuEnergy
from turnaround.record.gpus import ask, nvml_session, uuid_of, visible_gpus
from turnaround.record.telemetry import Telemetry
from turnaround.training.checkpoint import Manifest
from turnaround.workers.contract import Workers

GPU = "gpu"
"""The key of a process's GPU in what the processes tell one another; the record has a number in its place."""


class EpochEnergy:
    """Counts the energy of the epoch in progress. Its methods are collectives: every process calls them."""

    def __init__(
        self, workers: Workers, ranks: Sequence[Mapping[str, Any]], *, telemetry: Telemetry | None, host: str
    ) -> None:
        """`ranks` has host, device and GPU of every process by rank, the same list on every process."""
        self._workers, self._telemetry = workers, telemetry
        # Decided by what all processes know: a run without GPUs has no collective more than it needs.
        self.is_measured = any(map(_is_on_gpu, ranks))
        # A GPU without a UUID stays in the list under an empty name that no GPU has: its energy is not known.
        gpu_by_rank = {
            rank: str(facts.get(GPU) or "")
            for rank, facts in enumerate(ranks)
            if facts["host"] == host and _is_on_gpu(facts)
        }
        unread = telemetry.tell_used(Counter(gpu_by_rank.values())) if telemetry is not None else None
        mine = gpu_by_rank.get(workers.rank)
        is_first = mine is not None and workers.rank == min(r for r, gpu in gpu_by_rank.items() if gpu == mine)
        is_left = self.is_measured and mine in _left_to_processes(workers, host, unread, gpu_by_rank.values())
        self._own = OwnGpuEnergy(mine or "") if is_first and is_left else None
        self._begun_j: float | None = None
        self._earlier_j: float | None = 0.0

    def begin(self, start: Manifest) -> None:
        """Count from here on; the first steps of an epoch within which a checkpoint lies have theirs in it."""
        self._earlier_j = start.energy_j if start.position.step_in_epoch else 0.0
        self._begun_j = self._total_j()

    def so_far_j(self) -> float | None:
        """Return the joules of the epoch in progress; None where they are not known."""
        now_j = self._total_j()
        if now_j is None or self._begun_j is None or self._earlier_j is None:
            return None
        return self._earlier_j + now_j - self._begun_j

    def end_epoch_wh(self) -> float | None:
        """Return the watt-hours of the epoch, and begin the next one."""
        now_j, begun_j, earlier_j = self._total_j(), self._begun_j, self._earlier_j
        self._begun_j, self._earlier_j = now_j, 0.0
        if now_j is None or begun_j is None or earlier_j is None:
            return None
        return (earlier_j + now_j - begun_j) / JOULES_PER_WH

    def _total_j(self) -> float | None:
        """Return the joules of all GPUs of the run since it started; None where one of them does not tell."""
        if not self.is_measured:
            return None
        read_j = [reader.used_energy_j() for reader in (self._telemetry, self._own) if reader is not None]
        known_j = [joules for joules in read_j if joules is not None]
        # (joules, readers that do not know): one message for both.
        mine = [sum(known_j), float(len(read_j) - len(known_j))]
        told = torch.tensor(mine, dtype=torch.float64, device=self._workers.device)
        self._workers.sum(told)
        total_j, unknown = told.tolist()
        return None if unknown else total_j


def _left_to_processes(workers: Workers, host: str, unread: list[str] | None, used: Iterable[str]) -> set[str]:
    """Return the GPUs of this host that no telemetry reads; `unread`: those of the telemetry of this process, if it has
    one. A collective."""
    everyone = [json.loads(text) for text in workers.gather(json.dumps({"host": host, "unread": unread}))]
    told = [each["unread"] for each in everyone if each["host"] == host and each["unread"] is not None]
    return {gpu for gpus in told for gpu in gpus} if told else set(used)


def _is_on_gpu(facts: Mapping[str, Any]) -> bool:
    """Tell whether a process computes on a CUDA device, by what it has told of itself."""
    return torch.device(facts.get("device", "cpu")).type == "cuda"


def with_gpu_numbers(ranks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the facts of every process with a number for its GPU, counted on its host, in place of the UUID.

    The device alone does not tell: processes that are each shown one GPU all have cuda:0. Who reads a record has no use
    for a serial number.
    """
    numbers: dict[tuple[str, str], int] = {}
    rows = []
    for facts in ranks:
        row = {key: value for key, value in facts.items() if key != GPU}
        if uuid := facts.get(GPU):
            of_host = [place for place in numbers if place[0] == facts["host"]]
            row[GPU] = numbers.setdefault((facts["host"], uuid), len(of_host))
        rows.append(row)
    return rows


def gpu_of(device: torch.device) -> str | None:
    """Return the UUID of a process's GPU as NVML spells it; None for a processor."""
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is not None:
        return f"GPU-{uuid}"
    with nvml_session() as nvml:  # a build of torch that does not tell: by its place among the visible ones
        gpus = ask(lambda: visible_gpus(nvml)) or [] if nvml is not None else []
        position = device.index or 0
        return uuid_of(nvml, gpus[position][1]) if position < len(gpus) else None
