"""Energy of a run: watt-hours of the GPUs it computes on, each once, over all hosts and starts; from telemetry.

Of the boards alone: processors, memory, fans of the host and the cooling of the room are in no counter of a GPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from turnaround.analysis.gpu_kinds import is_cuda
from turnaround.errors import InputError, RunDirectoryError
from turnaround.record.energy import JOULES_PER_WH
from turnaround.record.reader import Run
from turnaround.record.schema import EnergySource, EpochRecord, GpuSample, TelemetrySample

Unknown = Literal["no GPU", "no telemetry", "GPUs not told", "GPU not sampled", "neither counter nor power"]
"""no GPU: trained on processors, of which nothing is measured; GPUs not told: which of those sampled the run used."""
WH_PER_KWH = 1000.0
SHARED_FROM = 0.05
"""Share of the samples with a program of others from which a GPU counts as shared: less is somebody's nvidia-smi."""


@dataclass(frozen=True, kw_only=True)
class RunEnergy:
    """The energy of one run; without `wh` it is not known, and `unknown` says why."""

    wh: float | None = None
    source: EnergySource | None = None
    """watts where any of the GPUs has no counter."""
    num_gpus: int = 0
    gpu_time_s: float = 0.0
    """Seconds that were measured, all GPUs together."""
    num_shared: int = 0
    """GPUs on which programs of others computed too: what they used is in it."""
    resets: int = 0
    """How often a counter went back, so that a moment before is not counted."""
    unknown: Unknown | None = None

    @property
    def watts(self) -> float | None:
        """Return the mean power of one GPU."""
        return None if self.wh is None or not self.gpu_time_s else self.wh * JOULES_PER_WH / self.gpu_time_s


@dataclass(frozen=True, kw_only=True)
class _GpuPart:
    """One GPU in one start of the run."""

    joules: float
    time_s: float
    source: EnergySource
    is_shared: bool
    resets: int


def run_energy(run: Run) -> RunEnergy:
    """Return the energy of a run from the first sample of each start to its last."""
    if run.imported is not None:
        return RunEnergy(unknown="no telemetry")
    devices = _devices_by_host(run)
    if not is_cuda(run.machine.get("device")) and not any(map(_has_gpu, devices.values())):
        return RunEnergy(unknown="no GPU")
    try:
        by_host = run.telemetry()
    except RunDirectoryError:  # of a newer format: the bottleneck of the run says so
        return RunEnergy(unknown="no telemetry")
    silent = [host for host, each in devices.items() if host not in by_host and _has_gpu(each)]
    if by_host and silent:
        return RunEnergy(unknown="GPU not sampled")
    parts: list[_GpuPart] = []
    gpus: set[tuple[str, int]] = set()
    for host, samples in by_host.items():
        num_told = 0
        for start in _starts(samples):
            used = _used(start, devices.get(host, []))
            if isinstance(used, str):
                return RunEnergy(unknown=used)
            num_told = sum(used.values())
            for index, num_processes in used.items():
                part = _gpu_part(start, index, num_processes)
                if part is None:
                    return RunEnergy(unknown="neither counter nor power")
                parts.append(part)
                gpus.add((host, index))
        # Of the last start, which machine.json is about: some processes computed on GPUs that nobody here could see.
        if num_told < sum(map(is_cuda, devices.get(host, []))):
            return RunEnergy(unknown="GPU not sampled")
    if not parts:
        return RunEnergy(unknown="no telemetry")
    return RunEnergy(
        wh=sum(part.joules for part in parts) / JOULES_PER_WH,
        source="watts" if any(part.source == "watts" for part in parts) else "counter",
        num_gpus=len(gpus),
        gpu_time_s=sum(part.time_s for part in parts),
        num_shared=sum(part.is_shared for part in parts),
        resets=sum(part.resets for part in parts),
    )


def _starts(samples: Sequence[TelemetrySample]) -> Iterator[list[TelemetrySample]]:
    """Yield the samples of each start: a resume begins its seconds, and its joules, at 0 again."""
    start: list[TelemetrySample] = []
    for sample in samples:
        if start and sample.time_s < start[-1].time_s:
            yield start
            start = []
        start.append(sample)
    if start:
        yield start


def _devices_by_host(run: Run) -> dict[str, list[str]]:
    """Return the device of each process, by the host as its telemetry file spells it."""
    ranks = run.machine.get("ranks")
    found: dict[str, list[str]] = {}
    for rank in ranks if isinstance(ranks, list) else []:
        if isinstance(rank, dict):
            named = run.directory.telemetry_hosts([run.directory.telemetry(str(rank.get("host"))).name])
            found.setdefault(named[0] if named else "", []).append(str(rank.get("device")))
    return found


def _has_gpu(devices: Sequence[str]) -> bool:
    return any(map(is_cuda, devices))


def _used(start: Sequence[TelemetrySample], devices: Sequence[str]) -> dict[int, int] | Unknown:
    """Return how many processes of the run computed on each GPU, by its number; GPUs without any are left out."""
    told = {gpu.index: gpu.run_processes for sample in start for gpu in sample.gpus if gpu.run_processes is not None}
    if told:
        return {index: count for index, count in told.items() if count > 0}
    if devices and not _has_gpu(devices):
        return {}
    # Records without that word: by the device of each process, a place among the visible GPUs.
    visible = list(dict.fromkeys(gpu.index for sample in start for gpu in sample.gpus))
    if not visible:
        return "GPU not sampled"
    if not devices:
        return {visible[0]: 1} if len(visible) == 1 else "GPUs not told"
    used: dict[int, int] = {}
    for device in devices:
        position = device.removeprefix("cuda:")
        if not (position.isascii() and position.isdigit() and len(position) < 6):
            return "GPUs not told"
        if int(position) >= len(visible):
            return "GPU not sampled"
        used[visible[int(position)]] = used.get(visible[int(position)], 0) + 1
    return used


def _gpu_part(start: Sequence[TelemetrySample], index: int, num_processes: int) -> _GpuPart | None:
    seen = [(sample.time_s, gpu) for sample in start for gpu in sample.gpus if gpu.index == index]
    counted = [(time_s, gpu) for time_s, gpu in seen if _is_amount(gpu.energy_j) and _is_amount(time_s)]
    is_shared = _share_of_others([gpu for _, gpu in seen], num_processes) > SHARED_FROM
    if counted:
        time_s, last = counted[-1]
        return _GpuPart(
            joules=last.energy_j or 0.0,
            time_s=time_s,
            source=last.energy_source or "watts",
            is_shared=is_shared,
            resets=last.energy_resets,
        )
    powered = [(t, w) for t, gpu in seen if (w := gpu.power_w) is not None and _is_amount(w) and _is_amount(t)]
    if not powered:
        return None
    # Trapezia between samples; before the first one its own power counts.
    first_s, first_w = powered[0]
    between = itertools.pairwise(powered)
    joules = first_s * first_w + sum((a_w + b_w) / 2 * (b_s - a_s) for (a_s, a_w), (b_s, b_w) in between)
    return _GpuPart(joules=joules, time_s=powered[-1][0], source="watts", is_shared=is_shared, resets=0)


def _is_amount(value: float | None) -> bool:
    """False for what no GPU can have told: the record is a file of others."""
    return value is not None and 0 <= value < math.inf


def _share_of_others(gpus: Sequence[GpuSample], num_processes: int) -> float:
    told = [gpu.compute_processes for gpu in gpus if gpu.compute_processes is not None]
    return sum(count > num_processes for count in told) / len(told) if told else 0.0


@dataclass(frozen=True, kw_only=True)
class EnergyRates:
    """What the user says of the electricity; nothing is assumed where nothing is said."""

    electricity: float | None = None
    """Price of one kWh."""
    grid: float | None = None
    """Kilograms of CO2 equivalents emitted for one kWh."""

    def __post_init__(self) -> None:
        for flag, value, unit in (
            ("--electricity", self.electricity, "the price of one kWh"),
            ("--grid", self.grid, "kg of CO2e for one kWh"),
        ):
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise InputError(f"{flag} must be 0 or more ({unit}), received {value:g}.")

    @property
    def is_given(self) -> bool:
        """True where the user has said anything."""
        return self.electricity is not None or self.grid is not None

    @property
    def price_per_wh(self) -> float | None:
        """Return the price of one watt-hour, in the currency of the rate."""
        return None if self.electricity is None else self.electricity / WH_PER_KWH

    @property
    def kg_per_wh(self) -> float | None:
        """Return the kilograms of CO2 equivalents of one watt-hour."""
        return None if self.grid is None else self.grid / WH_PER_KWH

    def price(self, wh: float) -> float | None:
        """Return the price of so much energy."""
        return None if self.price_per_wh is None else wh * self.price_per_wh

    def emissions_kg(self, wh: float) -> float | None:
        """Return the kilograms of CO2 equivalents of so much energy."""
        return None if self.kg_per_wh is None else wh * self.kg_per_wh


def epoch_energy_wh(epochs: Sequence[EpochRecord]) -> float | None:
    """Return the median energy of an epoch; None unless every epoch has one."""
    known = [wh for epoch in epochs if (wh := epoch.energy_wh) is not None and _is_amount(wh)]
    return median(known) if known and len(known) == len(epochs) else None


def energy_to_epoch_wh(energy: RunEnergy, epochs: Sequence[EpochRecord], epoch: float) -> float | None:
    """Return the energy from the start to the end of an epoch, which may lie between two: the epochs until there, and
    what the run used outside of its epochs. None where an epoch's energy is not known."""
    known = [wh for record in epochs if (wh := record.energy_wh) is not None and _is_amount(wh)]
    if energy.wh is None or not known or len(known) != len(epochs) or epoch > len(known):
        return None
    whole, part = int(epoch), epoch - int(epoch)
    until = sum(known[:whole]) + (part * known[whole] if part else 0.0)
    return max(0.0, energy.wh - sum(known)) + until
