"""The GPUs this process may use, asked through NVML: no CUDA context, no torch. Enters: nothing, or a pynvml.

Everything here answers "I do not know" (None, or no GPU) rather than raise: a missing or old driver must not
keep anybody from training.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from turnaround.record.schema import GpuSample
from turnaround.words import GIB

Nvml = Any
"""The module pynvml, or what behaves like it."""

UNKNOWN_GPU = "unknown GPU"
"""The name of a GPU whose driver does not tell it."""
ALL = "all"
"""Instead of a list of visible GPUs: those that NVML sees, whatever CUDA_VISIBLE_DEVICES says."""


@contextlib.contextmanager
def nvml_session(nvml: Nvml | None = None) -> Iterator[Nvml | None]:
    """NVML, initialised; None when there is no NVIDIA driver."""
    try:
        module = nvml or _import_nvml()
        module.nvmlInit()
    except Exception:  # library not found, driver not loaded, version mismatch: all mean "no GPU to ask"
        yield None
        return
    try:
        yield module
    finally:
        with contextlib.suppress(Exception):
            module.nvmlShutdown()


def _import_nvml() -> ModuleType:
    import pynvml  # here, because it is not needed to read a run

    module: ModuleType = pynvml
    return module


def visible_gpus(nvml: Nvml, visible: str | None = None) -> list[tuple[int, Any]]:
    """Return (index, handle) of the GPUs in CUDA_VISIBLE_DEVICES (or `visible`), all of them when it is not set.

    As with CUDA, an entry that names no GPU ends the list. Numbers are taken in NVML's order, that of the PCI
    bus: CUDA's own default order differs on hosts that mix GPU kinds.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    visible = None if visible == ALL else visible
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    if visible is None:
        return list(enumerate(handles))
    uuids = [uuid_of(nvml, handle) for handle in handles]
    chosen: list[tuple[int, Any]] = []
    for entry in visible.split(","):
        index = _index_of(entry.strip(), uuids)
        if index is None:
            break
        chosen.append((index, handles[index]))
    return chosen


def gpu_with(nvml: Nvml, uuid: str) -> tuple[int, Any] | None:
    """Return (index, handle) of the GPU with this UUID, also of one that CUDA_VISIBLE_DEVICES hides: NVML is not bound
    by it. None where there is none, or where the system lets this process see its own GPUs alone."""
    every = ask(lambda: visible_gpus(nvml, ALL)) or []
    return next((pair for pair in every if uuid and uuid_of(nvml, pair[1]) == uuid), None)


def _index_of(entry: str, uuids: list[str]) -> int | None:
    if entry.isascii() and entry.isdigit():
        return int(entry) if len(entry) < 6 and int(entry) < len(uuids) else None
    # CUDA accepts any unambiguous beginning of a UUID.
    matches = [index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def describe_gpus(nvml: Nvml | None = None) -> list[dict[str, Any]]:
    """Return name, memory_gib and driver of each GPU; [] when there is none."""
    with nvml_session(nvml) as session:
        if session is None:
            return []
        driver = _text(ask(lambda: session.nvmlSystemGetDriverVersion())) or None
        return [
            {
                "index": index,
                "name": _name(session, handle),
                "memory_gib": _total_gib(session, handle),
                "driver": driver,
            }
            for index, handle in (ask(lambda: visible_gpus(session)) or [])
        ]


def sample_gpu(nvml: Nvml, index: int, handle: Any) -> GpuSample:
    """Return load, memory and power of the GPU at this moment."""
    utilisation = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    power_mw = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return GpuSample(
        index=index,
        name=_name(nvml, handle),
        utilisation_percent=None if utilisation is None else float(utilisation.gpu),
        memory_used_gib=None if memory is None else round(memory.used / GIB, 3),
        power_w=None if power_mw is None else power_mw / 1000,
        compute_processes=count_compute_processes(nvml, handle),
    )


def count_compute_processes(nvml: Nvml, handle: Any) -> int | None:
    """Return how many programs have a context on the GPU; None where the driver does not say. A container may see only
    its own."""
    found = ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    return None if found is None else len(found)


def ask(question: Callable[[], Any]) -> Any:
    """Return the answer, or None: not every GPU supports every question, a lost one none, an old pynvml not all."""
    try:
        return question()
    except Exception:
        return None


def _name(nvml: Nvml, handle: Any) -> str:
    return _text(ask(lambda: nvml.nvmlDeviceGetName(handle))) or UNKNOWN_GPU


def uuid_of(nvml: Nvml, handle: Any) -> str:
    """Return the GPU's UUID, "GPU-8f6e..."; empty where it is not told."""
    return _text(ask(lambda: nvml.nvmlDeviceGetUUID(handle)))


def _total_gib(nvml: Nvml, handle: Any) -> float | None:
    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    return None if memory is None else round(memory.total / GIB, 2)


def _text(answer: Any) -> str:
    """Return the answer as text: old versions of pynvml answer in bytes."""
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer or "")
