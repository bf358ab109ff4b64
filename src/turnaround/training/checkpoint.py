"""Checkpoints: whole or invisible. safetensors and JSON, no pickle.

    checkpoint/epoch-00007/               after seven whole epochs
    checkpoint/epoch-00007-step-00040/    after forty steps of the eighth
      weights.safetensors     the network: parameters and buffers
      optimizer.safetensors   the optimiser's tensors, named PARAMETER_NUMBER.KEY
      manifest.json           format, position (below), the optimiser's other values, SHA-256 of both files and its own

The folder gets its name by a rename after everything in it is on the disk. The newest valid one is found by looking,
not by a pointer; a damaged one is named and passed over; the two newest are kept.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import math
import os
import re
import shutil
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from turnaround.errors import DiskFullError, RunDirectoryError, StorageError
from turnaround.record.coding import plain
from turnaround.record.files import (
    make_folder,
    move,
    names_in,
    open_file,
    own_digest,
    read_json,
    remove_folder,
    sha256_of,
    size_of,
    storage_error,
)
from turnaround.record.layout import CheckpointFiles, CheckpointName
from turnaround.record.schema import TimePart
from turnaround.record.writer import write_json
from turnaround.training.faults import FaultTarget, strike
from turnaround.workers.contract import Workers

KEPT = 2
MAX_DELAY_S = 60.0
"""How late a network file system may show another host what is there."""
UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RuntimeError),
    SafetensorError,
)
"""What reading a damaged checkpoint can raise; RuntimeError is torch's word for weights that do not fit."""
MANIFEST_KEYS = {"epoch", "update", "sha256", "optimizer", "scaler", "clock_s"}
"""Of every checkpoint; what is said only within an epoch has defaults."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a checkpoint stands in the training."""

    epoch: int
    """Whole epochs behind it."""
    update: int
    clock_s: dict[TimePart, float]
    scaler: dict[str, Any]
    step: int = 0
    """Steps of the next epoch behind it."""
    totals: list[list[float]] = field(default_factory=list)
    """Of those steps, for each process: sum of losses, number right, number of images."""
    epoch_time_s: float = 0.0
    """Training time of those steps."""
    noise: list[list[float]] = field(default_factory=list)
    """The noise meter's window: update, noise, signal."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """The keys that decide what is learnt, as they were (record/recipe_changes.py)."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return str(CheckpointName(self.epoch, self.step))

    @property
    def is_sound(self) -> bool:
        """Whether it can be a position at all: of a manifest that is no longer what was written."""
        counts = (self.epoch, self.step, self.update)
        rows = [*self.totals, *self.noise]
        times = [self.epoch_time_s, *self.clock_s.values()]
        return (
            all(type(count) is int and count >= 0 for count in counts)
            and isinstance(self.scaler, dict)
            and isinstance(self.recipe, dict)
            and all(type(seconds) in (int, float) and 0 <= seconds < math.inf for seconds in times)
            and all(len(row) == 3 and all(type(value) in (int, float, NoneType) for value in row) for row in rows)
        )


@dataclass(frozen=True, kw_only=True)
class StateSnapshot:
    """Everything a checkpoint is made of, in memory of its own: training may go on while it is written."""

    position: Position
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    """The optimiser's tensors."""
    optimizer: dict[str, Any]
    """The optimiser's other values, and its groups."""


def snapshot(*, module: nn.Module, optimizer: torch.optim.Optimizer, position: Position) -> StateSnapshot:
    """Copies to host memory; the only part of a save that training waits for."""
    state = optimizer.state_dict()
    tensors, values = _split(state["state"])
    return StateSnapshot(
        position=position,
        weights={k: v.detach().to("cpu", copy=True) for k, v in module.state_dict().items()},
        moments={k: v.detach().to("cpu", copy=True) for k, v in tensors.items()},
        optimizer={"values": values, "param_groups": copy.deepcopy(state["param_groups"])},
    )


def save(folder: Path, *, module: nn.Module, optimizer: torch.optim.Optimizer, position: Position) -> Path:
    """Writes one checkpoint now."""
    return write(folder, snapshot(module=module, optimizer=optimizer, position=position))


def require_room(folder: Path, module: nn.Module) -> None:
    """DiskFullError when the disk cannot hold the checkpoints of this network: those kept, and one being written."""
    weights = sum(v.nbytes for v in module.state_dict().values())
    moments = 2 * sum(p.nbytes for p in module.parameters() if p.requires_grad)  # no optimiser keeps more
    there = sum(size_of(path, folder.parent) for files in CheckpointFiles.all_in(folder) for path in files.tensors)
    needed, free = (KEPT + 1) * (weights + moments) - there, shutil.disk_usage(folder.parent).free
    if free < needed:
        raise DiskFullError(
            f"{folder.parent} has {free / 2**20:,.0f} MiB free, but the checkpoints of this network need up to "
            f"{needed / 2**20:,.0f} MiB. Free some space, or choose another directory with --out."
        )


def write(folder: Path, taken: StateSnapshot) -> Path:
    """Writes one checkpoint; on any failure nothing of it remains visible and the earlier ones are untouched."""
    target, update = folder / taken.position.name, taken.position.update
    run, files = folder.parent, CheckpointFiles(folder / f".{target.name}.{os.getpid()}")
    try:
        make_folder(folder)
        remove_leftovers(folder)
        make_folder(files.path, run)
        digests = {files.weights.name: _write(files.weights, taken.weights, run)}
        strike("checkpoint", step=update, target=FaultTarget(path=files.weights))
        digests[files.optimizer.name] = _write(files.optimizer, taken.moments, run)
        manifest = plain({**asdict(taken.position), "sha256": digests, "optimizer": taken.optimizer})
        # The manifest is synced after the tensors, and the folder renamed after the manifest: what is visible is whole.
        write_json(files.manifest, {**manifest, "digest": own_digest(manifest)}, run)
        remove_folder(target, run)  # the same position, saved before a resume: ours is newer and whole
        move(files.path, target, run)
        strike("saved", step=update, target=FaultTarget(path=target))
    except (OSError, StorageError) as error:
        remove_folder(files.path, run)
        cause = error.__cause__ if isinstance(error, StorageError) else error  # whoever wrote the manifest has said it
        raise storage_error("save a checkpoint", target, cause if isinstance(cause, OSError) else error) from error
    others = [
        path for path in checkpoints(folder) if path != target
    ]  # a later name may be a damaged one, not a newer one
    for old in others[: -(KEPT - 1)]:
        remove_folder(old, run)
    return target


def checkpoints(folder: Path) -> list[Path]:
    """The visible checkpoints, oldest first."""
    return [files.path for files in CheckpointFiles.all_in(folder)]


def newest_valid(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose files are what its manifest says, and a sentence for each one passed over."""
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):
        problem = _problem(path)
        if problem is None:
            return path, damaged
        damaged.append(f"{path.name} is damaged ({problem}) and was passed over")
    return None, damaged


def agreed(folder: Path, workers: Workers, *, patience_s: float = MAX_DELAY_S) -> tuple[Path | None, list[str]]:
    """The newest valid one, the same on every process: process 0 looks, the others take its word.

    A network file system may show files late, and each process could find another newest one. So the others wait until
    they see what process 0 has seen, by its SHA-256.
    """
    said: dict[str, Any] = {"name": None, "manifest": "", "passed_over": []}
    if workers.rank == 0:
        path, passed_over = newest_valid(folder)
        digest = "" if path is None else sha256_of(CheckpointFiles(path).manifest, folder.parent)
        said = {"name": path and path.name, "manifest": digest, "passed_over": passed_over}
    said = json.loads(workers.gather(json.dumps(said))[0])
    path = folder / said["name"] if said["name"] else None
    if path is None or workers.rank == 0:
        return path, said["passed_over"]
    latest_s = time.monotonic() + patience_s
    while (problem := _unlike(path, said["manifest"])) is not None:
        if time.monotonic() > latest_s:
            raise StorageError(
                f"Process {workers.rank} does not see the checkpoint that process 0 goes on from, {path} "
                f"({problem}), after {patience_s:.0f} s. All hosts must share one file system."
            )
        time.sleep(0.1)
    return path, said["passed_over"]


def _unlike(path: Path, manifest_digest: str) -> str | None:
    """Why this is not (yet) what process 0 has seen; os.listdir also asks a network file system anew."""
    try:
        strike("look", target=FaultTarget(path=path))
        os.listdir(path.parent)
        if sha256_of(CheckpointFiles(path).manifest, run_of(path)) != manifest_digest:
            return "its manifest is another one"
    except RunDirectoryError as error:
        return str(error).rstrip(".")
    except OSError as error:
        return str(error.strerror or error)
    return _problem(path)


def restore(path: Path, *, module: nn.Module, optimizer: torch.optim.Optimizer) -> Position:
    """Puts a valid checkpoint into a network and an optimiser of the same shapes."""
    files = CheckpointFiles(path)
    try:
        manifest = read_json(files.manifest, run_of(path))
        module.load_state_dict(load_tensors(files.weights, run_of(path)))
        tensors = load_tensors(files.optimizer, run_of(path))
        state = _join(tensors, manifest["optimizer"]["values"])
        optimizer.load_state_dict({"state": state, "param_groups": manifest["optimizer"]["param_groups"]})
        _lay_out(optimizer)
    except UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunDirectoryError(
            f"{path} does not fit this recipe's network or optimiser ({reason}). "
            "The recipe was changed after the run began; start a new run."
        ) from error
    return _position(manifest)


def _position(manifest: dict[str, Any]) -> Position:
    return Position(**{f.name: manifest[f.name] for f in fields(Position) if f.name in manifest})


def _lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Moments in the memory layout of their parameters: norms over them (LAMB) then round as before, to the bit."""
    for parameter, entry in optimizer.state.items():
        for key, value in entry.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                entry[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def remove_leftovers(folder: Path) -> None:
    """What a killed save left behind. Only the holder of the run's lock calls this."""
    for name in filter(CheckpointName.is_leftover, names_in(folder, folder.parent)):
        remove_folder(folder / name, folder.parent)


def _write(path: Path, tensors: dict[str, Tensor], run: Path) -> str:
    """One file, on the disk when this returns; its SHA-256."""
    try:
        save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    except SafetensorError as error:  # its only sign of a full disk is "(os error 28)" in its text
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error
    with open_file(path, run) as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _problem(path: Path) -> str | None:
    """What is wrong with a checkpoint, in words."""
    files, run = CheckpointFiles(path), run_of(path)
    try:
        manifest = read_json(files.manifest, run)
        if "digest" in manifest and manifest["digest"] != own_digest(manifest):
            return "its manifest has another SHA-256 than it says"
        position = _position(manifest) if manifest.keys() >= MANIFEST_KEYS else None
        if position is None or not position.is_sound or position.name != path.name:
            return "its manifest is that of another position, or not whole"
        for file in files.tensors:
            if sha256_of(file, run) != manifest["sha256"][file.name]:
                return f"{file.name} has another SHA-256 than its manifest says"
    except RunDirectoryError as error:
        return str(error).rstrip(".")
    except UNREADABLE as error:
        return f"{type(error).__name__}: {error}"
    return None


def run_of(path: Path) -> Path:
    """Return the run directory of a checkpoint: no link is followed below it."""
    return path.parent.parent


def load_tensors(path: Path, run: Path) -> dict[str, Tensor]:
    """Return the tensors of a plain file, through the descriptor by which it was found to be one."""
    with open_file(path, run) as file:
        return load_file(f"/dev/fd/{file.fileno()}")


def _split(state: dict[int, dict[str, Any]]) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """An optimiser's state as named tensors and as plain values."""
    tensors = {f"{i}.{k}": v for i, entry in state.items() for k, v in entry.items() if isinstance(v, Tensor)}
    values = {str(i): {k: v for k, v in entry.items() if not isinstance(v, Tensor)} for i, entry in state.items()}
    return tensors, values


def _join(tensors: dict[str, Tensor], values: dict[str, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {int(i): dict(entry) for i, entry in values.items()}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        state[int(number)][key] = tensor
    return state
