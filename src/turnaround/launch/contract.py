"""What a launcher must do. The worker entry point is the same for all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from turnaround.errors import InputError, one_of
from turnaround.record.gpus import describe_gpus
from turnaround.record.layout import RunDirectory
from turnaround.workers.environment import LAUNCHERS, RankInfo

WORKER_MODULE = "turnaround.cli.worker"
DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """How a prepared run is to be started."""

    directory: RunDirectory
    pixels_dir: Path | None
    """None while they are still being decoded: the processes load their code, then wait for the word (joined.py)."""
    processes: int
    device: str
    begun_at_s: float
    """By this host's monotonic clock, which all its processes share."""
    decode_time_s: float
    decoded_at_s: float = 0.0
    """When the images were there, by the same clock."""
    shows_progress: bool = True
    engine: str = "torch"
    network: str | None = None
    """What will be trained: processes that start before the images are there load its code meanwhile."""
    measured_for_s: float | None = None
    """The processes measure each part of a training for so long (training/bench.py) instead of training."""
    place: RankInfo = field(default_factory=RankInfo)
    """Where the command itself stands: alone it starts all processes, otherwise somebody has started one for each."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the processes get whatever the user has set: the GPUs that are left after a failure."""

    @property
    def processes_here(self) -> int:
        """The processes that share this machine's cores."""
        return self.processes if self.place.is_alone else self.place.local_size

    def worker_arguments(self) -> list[str]:
        """What the worker entry point is told."""
        return [
            str(self.directory.path),
            *(() if self.pixels_dir is None else ("--pixels", str(self.pixels_dir))),
            *(() if self.pixels_dir is not None or self.network is None else (f"--network={self.network}",)),
            *("--device", self.device),
            *("--begun-at-s", f"{self.begun_at_s:.3f}", "--decode-time-s", f"{self.decode_time_s:.3f}"),
            *(() if self.shows_progress else ("--quiet",)),
            *(() if self.measured_for_s is None else ("--bench", f"{self.measured_for_s:g}")),
            *(() if self.place.is_alone else ("--launch", LAUNCHERS[self.engine].split(" -m ")[-1])),
        ]


class Launcher(Protocol):
    """Text is made by a pure function and sent by a thin one."""

    def text(self, plan: LaunchPlan) -> str:
        """What would be run, as a person could type it."""

    def ahead(self, plan: LaunchPlan) -> AbstractContextManager[Callable[[], None]]:
        """Inside, a call of what it gives may start the processes before the images are there.

        The next `run` goes on with them. Without one they end, and leave nothing.
        """

    def run(self, plan: LaunchPlan) -> None:
        """Runs it to its end; an error of errors.py when it does not get there."""


def usable_cores() -> int:
    """The cores this process may use; a batch system or a container may give fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_processes(*, asked: int | None, workers: int, device: str) -> int:
    """As many processes as there are devices, at most one a worker, each with the same number of workers."""
    if asked is not None:
        if not 1 <= asked <= workers:
            raise InputError(
                f"--processes must be from 1 to the number of workers ({workers}), since a process hosts at least one. "
                f"Received: {asked}."
            )
        return asked
    gpus = 0 if device == "cpu" else len(describe_gpus())
    devices = gpus or (1 if device == "mps" or sys.platform == "darwin" else usable_cores())
    return even_processes(workers=workers, at_most=devices)


def even_processes(*, workers: int, at_most: int) -> int:
    """The most processes, each with the same number of workers."""
    return max(p for p in range(1, max(1, min(at_most, workers)) + 1) if workers % p == 0)


def checked_device(device: str) -> str:
    """Refuse a kind of device that there is not; whether this machine has one, training finds out."""
    if device not in DEVICES:
        raise InputError(one_of("--device", device, DEVICES))
    return device
