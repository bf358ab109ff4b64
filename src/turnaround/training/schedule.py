"""The learning rate of every step, and what changes when workers are added.

`scaling = "auto"` keeps the accuracy when workers are added at a fixed batch per worker. k workers take k times fewer
updates over k times larger batches, so everything that is counted in updates is adjusted:

| what                | rule                                  | from                                                 |
|---------------------|---------------------------------------|------------------------------------------------------|
| learning rate       | linear: x k (SGD, LARS)               | Goyal et al. 2017: the distance travelled stays      |
|                     | sqrt: x sqrt(k) (Adam and its kin)    | Malladi et al. 2022: so does the noise of a step     |
|                     | none (Adadelta)                       | its steps do not depend on the gradient's size       |
| Adam's averages     | beta -> 1 - k (1 - beta), clamped     | Malladi et al. 2022: the same memory in images       |
| Muon's momentum     | the same, down to 0.6                 | measured (optimizers.py)                             |
| warm-up             | x the learning rate's factor, at most | You et al. 2020: a larger rate is reached slowly     |
|                     | a fifth of the training               |                                                      |
| batch norm's memory | (1 - momentum) -> (1 - momentum)^k    | Busbridge et al. 2023: the same memory in images     |
| average of weights  | decay -> decay^k (averages.py)       | the same                                             |

Which rule an optimizer has is in its row (turnaround/optimizers.py). `none`, `linear` and `sqrt` in a recipe change the
learning rate alone, as people usually do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from turnaround.choice import Choice
from turnaround.optimizers import ADAM_BETAS, OPTIMIZERS
from turnaround.recipe import TrainingRecipe

MAX_WARMUP = 0.2
"""Share of the training that the automatic warm-up may take; the rest is for the full rate and its decay."""
ONE_CYCLE_RISE, ONE_CYCLE_START = 0.25, 1 / 25
"""One cycle (Smith and Topin 2018) with fastai's constants: a quarter of the training up, from a 25th of the peak.
Its momentum, which falls while the rate rises, stays constant here."""
MIN_BETA1 = 0.5
"""The rule would give 0.2 for 8 workers and a negative value beyond 10."""
MIN_BETA2 = 0.9
"""Below it Adam's second moment is that of the last few steps alone, and its steps become erratic."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The values that change with the number of workers."""

    factor: float = 1.0
    """Multiplies the recipe's learning rate."""
    warmup_epochs: float
    betas: tuple[float, float] = ADAM_BETAS
    momentum: float | None = None
    """Replaces the optimizer's own; None leaves it."""
    norm_power: int = 1
    """Steps of one worker that one step of all of them stands for, in batch norm's running statistics and in
    the average of the weights."""

    def norm_momentum(self, momentum: float) -> float:
        """Return batch norm's momentum with the same memory in images."""
        # k steps of one worker keep (1 - m)^k of the old statistics; one step of k workers must keep as much.
        return 1 - (1 - momentum) ** self.norm_power


def choose_scaling(recipe: TrainingRecipe, *, workers: int) -> Choice[Scaling]:
    """Apply the rule of the recipe for this number of workers."""
    warmup = recipe.warmup_epochs
    # All rules compare with one worker at the same batch per worker: k workers are a batch k times as large.
    if workers == 1:
        return Choice(Scaling(warmup_epochs=warmup), "One worker: nothing is scaled.")
    if recipe.batch_total is not None:
        reason = f"The global batch is fixed at {recipe.batch_total}: as many updates as one worker, nothing scaled."
        return Choice(Scaling(warmup_epochs=warmup), reason)
    rule = OPTIMIZERS[recipe.optimizer].auto_scaling if recipe.scaling == "auto" else recipe.scaling
    # Linear (Goyal et al. 2017): k steps of rate r along nearly equal gradients go as far as one step of rate k r.
    # Sqrt (Malladi et al. 2022): Adam divides by the gradient's size, which noise dominates, so a step varies by r^2
    # whatever the batch; over k times fewer steps the sum of variances stays the same with r sqrt(k).
    factor = {"none": 1.0, "linear": float(workers), "sqrt": math.sqrt(workers)}[rule]
    if recipe.scaling != "auto":
        reason = f"Learning rate x {factor:.3g} for {workers} workers (scaling = {rule}); nothing else is adjusted."
        return Choice(Scaling(factor=factor, warmup_epochs=warmup), reason)
    # You et al. 2020 stretch the warm-up with the batch; here it grows as the rate does, so that the rate rises by as
    # much per epoch as before. Never shorter than asked for, nor more than a fifth of the training unless asked for.
    longer = max(warmup, min(warmup * factor, MAX_WARMUP * recipe.num_epochs))
    stretched = f"warm-up {longer:.3g} instead of {warmup:.3g} epochs, " if longer != warmup else ""
    reason = (
        f"{workers} workers take {workers} times fewer, larger steps, so learning rate x {factor:.3g} ({rule} for "
        f"{recipe.optimizer}), {stretched}and moving averages over as many images as before."
    )
    scaled = Scaling(
        factor=factor,
        warmup_epochs=longer,
        betas=_adam_betas(workers),
        momentum=_momentum(recipe.optimizer, workers),
        norm_power=workers,
    )
    return Choice(scaled, reason)


def _adam_betas(workers: int) -> tuple[float, float]:
    """Return Adam's betas with the same memory in images: 1 / (1 - beta) steps, each of k times as many images."""
    # k = 8 from (0.9, 0.999): 1 - 8 x 0.1 = 0.2, raised to MIN_BETA1, and 1 - 8 x 0.001 = 0.992.
    first, second = (1 - workers * (1 - beta) for beta in ADAM_BETAS)
    return max(MIN_BETA1, first), max(MIN_BETA2, second)


def _momentum(optimizer: str, workers: int) -> float | None:
    """Return the momentum with the same memory in images; None where the optimizer's row asks for its own."""
    row = OPTIMIZERS[optimizer]
    if row.min_momentum is None:
        return None
    return max(row.min_momentum, 1 - workers * (1 - float(row.options["momentum"])))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate against steps: linear warm-up to `peak`, then constant, cosine to 0, or steps; or one cycle."""

    kind: str
    peak: float
    total_steps: int
    warmup_steps: int

    def learning_rate(self, global_step: float) -> float:
        """Return the rate of this step, counted from 0; between two steps where it is laid over others (plan.py)."""
        if self.kind == "one_cycle" and global_step < self.warmup_steps:
            rise = 0.5 * (1 - math.cos(math.pi * global_step / self.warmup_steps))  # from 0 to 1, half a wave
            return self.peak * (ONE_CYCLE_START + (1 - ONE_CYCLE_START) * rise)
        if global_step < self.warmup_steps:
            return self.peak * (global_step + 1) / self.warmup_steps  # the first step learns too
        # From 0 after the warm-up towards 1; max(1, ...): a warm-up may be as long as the training.
        progress = (global_step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        if self.kind in ("cosine", "one_cycle"):  # Loshchilov and Hutter 2017, one half wave down to 0
            return self.peak * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        if self.kind == "step":  # a tenth after one third, a hundredth after two
            return self.peak * 0.1 ** min(2, int(3 * progress))
        return self.peak


def make_schedule(recipe: TrainingRecipe, *, steps_per_epoch: int, scaled: Scaling) -> Schedule:
    """Turn the recipe's durations in epochs into steps: here, and nowhere else."""
    assert recipe.learning_rate is not None, "resolve the recipe first"
    warmup_epochs = ONE_CYCLE_RISE * recipe.num_epochs if recipe.schedule == "one_cycle" else scaled.warmup_epochs
    return Schedule(
        kind=recipe.schedule,
        peak=recipe.learning_rate * scaled.factor,
        total_steps=recipe.num_epochs * steps_per_epoch,
        warmup_steps=round(warmup_epochs * steps_per_epoch),
    )
