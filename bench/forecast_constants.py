"""The constants of our laws, derived by rules that see calibration cases only. For forecast.py."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations, product
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np
from forecast_cases import MIN_BATCHES, SPREAD_OF_BATCHES, Case, Point, in_order, next_batch_held_out
from forecast_laws import _fitted, our_epochs, our_step_time
from scipy.optimize import nnls

from turnaround.forecast import epochs, scaling

STEP_GRID = {
    "TYPICAL_RING": (0.01, 0.02, 0.04, 0.08),
    "RING_SD": (0.025, 0.05, 0.1, 0.2),
    "TYPICAL_DOUBLING": (0.01, 0.02, 0.04),
    "DOUBLING_SD": (0.01, 0.02, 0.04, 0.08),
    "NOISE": (0.005, 0.01, 0.02),
}
WIDTH_GRID = tuple(product(np.arange(0.005, 0.1, 0.005).round(3), np.arange(0.0, 0.81, 0.05).round(2)))
"""(constant, factor of the share that is lost) of a half-width."""
FOLDS = 6
BELOW, INSIDE = 0.0, 1.0
DISTANCES = (BELOW, INSIDE, 1.5, 2.0, 4.0, 16.0)
"""Where a batch is that was held out: below the others, inside, or up to this multiple of the largest."""


@dataclass(frozen=True, kw_only=True)
class Missed:
    """How far epochs were off, and where; see DISTANCES."""

    series: str
    where: float
    error: float


Constants = dict[str, Any]


@contextmanager
def constants(module: ModuleType, values: dict[str, Any]) -> Iterator[None]:
    """Ours with other constants, for a while."""
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def conformal(scores: Sequence[float], share: float) -> float:
    """The quantile that a new case from the same source stays below with at least this probability."""
    ordered = sorted(scores)
    return ordered[min(math.ceil((len(ordered) + 1) * share), len(ordered)) - 1]


def rounded_up(value: float) -> float:
    """To three decimals, so that a rounded width is never narrower."""
    return math.ceil(value * 1000 - 1e-9) / 1000


@dataclass(frozen=True, kw_only=True)
class Fits:
    """What the law with each point of STEP_GRID says about each case: the share lost, and the relative error."""

    cases: Sequence[Case]
    one_count: Sequence[Case]
    grid: list[Constants]
    lost: np.ndarray
    error: np.ndarray
    growth: np.ndarray
    error_of_one: np.ndarray
    """Of the forecasts from one count."""

    @classmethod
    def of(cls, cases: Sequence[Case], one_count: Sequence[Case]) -> Fits:
        grid = [dict(zip(STEP_GRID, point, strict=True)) for point in product(*STEP_GRID.values())]
        lost, error = np.zeros((len(grid), len(cases))), np.zeros((len(grid), len(cases)))
        for g, values in enumerate(grid):
            with constants(scaling, values):
                for k, case in enumerate(cases):
                    law = _fitted(case)
                    value = float(scaling.features(case.asked.x, "weak") @ law.coefficients_)
                    lost[g, k], error[g, k] = 1 - law.coefficients_[0] / value, case.asked.y / value - 1
        far = [max(scaling.extrapolation_factor(c.asked.x, [p.x for p in c.known]), 2.0) for c in cases]
        # From one count the typical values alone decide, so twelve points of the grid are all.
        prior_rows = [tuple(values[name] for name in ("TYPICAL_RING", "TYPICAL_DOUBLING")) for values in grid]
        of_one = {}
        for pair in set(prior_rows):
            with constants(scaling, dict(zip(("TYPICAL_RING", "TYPICAL_DOUBLING"), pair, strict=True))):
                of_one[pair] = [c.asked.y / our_step_time(c).value - 1 for c in one_count]
        return cls(
            cases=cases,
            one_count=one_count,
            grid=grid,
            lost=lost,
            error=error,
            growth=np.sqrt(np.array(far) / 2),
            error_of_one=np.array([of_one[pair] for pair in prior_rows]),
        )

    def only(self, cases: Sequence[Case], one_count: Sequence[Case]) -> Fits:
        """The same for some of the cases."""
        own = [self.cases.index(c) for c in cases]
        return replace(
            self,
            cases=cases,
            one_count=one_count,
            lost=self.lost[:, own],
            error=self.error[:, own],
            growth=self.growth[own],
            error_of_one=self.error_of_one[:, [self.one_count.index(c) for c in one_count]],
        )

    def best(self, without: set[str]) -> int:
        """The point of the grid with the least mean error, each counted as 20 % at most: half for forecasts of the
        largest count from all others, half for forecasts from one count."""
        several = np.array([c.series not in without for c in self.cases])
        one = np.array([c.series not in without for c in self.one_count])
        parts = [np.minimum(np.abs(e), 0.2).mean(axis=1) for e in (self.error[:, several], self.error_of_one[:, one])]
        return int(np.argmin(parts[0] + parts[1]))


def step_constants(fits: Fits) -> Constants:
    """Every constant of forecast/scaling.py, from cases of the calibration half alone.

    1. The law's constants are the point of STEP_GRID with the least mean error, from several counts and from one.
    2. That error is smaller than the one of new series. So each sixth of the series is predicted with the best point of
       the other five sixths, and the half-widths' two numbers a side are the 90 % quantile regression of those errors.
    3. FASTER and SLOWER are multiplied by the smallest factor that holds ceil((n + 1) 0.8) of those n cases: the
       split-conformal quantile with its finite-sample correction.
    4. From one count: the same quantile, 90 % a side, of the error for each doubling.
    """
    calibration, order = fits.cases, in_order({c.series for c in fits.cases})
    folds = [set(order[k::FOLDS]) for k in range(FOLDS)]
    best_without = [fits.best(fold) for fold in folds]
    best = [next(g for fold, g in zip(folds, best_without, strict=True) if c.series in fold) for c in calibration]
    cases = np.arange(len(calibration))
    lost, error = fits.lost[best, cases], fits.error[best, cases]

    def loss(side: float, width: tuple[float, float]) -> float:
        over = side * error - fits.growth * (width[0] + width[1] * lost)
        return float(np.mean(np.maximum(0.9 * over, -0.1 * over)))

    faster, slower = (min(WIDTH_GRID, key=lambda width: loss(side, width)) for side in (-1.0, 1.0))
    widths = {"FASTER": faster, "SLOWER": slower}
    factors = [_least_factor(c, fits.grid[g] | widths) for c, g in zip(calibration, best, strict=True)]
    factor = conformal(factors, 0.8)
    chosen: Constants = dict(fits.grid[fits.best(set())])
    chosen |= {side: tuple(rounded_up(factor * w) for w in width) for side, width in widths.items()}
    with constants(scaling, chosen):
        rows = []
        for case in fits.one_count:
            error_of_one = case.asked.y / our_step_time(case).value - 1
            rows.append(error_of_one / max(math.log2(case.asked.x / case.known[0].x), scaling.MIN_DOUBLINGS))
    chosen["FASTER_FROM_ONE"] = rounded_up(max(conformal([-r for r in rows], 0.9), 0.001))
    chosen["SLOWER_FROM_ONE"] = rounded_up(max(conformal(rows, 0.9), 0.001))
    return chosen


def _least_factor(case: Case, values: Constants) -> float:
    """What the half-widths must be multiplied with so that the interval holds the case."""

    def is_inside(factor: float) -> bool:
        widths = {side: tuple(factor * width for width in values[side]) for side in ("FASTER", "SLOWER")}
        with constants(scaling, values | widths):
            forecast = our_step_time(case)
        return forecast.low <= case.asked.y <= forecast.high

    return next((factor for factor in np.arange(0.0, 20.0, 0.05) if is_inside(factor)), 20.0)


def epochs_constants(series: dict[str, list[Point]]) -> Constants:
    """Every constant of forecast/epochs.py that data can give, from these benchmarks alone.

    1. TYPICAL_SLOPE, SLOPE_SD and SCATTER are what they are called: median and spread (1.4826 times the median
       deviation) of B_max / B_crit over the benchmarks' own fits, and the median scatter about them.
    2. Half-widths: each benchmark is predicted with constants from the others, from all choices of three of its
       batches; the 80 % quantile with its finite-sample correction, each benchmark counting as much as another.
       TWO_BATCHES is how much wider fits to two batches must be, the median over the distances.
    """
    usable = {n: p for n, p in series.items() if len(p) >= MIN_BATCHES and p[-1].x >= SPREAD_OF_BATCHES * p[0].x}
    errors: dict[int, list[Missed]] = {2: [], 3: []}
    for name, points in usable.items():
        with constants(epochs, typical_slopes({n: p for n, p in usable.items() if n != name})):
            for count in errors:
                errors[count] += _choices(name, points, count)
    widths = {where: _width([e for e in errors[3] if e.where == where]) for where in DISTANCES}
    beyond = np.maximum.accumulate([widths[where] for where in DISTANCES[1:]])[1:]  # never narrower farther away
    wider = [_width([e for e in errors[2] if e.where == where]) / widths[where] for where in DISTANCES]
    return {
        **{name: round(float(value), 2) for name, value in typical_slopes(usable).items()},
        "BELOW": widths[BELOW],
        "INSIDE": widths[INSIDE],
        "BEYOND": tuple(zip(DISTANCES[2:], (float(b) for b in beyond), strict=True)),
        "TWO_BATCHES": max(1.0, math.ceil(10 * median(wider)) / 10),
    }


def typical_slopes(series: dict[str, list[Point]]) -> Constants:
    """B_max / B_crit, its spread, and the scatter about the law.

    B_max is the largest batch that a forecast knows: the median over the choices of next_batch_held_out.
    """
    slopes, scatters = [], []
    for name, points in series.items():
        rows = np.array([[1 / p.y, p.x / p.y] for p in points]) / np.array([1.0, points[-1].x])
        (constant, slope), distance = nnls(rows, np.ones(len(points)))
        known = [case.known[-1].x / points[-1].x for case in next_batch_held_out({name: points})] or [1.0]
        slopes.append(median(known) * slope / max(constant, 1e-9))
        scatters.append(distance / math.sqrt(max(len(points) - 2, 1)))
    deviation = median(abs(slope - median(slopes)) for slope in slopes)
    return {"TYPICAL_SLOPE": median(slopes), "SLOPE_SD": 1.4826 * deviation, "SCATTER": median(scatters)}


def _choices(name: str, points: Sequence[Point], count: int) -> Iterator[Missed]:
    """Each choice of `count` batches over a factor of 2 or more, and each batch that is not in it."""
    for known in combinations(points, count):
        if known[-1].x < SPREAD_OF_BATCHES * known[0].x:
            continue
        for asked in (p for p in points if p not in known and p.x <= DISTANCES[-1] * known[-1].x):
            forecast = our_epochs(Case(series=name, known=known, asked=asked))
            where = BELOW if asked.x < known[0].x else next(d for d in DISTANCES[1:] if asked.x <= d * known[-1].x)
            yield Missed(series=name, where=where, error=abs(asked.y / forecast.value - 1))


def _width(errors: Sequence[Missed]) -> float:
    """The corrected 80 % quantile of the errors, benchmarks weighing the same, in whole percent."""
    count = Counter(e.series for e in errors)
    level, passed = min(1.0, math.ceil((len(errors) + 1) * 0.8) / len(errors)) * len(count), 0.0
    for missed in sorted(errors, key=lambda e: e.error):
        passed += 1 / count[missed.series]
        if passed >= level - 1e-9:
            return round(math.ceil(100 * missed.error - 1e-9) / 100, 2)
    raise AssertionError("the weights add up to the number of benchmarks")


def in_words(values: Constants) -> str:
    return ", ".join(f"{name} {value}".replace("np.float64", "") for name, value in values.items())


def shipped(module: ModuleType, derived: Constants) -> str:
    """Whether the package has the constants that the rule gives."""
    others = {name: getattr(module, name) for name, value in derived.items() if getattr(module, name) != value}
    return f"The package has others: {in_words(others)}" if others else "The package has these."
