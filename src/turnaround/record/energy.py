"""Energy of the GPUs of this host, in joules since the meter was made: NVML's energy counter, else power over time.

Enters: NVML and the handles of the GPUs. Leaves: joules of each, and which of the two they are. Only differences of the
counter are used: it counts from the load of the driver on, whoever computes.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from turnaround.record.gpus import Nvml, ask, gpu_with, nvml_session
from turnaround.record.schema import EnergySource

JOULES_PER_WH = 3600.0
MAX_WATTS = 2000.0
"""No GPU draws more (a B200 has a limit of 1,000 W): a counter that went back and shows more did not begin at 0."""
LOCK_TIMEOUT_S = 1.0
"""A hung driver holds the sampling thread inside a question: whoever else asks goes on without an answer after this."""


@dataclass(frozen=True, kw_only=True)
class GpuEnergy:
    """Energy of one GPU since the meter was made."""

    joules: float
    source: EnergySource
    resets: int = 0
    """How often the counter went back: the driver was loaded again, and what came just before is not counted."""


class EnergyMeter:
    """The energy of several GPUs, each since this was made; asked from any thread."""

    def __init__(
        self, nvml: Nvml, gpus: Sequence[tuple[int, Any]], *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._nvml, self._now_s = nvml, now_s
        self._lock = threading.Lock()
        self._gpus = {index: _Gpu(nvml, handle, now_s()) for index, handle in gpus}

    def add(self, index: int, handle: Any) -> None:
        """Count another GPU from here on; a driver that hangs leaves its energy unknown."""
        if self._lock.acquire(timeout=LOCK_TIMEOUT_S):
            try:
                self._gpus.setdefault(index, _Gpu(self._nvml, handle, self._now_s()))
            finally:
                self._lock.release()

    def read(self) -> dict[int, GpuEnergy]:
        """Return the energy by NVML's number of the GPU; one that tells neither counter nor power now is left out."""
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_S):
            return {}
        try:
            answered = {index: gpu for index, gpu in self._gpus.items() if gpu.update(self._now_s())}
            return {index: gpu.energy for index, gpu in answered.items() if gpu.energy is not None}
        finally:
            self._lock.release()


class OwnGpuEnergy:
    """The energy of the one GPU of this process, until the process ends. By the counter: nobody samples its watts."""

    def __init__(self, uuid: str, *, nvml: Nvml | None = None) -> None:
        self._session = nvml_session(nvml)
        module = self._session.__enter__()
        found = None if module is None else gpu_with(module, uuid)
        self._meter = None if found is None else EnergyMeter(module, [found])

    def used_energy_j(self) -> float | None:
        """Return the joules until this moment; None where they are not known."""
        energies = [] if self._meter is None else list(self._meter.read().values())
        return energies[0].joules if energies and energies[0].source == "counter" else None


class _Gpu:
    """One GPU: the counter where its first answer is a number, else watts. Never a mixture of the two."""

    def __init__(self, nvml: Nvml, handle: Any, now_s: float) -> None:
        self._nvml, self._handle = nvml, handle
        self._counter_mj = self._read_counter()
        self._watts = None if self._counter_mj is not None else self._read_watts()
        self._at_s = now_s
        is_known = self._counter_mj is not None or self._watts is not None
        source: EnergySource = "watts" if self._counter_mj is None else "counter"
        self.energy = GpuEnergy(joules=0.0, source=source) if is_known else None

    def update(self, now_s: float) -> bool:
        """Ask once more; return whether there was an answer. What was used without one is in the next."""
        if self._counter_mj is not None:
            return self._add_counted(now_s)
        return self._watts is not None and self._add_integrated(now_s)

    def _add_counted(self, now_s: float) -> bool:
        """Add what the counter has counted since the last answer."""
        counter_mj = self._read_counter()
        if counter_mj is None or self.energy is None or self._counter_mj is None:
            return False
        used_mj, is_reset = counter_mj - self._counter_mj, False
        if used_mj < 0:
            # One that began again at 0 shows what was used since; one that only stepped back says nothing.
            is_reset = counter_mj / 1000 <= MAX_WATTS * (now_s - self._at_s)
            used_mj = counter_mj if is_reset else 0.0
        self._counter_mj, self._at_s = counter_mj, now_s
        self.energy = GpuEnergy(
            joules=self.energy.joules + used_mj / 1000, source="counter", resets=self.energy.resets + is_reset
        )
        return True

    def _add_integrated(self, now_s: float) -> bool:
        """Add the trapezium between the last known power and this one."""
        watts = self._read_watts()
        if watts is None or self.energy is None or self._watts is None:
            return False
        used_j = (watts + self._watts) / 2 * (now_s - self._at_s)
        self._watts, self._at_s = watts, now_s
        self.energy = GpuEnergy(joules=self.energy.joules + used_j, source="watts")
        return True

    def _read_counter(self) -> float | None:
        return _number(ask(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)))

    def _read_watts(self) -> float | None:
        power_mw = _number(ask(lambda: self._nvml.nvmlDeviceGetPowerUsage(self._handle)))
        return None if power_mw is None else power_mw / 1000


def _number(answer: Any) -> float | None:
    return float(answer) if isinstance(answer, int | float) and answer >= 0 else None
