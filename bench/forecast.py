"""How good are the forecasts? Other people's measurements, the largest held out: ours against others' laws.

    python bench/forecast.py --published DIR [--mlperf DIR]

DIR holds throughput.csv (images per second by number of GPUs) and epochs_to_converge.csv (epochs by global batch).
--mlperf is the folder rcp_checker of a checkout of mlcommons/logging: the benchmarks that the epochs' constants come
from.

Throughput: every series belongs to one of NVIDIA's examples (one README, one network, one framework). The constants of
forecast/trend.py and the typical values of forecast/scaling.py come from all of them; each figure here is that of an
example forecast with constants derived, by the same rules, from the others. Epochs: `epochs_constants` derives those of
forecast/epochs.py from MLPerf's benchmarks that are not in DIR. The rules are run again here, so a package whose
constants are not the rules' own is told apart.

Errors are those of throughput (or of epochs), relative to what was measured. A share inside the interval has its exact
binomial 95 % interval behind it; a row of fewer than 30 cases is judged by that interval, since its share alone cannot
tell 72 % from 88 %. Cases of one series are not independent, so the true intervals are wider still.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Literal

import numpy as np
from forecast_cases import (
    Case,
    Point,
    all_ahead,
    all_below,
    between_others,
    by_kind,
    epochs_series,
    examples_of,
    from_one_batch,
    from_one_count,
    in_order,
    largest_held_out,
    mlperf_series,
    next_batch_held_out,
    throughput_series,
)
from forecast_constants import (
    Ahead,
    Constants,
    Fits,
    below_constants,
    constants,
    epochs_constants,
    in_words,
    shipped,
    width_constants,
)
from forecast_gpus import report_gpus
from forecast_laws import (
    EPOCHS_LAWS,
    THROUGHPUT_LAWS,
    Law,
    Ours,
    last_efficiency,
    our_epoch_time,
    our_epochs,
    our_step_time,
    our_step_time_untold,
)
from scipy.stats import binomtest

from turnaround.forecast import epochs, scaling, trend
from turnaround.forecast.interval import HalfWidths, Interval

MIN_INSIDE, MAX_INSIDE = 0.72, 0.88
FEW_CASES = 30
"""Below, 80 % cannot be told from 72 or 88 %: a row is judged by its binomial interval."""
BOOTSTRAP = 2000
OURS: dict[str, Ours] = {"ours, own runs": our_step_time, "ours, from a table": our_epoch_time}
COMPARED = ("last efficiency kept", "Pollux")
"""The laws that ours must beat, or be level with and say so."""
SPLITS = ("", "second", "third")
"""Salts of the hash that makes halves of benchmarks."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Fractions. The errors are absolute; the width is that of the 80 % interval relative to its value."""

    cases: int
    median: float
    quantile_80: float
    quantile_95: float
    coverage: float
    coverage_range: tuple[float, float]
    """Exact binomial 95 % interval of the coverage (Clopper and Pearson)."""
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
        coverage_range=binomial(sum(inside), len(inside)),
        width=float(np.mean([f.relative_width for f in forecasts])),
        winkler=float(np.mean([winkler(f, c.asked.y) for c, f in zip(cases, forecasts, strict=True)])),
    )


def binomial(inside: int, cases: int) -> tuple[float, float]:
    ends = binomtest(inside, cases).proportion_ci(0.95, method="exact")
    return float(ends.low), float(ends.high)


def judged(s: Score) -> Literal["held", "too few cases to tell", "MISSED"]:
    """Whether 72 to 88 % are inside; of few cases, whether the share may be one of these."""
    if MIN_INSIDE <= round(s.coverage, 2) <= MAX_INSIDE:
        return "held"
    low, high = s.coverage_range
    may_be = s.cases < FEW_CASES and low <= MAX_INSIDE and high >= MIN_INSIDE
    return "too few cases to tell" if may_be else "MISSED"


def winkler(forecast: Interval, y: float) -> float:
    low, high, measured = math.log(forecast.low), math.log(forecast.high), math.log(y)
    return high - low + 10 * max(low - measured, measured - high, 0.0)


def scores(cases: Sequence[Case], ours: Ours, laws: dict[str, Law], *, of_rate: bool) -> dict[str, Score]:
    """Ours and the other laws on the same cases.

    The others have no intervals: theirs are plus and minus the 80 % quantile of their errors on these very cases.
    """
    rows = {"ours": score(cases, [ours(c) for c in cases], of_rate=of_rate)}
    for name, law in laws.items():
        values = [law(c.known)(c.asked) for c in cases]
        errors = [abs(c.asked.y / value - 1) for c, value in zip(cases, values, strict=True)]
        half = min(float(np.quantile(errors, 0.8)), 0.99)
        widths = HalfWidths(less=half, more=half)
        rows[name] = score(cases, [Interval.around(v, widths) for v in values], of_rate=of_rate)
    return rows


def table(title: str, rows: dict[str, Score]) -> str:
    lines = [f"{title} ({next(iter(rows.values())).cases} cases)"]
    lines.append(f"  {'':22s} {'median':>7s} {'80 %':>7s} {'95 %':>7s}   {'inside':>16s} {'width':>7s} {'Winkler':>8s}")
    for name, s in rows.items():
        figures = [f"{100 * v:6.1f}%" for v in (s.median, s.quantile_80, s.quantile_95)]
        inside = f"{100 * s.coverage:.0f}% ({100 * s.coverage_range[0]:.0f}-{100 * s.coverage_range[1]:.0f})"
        lines.append(f"  {name:22s} {' '.join(figures)}   {inside:>16s} {100 * s.width:6.0f}% {s.winkler:8.2f}")
    return "\n".join(lines) + "\n"


def wanted(ours: Score, *, most_error: float) -> str:
    """Whether the figures are what we want of them."""
    missed = [f"the median error is {100 * ours.median:.1f} %"] if ours.median > most_error else []
    if judged(ours) == "MISSED":
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


@dataclass(frozen=True, kw_only=True)
class Example:
    """One of NVIDIA's examples: its series are forecast with constants that come from all the others."""

    series: set[str]
    scaling: Constants
    trend: Constants


def examples(series: dict[str, list[Point]], of_series: dict[str, str]) -> tuple[list[Example], Example]:
    """Each example with the constants of the others; and all of them, with the constants of all."""
    fits = Fits.of(from_one_count(series))
    ahead = [Ahead.of(c, of_series[c.series]) for c in all_ahead(series)]

    def without(names: set[str]) -> Example:
        kept = [a for a in ahead if a.case.series not in names]
        return Example(series=names, scaling=fits.constants(names), trend=width_constants(kept))

    each = [without({name for name in series if of_series[name] == e}) for e in sorted(set(of_series.values()))]
    return [example for example in each if example.series], without(set())


@dataclass
class HeldOut:
    """Forecasts of cases, each with the constants of the examples that its own is not among; each is made once."""

    examples: Sequence[Example]
    made: dict[tuple[Ours, Case], Interval] = field(default_factory=dict)
    others_made: dict[tuple[Law, Case], float] = field(default_factory=dict)

    def ours(self, cases: Sequence[Case], law: Ours) -> list[Interval]:
        for example in self.examples:
            new = [c for c in cases if c.series in example.series and (law, c) not in self.made]
            with constants(scaling, example.scaling), constants(trend, example.trend):
                self.made |= {(law, c): law(c) for c in new}
        return [self.made[law, c] for c in cases]

    def others(self, cases: Sequence[Case], law: Law) -> list[float]:
        for c in cases:
            if (law, c) not in self.others_made:
                self.others_made[law, c] = law(c.known)(c.asked)
        return [self.others_made[law, c] for c in cases]


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """What a row says of ours, for the table at the end."""

    title: str
    scores: dict[str, Score]
    against: dict[str, Paired]


@dataclass(frozen=True, kw_only=True)
class Paired:
    """The difference of mean absolute errors (logarithmic), ours less the other's, with its 90 % interval."""

    mean: float
    low: float
    high: float
    median_other: float
    quantile_80_other: float

    @property
    def verdict(self) -> Literal["better", "level", "worse"]:
        return "better" if self.high < 0 else "worse" if self.low > 0 else "level"

    @property
    def text(self) -> str:
        points = [f"{100 * value:+.1f}" for value in (self.mean, self.low, self.high)]
        return f"{points[0]} points (90 %: {points[1]} to {points[2]}): {self.verdict}"


def report_throughput(folder: Path) -> None:
    series, left_out = throughput_series(folder / "throughput.csv")
    each, every = examples(series, examples_of(folder / "throughput.csv"))
    print("THROUGHPUT: error of images per second, 80 % interval of the step time")
    print(f"Constants from all {len(each)} examples: {in_words(every.scaling)}, {in_words(every.trend)}")
    print(shipped(scaling, every.scaling), shipped(trend, every.trend))
    print(f"Left out: {dict(left_out)}")
    print("Every figure below: an example forecast with constants from the others. GROWTH of trend.py is no such")
    print("constant: it was chosen with all series in sight.\n")
    held_out = HeldOut(each)
    largest, ahead = largest_held_out(series), all_ahead(series)
    rows = {"largest count from all smaller ones": largest} | by_kind(ahead)
    told = [throughput_row(title, cases, held_out) for title, cases in rows.items()]
    crossing = rows["first crossing of a host"]
    untold = score(crossing, held_out.ours(crossing, our_step_time_untold), of_rate=True)
    print(table("first crossing of a host, nobody has told the network", {"ours": untold}).rstrip())
    print(f"  {judged(untold)}: the upper end has room for 0.3 GB/s on purpose, which none of these machines has\n")
    one = from_one_count(series)
    for title, cases in (
        ("largest from the smallest count alone, one host", [c for c in one if c.asked.hosts == 1]),
        ("largest from the smallest count alone, more hosts", [c for c in one if c.asked.hosts > 1]),
        ("a count between others", between_others(series)),
        ("smaller counts from two or more larger ones", all_below(series)),
    ):
        found = own_and_table(cases, held_out)
        print(table(title, found))
        told.append(Verdicts(title=title, scores=found, against={}))
    print(table("the other laws, largest count", scores(largest, our_step_time, THROUGHPUT_LAWS, of_rate=True)))
    print(summary(told))


def own_and_table(cases: Sequence[Case], held_out: HeldOut) -> dict[str, Score]:
    return {name: score(cases, held_out.ours(cases, law), of_rate=True) for name, law in OURS.items()}


def throughput_row(title: str, cases: Sequence[Case], held_out: HeldOut) -> Verdicts:
    """Print own runs and a table on these cases, and paired differences to the law that knows least and to Pollux."""
    found = own_and_table(cases, held_out)
    own = held_out.ours(cases, our_step_time)
    against = {name: paired(cases, own, held_out.others(cases, THROUGHPUT_LAWS[name])) for name in COMPARED}
    print(table(title, found).rstrip())
    for name, p in against.items():
        quantiles = f"{100 * p.median_other:6.1f}% {100 * p.quantile_80_other:6.1f}%"
        print(f"  {name:22s} {quantiles}   ours: {p.text}")
    print()
    return Verdicts(title=title, scores=found, against=against)


def paired(cases: Sequence[Case], ours: Sequence[Interval], others: Sequence[float]) -> Paired:
    """The difference of the mean absolute errors (logarithmic) over series drawn with replacement."""
    by_series: dict[str, list[float]] = {}
    for c, forecast, other in zip(cases, ours, others, strict=True):
        errors = [abs(math.log(value / c.asked.y)) for value in (forecast.value, other)]
        by_series.setdefault(c.series, []).append(errors[0] - errors[1])
    means = np.array([mean(differences) for differences in by_series.values()])
    drawn = np.random.default_rng(0).choice(means, (BOOTSTRAP, len(means))).mean(axis=1)
    low, high = np.quantile(drawn, [0.05, 0.95])
    relative = np.abs([c.asked.y / value - 1 for c, value in zip(cases, others, strict=True)])
    return Paired(
        mean=float(means.mean()),
        low=float(low),
        high=float(high),
        median_other=float(np.median(relative)),
        quantile_80_other=float(np.quantile(relative, 0.8)),
    )


def summary(told: Sequence[Verdicts]) -> str:
    """72 to 88 % inside, the table against own runs, and the rows where ours is not better than the others."""
    lines = [f"WANTED: 72 to 88 % inside; of fewer than {FEW_CASES} cases, a binomial interval that has room for that"]
    for row in told:
        for name, s in row.scores.items():
            if (verdict := judged(s)) != "held":
                low, high = (f"{100 * end:.0f}" for end in s.coverage_range)
                share = f"{100 * s.coverage:.0f} % of {s.cases} ({low} to {high} %)"
                lines.append(f"  {verdict}: {row.title}, {name}: {share}")
    own, from_table = OURS
    apart = max(row.scores[from_table].median / row.scores[own].median - 1 for row in told)
    lines.append(f"A table's median error is at most {100 * max(apart, 0.0):.1f} % above that of own runs in any row.")
    for name in COMPARED:
        compared = [(row.title, row.against[name].verdict) for row in told if row.against]
        others = [f"{verdict} in {title!r}" for title, verdict in compared if verdict != "better"]
        better = f"better in {len(compared) - len(others)} of {len(compared)} rows"
        lines.append(f"Against {name} (paired bootstrap): {', '.join([better, *others])}.")
    return "\n".join(lines) + "\n"


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
    print()
    if mlperf is not None:
        others = mlperf_series(mlperf)
        derived = epochs_constants(others)
        print(f"Constants from the other benchmarks alone: {in_words(derived)}")
        print(shipped(epochs, derived) + "\n")
        calibration = next_batch_held_out(others)
        print(
            table("calibration: MLPerf's other benchmarks", scores(calibration, our_epochs, EPOCHS_LAWS, of_rate=False))
        )
    for name in sorted(series):
        part = [c for c in cases if c.series == name]
        print(table(f"test: {name}", scores(part, our_epochs, EPOCHS_LAWS, of_rate=False)))
    rows = scores(cases, our_epochs, EPOCHS_LAWS, of_rate=False)
    print(table("TEST: all three", rows))
    print(wanted(rows["ours"], most_error=0.06))
    last = largest_held_out(series)
    rows = scores(last, our_epochs, EPOCHS_LAWS, of_rate=False)
    print(table("TEST: only the very largest batch of each", rows))
    print(wanted(rows["ours"], most_error=0.06))
    print(f"ONE_BATCH_BELOW from all three: {shipped(epochs, below_constants(series))}")
    for name in sorted(series):
        with constants(epochs, below_constants({n: p for n, p in series.items() if n != name})):
            part = [c for c in from_one_batch({name: series[name]}) if c.asked.x < c.known[0].x]
            rows = scores(part, our_epochs, {"unchanged": last_efficiency}, of_rate=False)
            print(table(f"smaller batches from one alone, {name}, the constant from the others", rows))
    print("Larger batches from one alone is no clean test: ONE_BATCH_RATIO was chosen with ResNet's pairs at hand.")
    one = from_one_batch(series)
    for title, part in (
        ("up to 4.5 times", [c for c in one if 1 < c.asked.x / c.known[0].x <= 4.5]),
        ("beyond", [c for c in one if c.asked.x > 4.5 * c.known[0].x]),
    ):
        unchanged: dict[str, Law] = {"unchanged": last_efficiency}
        found = scores(part, our_epochs, unchanged, of_rate=False)
        print(table(f"from one batch alone, {title}", found).rstrip())
        print(f"  72 to 88 % inside: {judged(found['ours'])}\n")
    if mlperf is not None:
        print_splits("EPOCHS", epochs_splits(series, others))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, required=True, help="folder with the two CSV files")
    parser.add_argument("--mlperf", type=Path, help="folder rcp_checker of mlcommons/logging")
    arguments = parser.parse_args()
    report_throughput(arguments.published)
    report_gpus(arguments.published)
    report_epochs(arguments.published, arguments.mlperf)


if __name__ == "__main__":
    main()
