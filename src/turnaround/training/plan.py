"""How long a training will be: the epochs asked for, those that are planned, the best so far, and why it ends.

    asked     the recipe's epochs
    best      the highest validation accuracy; of equal ones the lower validation loss, then the earlier epoch
    patience  that many epochs without a higher validation accuracy end the training (training.patience)
    stable    so does a plateau of the validation accuracy (training.stop = stable; the rule is analysis/stable.py's)

All processes have the same figures of an epoch, so they decide alike without a word. What only one may say, because
clocks and rounding differ, process 0 says for all. A checkpoint keeps the plan, and a resume goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from turnaround.recipe import TrainingRecipe
from turnaround.record.schema import BestEpoch, EpochRecord, from_json
from turnaround.workers.contract import Workers

IsStable = Callable[[Sequence[float]], bool]
"""Tells by the validation accuracy of all epochs whether its plateau is reached."""


@dataclass(frozen=True, kw_only=True)
class PlanState:
    """The part of a plan that a checkpoint keeps."""

    asked: int
    """The recipe's epochs when it was made."""
    epochs: int
    """Epochs that the training will have: as many as asked for, or fewer."""
    best: BestEpoch | None = None
    stopped_early: str | None = None
    """Why it has fewer, in a sentence."""
    val_accuracy: list[float] = field(default_factory=list)
    """Of every epoch since the plan was made."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class EpochPlan:
    """The epochs of one training; the same on every process."""

    def __init__(
        self, recipe: TrainingRecipe, workers: Workers, *, saved: dict[str, Any], is_stable: IsStable | None = None
    ) -> None:
        """`saved` is what a checkpoint has of the plan; empty for a new run, and one of an earlier version."""
        self.recipe, self.workers, self.is_stable = recipe, workers, is_stable
        fresh = PlanState(asked=recipe.epochs, epochs=recipe.epochs)
        self.state = from_json(PlanState, saved) if saved else fresh

    @property
    def epochs(self) -> int:
        """Epochs that the training will have, as far as is known."""
        return self.state.epochs

    @property
    def best(self) -> BestEpoch | None:
        return self.state.best

    def told(self) -> dict[str, Any]:
        """Return what status.json says of it."""
        planned = None if self.epochs == self.recipe.epochs else self.epochs
        return {"epochs_planned": planned, "stopped_early": self.state.stopped_early, "best": self.best}

    def after_epoch(self, record: EpochRecord) -> None:
        """Take an epoch in: is it the best, and do others follow?"""
        state = replace(self.state, val_accuracy=[*self.state.val_accuracy, record.val_accuracy])
        if is_better(record, state.best):
            found = BestEpoch(epoch=record.epoch, val_accuracy=record.val_accuracy, val_loss=record.val_loss)
            state = replace(state, best=found)
        self.state = state
        reason = self._reason_to_stop() if record.epoch < state.epochs else None
        if reason is not None:
            sentence = f"Stopped early after epoch {record.epoch} of {state.epochs}: {reason}."
            self.state = replace(state, epochs=record.epoch, stopped_early=sentence)

    def _reason_to_stop(self) -> str | None:
        patience, curve = self.recipe.patience, self.state.val_accuracy
        # By the accuracy alone: a loss that creeps down while the accuracy stands still would never let it end.
        if patience is not None and len(curve) - 1 - curve.index(max(curve)) >= patience:
            return f"no better for {patience} epoch{'s' * (patience != 1)}"
        if self.is_stable is not None and self._first_says(lambda: float(self._is_stable())) > 0:
            return "the validation accuracy is stable"
        return None

    def _is_stable(self) -> bool:
        return self.is_stable is not None and self.is_stable(self.state.val_accuracy)

    def _first_says(self, value: Callable[[], float]) -> float:
        """Return what process 0 finds, on every process."""
        # float32: Apple's GPUs have no float64, and the values are small whole numbers.
        message = torch.zeros(1, device=self.workers.device)
        if self.workers.rank == 0:
            message += value()
        self.workers.sum(message)
        return float(message)


def is_better(record: EpochRecord, best: BestEpoch | None) -> bool:
    """Tell whether this epoch is better than the best before it; one that is equal is not."""
    if best is None:
        return True
    return (record.val_accuracy, -record.val_loss) > (best.val_accuracy, -best.val_loss)
