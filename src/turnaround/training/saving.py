"""When a checkpoint is due, and how it is written beside the training.

Training waits for the copy to host memory, not for the disk. One write at a time. What goes wrong in one is raised in
the training, at its next step. A full disk, or one that does not answer, need not end it: it goes on without this
checkpoint, and tries again when the next one is due.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from turnaround.choice import Choice
from turnaround.errors import PassingStorageError
from turnaround.interruptions import CheckpointInterval
from turnaround.recipe import AUTO, TrainingRecipe
from turnaround.record.schema import Status
from turnaround.training.best import BestWeights, write_best
from turnaround.training.checkpoint import StateSnapshot, write
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
