"""The plan says how long a training will be: epochs requested and planned, the best so far, and why it ends.

    requested   the recipe's epochs
    best        the highest validation accuracy; of equal ones the lower validation loss, then the earlier epoch
    patience    that many epochs without a higher validation accuracy end the training (training.patience)
    stable      so does a plateau of the validation accuracy (training.stop = stable; the rule is analysis/stable.py's)
    time limit  as many epochs as fit (training.time_limit_s), and the learning rate is laid over them
    more        a resume that asks for other epochs: the rate goes on from where it is, or is warmed anew

All processes have the same figures of an epoch, so they decide alike without a word. What only one may say, because
clocks and rounding differ, process 0 says for all. A checkpoint keeps the plan, and a resume goes on with it.

Where the epochs change on the way, the learning rate does, in pieces that the plan keeps in order, so a resume has the
rate of a run that was never interrupted:

    laid over     what is left of the schedule, over fewer or more steps: the rate goes on from where it is to its end
    warmed anew   a new cosine over the added steps, from a stated rate: where the rate has already fallen to nothing
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from turnaround.choice import Choice
from turnaround.recipe import TrainingRecipe
from turnaround.record.coding import KEY, plain
from turnaround.record.schema import BestEpoch, EpochRecord, from_json
from turnaround.training.checkpoint import Manifest
from turnaround.training.clock import Clock
from turnaround.training.schedule import Schedule
from turnaround.words import duration, percent
from turnaround.workers.contract import Workers

MARGIN = 0.03
"""Share of a time limit that is left free when the epochs are first counted: epochs differ, and a process must end."""
FALLEN_SHARE = 0.1
"""Share of the peak: where no step that is left has more, stretching the rest would train at next to nothing."""
WARMED_SHARE = 0.3
"""Share of the peak, for a new cosine that falls to 0 again. All of the peak would undo much of what was learnt."""
WARMUP_SHARE = 0.1
"""Share of the added steps, over which the rate rises to that, one epoch at most: the optimizer's moments are stale."""
LOOKS = 64
"""Steps at which the rest of a schedule is looked at."""
# No number of epochs, and exact in the float32 sum by which process 0 tells it.
UNDECIDED = -1.0

IsStable = Callable[[Sequence[float]], bool]
"""Tells by the validation accuracy of all epochs whether its plateau is reached."""


@dataclass(frozen=True, kw_only=True)
class SchedulePiece:
    """The learning rate takes another course than before, from a step on."""

    at_step: int
    """The first step of it, counted from 0 over the whole run."""
    end_step: int
    """The step at which it reaches its end."""
    before_end_step: int
    """The step at which the course before it would have."""
    rate: float | None = None
    """The highest rate of a new cosine; None: the course before, laid over these steps."""
    warmup_steps: int = 0
    """Steps over which a new cosine rises to it."""


@dataclass(frozen=True, kw_only=True)
class PlanState:
    """The part of a plan that a checkpoint keeps."""

    epochs_requested: int = field(metadata={KEY: "asked"})  # the name that checkpoints have had from the beginning
    """The recipe's epochs when the plan was made."""
    began: int
    """The recipe's epochs when the run began: its schedule is laid over these."""
    epochs: int
    """Epochs that the training will have: as many as asked for, or fewer."""
    best: BestEpoch | None = None
    stopped_early: str | None = None
    """Why it has fewer, in a sentence."""
    val_accuracy: list[float] = field(default_factory=list)
    """The accuracy of every epoch since the plan was made."""
    counts_from: int = 0
    """Epochs of `val_accuracy` that patience and the stable accuracy leave out: those before more were asked for."""
    is_timed: bool = False
    """True when it was decided how many epochs fit into the time limit."""
    pieces: list[SchedulePiece] = field(default_factory=list)
    """How the learning rate departs from the schedule that the run began with."""

    def to_json(self) -> dict[str, Any]:
        return plain(self)  # type: ignore[no-any-return]

    @classmethod
    def of(cls, start: Manifest, *, epochs_requested: int) -> PlanState:
        """Return the plan of a checkpoint; one of an earlier version has none, and knows the epochs asked for then."""
        if start.plan:
            return from_json(cls, start.plan)
        began = start.recipe.get("training.epochs", epochs_requested)
        return cls(epochs_requested=began, began=began, epochs=began)


class EpochPlan:
    """The epochs of one training, and the learning rate over them; the same on every process."""

    def __init__(
        self,
        recipe: TrainingRecipe,
        workers: Workers,
        *,
        start: Manifest,
        make_schedule: Callable[[int], Schedule],
        steps_per_epoch: int,
        clock: Clock,
        is_stable: IsStable | None = None,
    ) -> None:
        """Go on with the plan of the checkpoint `start`. `make_schedule` lays one over a number of epochs."""
        self.recipe, self.workers, self.is_stable = recipe, workers, is_stable
        self.steps_per_epoch, self.clock = steps_per_epoch, clock
        self.state = PlanState.of(start, epochs_requested=recipe.num_epochs)
        # Always over the epochs of the first start; the pieces say what has changed since. So every resume finds the
        # rates of the steps before it as they were.
        self.schedule = make_schedule(self.state.began)
        self.note: str | None = None
        """What a resume with other epochs does to the learning rate, in words."""
        # No checkpoint keeps it: the first epoch of every start is cold.
        self._epoch_ended_s: float | None = None
        if self.state.epochs_requested != recipe.epochs:
            self._extend(start.position.global_step)

    @property
    def epochs(self) -> int:
        """Epochs that the training will have, as far as is known."""
        return self.state.epochs

    @property
    def best(self) -> BestEpoch | None:
        return self.state.best

    def learning_rate(self, global_step: int) -> float:
        """Return the rate of this step, counted from 0 over the whole run."""
        return rate_at(global_step, self.schedule, self.state.pieces)

    def status_fields(self) -> dict[str, Any]:
        """Return what status.json says of the plan."""
        planned = None if self.epochs == self.recipe.epochs else self.epochs
        return {"epochs_planned": planned, "stopped_early": self.state.stopped_early, "best": self.best}

    def choices(self) -> dict[str, Choice[str]]:
        """Return what was chosen for a resume with other epochs, for the record."""
        return {} if self.note is None else {"learning_rate": Choice("laid anew", self.note)}

    def after_epoch(self, record: EpochRecord) -> None:
        """Take an epoch in: is it the best, and how many follow?"""
        state = replace(self.state, val_accuracy=[*self.state.val_accuracy, record.val_accuracy])
        if is_better(record, state.best):
            found = BestEpoch(epoch=record.epoch, val_accuracy=record.val_accuracy, val_loss=record.val_loss)
            state = replace(state, best=found)
        self.state = state
        if record.epoch >= state.epochs:
            return  # on all processes alike: what follows may be a collective
        reason = self._reason_to_stop()
        if reason is not None:
            sentence = f"Stopped early after epoch {record.epoch} of {state.epochs}: {reason}."
            self.state = replace(state, epochs=record.epoch, stopped_early=sentence)
        elif self.recipe.time_limit_s is not None:
            self._keep_to_limit(record, self.recipe.time_limit_s)

    # --- early stop

    def _reason_to_stop(self) -> str | None:
        patience, curve = self.recipe.patience, self.state.val_accuracy
        # By the accuracy alone: a loss that creeps down while the accuracy stands still would never let it end. `index`
        # finds the first of equal ones, since to be as good again is no progress; places in the curve count from 0.
        best_at = max(curve.index(max(curve)), self.state.counts_from - 1)
        if patience is not None and len(curve) - 1 - best_at >= patience:
            return f"no better for {patience} epoch{'s' * (patience != 1)}"
        # A fit, whose rounding may differ between machines. All processes have the rule or none: this is a collective.
        if self.is_stable is not None and self._first_says(lambda: float(self._is_stable())) > 0:
            return "the validation accuracy is stable"
        return None

    def _is_stable(self) -> bool:
        return self.is_stable is not None and self.is_stable(self.state.val_accuracy[self.state.counts_from :])

    # --- a time limit

    def _keep_to_limit(self, record: EpochRecord, limit_s: float) -> None:
        """Plan as many epochs as fit; once decided, only fewer: the rate is on its way to its end."""
        state = self.state
        # Asked in every epoch, whatever becomes of the answer: it is a collective.
        room = self._first_says(lambda: self._room(record, limit_s))
        epochs = min(state.epochs, record.epoch + int(room))
        if room == UNDECIDED or (state.is_timed and epochs == state.epochs):
            return
        self.state = state = replace(state, is_timed=True)
        if epochs == state.epochs:
            return  # all of them fit
        sentence = (
            f"{epochs} of {state.epochs_requested} epochs fit into the time limit of {duration(limit_s)}, decided "
            f"after epoch {record.epoch}."
        )
        pieces = list(state.pieces)
        if epochs > record.epoch:
            at_step, end_step = record.epoch * self.steps_per_epoch, epochs * self.steps_per_epoch
            pieces.append(laid_over(at_step, end_step, self.schedule, pieces))
        self.state = replace(state, epochs=epochs, stopped_early=sentence, pieces=pieces)

    def _room(self, record: EpochRecord, limit_s: float) -> float:
        """Return how many epochs still fit, by process 0's clock, or UNDECIDED."""
        now_s, evaluation_s = self.clock.total_program_s(), record.evaluation_time_s or 0.0
        is_cold = self._epoch_ended_s is None
        # From the end of one epoch to that of the next: with evaluation, checkpoints and whatever is between.
        epoch_s = record.epoch_time_s + evaluation_s if self._epoch_ended_s is None else now_s - self._epoch_ended_s
        self._epoch_ended_s = now_s
        # Later counts use all of the limit, so that an epoch that takes longer uses up the margin first.
        usable_s = limit_s * (1.0 if self.state.is_timed else 1.0 - MARGIN)
        # The validation images are evaluated once more at the end. Of 100 s, 97 count at first; with 22
        # of them gone, and evaluations of no time, there is room for (97 - 22) // 4 = 18 epochs of 4 s.
        room = max(0.0, (usable_s - now_s - evaluation_s) // epoch_s)
        # The first epoch of a start is slower than the others (caches, kernels, features of a frozen backbone), so it
        # decides only where there is no time for another measurement.
        return UNDECIDED if is_cold and room >= 2 else min(room, float(self.state.epochs))

    # --- other epochs than before

    def _extend(self, at_step: int) -> None:
        """Plan the epochs that a resume asks for, from step `at_step` on."""
        before, epochs = self.state, self.recipe.num_epochs
        end_step = epochs * self.steps_per_epoch
        piece = extended(at_step, end_step, self.schedule, before.pieces, steps_per_epoch=self.steps_per_epoch)
        rate = self.learning_rate(at_step)  # before the piece is in place: the rate that the training has come to
        self.state = replace(
            before,
            epochs_requested=epochs,
            epochs=epochs,
            stopped_early=None,
            counts_from=len(before.val_accuracy),
            pieces=[*before.pieces, *([piece] if piece else [])],
        )
        if piece is None:
            course = f"the learning rate stays at {rate:.3g}"
        elif piece.rate is None:
            course = f"the learning rate goes on from {rate:.3g} and reaches its end with the last of them"
        else:
            course = (
                f"the learning rate had fallen to {rate:.2g}, at which nothing is learnt, so a new cosine starts from "
                f"{piece.rate:.3g} ({percent(WARMED_SHARE)} of the peak of {self.schedule.peak:.3g}): "
                "the accuracy may fall at first, and is not that of a run that was planned so long"
            )
        lifted = " The time limit is lifted." if before.is_timed and self.recipe.time_limit_s is None else ""
        self.note = f"{epochs} epochs instead of {before.epochs}: {course}.{lifted}"

    def _first_says(self, value: Callable[[], float]) -> float:
        """Return what process 0 finds, on every process."""
        # float32: Apple's GPUs have no float64, and the values are small whole numbers.
        message = torch.zeros(1, device=self.workers.device)
        if self.workers.rank == 0:
            message += value()  # the others add zeros
        self.workers.sum(message)
        return float(message)


def is_better(record: EpochRecord, best: BestEpoch | None) -> bool:
    """Tell whether this epoch is better than the best before it; one that is equal is not."""
    if best is None:
        return True
    # The loop stops at a loss that is no number before the plan hears of the epoch: there is no NaN to compare with.
    return (record.val_accuracy, -record.val_loss) > (best.val_accuracy, -best.val_loss)


# --- the learning rate where the epochs change on the way


def rate_at(step: int, schedule: Schedule, pieces: Sequence[SchedulePiece]) -> float:
    """Return the learning rate of a step, counted from 0 over the whole run."""
    at: float = step
    for piece in reversed(pieces):  # the last word first: it speaks of steps in terms of the course before it
        if at < piece.at_step:
            continue
        done, length = at - piece.at_step, max(1, piece.end_step - piece.at_step)
        if piece.rate is not None:
            cosine = Schedule(kind="cosine", peak=piece.rate, total_steps=length, warmup_steps=piece.warmup_steps)
            return cosine.learning_rate(done)
        at = piece.at_step + done * (piece.before_end_step - piece.at_step) / length
    return schedule.learning_rate(at)


def laid_over(at_step: int, end_step: int, schedule: Schedule, pieces: Sequence[SchedulePiece]) -> SchedulePiece:
    """Lay what is left of the course over the steps until `end_step`."""
    return SchedulePiece(at_step=at_step, end_step=end_step, before_end_step=course_end(schedule, pieces))


def extended(
    at_step: int, end_step: int, schedule: Schedule, pieces: Sequence[SchedulePiece], *, steps_per_epoch: int
) -> SchedulePiece | None:
    """Go on to `end_step`: lay the rest over it, warm anew where it has fallen, or None where the rate just stays."""
    before_end = course_end(schedule, pieces)
    left = max(0, before_end - at_step)  # 0 of a training that had come to its end
    # A few steps stand for all: the rates of a schedule rise or fall over long stretches, or in a few jumps.
    looks = {at_step + left * i // LOOKS for i in range(LOOKS)} if left else {at_step}
    if max(rate_at(step, schedule, pieces) for step in looks) >= FALLEN_SHARE * schedule.peak:
        return laid_over(at_step, end_step, schedule, pieces) if left else None
    return SchedulePiece(
        at_step=at_step,
        end_step=end_step,
        before_end_step=before_end,
        rate=WARMED_SHARE * schedule.peak,
        warmup_steps=min(steps_per_epoch, round(WARMUP_SHARE * (end_step - at_step))),
    )


def course_end(schedule: Schedule, pieces: Sequence[SchedulePiece]) -> int:
    """Return the step at which the present course reaches its end."""
    return pieces[-1].end_step if pieces else schedule.total_steps
