"""The weights of the best epoch: held in memory, written with the next checkpoint, whole or invisible as those.

    best/epoch-00007/
      weights.safetensors   the network; where the weights are averaged (training.ema), the average
      manifest.json         epoch, validation accuracy and loss, the measure, SHA-256 of the weights and its own

An epoch that is better costs a copy to host memory and no file: what is between two checkpoints would be trained again
after a crash, and its best found again. The two newest are kept: the older belongs to the older of the two checkpoints.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from turnaround.errors import RunDirectoryError, StorageError
from turnaround.record.coding import own_digest, plain
from turnaround.record.files import make_folder, move, read_json, remove_folder, sha256_of, storage_error
from turnaround.record.layout import CheckpointFiles, CheckpointName
from turnaround.record.schema import BestEpoch, from_json
from turnaround.record.writer import write_json
from turnaround.training.checkpoint import KEPT, UNREADABLE, remove_leftovers, write_tensors


@dataclass(frozen=True, kw_only=True)
class BestWeights:
    """The weights of the best epoch so far, in host memory of their own."""

    best: BestEpoch
    weights: dict[str, Tensor]


def write_best(folder: Path, kept: BestWeights) -> Path:
    """Write the weights; on any failure nothing of them remains visible, and the earlier best is untouched."""
    run, target = folder.parent, folder / str(CheckpointName(kept.best.epoch))
    files = CheckpointFiles(folder / f".{target.name}.{os.getpid()}")
    try:
        make_folder(folder)
        remove_leftovers(folder)
        make_folder(files.path, run)
        digests = {files.weights.name: write_tensors(files.weights, kept.weights, run)}
        manifest = plain({**asdict(kept.best), "sha256": digests})
        write_json(files.manifest, {**manifest, "digest": own_digest(manifest)}, run)
        remove_folder(target, run)
        move(files.path, target, run)
    except (OSError, StorageError) as error:
        remove_folder(files.path, run)
        cause = error.__cause__ if isinstance(error, StorageError) else error
        raise storage_error("save the best weights", target, cause if isinstance(cause, OSError) else error) from error
    for old in CheckpointFiles.all_in(folder)[:-KEPT]:  # after ours is in place: a write that fails removes none
        remove_folder(old.path, run)
    return target


def remove_later(folder: Path, *, than_epoch: int) -> None:
    """Remove what belongs to epochs that are trained again."""
    for files in CheckpointFiles.all_in(folder):
        if files.name is not None and files.name.epoch > than_epoch:
            remove_folder(files.path, folder.parent)


def newest_best(folder: Path) -> tuple[Path | None, str | None]:
    """Return the weights of the best epoch, or why they cannot be used; neither where none were kept."""
    found = CheckpointFiles.all_in(folder)
    if not found:
        return None, None
    problem = _problem(found[-1], folder.parent)
    if problem is None:
        return found[-1].path, None
    return None, f"the best weights, {found[-1].path.name}, are damaged ({problem})"


def _problem(files: CheckpointFiles, run: Path) -> str | None:
    try:
        manifest = read_json(files.manifest, run)
        if manifest.get("digest") != own_digest(manifest):
            return "their manifest has another SHA-256 than it says"
        if files.name != CheckpointName(from_json(BestEpoch, manifest).epoch):
            return "their manifest is that of another epoch"
        if sha256_of(files.weights, run) != manifest["sha256"][files.weights.name]:
            return f"{files.weights.name} has another SHA-256 than its manifest says"
    except RunDirectoryError as error:
        return str(error).rstrip(".")
    except UNREADABLE as error:
        return f"{type(error).__name__}: {error}"
    return None


def best_epoch(path: Path) -> BestEpoch:
    """Return whose weights these valid ones are."""
    return from_json(BestEpoch, read_json(CheckpointFiles(path).manifest, path.parent.parent))
