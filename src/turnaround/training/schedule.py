"""The learning rate of every update, and what changes when workers are added.

`scaling = "auto"` keeps the accuracy when workers are added at a fixed batch per worker. k workers take k times fewer
updates over k times larger batches, so everything that is counted in updates is adjusted:

| what                | rule                                  | from                                                 |
|---------------------|---------------------------------------|------------------------------------------------------|
| learning rate       | x k for SGD and LARS                  | Goyal et al. 2017: the distance travelled stays      |
|                     | x sqrt(k) for Adam, AdamW, LAMB       | Malladi et al. 2022: so does the noise of a step     |
|                     | unchanged for Adadelta                | its steps do not depend on the gradient's size       |
| Adam's averages     | beta -> 1 - k (1 - beta), clamped     | Malladi et al. 2022: the same memory in images       |
| warm-up             | x the learning rate's factor, at most | You et al. 2020: a larger rate is reached slowly     |
|                     | a fifth of the training               |                                                      |
| batch norm's memory | (1 - momentum) -> (1 - momentum)^k    | Busbridge et al. 2023: the same memory in images     |

`none`, `linear` and `sqrt` change the learning rate alone, as people usually do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from turnaround.optimizers import ADAM_BETAS, OPTIMIZERS
from turnaround.recipe import TrainingRecipe

MAX_WARMUP = 0.2
"""Share of the training."""
MIN_BETA1 = 0.5
"""The rule would give 0.2 for 8 workers and a negative value beyond 10."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What changes for this number of workers, and why, in one sentence."""

    factor: float = 1.0
    """Of the recipe's learning rate."""
    warmup_epochs: float
    betas: tuple[float, float] = ADAM_BETAS
    norm_power: int = 1
    """Updates of one worker that one update of all of them stands for, in batch norm's running statistics."""
    reason: str

    def norm_momentum(self, momentum: float) -> float:
        """Batch norm's momentum with the same memory in images."""
        return 1 - (1 - momentum) ** self.norm_power


def scaling(recipe: TrainingRecipe, *, workers: int) -> Scaling:
    """The rule of the recipe for this number of workers."""
    warmup = recipe.warmup_epochs
    if workers == 1:
        return Scaling(warmup_epochs=warmup, reason="One worker: nothing is scaled.")
    if recipe.batch_total is not None:
        reason = f"The global batch is fixed at {recipe.batch_total}: as many updates as one worker, nothing scaled."
        return Scaling(warmup_epochs=warmup, reason=reason)
    rule = OPTIMIZERS[recipe.optimizer].auto_scaling if recipe.scaling == "auto" else recipe.scaling
    factor = {"none": 1.0, "linear": float(workers), "sqrt": math.sqrt(workers)}[rule]
    if recipe.scaling != "auto":
        reason = f"Learning rate x {factor:.3g} for {workers} workers (scaling = {rule}); nothing else is adjusted."
        return Scaling(factor=factor, warmup_epochs=warmup, reason=reason)
    longer = max(warmup, min(warmup * factor, MAX_WARMUP * recipe.epochs))
    reason = (
        f"{workers} workers take {workers} times fewer, larger steps, so learning rate x {factor:.3g} ({rule} for "
        f"{recipe.optimizer}), warm-up {longer:.3g} instead of {warmup:.3g} epochs, and moving averages over as many "
        "images as before."
    )
    return Scaling(factor=factor, warmup_epochs=longer, betas=_adam_betas(workers), norm_power=workers, reason=reason)


def _adam_betas(workers: int) -> tuple[float, float]:
    first, second = (1 - workers * (1 - beta) for beta in ADAM_BETAS)
    return max(MIN_BETA1, first), max(0.9, second)


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


def schedule(recipe: TrainingRecipe, *, steps_per_epoch: int, scaled: Scaling) -> Schedule:
    """The recipe's durations in epochs become updates here, and nowhere else."""
    assert recipe.learning_rate is not None, "resolve the recipe first"
    return Schedule(
        kind=recipe.schedule,
        peak=recipe.learning_rate * scaled.factor,
        total_updates=recipe.epochs * steps_per_epoch,
        warmup_updates=round(scaled.warmup_epochs * steps_per_epoch),
    )
