"""How long a training will take, told after its first steps where that is long and nothing quick computes it.

Only on a CPU: there a step is over when its call returns, and there an hour is lost most easily. Enters: the steps, as
they are done. Leaves: one sentence at most, with what would be quicker.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from turnaround.recipe import Recipe
from turnaround.words import about

SLOW_S = 600.0
"""A training that takes longer is worth a word before it has taken it. A judgement: a coffee."""
MIN_STEPS, MIN_TIME_S = 4, 3.0
"""Measured after the first step, in which memory is allocated. A frozen backbone works two steps of 32 ahead."""


class Outlook:
    """Measures the first steps of a start and says once how long all of it will take."""

    def __init__(self, recipe: Recipe, *, is_cpu: bool, now_s: Callable[[], float] = time.monotonic) -> None:
        self.recipe, self.now_s = recipe, now_s
        # A time limit is an answer already.
        self._is_over = not is_cpu or recipe.training.time_limit_s is not None
        self._steps_left: int | None = None
        self._began_at_s: float | None = None
        self._steps = self._images = 0

    def epoch_begins(self, *, epoch: int, epochs: int, steps: int) -> None:
        """Note how many steps there are from the first epoch of this start on."""
        if self._steps_left is not None:
            self._is_over = True  # the first epoch was over before there was anything to say
        self._steps_left = steps * (1 if keeps_features(self.recipe) else epochs - epoch + 1)

    def step_done(self, *, images: int) -> str | None:
        """Return the sentence when it is due; None for every other step."""
        if self._is_over or self._steps_left is None:
            return None
        if self._began_at_s is None:
            self._began_at_s = self.now_s()
            return None
        self._steps += 1
        self._images += images
        measured_s = self.now_s() - self._began_at_s
        if self._steps < MIN_STEPS or measured_s < MIN_TIME_S:
            return None
        self._is_over = True
        expected_s = self._steps_left * measured_s / self._steps
        return self._sentence(expected_s, images_per_s=self._images / measured_s) if expected_s > SLOW_S else None

    def _sentence(self, expected_s: float, *, images_per_s: float) -> str:
        what = "The first epoch, in which the features are computed," if keeps_features(self.recipe) else "All of it"
        return (
            f"{what} will take about {about(expected_s)}, at {images_per_s:.3g} images/s without a GPU, and evaluation "
            f"comes on top. Quicker: {', or '.join(quicker(self.recipe))}. A Ctrl-C keeps what was learnt; turnaround "
            "resume goes on."
        )


def keeps_features(recipe: Recipe) -> bool:
    """Tell whether the backbone sees every image once only: after the first epoch the rest takes moments."""
    return not recipe.model.fine_tune and not any(
        value for name, value in vars(recipe.augment.filled(is_frozen=True)).items() if name != "preset"
    )


def quicker(recipe: Recipe) -> list[str]:
    """Return what to type for a quicker training, what gains most first."""
    ways, augment = [], recipe.augment
    if recipe.model.fine_tune and recipe.model.weights != "none" and not (augment.mixup or augment.cutmix):
        ways.append("--set model.fine_tune=false --set augment.preset=none (only the last layer learns)")
    if recipe.model.fine_tune and recipe.model.weights == "none" and recipe.model.name != "small":
        ways.append("--model small (300,000 weights)")
    if recipe.size_px >= 128:
        ways.append(f"--size {recipe.size_px // 2} (a quarter of the arithmetic)")
    return [*ways, "--time-limit 10min (as many epochs as fit)"]
