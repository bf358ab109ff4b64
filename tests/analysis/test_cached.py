"""A judgement is made once for each curve and each set of details."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from turnaround.analysis.cached import cached_by_curve
from turnaround.analysis.stable import fit_curve, stable_epoch

RISING = [0.1, 0.3, math.nan, 0.5, 0.55, 0.57, 0.58, 0.58, 0.59, 0.58, 0.59, 0.59]


def test_a_curve_is_judged_once_whatever_holds_it() -> None:
    asked: list[tuple[int, int]] = []

    @cached_by_curve
    def judge(curve: Sequence[float], *, seed: int) -> float:
        asked.append((len(curve), seed))
        return float(np.nansum(curve)) + seed

    assert judge(RISING, seed=0) == judge(np.array(RISING), seed=0) == judge(tuple(RISING), seed=0)
    assert judge(RISING, seed=1) == judge(RISING, seed=0) + 1
    assert judge(RISING[:4], seed=0) < judge(RISING, seed=0)
    assert asked == [(12, 0), (12, 1), (4, 0)]


def test_a_curve_that_grows_is_judged_anew() -> None:
    short = stable_epoch(RISING[:8], num_validation=500)
    assert stable_epoch(RISING[:8], num_validation=500) is short
    assert stable_epoch(RISING, num_validation=500) is not short
    assert stable_epoch(RISING[:8], num_validation=5000) is not short
    assert fit_curve(RISING, num_images=500, band=0.01) is fit_curve(list(RISING), num_images=500, band=0.01)
