"""Checkpoints: whole or invisible. safetensors and JSON, no pickle.

    checkpoint/epoch-00007/               after seven whole epochs
    checkpoint/epoch-00007-step-00040/    after forty steps of the eighth
      weights.safetensors     the network: parameters and buffers
      optimizer.safetensors   the optimiser's tensors, named PARAMETER_NUMBER.KEY
      average.safetensors     the moving average of the weights, where the recipe asks for one (training.ema)
      manifest.json           format, `Manifest` below, the optimiser's other values, SHA-256 of all files and its own

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
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from turnaround.errors import DiskFullError, RunDirectoryError, StorageError
from turnaround.record.coding import own_digest, plain
from turnaround.record.files import (
    make_folder,
    move,
    names_in,
    open_file,
    open_for_reading,
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
from turnaround.training.position import TrainingPosition
from turnaround.workers.contract import Workers

KEPT = 2
"""The one before the newest is what is left when the newest decays on the disk."""
MAX_DELAY_S = 60.0
"""Delay with which a network file system may show another host what is there: NFS caches directories for up to 60 s
unless it is mounted otherwise (acdirmax)."""
UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RuntimeError),
    SafetensorError,
)
"""Exceptions that reading a damaged checkpoint can raise; RuntimeError is torch's for weights that do not fit."""
MANIFEST_KEYS = {"epoch", "update", "sha256", "optimizer", "scaler", "clock_s"}
"""Keys of every manifest; those that matter only within an epoch have defaults."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The values of a checkpoint that are no tensors; manifest.json has the position as `epoch`, `step`, `update`."""

    position: TrainingPosition = field(default_factory=TrainingPosition)
    clock_s: dict[TimePart, float] = field(default_factory=dict)
    scaler: dict[str, Any] = field(default_factory=dict)
    """The loss scaler's state; empty where nothing is scaled."""
    totals: list[list[float]] = field(default_factory=list)
    """For each process, over the steps of the epoch in progress: sum of losses, number right, number of images."""
    epoch_time_s: float = 0.0
    """Training time of those steps."""
    energy_j: float | None = None
    """Energy of the GPUs in them; None where it is not known."""
    noise: list[list[float]] = field(default_factory=list)
    """The noise meter's window: step, noise, signal."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """The keys that decide what is learnt, as they were (record/recipe_changes.py)."""
    shares: list[int] = field(default_factory=list)
    """Workers of each process, by rank: with other shares the same sums are added up in another order."""
    plan: dict[str, Any] = field(default_factory=dict)
    """The epochs that are planned and the best so far (plan.py); empty in checkpoints of earlier versions."""

    def to_json(self) -> dict[str, Any]:
        """Return the values of manifest.json."""
        others = {name: value for name, value in vars(self).items() if name != "position"}
        at = self.position
        return {"epoch": at.epochs_done, "update": at.global_step, "step": at.step_in_epoch, **others}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Manifest:
        """Read the values of manifest.json; what an earlier version did not write has its default."""
        position = TrainingPosition(
            epochs_done=values["epoch"], step_in_epoch=values.get("step", 0), global_step=values["update"]
        )
        others = {name: values[name] for name in vars(cls()) if name in values and name != "position"}
        return cls(position=position, **others)

    @property
    def is_sound(self) -> bool:
        """Tell whether training can go on from these values, or the manifest is no longer what was written."""
        at = self.position
        # Every process's totals are (losses, right, images), every measurement of noise (step, noise, signal); null
        # stands for a number that was not finite, which JSON does not have (record/coding.py).
        rows = [*self.totals, *self.noise]
        times = [self.epoch_time_s, self.energy_j or 0.0, *self.clock_s.values()]
        return (
            all(type(count) is int and count >= 0 for count in (at.epochs_done, at.step_in_epoch, at.global_step))
            and isinstance(self.scaler, dict)
            and isinstance(self.recipe, dict)
            and isinstance(self.plan, dict)
            and all(type(share) is int and share >= 1 for share in self.shares)
            # By type(), not isinstance: JSON's true would pass for a number.
            and all(type(seconds) in (int, float) and 0 <= seconds < math.inf for seconds in times)
            and all(len(row) == 3 and all(type(value) in (int, float, NoneType) for value in row) for row in rows)
        )


@dataclass(frozen=True, kw_only=True)
class StateSnapshot:
    """Everything a checkpoint is made of, in memory of its own: training may go on while it is written."""

    manifest: Manifest
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    """The optimiser's tensors."""
    optimizer: dict[str, Any]
    """The optimiser's other values, and its groups."""
    averages: dict[str, Tensor] = field(default_factory=dict)
    """The moving average of what learns (averages.py); empty where there is none."""


def snapshot(
    *,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    manifest: Manifest,
    averages: dict[str, Tensor] | None = None,
) -> StateSnapshot:
    """Copy everything to host memory; the only part of a save that training waits for."""
    # On two idle cores training pauses for 1.6 ms with 3.5 MiB and for 94 ms with resnet50's 269 MiB; with the write in
    # the foreground it was 13 and 447 ms (bench/checkpoint_pause.py, docs/LOG.md, 2026-11-15).
    state = optimizer.state_dict()
    tensors, values = _split(state["state"])
    return StateSnapshot(
        manifest=manifest,
        weights=in_host_memory(module.state_dict()),
        moments=in_host_memory(tensors),
        optimizer={"values": values, "param_groups": [_plain_options(group) for group in state["param_groups"]]},
        averages=in_host_memory(averages or {}),
    )


def _plain_options(group: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an optimiser's options; a captured update has its learning rate as a tensor."""
    return {k: v.item() if isinstance(v, Tensor) else copy.deepcopy(v) for k, v in group.items()}


def in_host_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors, so that training may go on and change them."""
    # copy=True: on a CPU `.to` alone returns the tensor itself, and the next step would change it under the writer.
    # From a GPU it returns when the bytes have arrived (non_blocking is off), so a step may change it again.
    return {k: v.detach().to("cpu", copy=True) for k, v in tensors.items()}


def save(folder: Path, *, module: nn.Module, optimizer: torch.optim.Optimizer, manifest: Manifest) -> Path:
    """Write one checkpoint now."""
    return write(folder, snapshot(module=module, optimizer=optimizer, manifest=manifest))


def is_finite(module: nn.Module) -> bool:
    """Tell whether every number of the network is one; the host waits for it."""
    values = [v for v in module.state_dict().values() if v.is_floating_point()]  # integers always are
    # One flag a tensor, joined on the device: the host waits once, not for every tensor.
    return bool(torch.stack([torch.isfinite(v).all() for v in values]).all())


def require_room(folder: Path, module: nn.Module, *, copies_of_weights: int = 1) -> None:
    """Raise DiskFullError when the disk cannot hold this network's checkpoints: those kept, and one being written."""
    weights = sum(v.nbytes for v in module.state_dict().values())
    moments = 2 * sum(p.nbytes for p in module.parameters() if p.requires_grad)  # no optimiser keeps more
    # What is there already is overwritten in turn, so it counts as room.
    there = sum(size_of(path, folder.parent) for files in CheckpointFiles.all_in(folder) for path in files.tensors)
    # Those kept and the one being written exist at the same time: the oldest goes only when the new one is in place.
    needed, free = (KEPT + 1) * (copies_of_weights * weights + moments) - there, shutil.disk_usage(folder.parent).free
    if free < needed:
        raise DiskFullError(
            f"{folder.parent} has {free / 2**20:,.0f} MiB free, but the checkpoints of this network need up to "
            f"{needed / 2**20:,.0f} MiB. Free some space, or choose another directory with --out."
        )


def write(folder: Path, state: StateSnapshot) -> Path:
    """Write one checkpoint; on any failure nothing of it remains visible and the earlier ones are untouched."""
    position = state.manifest.position
    target = folder / position.name
    # A dot in front: `checkpoints` lists whole names only, so a folder that is being written is invisible.
    run, files = folder.parent, CheckpointFiles(folder / f".{target.name}.{os.getpid()}")
    try:
        make_folder(folder)
        # Before anything is written: what a killed save left may take as much of the disk as this one needs.
        remove_leftovers(folder)
        make_folder(files.path, run)
        digests = {files.weights.name: write_tensors(files.weights, state.weights, run)}
        strike("checkpoint", step=position.global_step, target=FaultTarget(path=files.weights))
        digests[files.optimizer.name] = write_tensors(files.optimizer, state.moments, run)
        if state.averages:
            digests[files.average.name] = write_tensors(files.average, state.averages, run)
        manifest = plain({**state.manifest.to_json(), "sha256": digests, "optimizer": state.optimizer})
        # The manifest is synced after the tensors, and the folder renamed after the manifest: what is visible is whole.
        write_json(files.manifest, {**manifest, "digest": own_digest(manifest)}, run)
        # The same position, saved before a resume: ours is newer and whole. A rename replaces no folder that has files.
        remove_folder(target, run)
        move(files.path, target, run)
        strike("saved", step=position.global_step, target=FaultTarget(path=target))
    except (OSError, StorageError) as error:
        # What any other exception leaves behind is invisible, and the next save removes it.
        remove_folder(files.path, run)
        cause = error.__cause__ if isinstance(error, StorageError) else error  # whoever wrote the manifest has said it
        raise storage_error("save a checkpoint", target, cause if isinstance(cause, OSError) else error) from error
    _remove_older(folder, target)  # after ours is in place: a write that fails removes none
    return target


def _remove_older(folder: Path, newest: Path) -> None:
    """Remove the checkpoints before the newest other one that is whole, which is the second of the two that are kept.

    A damaged one does not count: should the newest decay as well, the run would be lost. Its files are hashed for that,
    by the thread that writes. Damaged ones that are later stay, to be looked at, until training saves there again.
    """
    try:
        others = [path for path in checkpoints(folder) if path != newest]
    except StorageError:
        return  # ours is in place; the next save removes them
    for i in reversed(range(len(others))):
        if _problem(others[i]) is None:
            for old in others[:i]:
                remove_folder(old, run_of(old))
            return


def checkpoints(folder: Path) -> list[Path]:
    """Return the visible checkpoints, oldest first."""
    return [files.path for files in CheckpointFiles.all_in(folder)]


def newest_valid(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint whose files are what its manifest says, and a sentence for each one passed over."""
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):  # from the newest: usually only one is read and hashed
        problem = _problem(path)
        if problem is None:
            return path, damaged
        damaged.append(f"{path.name} is damaged ({problem}) and was passed over")
    return None, damaged


def agree_on_newest(
    folder: Path, workers: Workers, *, patience_s: float = MAX_DELAY_S
) -> tuple[Path | None, list[str]]:
    """Return the newest valid one, the same on every process: process 0 looks, the others take its word.

    A network file system may show files late, and each process could find another newest one. So the others wait until
    they see what process 0 has seen, by its SHA-256.
    """
    newest: dict[str, Any] = {"name": None, "manifest": "", "passed_over": []}
    if workers.rank == 0:
        path, passed_over = newest_valid(folder)
        digest = "" if path is None else sha256_of(CheckpointFiles(path).manifest, folder.parent)
        newest = {"name": path and path.name, "manifest": digest, "passed_over": passed_over}
    newest = json.loads(workers.gather(json.dumps(newest))[0])  # as a collective, also a barrier: process 0 has looked
    path = folder / newest["name"] if newest["name"] else None
    if path is None or workers.rank == 0:
        return path, newest["passed_over"]
    latest_s = time.monotonic() + patience_s
    # By the manifest's SHA-256, not its name: a cached view may show an older checkpoint of the same position.
    while (problem := _unlike(path, newest["manifest"])) is not None:
        if time.monotonic() > latest_s:
            raise StorageError(
                f"Process {workers.rank} does not see the checkpoint that process 0 goes on from, {path} "
                f"({problem}), after {patience_s:.0f} s. All hosts must share one file system."
            )
        time.sleep(0.1)
    return path, newest["passed_over"]


def _unlike(path: Path, manifest_digest: str) -> str | None:
    """Say why this is not (yet) what process 0 has seen; os.listdir also asks a network file system anew."""
    try:
        strike("look", target=FaultTarget(path=path))
        os.listdir(path.parent)
        if sha256_of(CheckpointFiles(path).manifest, run_of(path)) != manifest_digest:
            return "its manifest is another one"
    except RunDirectoryError as error:
        return str(error).rstrip(".")
    except OSError as error:
        return str(error.strerror or error)
    # The tensors may show later than the manifest, so every process hashes them, too.
    return _problem(path)


def restore(path: Path, *, module: nn.Module, optimizer: torch.optim.Optimizer) -> Manifest:
    """Put a valid checkpoint into a network and an optimiser of the same shapes."""
    files = CheckpointFiles(path)
    try:
        manifest = read_json(files.manifest, run_of(path))
        # Copied into the tensors that are there, which keep their device, dtype and layout. The optimizer takes the
        # tensors of the file instead, moved to the device: the last two calls put their layout and counters right.
        module.load_state_dict(load_tensors(files.weights, run_of(path)))
        tensors = load_tensors(files.optimizer, run_of(path))
        state = _join(tensors, manifest["optimizer"]["values"])
        optimizer.load_state_dict({"state": state, "param_groups": manifest["optimizer"]["param_groups"]})
        _restore_layout(optimizer)
        _restore_places(optimizer)
    except UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunDirectoryError(
            f"{path} does not fit this recipe's network or optimiser ({reason}). "
            "The recipe was changed after the run began; start a new run."
        ) from error
    return Manifest.from_json(manifest)


def averages_of(path: Path) -> dict[str, Tensor]:
    """Return the moving average that a valid checkpoint keeps; nothing where it keeps none."""
    files, run = CheckpointFiles(path), run_of(path)
    has_average = files.average.name in read_json(files.manifest, run)["sha256"]
    return load_tensors(files.average, run) if has_average else {}


def evaluated_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights that the recorded accuracies are of: the average, where there is one."""
    return {**load_tensors(CheckpointFiles(path).weights, run_of(path)), **averages_of(path)}


def _restore_layout(optimizer: torch.optim.Optimizer) -> None:
    """Lay moments out in memory as their parameters are: norms over them (LAMB) then round as before, to the bit."""
    for parameter, entry in optimizer.state.items():
        for key, value in entry.items():
            # safetensors stores contiguous tensors, so channels-last moments come back in another order of memory.
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                # `empty_like` takes the parameter's strides, `copy_` the values by their indices.
                entry[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _restore_places(optimizer: torch.optim.Optimizer) -> None:
    """Let an update that can be captured count on its device, and every other one on the host.

    The checkpoint may come from another kind of device, or from an older version.
    """
    # `defaults` are those that this process made the optimizer with; the groups have the checkpoint's options by now.
    is_capturable = optimizer.defaults.get("capturable", False)
    was_capturable = any(group.get("capturable", False) for group in optimizer.param_groups)
    if not (is_capturable or was_capturable):
        return
    for group in optimizer.param_groups:
        group["capturable"] = is_capturable
    for parameter, entry in optimizer.state.items():
        if isinstance(entry.get("step"), Tensor):
            entry["step"] = entry["step"].to(parameter.device if is_capturable else "cpu")


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed save left behind. Only the holder of the run's lock calls this."""
    for name in filter(CheckpointName.is_leftover, names_in(folder, folder.parent)):
        remove_folder(folder / name, folder.parent)


def write_tensors(path: Path, tensors: dict[str, Tensor], run: Path) -> str:
    """Write one file, which is on the disk when this returns; return its SHA-256."""
    try:
        # safetensors refuses what is not contiguous, as channels-last weights of convolutions are not.
        save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    except SafetensorError as error:  # its only sign of a full disk is "(os error 28)" in its text
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error
    # Before the rename that makes it visible: after a power cut a name must not point to data that never arrived.
    with os.fdopen(open_for_reading(path, run), "rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _problem(path: Path) -> str | None:
    """Say what is wrong with a checkpoint; None when nothing is."""
    files, run = CheckpointFiles(path), run_of(path)
    try:
        manifest = read_json(files.manifest, run)
        # From the small to the large: a manifest that is damaged saves reading gigabytes of tensors. One without a
        # digest of its own is judged by its values.
        if "digest" in manifest and manifest["digest"] != own_digest(manifest):
            return "its manifest has another SHA-256 than it says"
        found = Manifest.from_json(manifest) if manifest.keys() >= MANIFEST_KEYS else None
        # The folder's name decides which one is the newest, so it must be the position that the manifest states.
        if found is None or not found.is_sound or found.position.name != path.name:
            return "its manifest is that of another position, or not whole"
        has_average = files.average.name in manifest["sha256"]
        for file in (*files.tensors, *[files.average] * has_average):
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
        # load_file takes a path only. This one is of the open file, whatever its name leads to by now.
        return load_file(f"/dev/fd/{file.fileno()}")


def _split(state: dict[int, dict[str, Any]]) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """Return an optimiser's state as named tensors and as plain values."""
    # safetensors knows no nesting, so two keys become one name; JSON's keys are strings, so the numbers are, too.
    tensors = {f"{i}.{k}": v for i, entry in state.items() for k, v in entry.items() if isinstance(v, Tensor)}
    values = {str(i): {k: v for k, v in entry.items() if not isinstance(v, Tensor)} for i, entry in state.items()}
    return tensors, values


def _join(tensors: dict[str, Tensor], values: dict[str, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {int(i): dict(entry) for i, entry in values.items()}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")  # "PARAMETER_NUMBER.KEY", as `_split` names them
        state[int(number)][key] = tensor
    return state
