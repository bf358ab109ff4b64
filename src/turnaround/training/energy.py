"""Energy of an epoch over all hosts. Enters: where every process computes. Leaves: watt-hours, equal on every process.

One process of each host has the telemetry and reads its GPUs, each once however many processes compute on it; the
others add nothing to the sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from turnaround.record.energy import JOULES_PER_WH
from turnaround.record.gpus import ask, nvml_session, uuid_of, visible_gpus
from turnaround.record.telemetry import Telemetry
from turnaround.training.checkpoint import Manifest
from turnaround.workers.contract import Workers

GPU = "gpu"
"""The key of a process's GPU in what the processes tell one another; it does not enter the record."""


class EpochEnergy:
    """Counts the energy of the epoch in progress. Its methods are collectives: every process calls them."""

    def __init__(
        self, workers: Workers, places: Sequence[Mapping[str, Any]], *, telemetry: Telemetry | None, host: str
    ) -> None:
        """`places` has host, device and GPU of every process by rank, the same list on every process."""
        self._workers, self._telemetry = workers, telemetry
        # Decided by what all processes know: a run without GPUs has no collective more than it needs.
        self.is_measured = any(place.get("device", "cpu").startswith("cuda") for place in places)
        here = [place for place in places if place["host"] == host and place["device"].startswith("cuda")]
        if telemetry is not None:
            # A GPU without a UUID stays in the list under an empty name that no GPU has: its energy is not known.
            telemetry.tell_used(Counter(str(place.get(GPU) or "") for place in here))
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
        mine_j = self._telemetry.used_energy_j() if self._telemetry is not None else 0.0
        # (joules, hosts that do not know): one message for both.
        told = torch.tensor([mine_j or 0.0, float(mine_j is None)], dtype=torch.float64, device=self._workers.device)
        self._workers.sum(told)
        total_j, unknown = told.tolist()
        return None if unknown else total_j


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
