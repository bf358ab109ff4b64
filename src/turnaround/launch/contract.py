"""The contract of a launcher. The worker entry point is the same for all of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from turnaround.cores import usable_cores
from turnaround.errors import InputError, InterruptedRunError, one_of
from turnaround.launch.handshake import StartMessage
from turnaround.recipe import AUTO, ModelRecipe
from turnaround.record.gpus import describe_gpus
from turnaround.record.layout import RunDirectory
from turnaround.workers.environment import RankInfo
from turnaround.workers.shares import EVEN, checked_share, processes_of, shares_of

WORKER_MODULE = "turnaround.worker"
DEVICES = ("auto", "cpu", "cuda", "mps")
MIXED_DEVICES = ("cpu", "cuda")
"""The kinds that processes of one training may have beside each other: Gloo carries messages between them."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """The plan of one start: processes, engine, and the start message."""

    directory: RunDirectory
    message: StartMessage
    """Before the images are decoded: without them."""
    processes: int
    engine: str = "torch"
    wanted: int | None = None
    """More processes than now, which the run had until GPUs were gone: it goes back to them when those are back."""
    place: RankInfo = field(default_factory=RankInfo)
    """Rank of the command itself: alone it starts all processes, otherwise somebody has started one for each."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the processes get whatever the user has set: the GPUs that are left after a failure."""

    @property
    def processes_here(self) -> int:
        """The processes that share this machine's cores."""
        return self.processes if self.place.is_alone else self.place.local_size

    def for_model(self, model: ModelRecipe) -> LaunchPlan:
        """Return the plan of a training of this network; it may still have to be chosen."""
        network = None if model.name == AUTO else model.name
        downloads = model.weights in (AUTO, "imagenet")
        return replace(self, message=replace(self.message, network=network, downloads=downloads))

    def worker_arguments(self) -> list[str]:
        """Return the words after the worker entry point: everything else is in the start message."""
        return [str(self.directory.path)]


class MoreProcessesError(InterruptedRunError):
    """Stopped and saved by the launcher itself, which can go on with more processes."""


def never() -> bool:
    """Return False: nothing that a start could wait for."""
    return False


class StartedProcesses(Protocol):
    """The processes of one start: they load their code, then wait for their images."""

    def tell(self, message: StartMessage) -> None:
        """Tell them what is known by now, before the images are: the network."""

    def run(self, message: StartMessage, *, can_grow: Callable[[], bool] = never) -> None:
        """Give them the complete message, and wait for their end; an error of errors.py when they do not finish.

        As soon as `can_grow` is true they are asked to save and to stop, which is a MoreProcessesError.
        """


class Launcher(Protocol):
    """Text is made by a pure function and sent by a thin one."""

    def text(self, plan: LaunchPlan) -> str:
        """Return what would be run, as a person could type it."""

    def started(self, plan: LaunchPlan) -> AbstractContextManager[StartedProcesses]:
        """Start the processes; when the context ends, none is left, whether they ran or still waited."""


def choose_processes(*, asked: int | None, workers: int, device: str) -> int:
    """Return as many processes as there are devices, at most one a worker, each with the same number of workers."""
    named = len(device.split(","))
    if named > 1 and asked not in (None, named):
        raise InputError(
            f"--device {device} names {named} devices, one for each process, and there are {asked} processes."
        )
    asked = named if named > 1 else asked
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


def asked_processes(processes: int | None, share: str | None, *, workers: int) -> int | None:
    """Return the number of processes that was asked for, by itself or by a share for each; None where none was."""
    share = checked_share(share or EVEN)
    count = processes_of(share) if processes is None else processes
    if count is not None and processes is None:
        shares_of(share, workers=workers, processes=count)  # refused for their sum, not for the processes
    return count


def even_processes(*, workers: int, at_most: int) -> int:
    """Return the most processes, each with the same number of workers."""
    return max(p for p in range(1, max(1, min(at_most, workers)) + 1) if workers % p == 0)


def checked_device(device: str) -> str:
    """Refuse a kind of device that there is not; whether this machine has one is found out later."""
    kind = device.lower()
    if kind == "gpu":  # as other programs call it
        return "mps" if sys.platform == "darwin" else "cuda"
    if re.fullmatch(r"(cuda:)?[0-9](,[0-9])*", kind):
        raise InputError(
            f"--device takes a kind, not a number. Received: {device!r}. Choose among several GPUs with "
            f"CUDA_VISIBLE_DEVICES={kind.removeprefix('cuda:')} turnaround ... --device cuda."
        )
    if "," in kind:
        return ",".join(_of_one_process(part.strip(), device) for part in kind.split(","))
    if kind not in DEVICES:
        raise InputError(one_of("--device", device, DEVICES))
    return kind


def _of_one_process(kind: str, device: str) -> str:
    """Check one of several devices, which are those of the processes in turn."""
    kind = "cuda" if kind == "gpu" else kind
    if kind not in MIXED_DEVICES:
        raise InputError(
            f"--device {device}: the devices of several processes are {' or '.join(MIXED_DEVICES)} each, as cuda,cpu. "
            f"Received: {kind!r}."
        )
    return kind
