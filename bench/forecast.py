"""How good are the forecasts? Other people's measurements, the largest held out: ours against others' laws.

    python bench/forecast.py --published DIR [--mlperf DIR]

DIR holds throughput.csv (images per second by number of GPUs) and epochs_to_converge.csv (epochs by global batch).
--mlperf is the folder rcp_checker of a checkout of mlcommons/logging: the benchmarks that the epochs' constants come
from.

Throughput: series are put into two halves by a hash of their names. `step_constants` derives every constant of
forecast/scaling.py from the calibration half alone; the figures are those of the other half. Epochs: `epochs_constants`
derives those of forecast/epochs.py from MLPerf's benchmarks that are not in DIR. Both rules are run again here, so a
package whose constants are not the rules' own is told apart; and they are run on other splits (halves swapped, two more
hashes), so that no figure hangs on one split.

Errors are those of throughput (or of epochs), relative to what was measured. The intervals of the other laws are plus
and minus the 80 % quantile of their own errors on the calibration half.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from statistics import mean, median, stdev
from types import ModuleType
from typing import Any

import numpy as np
from scipy.optimize import least_squares, minimize, nnls

from turnaround.forecast import epochs, scaling
from turnaround.forecast.contract import Forecast
from turnaround.forecast.epochs import EpochsObservation, EpochsToStable
from turnaround.forecast.scaling import MORE_THAN_LINEAR
from turnaround.forecast.step_time import StepConfiguration, StepObservation, StepTime

FEWEST_COUNTS = 3
FEWEST_BATCHES = 3
SPREAD_OF_BATCHES = 2.0
GPUS_PER_HOST = {"DGX-2": 16}
"""The column `nodes` is empty; a DGX-2 has 16 GPUs, a DGX-1 and a DGX A100 have 8."""
RETINANET_SINCE = (2, 0)
"""Rules version at which the benchmark `ssd` became another network on other images."""
SAME_WORK = {"resnet", "ssd", "retinanet", "sd", "rgat"}
"""Benchmarks of rcp_checker that are tested on, or stand there under a second name."""
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
FEWEST_INSIDE, MOST_INSIDE = 0.72, 0.88
SPLITS = ("", "second", "third")
"""Salts of the hash that makes the halves; the first is the split that the package's constants come from."""
NOT_COMPARABLE = {("unet3d", 28)}
"""Counted in images, not in epochs as its other points."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a series: x is a number of GPUs or a global batch, y a step time or epochs."""

    x: int
    y: float
    hosts: int = 1
    sd: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """Points to learn from, and the one that is held out."""

    series: str
    known: tuple[Point, ...]
    asked: Point


@dataclass(frozen=True, kw_only=True)
class Missed:
    """How far epochs were off, and where; see DISTANCES."""

    series: str
    where: float
    error: float


Constants = dict[str, Any]
Law = Callable[[Sequence[Point]], Callable[[Point], float]]
Ours = Callable[[Case], Forecast]


# --- other people's laws of throughput, as step times at a fixed batch per GPU


def linear(known: Sequence[Point]) -> Callable[[Point], float]:
    return lambda asked: known[0].y


def last_efficiency(known: Sequence[Point]) -> Callable[[Point], float]:
    return lambda asked: known[-1].y


def _relative_nnls(columns: Callable[[float], list[float]]) -> Law:
    def fit(known: Sequence[Point]) -> Callable[[Point], float]:
        rows = np.array([[c * known[0].y / p.y for c in columns(p.x)] for p in known])
        coefficients = nnls(rows, np.ones(len(known)))[0] * known[0].y
        return lambda asked: float(np.array(columns(asked.x)) @ coefficients)

    return fit


amdahl = _relative_nnls(lambda n: [1, n - 1])
# Ernest's features are 1, size/N, N and log N; with the size growing as N the second is a constant as the first.
ernest = _relative_nnls(lambda n: [1, n, math.log2(n)])


def universal_scalability(known: Sequence[Point]) -> Callable[[Point], float]:
    n, t = np.array([p.x for p in known]), np.array([p.y for p in known]) / known[0].y

    def law(c: np.ndarray, n: np.ndarray | float) -> np.ndarray:
        return np.asarray(c[0] * (1 + c[1] * (n - 1) + c[2] * n * (n - 1)))

    c = least_squares(lambda c: law(c, n) / t - 1, [1.0, 0.01, 1e-4], bounds=(0, np.inf)).x
    return lambda asked: float(law(c, asked.x)) * known[0].y


def pollux(known: Sequence[Point]) -> Callable[[Point], float]:
    """Gradient time and synchronisation joined by an exponent, with adaptdl's penalties and rule for unseen hosts."""
    scale, several_hosts = known[0].y, any(p.hosts > 1 for p in known)

    def law(c: np.ndarray, p: Point) -> float:
        grad, a_r, b_r, a_n, b_n, gamma = c
        if not several_hosts:
            a_n, b_n = 1.1 * a_r, 1.1 * b_r
        a, b = (a_r, b_r) if p.hosts == 1 else (max(a_n, 1.1 * a_r), max(b_n, 1.1 * b_r))
        sync = a + b * (p.x - 2) if p.x > 1 else 0.0
        return float((grad**gamma + sync**gamma) ** (1 / gamma))

    def loss(c: np.ndarray) -> float:
        errors = [math.log(law(c, p) / (p.y / scale)) for p in known]
        penalty = 1e-3 * (c[5] - 1) ** 2 + 1e-2 * ((c[2] / c[1]) ** 2 + (c[4] / c[3]) ** 2)
        return math.sqrt(sum(e * e for e in errors) / len(errors)) + float(penalty)

    start = [1.0, 0.1, 0.01, 0.1, 0.01, 1.5]
    bounds = [(1e-3, 10), (1e-6, 10), (1e-8, 10), (1e-6, 10), (1e-8, 10), (1, 10)]
    fitted = minimize(loss, start, bounds=bounds, method="L-BFGS-B").x
    return lambda asked: law(fitted, asked) * scale


# --- other people's laws of epochs


def log_law(known: Sequence[Point]) -> Callable[[Point], float]:
    rows = np.array([[1 / p.y, math.log2(p.x) / p.y] for p in known])
    c = np.linalg.lstsq(rows, np.ones(len(known)), rcond=None)[0]
    return lambda asked: float(c[0] + c[1] * math.log2(asked.x))


def power_law(known: Sequence[Point]) -> Callable[[Point], float]:
    slope, constant = np.polyfit(np.log([p.x for p in known]), np.log([p.y for p in known]), 1)
    return lambda asked: float(np.exp(constant + slope * math.log(asked.x)))


THROUGHPUT_LAWS: dict[str, Law] = {
    "linear scaling": linear,
    "last efficiency kept": last_efficiency,
    "Amdahl": amdahl,
    "Universal Scalability": universal_scalability,
    "Ernest": ernest,
    "Pollux": pollux,
}
EPOCHS_LAWS: dict[str, Law] = {"log law": log_law, "power law": power_law}


# --- ours


def _fitted(case: Case) -> StepTime:
    known = [StepObservation(processes=p.x, hosts=p.hosts, step_time_s=p.y, images_per_step=p.x) for p in case.known]
    return StepTime().fit(known)


def our_step_time(case: Case) -> Forecast:
    return _fitted(case).predict(StepConfiguration(processes=case.asked.x, hosts=case.asked.hosts))


def our_epochs(case: Case) -> Forecast:
    known = [EpochsObservation(global_batch=p.x, epochs=p.y, sd=p.sd) for p in case.known]
    return EpochsToStable().fit(known).predict(case.asked.x)


# --- cases


def throughput_series(file: Path) -> tuple[dict[str, list[Point]], dict[str, int]]:
    """Series by name, one point for each GPU count (the median of its rows); what was left out, as counts."""
    rows: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    left_out: dict[str, int] = defaultdict(int)
    per_host = {}
    for row in _rows(file):
        gpus, rate = _positive(row["gpus"]), _positive(row["images_per_s"])
        if gpus is None or rate is None or row["precision"] not in ("AMP", "FP32", "TF32"):
            left_out["rows without a count, a rate or a precision"] += 1
            continue
        rows[row["series"]][int(gpus)].append(rate)
        per_host[row["series"]] = next((n for name, n in GPUS_PER_HOST.items() if name in row["gpu"]), 8)
    series = {}
    for name, counts in rows.items():
        points = [Point(x=n, y=n / median(r), hosts=math.ceil(n / per_host[name])) for n, r in sorted(counts.items())]
        if any(points[0].y > MORE_THAN_LINEAR * p.y for p in points):  # the smallest count was not measured properly
            left_out["series that scale more than linearly"] += 1
        elif len(points) < 2:
            left_out["series with a single GPU count"] += 1
        else:
            series[name] = points
    return series, left_out


def epochs_series(file: Path) -> dict[str, list[Point]]:
    """Mean over the seeds for each batch. The benchmark `ssd` is two: SSD, and RetinaNet since rules 2.0."""
    rows: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in _rows(file):
        name, version = row["benchmark"], tuple(int(n) for n in row["first_rules_version"].split(".")[:2])
        if name == "ssd" and version >= RETINANET_SINCE:
            name = "ssd (RetinaNet)"
        rows[name][int(row["global_batch_size"])].append(float(row["epochs_to_converge"]))
    return {name: [_seeds(batch, e) for batch, e in sorted(points.items())] for name, points in rows.items()}


def mlperf_series(folder: Path) -> dict[str, list[Point]]:
    """The other benchmarks of MLPerf's reference points, each batch as it was first published."""
    points: dict[str, dict[int, Point]] = defaultdict(dict)
    for file in sorted(folder.glob("*/rcps_*.json")):
        for entry in json.loads(file.read_text(encoding="utf-8")).values():
            name, batch = entry["Benchmark"], int(entry["BS"])
            if name in SAME_WORK or (name, batch) in NOT_COMPARABLE:
                continue
            if "Epochs to converge" in entry:
                points[name].setdefault(batch, _seeds(batch, entry["Epochs to converge"]))
    return {name: [p for _, p in sorted(batches.items())] for name, batches in points.items()}


def _seeds(batch: int, values: Sequence[float]) -> Point:
    spread = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Point(x=batch, y=mean(values), sd=spread)


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value > 0 and math.isfinite(value) else None


def largest_held_out(series: dict[str, list[Point]]) -> list[Case]:
    """One case for each series with three or more counts."""
    kept = {name: points for name, points in series.items() if len(points) >= FEWEST_COUNTS}
    return [Case(series=name, known=tuple(points[:-1]), asked=points[-1]) for name, points in kept.items()]


def from_one_count(series: dict[str, list[Point]]) -> list[Case]:
    """The smallest count alone, and the largest held out."""
    return [Case(series=name, known=tuple(points[:1]), asked=points[-1]) for name, points in series.items()]


def next_batch_held_out(series: dict[str, list[Point]]) -> list[Case]:
    """Each batch in turn is held out as the largest; known are the smaller ones, three or more over a factor of 2."""
    cases = []
    for name, points in series.items():
        for k in range(FEWEST_BATCHES, len(points)):
            if points[k - 1].x >= SPREAD_OF_BATCHES * points[0].x:
                cases.append(Case(series=name, known=tuple(points[:k]), asked=points[k]))
    return cases


def halves(cases: Sequence[Case], salt: str = "") -> tuple[list[Case], list[Case]]:
    """Calibration and test: series in the order of the SHA-256 of salt and name, cut in the middle."""
    names = in_order({c.series for c in cases}, salt)
    first = set(names[: len(names) // 2])
    return [c for c in cases if c.series in first], [c for c in cases if c.series not in first]


def in_order(names: Iterable[str], salt: str = "") -> list[str]:
    return sorted(names, key=lambda name: hashlib.sha256((salt + name).encode()).hexdigest())


def one_count_halves(series: dict[str, list[Point]], salt: str = "") -> tuple[list[Case], list[Case]]:
    """The cases of from_one_count; a series with three or more counts is in the half that `halves` puts it in."""
    many = {name: points for name, points in series.items() if len(points) >= FEWEST_COUNTS}
    few = {name: points for name, points in series.items() if name not in many}
    parts = [halves(from_one_count(some), salt) for some in (many, few)]
    return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]


# --- scores


@dataclass(frozen=True, kw_only=True)
class Score:
    """Fractions. The errors are absolute; the width is that of the 80 % interval relative to its value."""

    cases: int
    median: float
    quantile_80: float
    quantile_95: float
    coverage: float
    width: float


def score(cases: Sequence[Case], forecasts: Sequence[Forecast], *, of_rate: bool) -> Score:
    """`of_rate`: the error of 1/y, so that a time is judged as the throughput it means."""
    ratios = np.array([f.value / c.asked.y for c, f in zip(cases, forecasts, strict=True)])
    errors = np.abs((1 / ratios if of_rate else ratios) - 1)
    inside = [f.low <= c.asked.y <= f.high for c, f in zip(cases, forecasts, strict=True)]
    return Score(
        cases=len(cases),
        median=float(np.median(errors)),
        quantile_80=float(np.quantile(errors, 0.8)),
        quantile_95=float(np.quantile(errors, 0.95)),
        coverage=float(np.mean(inside)),
        width=float(np.mean([(f.high - f.low) / f.value for f in forecasts])),
    )


def scores(cases: Sequence[Case], calibration: Sequence[Case], ours: Ours, laws: dict[str, Law]) -> dict[str, Score]:
    """Ours and the other laws on the same cases; the others' intervals from their errors on `calibration`."""
    of_rate = ours is our_step_time
    table = {"ours": score(cases, [ours(c) for c in cases], of_rate=of_rate)}
    for name, law in laws.items():
        errors = [abs(c.asked.y / law(c.known)(c.asked) - 1) for c in calibration]
        half = min(float(np.quantile(errors, 0.8)), 0.99)
        values = [law(c.known)(c.asked) for c in cases]
        table[name] = score(
            cases, [Forecast(value=v, low=v * (1 - half), high=v * (1 + half)) for v in values], of_rate=of_rate
        )
    return table


def table(title: str, rows: dict[str, Score]) -> str:
    lines = [f"{title} ({next(iter(rows.values())).cases} cases)"]
    lines.append(f"  {'':22s} {'median':>7s} {'80 %':>7s} {'95 %':>7s}   {'covers':>7s} {'width':>7s}")
    for name, s in rows.items():
        figures = [f"{100 * v:6.1f}%" for v in (s.median, s.quantile_80, s.quantile_95)]
        lines.append(f"  {name:22s} {' '.join(figures)}   {100 * s.coverage:6.0f}% {100 * s.width:6.0f}%")
    return "\n".join(lines) + "\n"


# --- the constants of ours, derived by rules that see calibration cases only


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
        far = [max(scaling.how_far(c.asked.x, [p.x for p in c.known]), 2.0) for c in cases]
        # From one count the typical values alone decide, so twelve points of the grid are all.
        typical = [tuple(values[name] for name in ("TYPICAL_RING", "TYPICAL_DOUBLING")) for values in grid]
        of_one = {}
        for pair in set(typical):
            with constants(scaling, dict(zip(("TYPICAL_RING", "TYPICAL_DOUBLING"), pair, strict=True))):
                of_one[pair] = [c.asked.y / our_step_time(c).value - 1 for c in one_count]
        return cls(
            cases=cases,
            one_count=one_count,
            grid=grid,
            lost=lost,
            error=error,
            growth=np.sqrt(np.array(far) / 2),
            error_of_one=np.array([of_one[pair] for pair in typical]),
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
            rows.append(error_of_one / max(math.log2(case.asked.x / case.known[0].x), scaling.FEWEST_DOUBLINGS))
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
    usable = {n: p for n, p in series.items() if len(p) >= FEWEST_BATCHES and p[-1].x >= SPREAD_OF_BATCHES * p[0].x}
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


def wanted(ours: Score, *, most_error: float) -> str:
    """Whether the figures are what we want of them."""
    missed = [f"the median error is {100 * ours.median:.1f} %"] if ours.median > most_error else []
    if not FEWEST_INSIDE <= ours.coverage <= MOST_INSIDE:
        missed.append(f"{100 * ours.coverage:.0f} % are inside")
    limits = f"median error at most {100 * most_error:.0f} %, 72 to 88 % inside the 80 % interval"
    return f"Wanted of ours: {limits}. {'MISSED: ' + ', '.join(missed) if missed else 'Held'}.\n"


# --- the command


def print_splits(name: str, each: Sequence[tuple[str, Score]]) -> None:
    """The same rule on other splits: constants from one part, figures of the other."""
    print(f"{name}: the rule run on other splits, figures of the part it has not seen")
    print(f"  {'':32s} {'median':>7s} {'80 %':>7s} {'covers':>7s} {'width':>7s}  cases")
    average = [mean(getattr(s, what) for _, s in each) for what in ("median", "quantile_80", "coverage", "width")]
    for title, s in each:
        figures = [f"{100 * v:6.1f}%" for v in (s.median, s.quantile_80, s.coverage, s.width)]
        print(f"  {title:32s} {' '.join(figures)}  {s.cases:5d}")
    print(f"  {'mean over the splits':32s} {' '.join(f'{100 * v:6.1f}%' for v in average)}\n")


def throughput_splits(series: dict[str, list[Point]]) -> list[tuple[str, Score]]:
    fits = Fits.of(largest_held_out(series), from_one_count(series))
    rows = []
    for salt in SPLITS:
        parts, ones = halves(fits.cases, salt), one_count_halves(series, salt)
        for k, title in ((0, ""), (1, ", halves swapped")):
            with constants(scaling, step_constants(fits.only(parts[k], ones[k]))):
                test = score(parts[1 - k], [our_step_time(c) for c in parts[1 - k]], of_rate=True)
            rows.append((f"hash {salt or 'first'}{title}", test))
    return rows


def report_throughput(folder: Path) -> None:
    series, left_out = throughput_series(folder / "throughput.csv")
    cases = largest_held_out(series)
    calibration, test = halves(cases)
    one_calibration, one_test = one_count_halves(series)
    print("THROUGHPUT: the largest GPU count held out; error of images per second, 80 % interval of the step time")
    derived = step_constants(Fits.of(calibration, one_calibration))
    print(f"Constants from the calibration half alone: {in_words(derived)}")
    print(shipped(scaling, derived))
    print(f"Left out: {dict(left_out)}; {len(series) - len(cases)} series have two counts (from one count only)\n")
    for title, part in (("calibration half", calibration), ("TEST HALF", test)):
        rows = scores(part, calibration, our_step_time, THROUGHPUT_LAWS)
        print(table(title, rows))
    print(wanted(rows["ours"], most_error=0.04))
    for hosts, title in ((False, "test half, one host"), (True, "test half, more hosts than were measured")):
        part = [c for c in test if (c.asked.hosts > max(p.hosts for p in c.known)) == hosts]
        print(table(title, {"ours": score(part, [our_step_time(c) for c in part], of_rate=True)}))
    for title, part in (("calibration half", one_calibration), ("TEST HALF", one_test)):
        rows = {"ours": score(part, [our_step_time(c) for c in part], of_rate=True)}
        print(table(f"from the smallest count alone, {title}", rows))
    print_splits("THROUGHPUT", throughput_splits(series))


def epochs_splits(published: dict[str, list[Point]], others: dict[str, list[Point]]) -> list[tuple[str, Score]]:
    """The published benchmarks and the others exchanged, and all of them halved by hashes."""
    everything = published | others
    pairs = [("the others -> published", others, published), ("published -> the others", published, others)]
    for salt in SPLITS[1:]:
        names = in_order(everything, salt)
        parts = [{n: everything[n] for n in half} for half in (names[: len(names) // 2], names[len(names) // 2 :])]
        pairs += [(f"hash {salt}", *parts), (f"hash {salt}, halves swapped", parts[1], parts[0])]
    rows = []
    for title, calibration, test in pairs:
        with constants(epochs, epochs_constants(calibration)):
            cases = next_batch_held_out(test)
            rows.append((title, score(cases, [our_epochs(c) for c in cases], of_rate=False)))
    return rows


def report_epochs(folder: Path, mlperf: Path | None) -> None:
    series = epochs_series(folder / "epochs_to_converge.csv")
    cases = next_batch_held_out(series)
    print("EPOCHS: each batch held out from three or more smaller ones, mean over seeds; error of epochs")
    print("The constants come from MLPerf's other benchmarks (--mlperf); these benchmarks are the test.")
    print("The other laws' intervals are calibrated on the very cases they are tested on.\n")
    if mlperf is not None:
        others = mlperf_series(mlperf)
        derived = epochs_constants(others)
        print(f"Constants from the other benchmarks alone: {in_words(derived)}")
        print(shipped(epochs, derived) + "\n")
        calibration = next_batch_held_out(others)
        print(
            table("calibration: MLPerf's other benchmarks", scores(calibration, calibration, our_epochs, EPOCHS_LAWS))
        )
    for name in sorted(series):
        part = [c for c in cases if c.series == name]
        print(table(f"test: {name}", scores(part, cases, our_epochs, EPOCHS_LAWS)))
    rows = scores(cases, cases, our_epochs, EPOCHS_LAWS)
    print(table("TEST: all three", rows))
    print(wanted(rows["ours"], most_error=0.06))
    last = largest_held_out(series)
    print(table("test: only the very largest batch of each", scores(last, last, our_epochs, EPOCHS_LAWS)))
    if mlperf is not None:
        print_splits("EPOCHS", epochs_splits(series, others))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, required=True, help="folder with the two CSV files")
    parser.add_argument("--mlperf", type=Path, help="folder rcp_checker of mlcommons/logging")
    arguments = parser.parse_args()
    report_throughput(arguments.published)
    report_epochs(arguments.published, arguments.mlperf)


if __name__ == "__main__":
    main()
