"""The constants of our laws, derived by rules that see calibration cases only. For forecast.py."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, product
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np
from forecast_cases import MIN_BATCHES, SPREAD_OF_BATCHES, Case, Point, next_batch_held_out
from forecast_laws import our_epochs, our_step_time
from scipy.optimize import linprog, nnls

from turnaround.forecast import epochs, scaling, trend
from turnaround.forecast.trend import CountTime, Place, Trend

TYPICAL_GRID = {"TYPICAL_RING": (0.01, 0.02, 0.04, 0.08), "TYPICAL_DOUBLING": (0.01, 0.02, 0.04)}
LEAST_WIDTH = 0.005
"""Least constant of a half-width: no time is known to better than half a percent."""
LEVEL = 0.9  # of each side, so that 80 % lie inside
SIDES = {"FASTER": -1.0, "SLOWER": 1.0}
PLACES: tuple[tuple[Place, ...], ...] = (("measured side",), ("first hosts", "one count beyond"))
"""Places that share the shape of their half-widths, each with its own factor: 18 cases beyond one count on several
hosts are too few for a shape of their own."""
STEEPEST = 50.0
"""B / B_crit where nothing but the batch decides."""
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
    """What the law with each point of TYPICAL_GRID misses the largest count by, relatively, from the smallest alone."""

    cases: Sequence[Case]
    grid: list[Constants]
    errors: np.ndarray

    @classmethod
    def of(cls, cases: Sequence[Case]) -> Fits:
        grid = [dict(zip(TYPICAL_GRID, point, strict=True)) for point in product(*TYPICAL_GRID.values())]
        errors = np.zeros((len(grid), len(cases)))
        for g, values in enumerate(grid):
            with constants(scaling, values):
                errors[g] = [c.asked.y / our_step_time(c).value - 1 for c in cases]
        return cls(cases=cases, grid=grid, errors=errors)

    def constants(self, without: set[str]) -> Constants:
        """The typical values of forecast/scaling.py and the half-widths from one count, from the series that are not
        left out.

        1. The typical values are the point of the grid with the least mean error, each counted as 20 % at most.
        2. The half-widths for each doubling are the 90 % quantiles of the error on either side, with the finite-sample
           correction of split-conformal prediction.
        """
        kept = np.array([c.series not in without for c in self.cases])
        best = int(np.argmin(np.minimum(np.abs(self.errors[:, kept]), 0.2).mean(axis=1)))
        away = np.array([max(math.log2(c.asked.x / c.known[0].x), trend.MIN_DOUBLINGS) for c in self.cases])
        each = (self.errors[best] / away)[kept]
        return dict(self.grid[best]) | {
            "FASTER_FROM_ONE": rounded_up(max(conformal([-e for e in each], 0.9), 0.001)),
            "SLOWER_FROM_ONE": rounded_up(max(conformal(list(each), 0.9), 0.001)),
        }


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """A case beyond the largest known count, as the half-widths see it."""

    case: Case
    example: str
    place: Place
    unrest: float
    residual: float
    """Of the logarithm of the time, in units of the doublings' power."""

    @classmethod
    def of(cls, case: Case, example: str) -> Ahead:
        points = [CountTime(processes=p.x, is_on_several_hosts=p.hosts > 1, time_s=p.y) for p in case.known]
        towards = Trend.of(points, is_on_several_hosts=case.asked.hosts > 1)
        expected = towards.last.time_s * towards.growth(case.asked.x)
        away = towards.doublings(case.asked.x) ** trend.WIDTH_POWER
        residual = math.log(case.asked.y / expected) / away
        return cls(case=case, example=example, place=towards.place, unrest=towards.unrest, residual=residual)


def width_constants(ahead: Sequence[Ahead]) -> Constants:
    """FASTER and SLOWER of forecast/trend.py, from these cases alone.

    1. Constant and factor of the unrest are the 90 % quantile regression of the residuals of a side, at least 0.5 %
       and 0. A series weighs the same however many cases it has, an example by the root of its series.
    2. Each side is multiplied so that its share of the cases of a place lies inside, each example being held against
       the half-widths of the others.
    """
    shapes = _shapes(ahead)
    others = {e: _shapes([a for a in ahead if a.example != e]) for e in {a.example for a in ahead}}
    widths: Constants = {side: {} for side in SIDES}
    for place, shape in shapes.items():
        held_out = [(a, others[a.example][place]) for a in ahead if a.place == place]
        for side, sign in SIDES.items():
            needed = [sign * a.residual / float(own[side] @ [1.0, a.unrest]) for a, own in held_out]
            factor = max(float(np.quantile(needed, LEVEL)), 0.0)
            constant, slope = (rounded_up(factor * part) for part in shape[side])
            widths[side][place] = (max(constant, LEAST_WIDTH), slope)
    return widths


def _shapes(ahead: Sequence[Ahead]) -> dict[Place, dict[str, np.ndarray]]:
    shapes: dict[Place, dict[str, np.ndarray]] = {}
    for places in PLACES:
        own = [a for a in ahead if a.place in places]
        if not own:
            continue
        of_series = Counter(a.case.series for a in own)
        of_example = Counter(example for _, example in {(a.case.series, a.example) for a in own})
        weights = np.array([1 / of_series[a.case.series] / math.sqrt(of_example[a.example]) for a in own])
        rows = np.array([[1.0, a.unrest] for a in own])
        residuals = np.array([a.residual for a in own])
        for place in places:
            shapes[place] = {
                side: _quantile_regression(rows, sign * residuals, weights, LEVEL) for side, sign in SIDES.items()
            }
    return shapes


def _quantile_regression(rows: np.ndarray, targets: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """Coefficients of the quantile, at least LEAST_WIDTH and 0: least of the pinball loss, as a linear program."""
    count, parameters = rows.shape
    losses = np.concatenate([np.zeros(parameters), level * weights, (1 - level) * weights])
    system = np.hstack([rows, np.eye(count), -np.eye(count)])
    bounds = [(LEAST_WIDTH, None), *[(0.0, None)] * (parameters - 1 + 2 * count)]
    return np.asarray(linprog(losses, A_eq=system, b_eq=targets, bounds=bounds, method="highs").x[:parameters])


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


def below_constants(series: dict[str, list[Point]]) -> Constants:
    """ONE_BATCH_BELOW of forecast/epochs.py: quantiles of B / B_crit over a benchmark's pairs, mean over benchmarks.

    E(b) / E(B) = (1 + x b / B) / (1 + x) at the smaller batch b gives x = B / B_crit.
    """
    quantiles = []
    for points in series.values():
        ratios = [(few.x / many.x, few.y / many.y) for many in points for few in points if few.x < many.x]
        # Epochs that fall as fast as the batch, or faster: all of them are due to the batch.
        found = [max((1 - q) / (q - share), 0.0) if q > share else STEEPEST for share, q in ratios]
        quantiles.append(np.quantile(found, [0.1, 0.5, 0.9]))
    return {"ONE_BATCH_BELOW": tuple(round(float(x), 2) for x in np.mean(quantiles, axis=0))}


def in_words(values: Constants) -> str:
    return ", ".join(f"{name} {value}".replace("np.float64", "") for name, value in values.items())


def shipped(module: ModuleType, derived: Constants) -> str:
    """Whether the package has the constants that the rule gives."""
    others = {name: getattr(module, name) for name, value in derived.items() if getattr(module, name) != value}
    return f"The package has others: {in_words(others)}" if others else "The package has these."
