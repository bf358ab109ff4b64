"""An estimate from zero runs for the terminal: the answer, a row for each kind and count, what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from rich.text import Text

from turnaround.findings.estimates import (
    choice_sentences,
    narrowing_text,
    score_headline,
    score_sentences,
    unscored_sentence,
)
from turnaround.findings.queue import ready_text, silence_text
from turnaround.forecast.estimate import CPU, Estimate
from turnaround.forecast.interval import Interval
from turnaround.forecast.score import OtherWork, Score
from turnaround.forecast.turnaround import gpu_hours
from turnaround.reporting.forecast_words import queue_cells
from turnaround.reporting.text_layout import TextColumn, clean, tables, wrapped
from turnaround.study.estimate import EstimateReport
from turnaround.words import UNKNOWN, money, number

MAX_ROWS = 20
"""A screen. Of more estimates the powers of two are shown; --json has all."""

Cell = Callable[[Estimate], str | None]
TIMES: tuple[tuple[str, Cell], ...] = (
    ("\nfits", lambda e: _fits(e)),
    ("in the\nqueue", lambda e: queue_cells(e.prediction)[0] or None),
    ("ready in\n(80 %)", lambda e: queue_cells(e.prediction)[1] or None),
    ("an epoch\n(80 %)", lambda e: _time(e.prediction.epoch_time_s)),
    ("epochs\nto stable", lambda e: _count(e.prediction.epochs_to_stable)),
    ("time to stable\n(80 %)", lambda e: _time(e.prediction.time_to_stable_s)),
    ("the job\n(80 %)", lambda e: _time(e.prediction.job_time_s)),
)
SPENT: tuple[tuple[str, Cell], ...] = (
    ("cost to stable\n({currency}80 %)", lambda e: _money(e.prediction.cost_to_stable)),
    ("cost of job\n({currency}80 %)", lambda e: _money(e.prediction.cost)),
    ("GPU-h of job\n(80 %)", lambda e: _hours(e)),
    ("energy of job\n(80 %)", lambda e: _between(e.prediction.energy_wh, ("Wh", "kWh"))),
    ("electricity\nof job (80 %)", lambda e: _money(e.prediction.electricity_cost)),
    ("CO2e of job\n(80 %)", lambda e: _between(_grams(e.prediction.emissions_kg), ("g", "kg"))),
)
"""A column without a single value is left out: a new figure is a row here. Where not all of them are as wide as the
screen, times and what is spent are two tables."""
UNITS = (("h", 3600.0, 6000.0), ("min", 60.0, 120.0), ("s", 1.0, 0.9995), ("ms", 1e-3, 0.0))
"""Units of a time: name, seconds, and the least seconds that are told in it."""
NO_VALUE = {"\nfits": "", "energy of job\n(80 %)": "not known"}
"""Instead of a dash, where other rows have a value."""


def estimate_lines(report: EstimateReport, width: int) -> Iterator[Text]:
    """Yield the answer first, then the table, what it rests on, and what to run."""
    trial = report.trial
    if report.cluster is not None and report.cluster.why_silent is not None:
        silent = silence_text(report.cluster.why_silent)
        yield from (Text(line, style="yellow") for line in wrapped(clean(silent), width))
    if (ready := ready_text(report.queued, datetime.now())) is not None:
        yield from (Text(line, style="bold") for line in wrapped(clean(ready), width))
    headline = f"{trial.job}, estimated from zero runs. " + " ".join(
        choice_sentences(report.choices, report.estimates, trial, currency=report.currency)
    )
    yield from (Text(line, style="bold") for line in wrapped(clean(headline), width))
    yield Text()
    shown = _shown(report)
    yield from _table(shown, width, report.currency)
    if len(shown) < len(report.estimates):
        yield Text(f"  {len(report.estimates)} configurations were estimated; --json has them all")
    for sentence in report.left_out:
        yield from map(Text, wrapped(clean(sentence), width, first="  "))
    yield Text()
    sections = ("what would be trained", report.chosen), ("queue", report.queue_notes), ("rests on", report.basis)
    for name, notes in sections:
        if notes:
            yield Text(name, style="bold")
        for note in notes:
            yield from map(Text, wrapped(clean(note), width, first="  - "))
    if report.next_run is not None:
        yield Text()
        yield Text("run next", style="bold")
        yield from map(Text, wrapped(clean(narrowing_text(report.next_run)), width, first="  - "))
        yield Text(f"    {clean(report.command or '')}")


def _shown(report: EstimateReport) -> list[Estimate]:
    """Return the rows: of many the powers of two, and whatever the sentences name."""
    if len(report.estimates) <= MAX_ROWS:
        return list(report.estimates)
    best, run = report.choices, report.next_run
    named = [] if best is None else [best.fastest, best.near_fastest, best.cheapest]
    named += [] if run is None else [run.about]
    return [e for e in report.estimates if e.prediction.workers & (e.prediction.workers - 1) == 0 or e in named]


def _table(shown: Sequence[Estimate], width: int, currency: str | None) -> Iterator[Text]:
    names = TextColumn(
        heading="\non", cells=tuple(f"{e.prediction.workers} {clean(e.prediction.gpu)}" for e in shown), is_left=True
    )
    groups = [list(_columns(shown, group, f"{currency}, " if currency else "")) for group in (TIMES, SPENT)]
    for part, table in enumerate(tables(names, groups, width - 2)):
        if part:
            yield Text()
        yield from (Text(f"  {line}".rstrip(), style="bold") for line in table.heading)
        yield from (Text(f"  {line}".rstrip()) for line in table.rows)


def _columns(shown: Sequence[Estimate], group: Sequence[tuple[str, Cell]], currency: str) -> Iterator[TextColumn]:
    for heading, cell in group:
        cells = [cell(e) for e in shown]
        if any(one is not None for one in cells):
            other = NO_VALUE.get(heading, UNKNOWN)
            title = heading.format(currency=clean(currency))
            yield TextColumn(heading=title, cells=tuple(one or other for one in cells))


def _fits(e: Estimate) -> str | None:
    """Only where it is in doubt: a column of "yes" says nothing."""
    return e.memory.fits if e.memory.fits in ("perhaps", "no") else None


def _time(forecast: Interval | None) -> str | None:
    """Return a time with its interval in one unit, that of the value: a column as narrow as it can be."""
    if forecast is None:
        return None
    unit, seconds = next(((name, size) for name, size, least in UNITS if forecast.value >= least), UNITS[-1][:2])
    value, low, high = (number(each / seconds, 2) for each in _ends(forecast))
    return f"{value} {unit} ({low}-{high})"


def _count(forecast: Interval | None) -> str | None:
    return None if forecast is None else f"{forecast.value:.0f} ({forecast.low:.0f}-{forecast.high:.0f})"


def _between(forecast: Interval | None, units: tuple[str, str]) -> str | None:
    """Return a value with its interval, all three in one unit, or in the one that is a thousand times as large."""
    if forecast is None:
        return None
    is_large = forecast.value >= 999.5
    value, low, high = (number(each / (1000 if is_large else 1), 2) for each in _ends(forecast))
    return f"{value} {units[is_large]} ({low}-{high})"


def _grams(emissions_kg: Interval | None) -> Interval | None:
    return None if emissions_kg is None else emissions_kg.scaled(1000)


def _ends(forecast: Interval) -> tuple[float, float, float]:
    return forecast.value, forecast.low, forecast.high


def _money(forecast: Interval | None) -> str | None:
    return None if forecast is None else f"{money(forecast.value)} ({money(forecast.low)}-{money(forecast.high)})"


def _hours(e: Estimate) -> str | None:
    """GPU-hours stand in for money where the price is not known; processors have hours of their own."""
    if e.prediction.cost is not None or e.prediction.job_time_s is None:
        return None
    hours = (number(gpu_hours(time_s, e.prediction.workers), 2) for time_s in _ends(e.prediction.job_time_s))
    return "{} ({}-{})".format(*hours) + (" CPU-h" if e.prediction.gpu == CPU else "")


def score_lines(scores: Sequence[Score], width: int, *, others: Sequence[OtherWork] = ()) -> Iterator[Text]:
    """Yield what was estimated before any run beside what was measured since, and that runs were of other work than was
    estimated; nothing where neither is there."""
    estimated = [score for score in scores if score.is_estimate]
    headline, left = score_headline(estimated), unscored_sentence(others)
    if headline is not None or left is not None:
        yield Text()
    if left is not None:
        yield from map(Text, wrapped(clean(left), width, rest="  "))
    if headline is None:
        return
    yield from (Text(line, style="bold") for line in wrapped(clean(headline), width))
    for sentence in score_sentences(estimated):
        yield from map(Text, wrapped(clean(sentence), width, first="  - "))
