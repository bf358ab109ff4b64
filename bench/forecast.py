"""How good are the forecasts? Other people's measurements, the largest held out: ours against others' laws.

    python bench/forecast.py --published DIR [--mlperf DIR]

DIR holds throughput.csv (images per second by number of GPUs) and epochs_to_converge.csv (epochs by global batch).
--mlperf is the folder rcp_checker of a checkout of mlcommons/logging: the benchmarks that the epochs' constants were
chosen on.

Series are put into two halves by a hash of their names: one to calibrate on, one to test on. Ours stands there twice:
with the constants of the package, and with constants that a rule chose on the calibration half alone. Errors are those
of throughput (or of epochs), relative to what was measured. The intervals of the other laws are plus and minus the 80 %
quantile of their own errors on the calibration half.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
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
EPOCHS_GRID = {
    "TYPICAL_SLOPE": (0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8),
    "SLOPE_SD": (0.15, 0.2, 0.3, 0.5, 0.7, 1.0),
    "SCATTER": (0.02, 0.03, 0.05, 0.08),
}
BLIND = "ours, chosen blindly"
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


def halves(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """Calibration and test: series in the order of the SHA-256 of their names, cut in the middle."""
    names = sorted({c.series for c in cases}, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    first = set(names[: len(names) // 2])
    return [c for c in cases if c.series in first], [c for c in cases if c.series not in first]


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


# --- the constants of ours, chosen again by a rule that sees the calibration half only


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


def best_of_grid(
    module: ModuleType, grid: dict[str, tuple[float, ...]], cases: Sequence[Case], ours: Ours
) -> dict[str, Any]:
    """The values with the least mean error, each error counted as 20 % at most."""

    def loss(values: dict[str, Any]) -> float:
        with constants(module, values):
            return float(np.mean([min(abs(ours(c).value / c.asked.y - 1), 0.2) for c in cases]))

    return min((dict(zip(grid, point, strict=True)) for point in product(*grid.values())), key=loss)


def blind_step_constants(calibration: Sequence[Case]) -> dict[str, Any]:
    """The law's constants from the grid; half-widths as the 90 % quantile of the errors to either side."""
    chosen = best_of_grid(scaling, STEP_GRID, calibration, our_step_time)
    with constants(scaling, chosen):
        rows = []
        for case in calibration:
            law = _fitted(case)
            value = float(scaling.features(case.asked.x, "weak") @ law.coefficients_)
            growth = math.sqrt(max(scaling.how_far(case.asked.x, law.counts_), 2.0) / 2)
            rows.append((1 - law.coefficients_[0] / value, growth, case.asked.y / value - 1))
    lost, growth, errors = np.array(rows).T

    def loss(side: float, width: tuple[float, float]) -> float:
        over = side * errors - growth * (width[0] + width[1] * lost)
        return float(np.mean(np.maximum(0.9 * over, -0.1 * over)))

    widths = list(product(np.arange(0.005, 0.1, 0.005), np.arange(0.0, 0.81, 0.05)))
    chosen["FASTER"] = min(widths, key=lambda width: loss(-1.0, width))
    chosen["SLOWER"] = min(widths, key=lambda width: loss(1.0, width))
    return chosen


def in_words(values: dict[str, Any]) -> str:
    def short(value: Any) -> str:
        return "/".join(f"{v:.3g}" for v in value) if isinstance(value, tuple) else f"{value:.3g}"

    return ", ".join(f"{name} {short(value)}" for name, value in values.items())


# --- the command


def report_throughput(folder: Path) -> None:
    series, left_out = throughput_series(folder / "throughput.csv")
    cases = largest_held_out(series)
    calibration, test = halves(cases)
    print("THROUGHPUT: the largest GPU count held out; error of images per second, 80 % interval of the step time")
    blind = blind_step_constants(calibration)
    print("ours: the constants of forecast/scaling.py. They are round numbers, and both halves were in view when they")
    print("were picked: no clean hold-out. The clean one is the row below it:")
    print(f"{BLIND}, by a rule on the calibration half alone: {in_words(blind)}")
    print(f"Left out: {dict(left_out)}; {len(series) - len(cases)} series have two counts (last tables only)\n")
    for title, part in (("calibration half", calibration), ("TEST HALF", test)):
        rows = scores(part, calibration, our_step_time, THROUGHPUT_LAWS)
        with constants(scaling, blind):
            rows = {"ours": rows.pop("ours"), BLIND: scores(part, calibration, our_step_time, {})["ours"], **rows}
        print(table(title, rows))
    for hosts, title in ((False, "test half, one host"), (True, "test half, more hosts than were measured")):
        part = [c for c in test if (c.asked.hosts > max(p.hosts for p in c.known)) == hosts]
        print(table(title, {"ours": score(part, [our_step_time(c) for c in part], of_rate=True)}))
    for title, part in zip(("calibration", "test"), halves(from_one_count(series)), strict=True):
        rows = {"ours": score(part, [our_step_time(c) for c in part], of_rate=True)}
        print(table(f"from the smallest count alone, {title} half", rows))


def report_epochs(folder: Path, mlperf: Path | None) -> None:
    series = epochs_series(folder / "epochs_to_converge.csv")
    cases = next_batch_held_out(series)
    calibration, test = halves(cases)
    print("EPOCHS: each batch held out from three or more smaller ones, mean over seeds; error of epochs")
    print(
        f"{len(series)} benchmarks are too few to calibrate on. The constants of forecast/epochs.py are round numbers"
    )
    print("from MLPerf's other benchmarks (--mlperf), picked with these cases in view as well: no clean hold-out.")
    print("The other laws' intervals are calibrated on the very cases they are tested on.\n")
    if mlperf is not None:
        others = next_batch_held_out(mlperf_series(mlperf))
        blind = best_of_grid(epochs, EPOCHS_GRID, others, our_epochs)
        print(f"{BLIND}, by a rule on the other benchmarks alone: {in_words(blind)}\n")
        print(table("MLPerf's other benchmarks", scores(others, others, our_epochs, EPOCHS_LAWS)))
        with constants(epochs, blind):
            rows = {BLIND: scores(cases, cases, our_epochs, {})["ours"]}
            print(table("ALL of the below, clean hold-out", rows))
    for title, part in (("first half", calibration), ("second half", test), ("ALL", cases)):
        names = ", ".join(sorted({c.series for c in part}))
        print(table(f"{title}: {names}", scores(part, cases, our_epochs, EPOCHS_LAWS)))
    last = largest_held_out(series)
    print(table("only the very largest batch of each", scores(last, last, our_epochs, EPOCHS_LAWS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, required=True, help="folder with the two CSV files")
    parser.add_argument("--mlperf", type=Path, help="folder rcp_checker of mlcommons/logging")
    arguments = parser.parse_args()
    report_throughput(arguments.published)
    report_epochs(arguments.published, arguments.mlperf)


if __name__ == "__main__":
    main()
