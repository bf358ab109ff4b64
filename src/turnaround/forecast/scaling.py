"""The law of N that step times and epoch times share, and how far it is off.

    at a fixed batch per process   t(N) = c0 + c1 (N-1)/N + c2 log2 N
    at a fixed global batch        t(N) = c0 / N + c1 + c2 log2 N

c0 is computation; c1 is what the second process costs once and for all (a ring moves (N-1)/N of the gradients; at a
fixed global batch a step has a floor besides); c2 is what every doubling costs. All are at least 0, so more processes
never make a step with the same batch per process faster. Residuals are relative.

Two process counts cannot tell c1 from c2, and one count tells neither. So both are drawn towards what is typical of the
published series (a prior), as strongly as those series agree: with one count the typical values decide, with four the
data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Literal

import numpy as np
from scipy.optimize import nnls

from turnaround.forecast.interval import Z_80, Array, HalfWidths, one_more
from turnaround.forecast.trend import MIN_DOUBLINGS

Scaling = Literal["weak", "strong"]
"""weak: the batch per process stays; strong: the global batch stays."""

# The typical values and the half-widths from one count were derived, by Fits of bench/forecast_constants.py, from the
# 240 series of NVIDIA's Deep Learning Examples with two or more GPU counts: the largest from the smallest alone.
# `python bench/forecast.py --published DIR` derives them again, and tests each example with those of the others.
TYPICAL_RING, TYPICAL_DOUBLING = 0.04, 0.01
"""Prior mean of c1 / c0 and of c2 / c0."""
RING_SD, DOUBLING_SD = 0.025, 0.08
"""Their standard deviations, and NOISE, the relative scatter of one step time about the law: chosen on half of the 84
series with three or more counts. Wide against the noise, so that steep times are believed."""
NOISE = 0.005
FASTER_FROM_ONE, SLOWER_FROM_ONE = 0.014, 0.066
"""80 % half-widths with a single count, relative, for each doubling away from it. Times are more often longer than
predicted than shorter."""

MIN_COMPUTED = 0.1
"""Least share of the shortest time that is taken as computation, however steep the times."""
FARTHEST = 8.0
"""Beyond this multiple of what was measured no series was at hand to test the law."""
MORE_THAN_LINEAR = 1.05
"""Efficiency against a smaller count above which one of the two measurements is not comparable. Published tables have
such pairs: 17.6 times the throughput of one V100 on eight (NVIDIA's EfficientNet)."""
MIN_TO_LEAVE_OUT = 4  # counts: the law has three parameters


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One measured time on `processes`, as the fit sees it."""

    processes: int
    time_s: float
    spread: float = 0.0
    """Relative standard deviation over its repeats; 0 when it was run once."""
    repeats: int = 1


def features(processes: int, scaling: Scaling) -> Array:
    """Return the factors of c0, c1 and c2, (3,)."""
    n = float(processes)
    first_two = (1.0, (n - 1) / n) if scaling == "weak" else (1 / n, 1.0)
    return np.array([*first_two, math.log2(n)])


def fit_law(rows: Array, measured: Sequence[Measured], priors: Array) -> Array:
    """Fit non-negative coefficients: rows @ coefficients is close to the times, relatively; priors @ coefficients to 0.

    The last three columns are those of c0, c1 and c2. c0 is kept above 0, or one process would need no time.
    """
    # Least of  sum_i ((rows_i c - t_i) / (noise_i t_i))^2 + |priors c|^2,  c >= least: likelihood and prior are rows of
    # one NNLS, solved for c - least. Times are in units of the first one, so that c0 is about 1 and a prior row weighs
    # as much as its standard deviation says.
    scale_s = measured[0].time_s
    weights = np.array([scale_s / (m.time_s * noise_of(m)) for m in measured])
    targets = np.array([1 / noise_of(m) for m in measured])
    system = np.vstack([rows * weights[:, None], priors])  # (observations + priors, parameters)
    computed = rows[:, -3]
    least = np.zeros(rows.shape[1])
    least[-3] = MIN_COMPUTED * min(m.time_s / c for m, c in zip(measured, computed, strict=True)) / scale_s
    above, _ = nnls(system, np.concatenate([targets, np.zeros(len(priors))]) - system @ least)
    return np.asarray((above + least) * scale_s)


def noise_of(measured: Measured) -> float:
    """Return the relative standard error of a time over its repeats, with the law's own scatter in quadrature."""
    return math.hypot(NOISE, measured.spread / math.sqrt(measured.repeats))


def prior_rows() -> Array:
    """Return the two rows of the prior that draws c1 and c2 towards the published series."""
    # (c1 / c0 - mean) / sd is not linear in c; times c0, which is about 1 in the units of fit_law, it is.
    return np.array(
        [
            [-TYPICAL_RING / RING_SD, 1 / RING_SD, 0.0],
            [-TYPICAL_DOUBLING / DOUBLING_SD, 0.0, 1 / DOUBLING_SD],
        ]
    )


def half_widths_from_one(processes: int, count: int) -> HalfWidths:
    """Return the empirical 80 % half-widths of a time on `processes` from measurements on one count alone."""
    doublings = max(math.log2(extrapolation_factor(processes, [count])), MIN_DOUBLINGS)
    less, more = FASTER_FROM_ONE * doublings, SLOWER_FROM_ONE * doublings
    if processes < count:  # downwards the law's own direction is turned round
        less, more = more, less
    elif processes == count:
        less = more = (less + more) / 2
    return HalfWidths(less=less, more=more)


def extrapolation_factor(processes: int, counts: Sequence[int]) -> float:
    """Return 1 inside the measured counts, else the multiple of the nearest one."""
    return max(processes / max(counts), min(counts) / processes, 1.0)


def repeat_spread(measured: Sequence[Measured]) -> float:
    """Return the largest relative standard deviation over repeats that is known."""
    # The standard deviation of logarithms is a relative one. The largest, not the mean: two repeats may agree by luck.
    by_count: dict[int, list[float]] = {}
    for m in measured:
        by_count.setdefault(m.processes, []).append(math.log(m.time_s))
    between = [stdev(logs) for logs in by_count.values() if len(logs) > 1]
    return max([*between, *(m.spread for m in measured)])


def repeat_half_width(measured: Sequence[Measured]) -> float:
    """Return the relative 80 % half-width of one further run, as the repeats show it."""
    by_count: dict[int, list[float]] = {}
    for m in measured:
        by_count.setdefault(m.processes, []).append(math.log(m.time_s))
    groups = [(stdev(logs), len(logs)) for logs in by_count.values() if len(logs) > 1]
    # Not below that of the loudest count, which the others may pool away.
    return max(Z_80 * repeat_spread(measured), one_more([*groups, *((m.spread, m.repeats) for m in measured)]))


def more_than_linear(measured: Sequence[Measured], scaling: Scaling) -> list[int]:
    """Return the positions to set aside so that no count is more than linearly faster than a smaller one.

    The one that contradicts most others goes first. Between two alone it is the smaller count: cold caches and busy
    nodes make a measurement too slow, hardly ever too fast.
    """
    kept = list(range(len(measured)))
    aside: list[int] = []
    while True:
        conflicts = [
            (i, j) for i in kept for j in kept if efficiency(measured[i], measured[j], scaling) > _limit(measured, i, j)
        ]
        if not conflicts:
            return sorted(aside)
        involved = [position for pair in conflicts for position in pair]
        worst = max(set(involved), key=lambda p: (involved.count(p), -measured[p].processes, -p))
        kept.remove(worst)
        aside.append(worst)


def efficiency(few: Measured, many: Measured, scaling: Scaling) -> float:
    """Return the throughput per process on many, relative to few; 0 where `many` are not more."""
    if many.processes <= few.processes:
        return 0.0
    return few.time_s / many.time_s * (few.processes / many.processes if scaling == "strong" else 1.0)


def _limit(measured: Sequence[Measured], i: int, j: int) -> float:
    """Return the efficiency above which two times contradict each other: noisy times may differ by more."""
    return MORE_THAN_LINEAR + Z_80 * math.hypot(measured[i].spread, measured[j].spread)
