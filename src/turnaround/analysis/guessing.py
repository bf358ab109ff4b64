"""Is a result better than guessing? Every accuracy is held against always answering the largest class.

The interval of the accuracy is Wilson's (95 %), from the number of validation images: it stays within 0 and 1, and
holds for few images and for accuracies near the ends, where the usual p +- 1.96 sqrt(p (1 - p) / n) does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from turnaround.record.schema import Evaluation

Z95 = 1.96
"""Quantile of the normal distribution for a two-sided interval of 95 %."""


@dataclass(frozen=True, kw_only=True)
class AgainstGuessing:
    """The accuracy of an evaluation beside that of the answer that needs no network."""

    accuracy: float
    low: float
    high: float
    """Ends of the 95 % interval of the accuracy."""
    num_images: int
    largest_class: str
    guessing: float
    """Accuracy of always answering the largest class of the validation images."""

    @property
    def is_better(self) -> bool:
        """Tell whether the whole interval lies above guessing."""
        return self.low > self.guessing


def against_guessing(evaluation: Evaluation) -> AgainstGuessing | None:
    """Hold an evaluation against guessing; None where the images of the classes are not known, or all are of one."""
    counts = {one.name: one.num_images for one in evaluation.per_class if one.num_images > 0}
    total = sum(counts.values())
    if len(counts) < 2 or not math.isfinite(evaluation.top1):
        return None
    largest = max(counts, key=lambda name: counts[name])
    low, high = wilson_interval(evaluation.top1, total)
    return AgainstGuessing(
        accuracy=evaluation.top1,
        low=low,
        high=high,
        num_images=total,
        largest_class=largest,
        guessing=counts[largest] / total,
    )


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of so many images."""
    share = min(max(share, 0.0), 1.0)
    # (p + z^2/2n +- z sqrt(p (1 - p) / n + z^2/4n^2)) / (1 + z^2/n), Wilson 1927
    square = Z95**2 / count
    middle = (share + square / 2) / (1 + square)
    half = Z95 / (1 + square) * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)
