"""The learning rate of every update, and how it grows with the workers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from turnaround.recipe import TrainingRecipe

# Goyal et al. 2017 for SGD; Malladi et al. 2022 for the Adam family. Adadelta's step does not depend on the scale of
# the gradient, and its rate of 1 is not a free parameter: more workers only make its direction less noisy.
AUTO_SCALING = {
    "sgd": "linear",
    "lars": "linear",
    "adam": "sqrt",
    "adamw": "sqrt",
    "lamb": "sqrt",
    "adadelta": "none",
}


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What the recipe's learning rate is multiplied by, and why."""

    factor: float
    reason: str


def scaling(recipe: TrainingRecipe, *, workers: int) -> Scaling:
    """The rule of the recipe for this number of workers."""
    if workers == 1:
        return Scaling(factor=1.0, reason="one worker: the learning rate is the recipe's")
    if recipe.batch_total is not None:
        return Scaling(factor=1.0, reason=f"the global batch is fixed at {recipe.batch_total}: nothing to scale")
    rule = AUTO_SCALING[recipe.optimizer] if recipe.scaling == "auto" else recipe.scaling
    factor = {"none": 1.0, "linear": float(workers), "sqrt": math.sqrt(workers)}[rule]
    why = f"scaling = {recipe.scaling}" + (f", for {recipe.optimizer}: {rule}" if recipe.scaling == "auto" else "")
    return Scaling(factor=factor, reason=f"learning rate x {factor:.3g} for {workers} workers ({why})")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate against updates: linear warm-up to `peak`, then constant, cosine to 0, or steps."""

    kind: str
    peak: float
    total_updates: int
    warmup_updates: int

    def learning_rate(self, update: int) -> float:
        """At update number `update`, counted from 0."""
        if update < self.warmup_updates:
            return self.peak * (update + 1) / self.warmup_updates
        progress = (update - self.warmup_updates) / max(1, self.total_updates - self.warmup_updates)
        if self.kind == "cosine":
            return self.peak * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        if self.kind == "step":  # a tenth after one third, a hundredth after two
            return self.peak * 0.1 ** min(2, int(3 * progress))
        return self.peak


def schedule(recipe: TrainingRecipe, *, steps_per_epoch: int, factor: float) -> Schedule:
    """The recipe's durations in epochs become updates here, and nowhere else."""
    assert recipe.learning_rate is not None, "resolve the recipe first"
    return Schedule(
        kind=recipe.schedule,
        peak=recipe.learning_rate * factor,
        total_updates=recipe.epochs * steps_per_epoch,
        warmup_updates=round(recipe.warmup_epochs * steps_per_epoch),
    )
