"""Faults on purpose, for tests and for trying out what a training survives; docs/reliability.md explains them.

    TURNAROUND_FAULT="kind=kill,rank=1,step=37"          several are separated by semicolons

    kind      kill, segv, exit, exit0, stop, hang, gilhang, raise, oom, nan, slow, drag, sigterm, sigint, sigusr2,
              launcher, clock, disk_full, readonly, vanish, torn, bitflip, slowfs, eio, stale
    rank      the process; every one when not given
    step      the update, counted from 1 over the whole run; the first opportunity when not given
    phase     start, step (default), compute (within a step: its images are there), evaluation, checkpoint (its first
              file is written), saved (it is visible), look (a process looks for the checkpoint that all go on from)
    segment   1 (default) is the first start of the run, 2 the first resume, ...: a repeated step is spared
    ms        of `slow`, at every step from `step` on; of `drag` too, but for each worker that the process hosts, within
              the step: a slower device; of `slowfs`, how late files show; of `clock`, how far it jumps;
              of `eio` and `stale`, how long nothing below the run can be read or written

Costs a look at an empty tuple where it is not set.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import nn

from turnaround.errors import InputError, one_of
from turnaround.record.files import trouble_on_purpose
from turnaround.record.layout import CheckpointFiles
from turnaround.workers.contract import Workers

LAUNCHER_VARIABLE = "TURNAROUND_LAUNCHER_PID"
"""As launch/local.py sets it (children.py)."""
VARIABLE = "TURNAROUND_FAULT"
PHASES = ("start", "step", "compute", "evaluation", "checkpoint", "saved", "look")
USUAL_PHASE = {
    **dict.fromkeys(("disk_full", "readonly", "vanish", "torn"), "checkpoint"),
    "bitflip": "saved",
    "slowfs": "look",
    "clock": "start",
    "drag": "compute",
}
LASTING = ("slow", "slowfs", "drag")
"""Strike every time, the others once."""
SIGNALS = {
    "kill": signal.SIGKILL,
    "segv": signal.SIGSEGV,
    "stop": signal.SIGSTOP,
    "sigterm": signal.SIGTERM,
    "sigint": signal.SIGINT,
    "sigusr2": signal.SIGUSR2,
}
FOR_EVER_S = 10**6


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault that is to come."""

    kind: str
    rank: int | None = None
    step: int | None = None
    phase: str = "step"
    segment: int = 1
    ms: int = 100


@dataclass(frozen=True, kw_only=True)
class FaultTarget:
    """What a fault may damage."""

    module: nn.Module | None = None
    path: Path | None = None
    workers: Workers | None = None


NOTHING = FaultTarget()
_armed: list[Fault] = []
_first_look_s: dict[Fault, float] = {}


def planned(text: str) -> list[Fault]:
    """Parse TURNAROUND_FAULT, or raise InputError."""
    return [_fault(part) for part in text.split(";") if part.strip()]


def arm(*, rank: int, segment: int) -> None:
    """Once in a process: the faults of the environment that are meant for it."""
    _armed[:] = [
        fault
        for fault in planned(os.environ.get(VARIABLE, ""))
        if fault.rank in (None, rank) and fault.segment == segment
    ]


def strike(phase: str, *, step: int | None = None, target: FaultTarget = NOTHING) -> None:
    """Called where a fault may strike; most strike once."""
    if not _armed:
        return
    for fault in list(_armed):
        is_reached = fault.step is None or (step is not None and step >= fault.step)
        if fault.phase == phase and is_reached:
            if fault.kind not in LASTING:
                _armed.remove(fault)
            _KINDS[fault.kind](fault, target)


def _fault(text: str) -> Fault:
    values = dict(part.strip().partition("=")[::2] for part in text.split(","))
    known = tuple(field.name for field in fields(Fault))
    for key in values:
        if key not in known:
            raise InputError(f"{VARIABLE}: {one_of('key', key, known)}")
    kind = values.get("kind", "")
    if kind not in _KINDS:
        raise InputError(f"{VARIABLE}: {one_of('kind', kind, tuple(_KINDS))}")
    phase = values.get("phase", USUAL_PHASE.get(kind, "step"))
    if phase not in PHASES:
        raise InputError(f"{VARIABLE}: {one_of('phase', phase, PHASES)}")
    try:
        numbers = {key: int(values[key]) for key in ("rank", "step", "segment", "ms") if key in values}
    except ValueError as error:
        raise InputError(f"{VARIABLE}: rank, step, segment and ms are whole numbers ({error}).") from None
    return Fault(kind=kind, phase=phase, **numbers)


def _signal(fault: Fault, _target: FaultTarget) -> None:
    os.kill(os.getpid(), SIGNALS[fault.kind])


def _raise(_fault: Fault, _target: FaultTarget) -> None:
    raise RuntimeError("a fault on purpose")


def _out_of_memory(_fault: Fault, _target: FaultTarget) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory, on purpose")


def _disk_full(_fault: Fault, _target: FaultTarget) -> None:
    raise OSError(errno.ENOSPC, "No space left on device, on purpose")


def _read_only(_fault: Fault, _target: FaultTarget) -> None:
    raise OSError(errno.EROFS, "Read-only file system, on purpose")


def _vanish(_fault: Fault, target: FaultTarget) -> None:
    """The whole run directory is no longer where it was."""
    assert target.path is not None, "vanish strikes in the phase checkpoint"
    run = target.path.parents[2]
    run.rename(run.with_name(f"{run.name}.gone"))


def _show_late(fault: Fault, _target: FaultTarget) -> None:
    """A file system that shows other processes' files only after a while."""
    if time.monotonic() - _first_look_s.setdefault(fault, time.monotonic()) < fault.ms / 1000:
        raise FileNotFoundError(errno.ENOENT, "not visible yet, on purpose")


def _do_not_answer(fault: Fault, _target: FaultTarget) -> None:
    """A file server that restarts: every access to the run fails for a while."""
    until_s, number = time.monotonic() + fault.ms / 1000, errno.EIO if fault.kind == "eio" else errno.ESTALE

    def fail() -> None:
        if time.monotonic() < until_s:
            raise OSError(number, f"{os.strerror(number)}, on purpose")

    trouble_on_purpose.append(fail)


def _kill_launcher(_fault: Fault, _target: FaultTarget) -> None:
    os.kill(int(os.environ[LAUNCHER_VARIABLE]), signal.SIGKILL)


def _shift_clock(fault: Fault, _target: FaultTarget) -> None:
    """Somebody sets the clock, while the process runs."""
    before = time.time
    setattr(time, "time", lambda: before() + fault.ms / 1000)  # noqa: B010  (mypy forbids the plain assignment)


def _drag(fault: Fault, target: FaultTarget) -> None:
    """The device of this process is a slower one: the more workers it hosts, the longer a step takes."""
    assert target.workers is not None, "drag strikes in the phase compute"
    time.sleep(len(target.workers.hosted) * fault.ms / 1000)


def _poison(_fault: Fault, target: FaultTarget) -> None:
    """Some weights are no longer numbers, so neither is the loss of this process's next pass."""
    assert target.module is not None, "nan strikes in the phase step"
    with torch.no_grad():
        next(p for p in target.module.parameters() if p.requires_grad).fill_(float("nan"))


def _tear(_fault: Fault, target: FaultTarget) -> None:
    """Half a file, and the process is gone."""
    assert target.path is not None, "torn strikes in the phase checkpoint"
    os.truncate(target.path, target.path.stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)


def _flip(_fault: Fault, target: FaultTarget) -> None:
    """A checkpoint that was whole decays, and the process is gone."""
    assert target.path is not None, "bitflip strikes in the phase saved"
    with CheckpointFiles(target.path).weights.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 4]))
    os.kill(os.getpid(), signal.SIGKILL)


_KINDS: dict[str, Callable[[Fault, FaultTarget], None]] = {
    **dict.fromkeys(SIGNALS, _signal),
    "exit": lambda _fault, _target: os._exit(3),
    "exit0": lambda _fault, _target: os._exit(0),
    "hang": lambda _fault, _target: time.sleep(FOR_EVER_S),
    "gilhang": lambda _fault, _target: ctypes.PyDLL(None).sleep(FOR_EVER_S),
    "slow": lambda fault, _target: time.sleep(fault.ms / 1000),
    "drag": _drag,
    "raise": _raise,
    "oom": _out_of_memory,
    "nan": _poison,
    "launcher": _kill_launcher,
    "clock": _shift_clock,
    "disk_full": _disk_full,
    "readonly": _read_only,
    "vanish": _vanish,
    "slowfs": _show_late,
    "eio": _do_not_answer,
    "stale": _do_not_answer,
    "torn": _tear,
    "bitflip": _flip,
}
