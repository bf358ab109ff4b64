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
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
from forecast_cases import (
    Case,
    Point,
    all_ahead,
    by_kind,
    epochs_series,
    from_one_batch,
    from_one_count,
    halves,
    in_order,
    largest_held_out,
    mlperf_series,
    next_batch_held_out,
    one_count_halves,
    throughput_series,
)
from forecast_constants import Fits, constants, epochs_constants, in_words, shipped, step_constants
from forecast_laws import (
    EPOCHS_LAWS,
    THROUGHPUT_LAWS,
    Law,
    Ours,
    last_efficiency,
    our_epoch_time,
    our_epochs,
    our_step_time,
)

from turnaround.forecast import epochs, scaling
from turnaround.forecast.interval import HalfWidths, Interval

MIN_INSIDE, MAX_INSIDE = 0.72, 0.88
BOOTSTRAP = 2000
SPLITS = ("", "second", "third")
"""Salts of the hash that makes the halves; the first is the split that the package's constants come from."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Fractions. The errors are absolute; the width is that of the 80 % interval relative to its value."""

    cases: int
    median: float
    quantile_80: float
    quantile_95: float
    coverage: float
    width: float
    winkler: float
    """Width of the interval plus 10 times what a value lies outside of it, on a logarithmic scale: less is better."""


def score(cases: Sequence[Case], forecasts: Sequence[Interval], *, of_rate: bool) -> Score:
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
        width=float(np.mean([f.relative_width for f in forecasts])),
        winkler=float(np.mean([winkler(f, c.asked.y) for c, f in zip(cases, forecasts, strict=True)])),
    )


def winkler(forecast: Interval, y: float) -> float:
    low, high, measured = math.log(forecast.low), math.log(forecast.high), math.log(y)
    return high - low + 10 * max(low - measured, measured - high, 0.0)


def scores(cases: Sequence[Case], calibration: Sequence[Case], ours: Ours, laws: dict[str, Law]) -> dict[str, Score]:
    """Ours and the other laws on the same cases; the others' intervals from their errors on `calibration`."""
    of_rate = ours is not our_epochs
    table = {"ours": score(cases, [ours(c) for c in cases], of_rate=of_rate)}
    for name, law in laws.items():
        errors = [abs(c.asked.y / law(c.known)(c.asked) - 1) for c in calibration]
        half = min(float(np.quantile(errors, 0.8)), 0.99)
        values = [law(c.known)(c.asked) for c in cases]
        widths = HalfWidths(less=half, more=half)
        table[name] = score(cases, [Interval.around(v, widths) for v in values], of_rate=of_rate)
    return table


def table(title: str, rows: dict[str, Score]) -> str:
    lines = [f"{title} ({next(iter(rows.values())).cases} cases)"]
    lines.append(f"  {'':22s} {'median':>7s} {'80 %':>7s} {'95 %':>7s}   {'covers':>7s} {'width':>7s} {'Winkler':>8s}")
    for name, s in rows.items():
        figures = [f"{100 * v:6.1f}%" for v in (s.median, s.quantile_80, s.quantile_95)]
        lines.append(
            f"  {name:22s} {' '.join(figures)}   {100 * s.coverage:6.0f}% {100 * s.width:6.0f}% {s.winkler:8.2f}"
        )
    return "\n".join(lines) + "\n"


def wanted(ours: Score, *, most_error: float) -> str:
    """Whether the figures are what we want of them."""
    missed = [f"the median error is {100 * ours.median:.1f} %"] if ours.median > most_error else []
    if not MIN_INSIDE <= round(ours.coverage, 2) <= MAX_INSIDE:
        missed.append(f"{100 * ours.coverage:.0f} % are inside")
    limits = f"median error at most {100 * most_error:.0f} %, 72 to 88 % inside the 80 % interval"
    return f"Wanted of ours: {limits}. {'MISSED: ' + ', '.join(missed) if missed else 'Held'}.\n"


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
    report_kinds(series, {c.series for c in test})
    print_splits("THROUGHPUT", throughput_splits(series))


def report_kinds(series: dict[str, list[Point]], tested: set[str]) -> None:
    """Every larger count from two or more smaller ones, test half: from own runs and from a table of epochs."""
    print("ALL LARGER COUNTS from two or more smaller ones, series of the test half")
    every = all_ahead(series)
    parts = by_kind([c for c in every if c.series in tested])
    calibration = [c for c in every if c.series not in tested]
    for title, cases in parts.items():
        rows = scores(cases, calibration, our_step_time, {"last efficiency kept": last_efficiency})
        table_rows = {"ours, from a table": score(cases, [our_epoch_time(c) for c in cases], of_rate=True)}
        print(table(title, {"ours": rows.pop("ours")} | table_rows | rows))
    cases = [c for c in every if c.series in tested]
    for name in ("last efficiency kept", "Pollux"):
        print(f"Error of ours against {name}: {paired(cases, our_step_time, THROUGHPUT_LAWS[name])}")
    print()


def paired(cases: Sequence[Case], ours: Ours, law: Law) -> str:
    """The difference of the mean absolute errors (logarithmic) over series drawn with replacement."""
    by_series: dict[str, list[float]] = {}
    for c in cases:
        errors = [abs(math.log(value / c.asked.y)) for value in (ours(c).value, law(c.known)(c.asked))]
        by_series.setdefault(c.series, []).append(errors[0] - errors[1])
    means = np.array([mean(differences) for differences in by_series.values()])
    drawn = np.random.default_rng(0).choice(means, (BOOTSTRAP, len(means))).mean(axis=1)
    low, high = np.quantile(drawn, [0.05, 0.95])
    verdict = "better" if high < 0 else "worse" if low > 0 else "level"
    return f"{100 * means.mean():+.1f} points (90 %: {100 * low:+.1f} to {100 * high:+.1f}): {verdict}"


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
    rows = scores(last, last, our_epochs, EPOCHS_LAWS)
    print(table("TEST: only the very largest batch of each", rows))
    print(wanted(rows["ours"], most_error=0.06))
    print("From one batch alone is no clean test: ONE_BATCH_RATIO was chosen with ResNet's pairs at hand.")
    one = from_one_batch(series)
    for title, part in (
        ("smaller", [c for c in one if c.asked.x < c.known[0].x]),
        ("up to 4.5 times", [c for c in one if 1 < c.asked.x / c.known[0].x <= 4.5]),
        ("beyond", [c for c in one if c.asked.x > 4.5 * c.known[0].x]),
    ):
        unchanged = {"unchanged": last_efficiency}
        print(table(f"from one batch alone, {title}", scores(part, part, our_epochs, unchanged)))
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
