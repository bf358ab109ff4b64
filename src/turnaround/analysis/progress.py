"""Progress of a live run: position, pace, time left and troubles, as numbers and kinds.

Enters: heartbeats of the processes, epochs, the recipe, the free space of the disk. Leaves: values; reporting/live puts
them into words. Cheap enough for once a second.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from turnaround.analysis.compare import value_at
from turnaround.record.heartbeat import WAITS, ProcessHeartbeat
from turnaround.record.schema import EpochRecord
from turnaround.words import GIB

SILENT_S = 60.0
"""A judgement: heartbeats come every second or so, and shared file systems may delay them."""
SILENT_AT_FIRST_S = 900.0
"""The first step may compile for minutes."""
LAST_EPOCHS = 5
"""Epochs whose median is the time of an epoch: few enough to follow a machine that gets busier."""
PACES = 15
"""Looks at the heartbeat, a second apart, over which the median pace is taken."""
STARVING = 0.5
"""A GPU that is busy for less of the time waits more than it computes."""
RISING = 1.5
"""A training loss so many times its lowest has left the way down."""
LITTLE_SPACE_GIB = 5.0
"""A judgement: a checkpoint and its successor lie on the disk together."""
HARDLY_ANY_SPACE_GIB = 1.0
FILLING_OVER_S = 60.0
"""Free space is extrapolated from a minute or more: a single checkpoint is no trend."""

Trouble = Literal[
    "loss is no number",
    "loss rises",
    "GPUs idle",
    "disk full",
    "disk fills up",
    "disk has little space",
    "not saved",
    "process gone",
    "no heartbeat",
]


@dataclass(frozen=True, kw_only=True)
class Concern:
    """Something that goes wrong while one could still act."""

    trouble: Trouble
    is_problem: bool = False
    """True where the run is lost, or nearly; otherwise it only loses time."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """The measured values, by name."""
    subject: str = ""
    """The loss, the process, or the message of the run itself."""


class Pace:
    """Steps per second by the processes' own clock, as the median over the last looks; evaluations do not count."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=PACES)
        self._last: tuple[float, int] | None = None

    def saw(self, process: ProcessHeartbeat) -> None:
        """Take in a look at process 0; its own clock says when it wrote."""
        now_s, step = process.program_s, process.step
        if self._last is None or now_s < self._last[0] or step < self._last[1]:  # another start of the run
            self._rates.clear()
        elif now_s > self._last[0]:
            rate = (step - self._last[1]) / (now_s - self._last[0])
            if rate > 0 and process.doing in ("computes", WAITS):
                self._rates.append(rate)
        self._last = (now_s, step)

    @property
    def steps_per_s(self) -> float | None:
        return median(self._rates) if self._rates else None


@dataclass(frozen=True, kw_only=True)
class Position:
    """Position of a training: steps and epochs done, and those planned."""

    step: int
    steps_per_epoch: int | None
    epochs_done: int
    epochs_planned: int | None
    batch: float | None
    """Images of a step."""

    @classmethod
    def of(
        cls, step: int, recipe: Mapping[str, Any] | None, last: EpochRecord | None, *, epochs_planned: int | None = None
    ) -> Position:
        """Take steps and images from the last epoch where there is one, else from the recipe.

        `epochs_planned` is the status's word, where a training has other epochs than its recipe.
        """
        images, batch = _count(recipe, "images", "num_train"), _global_batch(recipe)
        steps = last.steps if last is not None and last.steps and last.steps > 0 else None
        measured = last.images / last.steps if last and last.images and last.steps else None
        return cls(
            step=step,
            steps_per_epoch=steps or (math.ceil(images / batch) if images and batch else None),
            epochs_done=last.epoch if last else 0,
            epochs_planned=epochs_planned or _count(recipe, "training", "epochs"),
            batch=measured or batch,
        )

    @property
    def share(self) -> float | None:
        """Share of the whole training that is done, 0 to 1."""
        if not self.epochs_planned:
            return None
        by_steps = self.step / (self.steps_per_epoch * self.epochs_planned) if self.steps_per_epoch else 0.0
        return min(1.0, max(self.epochs_done / self.epochs_planned, by_steps))

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 1."""
        by_steps = math.ceil(self.step / self.steps_per_epoch) if self.steps_per_epoch and self.step else 0
        epoch = max(self.epochs_done, by_steps)
        return min(epoch, self.epochs_planned or epoch)

    def left_s(self, epochs: Sequence[EpochRecord], steps_per_s: float | None) -> float | None:
        """Estimate the seconds left by the last epochs with their evaluations, else by the pace of the steps."""
        if self.share is None or not self.epochs_planned:
            return None
        epochs_left = (1.0 - self.share) * self.epochs_planned
        took_s = [e.epoch_time_s + (e.evaluation_time_s or 0.0) for e in epochs[-LAST_EPOCHS:] if e.epoch_time_s > 0]
        if took_s:
            return epochs_left * median(took_s)
        return epochs_left * self.steps_per_epoch / steps_per_s if steps_per_s and self.steps_per_epoch else None

    def images_per_s(self, steps_per_s: float | None, last: EpochRecord | None) -> float | None:
        if steps_per_s is not None and self.batch:
            return steps_per_s * self.batch
        return last.images_per_s if last and last.images_per_s > 0 else None


def loss_concerns(epochs: Sequence[EpochRecord]) -> Iterator[Concern]:
    """Yield a loss that is no number, or that rises far above its minimum."""
    if not epochs:
        return
    last = epochs[-1]
    if math.isnan(last.train_loss) or math.isnan(last.val_loss):
        which = "training" if math.isnan(last.train_loss) else "validation"
        figures = {"epoch": float(last.epoch)}
        yield Concern(trouble="loss is no number", subject=which, figures=figures, is_problem=True)
        return
    before = [e.train_loss for e in epochs[:-1] if not math.isnan(e.train_loss)]
    # One that is lower than the epoch before is on its way down again.
    if before and last.train_loss > RISING * min(before) and last.train_loss >= before[-1]:
        figures = {"loss": last.train_loss, "epoch": float(last.epoch), "lowest": min(before)}
        yield Concern(trouble="loss rises", figures=figures)


def disk_concerns(free: Sequence[tuple[float, int]], left_s: float | None) -> Iterator[Concern]:
    """Yield little space, or space that ends before the run at its present rate; `free` has (seconds, bytes)."""
    if not free:
        return
    (begun_s, first), (now_s, last) = free[0], free[-1]
    free_gib, lost_per_s = last / GIB, (first - last) / (now_s - begun_s) if now_s > begun_s else 0.0
    if free_gib < HARDLY_ANY_SPACE_GIB:
        yield Concern(trouble="disk full", figures={"free_gib": free_gib}, is_problem=True)
    elif lost_per_s > 0 and now_s - begun_s >= FILLING_OVER_S and last / lost_per_s < (left_s or 0.0):
        figures = {"free_gib": free_gib, "full_in_s": last / lost_per_s}
        yield Concern(trouble="disk fills up", figures=figures, is_problem=True)
    elif free_gib < LITTLE_SPACE_GIB:
        yield Concern(trouble="disk has little space", figures={"free_gib": free_gib})


def idle_concerns(processes: Sequence[ProcessHeartbeat], busy: float | None) -> Iterator[Concern]:
    """Yield GPUs that wait more than they compute; `busy` is the share of time in which they did, None: not known."""
    # A single beat is that of the start: a GPU that is idle then has not begun.
    if processes and processes[0].beats > 1 and busy is not None and busy < STARVING:
        yield Concern(trouble="GPUs idle", figures={"busy": busy})


def stall_concerns(processes: Sequence[ProcessHeartbeat], silent_s: float) -> Iterator[Concern]:
    """Yield a process that has ended before the others, or none that has moved for long."""
    gone = [process for process in processes if process.is_gone]
    if gone:
        yield Concern(trouble="process gone", subject=gone[0].name, is_problem=True)
    patience_s = SILENT_S if max((process.beats for process in processes), default=0) > 1 else SILENT_AT_FIRST_S
    if processes and silent_s >= patience_s:
        yield Concern(trouble="no heartbeat", figures={"silent_s": silent_s}, is_problem=True)


def _count(recipe: Mapping[str, Any] | None, *keys: str) -> int | None:
    value = value_at(recipe, *keys) if recipe is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9 else None


def _global_batch(recipe: Mapping[str, Any] | None) -> int | None:
    total, each = _count(recipe, "training", "batch_total"), _count(recipe, "training", "batch_per_worker")
    return total or (each * (_count(recipe, "workers", "count") or 1) if each else None)
