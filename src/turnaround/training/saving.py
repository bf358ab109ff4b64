"""Checkpoints are copied, written beside the training when they are due, and with them the best epoch's weights.

Training waits for the copy to host memory, not for the disk. One write at a time. What goes wrong in one is raised in
the training, at its next step. A full disk, or one that does not answer, need not end it: it goes on without this
checkpoint, and tries again when the next one is due.

The weights of the best epoch are held in memory and written with the next checkpoint, whole or invisible as those:

    best/epoch-00007/
      weights.safetensors   the network; where the weights are averaged (training.ema), the average
      manifest.json         epoch, validation accuracy and loss, the measure, SHA-256 of the weights and its own

An epoch that is better costs a copy to host memory and no file: what is between two checkpoints would be trained again
after a crash, and its best found again. The two newest are kept: the older belongs to the older of the two checkpoints.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from turnaround.choice import Choice
from turnaround.errors import PassingStorageError, RunDirectoryError, StorageError
from turnaround.interruptions import CheckpointInterval
from turnaround.recipe import AUTO, TrainingRecipe
from turnaround.record.coding import own_digest, plain
from turnaround.record.files import make_folder, move, read_json, remove_folder, sha256_of, storage_error
from turnaround.record.layout import CheckpointFiles, CheckpointName
from turnaround.record.schema import BestEpoch, Status, from_json
from turnaround.record.writer import write_json
from turnaround.training import checkpoint
from turnaround.training.averages import EvaluatedWeights
from turnaround.training.checkpoint import (
    KEPT,
    UNREADABLE,
    Manifest,
    StateSnapshot,
    remove_leftovers,
    write,
    write_tensors,
)
from turnaround.training.noise import NoiseMeter
from turnaround.training.position import TrainingPosition

SHORT_REST = 0.1
"""Share of the interval between saves: an epoch that ends so soon is saved at its end instead."""


class CheckpointSchedule:
    """Decides when to save: by process 0's clock, which the others follow, and by the number of the step."""

    def __init__(self, recipe: TrainingRecipe, before: Status | None = None) -> None:
        """`before` is how far earlier starts have come: their pauses are known, and need not be guessed again."""
        self.interval = _interval(recipe, before)
        self.every_steps = recipe.checkpoint_every_steps
        # A start counts as a save: so far it has nothing that could be lost.
        self._last_s = time.monotonic()

    @property
    def every_s(self) -> float:
        return self.interval.every_s

    def saved(self, *, pause_s: float) -> None:
        """Note that a save has just been made, and how long the training has waited for it."""
        self.interval.paused(pause_s)
        # From the end of the pause on: the interval is of work between two saves (interruptions.py).
        self._last_s = time.monotonic()

    def after_epoch(self) -> bool:
        return time.monotonic() - self._last_s >= self.every_s

    def within_epoch(self, *, rest_s: float) -> bool:
        """Tell whether to save now; `rest_s` is the epoch's remaining time. An interval of 0 means every epoch."""
        # An epoch that is nearly over is saved at its end, where there are no sums to keep.
        return self.every_s > 0 and self.after_epoch() and rest_s > SHORT_REST * self.every_s

    def after_step(self, position: TrainingPosition) -> bool:
        """Decide by the number of steps, which is the same on every process, so nobody need be asked."""
        return self.every_steps is not None and position.global_step % self.every_steps == 0


def _interval(recipe: TrainingRecipe, before: Status | None) -> CheckpointInterval:
    paused_s, saves = (before.time_s.get("checkpoint", 0.0), before.saves) if before else (0.0, None)
    return CheckpointInterval(recipe.checkpoint_every_s, recipe.interruptions_per_h, paused_s=paused_s, saves=saves)


def interval_choice(recipe: TrainingRecipe, before: Status | None = None) -> dict[str, Choice[float]]:
    """Return the first interval between checkpoints and its reason, for the record, where it was left to us."""
    if recipe.checkpoint_every_s != AUTO:
        return {}
    first_s, rate = _interval(recipe, before).every_s, recipe.interruptions_per_h
    reason = "no rate of interruptions is known (training.interruptions_per_h)"
    if rate is not None:
        reason = (
            f"{rate:g} interruptions an hour are expected; it follows the pause that checkpoints are measured to take"
        )
    return {"checkpoint_every_s": Choice(first_s, reason)}


class TrainingState:
    """The part of a training that a checkpoint keeps: copied out of its objects, and put back into them."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        evaluated: EvaluatedWeights,
        scaler: torch.amp.GradScaler,
        meter: NoiseMeter,
        on_restore: Callable[[], None],
    ) -> None:
        """`on_restore` is called when the optimizer's tensors have become others: no graph may read the old ones."""
        self.module, self.optimizer, self.evaluated = module, optimizer, evaluated
        self.scaler, self.meter, self.on_restore = scaler, meter, on_restore

    @property
    def num_sets_of_weights(self) -> int:
        """Sets of weights that a checkpoint keeps: the network's, and their average where there is one."""
        return self.evaluated.num_sets

    def snapshot(self, manifest: Manifest) -> StateSnapshot:
        """Copy weights, their average, moments, loss scale and noise measurements to host memory, for a checkpoint."""
        noise = self.meter.window(global_step=manifest.position.global_step)
        return checkpoint.snapshot(
            module=self.module,
            optimizer=self.optimizer,
            manifest=replace(manifest, scaler=self.scaler.state_dict(), noise=noise),
            averages=self.evaluated.averages(),
        )

    def evaluated_weights(self) -> dict[str, Tensor]:
        """Copy the weights that evaluation sees to host memory: the average, where there is one."""
        return checkpoint.in_host_memory(self.evaluated.tensors())

    def restore(self, path: Path) -> Manifest:
        """Go on from a valid checkpoint."""
        manifest = checkpoint.restore(path, module=self.module, optimizer=self.optimizer)
        self.on_restore()
        # After the weights: a checkpoint without an average leaves them as its beginning.
        self.evaluated.restore(checkpoint.averages_of(path))
        self.meter.restore(manifest.noise)
        if manifest.scaler:  # empty when the device before this one needed no scaling
            self.scaler.load_state_dict(manifest.scaler)
        return manifest


@dataclass(frozen=True, kw_only=True)
class BestWeights:
    """The weights of the best epoch so far, in host memory of their own."""

    best: BestEpoch
    weights: dict[str, Tensor]


class Saver:
    """Writes checkpoints of one run, in a thread."""

    def __init__(
        self,
        folder: Path,
        *,
        best_folder: Path | None = None,
        on_full_disk: Callable[[PassingStorageError], None] | None = None,
    ) -> None:
        """`on_full_disk` is told of a checkpoint that had no room; without it that is an error like any other."""
        self.folder, self.on_full_disk = folder, on_full_disk
        self.best_folder = best_folder
        self._best: BestWeights | None = None
        self.last: TrainingPosition | None = None
        """The position of the last one that is whole and on the disk."""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def hold(self, best: BestWeights) -> None:
        """Keep the weights of the best epoch in memory, until the next checkpoint is written."""
        self._best = best

    def begin(self, state: StateSnapshot) -> None:
        """Start to write; wait first for a write that is still under way."""
        self.wait()  # one write at a time: two would need twice the host memory, and could finish in the wrong order
        self._thread = threading.Thread(target=self._write, args=(state, self._best), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self, *, must_hold: bool = False) -> None:
        """Wait until nothing is being written any more; `must_hold`: nothing follows that could make up for it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check(must_hold=must_hold)

    def check(self, *, must_hold: bool = False) -> None:
        """Raise what went wrong in a write; costs nothing when nothing did."""
        # Taken away, so that it is told once and a later save may go well.
        error, self._error = self._error, None
        # A full disk is reported and survived, unless this save was the last chance to keep the training's state.
        if isinstance(error, PassingStorageError) and self.on_full_disk is not None and not must_hold:
            self.on_full_disk(error)
        elif error is not None:
            raise error

    def _write(self, state: StateSnapshot, best: BestWeights | None) -> None:
        try:
            # Before the checkpoint, so that every checkpoint finds the weights of the best epoch that it names.
            if best is not None and self.best_folder is not None:
                write_best(self.best_folder, best)  # where it fails they stay held, and the next save tries again
                if self._best is best:  # else a better one is held meanwhile
                    self._best = None
            write(self.folder, state)
            self.last = state.manifest.position
        except BaseException as error:  # whatever it is, it belongs to the training
            self._error = error


# --- the weights of the best epoch


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
