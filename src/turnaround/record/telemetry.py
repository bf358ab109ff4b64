"""Telemetry of the host while it trains. Enters: a path. Leaves: one line a second in telemetry-HOST.jsonl.

It runs in a thread of its own and can fail in any way without harm: a probe that fails is left out, and a
line {"note": ...} says so once.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from turnaround.errors import StorageError
from turnaround.record.energy import EnergyMeter, GpuEnergy
from turnaround.record.gpus import Nvml, gpu_with, nvml_session, sample_gpu, uuid_of, visible_gpus
from turnaround.record.schema import FORMAT_VERSION, GpuSample, TelemetrySample, to_json, utc_now
from turnaround.record.writer import Lines
from turnaround.words import GIB

STOP_TIMEOUT_S = 2.0
"""The end of a run waits at most so long for a hung driver; the thread is a daemon and dies with the process."""


class Telemetry:
    """A context manager that samples CPU, memory and GPUs until its end. One process on each host has one."""

    def __init__(self, path: Path, interval_s: float = 1.0, *, nvml: Nvml | None = None) -> None:
        self.failure: StorageError | None = None
        """Why there are no (more) samples, when the file cannot be written."""
        self._path = path
        self._interval_s = interval_s
        self._nvml = nvml
        self._probes: _Probes | None = None
        self._used_by: dict[str, int] | None = None
        self._read: frozenset[str] = frozenset()
        self._is_begun = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(self._interval_s + STOP_TIMEOUT_S)

    def tell_used(self, processes_by_uuid: Mapping[str, int]) -> list[str]:
        """Say how many processes of the run compute on each GPU of this host, by its UUID; on all others none do.

        Return the UUIDs of those that cannot be found from here: their own processes must tell their energy.
        """
        self._is_begun.wait(STOP_TIMEOUT_S)
        if self._probes is not None:
            self._probes.find(processes_by_uuid)
            self._read = frozenset(processes_by_uuid) & self._probes.index_of.keys()
        self._used_by = dict(processes_by_uuid)
        return [uuid for uuid in processes_by_uuid if uuid not in self._read]

    def used_energy_j(self) -> float | None:
        """Return the joules, until this moment, of the GPUs that the run computes on and that were found from here;
        None where one does not tell."""
        probes = self._probes
        if self._used_by is None:
            return None
        if probes is None:
            return 0.0  # none was found from here
        energies = probes.energies()
        used = [energies.get(probes.index_of[uuid]) for uuid in self._read]
        # All of them or none: the sum of some GPUs would be told as the energy of the run.
        known = [energy.joules for energy in used if energy is not None]
        return sum(known) if len(known) == len(used) else None

    def _run(self) -> None:
        try:
            # No fsync: a sample is not worth waiting for a disk, perhaps the one that training reads from. But each
            # line is handed over at once, for those who watch.
            with Lines(self._path, sync=False, max_lines=1) as lines, nvml_session(self._nvml) as nvml:
                start_s = time.monotonic()
                self._probes = _Probes(lines, nvml)
                self._is_begun.set()
                self._sample_until_stopped(self._probes, lines, start_s)
                self.failure = lines.failure
        except StorageError as error:
            self.failure = error
        finally:
            self._is_begun.set()

    def _sample_until_stopped(self, probes: "_Probes", lines: Lines, start_s: float) -> None:
        is_last = False
        while not is_last:
            # To the next whole interval: the samples do not drift by the time that sampling takes.
            elapsed_s = time.monotonic() - start_s
            is_last = self._stop.wait(self._interval_s - elapsed_s % self._interval_s)
            lines.write(to_json(probes.sample(time.monotonic() - start_s, self._used_by)))


class _Probes:
    """Asks for everything once; answers what is known."""

    def __init__(self, lines: Lines, nvml: Nvml | None) -> None:
        self._lines = lines
        self._nvml = nvml
        self._noted: set[str] = set()
        self._process = self._ask("this process", psutil.Process)
        # The first answer of cpu_percent has nothing to compare with and is always 0.
        self._ask("CPU use", psutil.cpu_percent)
        self._gpus = [] if nvml is None else self._ask("list of GPUs", lambda: visible_gpus(nvml)) or []
        self.index_of = {uuid: index for index, handle in self._gpus if (uuid := uuid_of(nvml, handle))}
        """NVML's number of each GPU, by its UUID."""
        self._energy = EnergyMeter(nvml, self._gpus)

    def find(self, uuids: Iterable[str]) -> None:
        """Sample these GPUs too, where NVML sees them: each process of a job may be shown its own GPU alone."""
        for uuid in uuids:
            found = None if self._nvml is None or uuid in self.index_of else gpu_with(self._nvml, uuid)
            if found is not None:
                self._energy.add(*found)
                self._gpus = [*self._gpus, found]  # another list: the thread may be in the middle of this one
                self.index_of[uuid] = found[0]

    def energies(self) -> dict[int, GpuEnergy]:
        """Return the energy of each GPU until this moment, by NVML's number."""
        return self._energy.read()

    def sample(self, time_s: float, used_by: Mapping[str, int] | None = None) -> TelemetrySample:
        """Ask for everything now. `used_by`: processes of the run by the UUID of their GPU, once they are known."""
        energies = self._ask("energy", self.energies) or {}
        used = None if used_by is None else {self.index_of.get(uuid, -1): count for uuid, count in used_by.items()}
        memory = self._ask("memory", psutil.virtual_memory)
        own = self._ask("memory of this process", lambda: self._process.memory_info())
        return TelemetrySample(
            time_s=round(time_s, 3),
            at=utc_now(),
            cpu_percent=self._ask("CPU use", psutil.cpu_percent),
            memory_used_gib=None if memory is None else round(memory.used / GIB, 3),
            process_rss_gib=None if own is None else round(own.rss / GIB, 3),
            gpus=[
                _with_energy(gpu, energies.get(index), None if used is None else used.get(index, 0))
                for index, handle in self._gpus
                if (gpu := self._gpu(index, handle)) is not None
            ],
        )

    def _gpu(self, index: int, handle: Any) -> GpuSample | None:
        gpu: GpuSample | None = self._ask(f"GPU {index}", lambda: sample_gpu(self._nvml, index, handle))
        if gpu is not None and gpu.utilisation_percent is None and gpu.memory_used_gib is None:
            self._note(f"GPU {index}", "the driver tells nothing about it")
        return gpu

    def _ask(self, what: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        # Of any kind: NVML raises errors of its own, psutil others, and a driver that is being replaced yet others.
        except Exception as error:
            self._note(what, f"{type(error).__name__}: {error}")
            return None

    def _note(self, what: str, reason: str) -> None:
        if what not in self._noted:
            self._noted.add(what)
            self._lines.write({"format": FORMAT_VERSION, "note": f"{what}: {reason}", "at": utc_now()})


def _with_energy(gpu: GpuSample, energy: GpuEnergy | None, run_processes: int | None) -> GpuSample:
    told = dataclasses.replace(gpu, run_processes=run_processes)
    if energy is None:
        return told
    joules = round(energy.joules, 3)
    return dataclasses.replace(told, energy_j=joules, energy_source=energy.source, energy_resets=energy.resets)
