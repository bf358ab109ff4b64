"""Checkpoints are written beside the training: it waits for the copy to host memory, not for the disk.

One write at a time. What goes wrong in one is raised in the training, at its next step. A full disk need not end it: it
goes on without this checkpoint, and tries again when the next one is due.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from turnaround.errors import DiskFullError
from turnaround.recipe import TrainingRecipe
from turnaround.training import checkpoint
from turnaround.training.checkpoint import Position, StateSnapshot

SHORT_REST = 0.1
"""Of the interval: an epoch that ends so soon is saved at its end instead."""


class CheckpointSchedule:
    """When it is time to save: by process 0's clock, which the others follow, and by the number of the update."""

    def __init__(self, recipe: TrainingRecipe) -> None:
        self.every_s, self.every_steps = recipe.checkpoint_every_s, recipe.checkpoint_every_steps
        self.saved()

    def saved(self) -> None:
        """A save has just been made."""
        self._last_s = time.monotonic()

    def after_epoch(self) -> bool:
        return time.monotonic() - self._last_s >= self.every_s

    def within_epoch(self, *, rest_s: float) -> bool:
        """`rest_s` is what the epoch will still take. An interval of 0 means every epoch, not every step."""
        return self.every_s > 0 and self.after_epoch() and rest_s > SHORT_REST * self.every_s

    def after_update(self, update: int) -> bool:
        """The same on every process, so nobody need be asked."""
        return self.every_steps is not None and (update + 1) % self.every_steps == 0


class Saver:
    """Writes checkpoints of one run, in a thread."""

    def __init__(self, folder: Path, *, on_full_disk: Callable[[DiskFullError], None] | None = None) -> None:
        """`on_full_disk` is told of a checkpoint that had no room; without it that is an error like any other."""
        self.folder, self.on_full_disk = folder, on_full_disk
        self.last: Position | None = None
        """Of the last one that is whole and on the disk."""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, taken: StateSnapshot) -> None:
        """Starts to write; waits first for a write that is still under way."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(taken,), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self, *, must_hold: bool = False) -> None:
        """Until nothing is being written any more; `must_hold`: nothing follows that could make up for it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check(must_hold=must_hold)

    def check(self, *, must_hold: bool = False) -> None:
        """Raises what went wrong in a write; costs nothing when nothing did."""
        error, self._error = self._error, None
        if isinstance(error, DiskFullError) and self.on_full_disk is not None and not must_hold:
            self.on_full_disk(error)
        elif error is not None:
            raise error

    def _write(self, taken: StateSnapshot) -> None:
        try:
            checkpoint.write(self.folder, taken)
            self.last = taken.position
        except BaseException as error:  # whatever it is, it belongs to the training
            self._error = error
