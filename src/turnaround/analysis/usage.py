"""Utilisation of each GPU over time, from telemetry; of the processor on hosts without GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

from turnaround.analysis.repeats import means_of_groups
from turnaround.errors import RunDirectoryError
from turnaround.record.reader import Run
from turnaround.record.schema import GpuSample, TelemetrySample

MAX_POINTS = 300

Column = tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Usage:
    """One GPU, or one host's processor, over the time of a run; None where it was not told."""

    name: str
    """GPU 0, with its host where there are several; the host of a processor."""
    is_gpu: bool
    time_s: Column
    """Since the host's first sample, by the host's own clock: the break of a resume is seen as one."""
    busy_percent: Column
    memory_gib: Column
    power_w: Column
    """Nothing but None for a processor."""

    def knows(self, column: str) -> bool:
        """Return true where there is anything in a column."""
        return any(value is not None for value in getattr(self, column))

    @property
    def mean_busy_percent(self) -> float | None:
        """The mean over the time of the run."""
        known = [value for value in self.busy_percent if value is not None]
        return fmean(known) if known else None

    @property
    def max_memory_gib(self) -> float | None:
        """The most memory that was in use at once."""
        return max((value for value in self.memory_gib if value is not None), default=None)


def usages(run: Run, *, most: int = MAX_POINTS) -> tuple[Usage, ...]:
    """Return every GPU of every host, or its processor without one; each point is the mean of a group of samples."""
    found: list[Usage] = []
    try:
        by_host = run.telemetry()
    except RunDirectoryError:  # of a newer format: the bottleneck of the run says so
        return ()
    for host, samples in by_host.items():
        found += _host_usages(host, samples, most, is_named=len(by_host) > 1)
    return tuple(usage for usage in found if usage.knows("busy_percent") or usage.knows("memory_gib"))


def _host_usages(host: str, samples: Sequence[TelemetrySample], most: int, *, is_named: bool) -> list[Usage]:
    time_s = means_of_groups(_seconds(samples), most)
    indices = sorted({gpu.index for sample in samples for gpu in sample.gpus})

    def column(read: Callable[[TelemetrySample], float | None]) -> Column:
        return tuple(means_of_groups([read(sample) for sample in samples], most))

    def of_gpu(index: int, read: Callable[[GpuSample], float | None]) -> Column:
        return column(lambda sample: next((read(gpu) for gpu in sample.gpus if gpu.index == index), None))

    if not indices:
        busy, memory = column(lambda s: s.cpu_percent), column(lambda s: s.memory_used_gib)
        unknown = (None,) * len(time_s)
        times = tuple(time_s)
        return [Usage(name=host, is_gpu=False, time_s=times, busy_percent=busy, memory_gib=memory, power_w=unknown)]
    return [
        Usage(
            name=f"GPU {index} on {host}" if is_named else f"GPU {index}",
            is_gpu=True,
            time_s=tuple(time_s),
            busy_percent=of_gpu(index, lambda gpu: gpu.utilisation_percent),
            memory_gib=of_gpu(index, lambda gpu: gpu.memory_used_gib),
            power_w=of_gpu(index, lambda gpu: gpu.power_w),
        )
        for index in indices
    ]


def _seconds(samples: Sequence[TelemetrySample]) -> list[float | None]:
    """Return seconds by the clock where all instants can be read, else by the samples' own seconds."""
    try:
        instants = [datetime.fromisoformat(sample.at) for sample in samples]
        return [(instant - instants[0]).total_seconds() for instant in instants]
    except (ValueError, TypeError):  # TypeError: one with offset, one without
        return [sample.time_s for sample in samples]
