"""Tables of the page, before they are html: the comparison of a job, and what is forecast of it.

Every cell has a text to read and a key to sort by. Times of rehearsals are nowhere: cases have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnaround.analysis.configurations import ConfigurationRuns, Spread, Workload
from turnaround.forecast.interval import Interval
from turnaround.forecast.predict import Forecaster
from turnaround.forecast.question import Prediction
from turnaround.reporting.comparison_table import SortKey, filled_columns, meanings, table_rows
from turnaround.words import UNKNOWN, about, accuracy, duration, hardware, money


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table."""

    text: str
    key: SortKey = None


@dataclass(frozen=True, kw_only=True)
class HtmlTable:
    """Rows of cells under headings; the first column names the row."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    tags: tuple[str, ...] = ()
    """A word beside the name of each row: "rehearsed", "running"; empty for none."""
    words: tuple[tuple[str, str], ...] = ()
    """Headings with their meanings."""


# --- the comparison of a job


def comparison(job: Workload) -> HtmlTable:
    """Return a row for each configuration. Columns of which nothing is known are left out."""
    rows = table_rows(job)
    columns = filled_columns(job, rows)
    # The job's order is by kind of GPU and by workers, which the words alone would not give.
    names = [Cell(text=row.name, key=float(place)) for place, row in enumerate(rows)]
    return HtmlTable(
        headings=("configuration", *(column.heading_for(job).replace("\n", " ") for column in columns)),
        rows=tuple(
            (name, *(Cell(text=column.text(row), key=column.key(row)) for column in columns))
            for name, row in zip(names, rows, strict=True)
        ),
        tags=tuple(_tag(case) for case in job.configurations),
        words=tuple(meanings([job], columns)),
    )


def _tag(case: ConfigurationRuns) -> str:
    """Return what must be known before the row is compared with the others."""
    if case.configuration.is_rehearsal:
        return "rehearsed"
    states = {run.state for run in case.summaries}
    return "" if "finished" in states or len(states) != 1 else states.pop()


# --- forecasts


def asked_counts(forecaster: Forecaster) -> list[int]:
    """Return the numbers of workers that were timed, and powers of two to twice the most of them."""
    timed = forecaster.laws.times.counts if forecaster.laws.times else []
    counted = timed or sorted({case.configuration.workers for case in forecaster.job.configurations})
    return sorted({*counted, *(2**k for k in range((2 * max(counted)).bit_length()))})


def forecasts(predictions: Sequence[Prediction]) -> HtmlTable:
    """Forecasts for other numbers of workers, in each cell the value and its 80 % interval; what was run is marked."""
    shown: list[tuple[str, str, Callable[[float], str]]] = [
        ("an epoch", "epoch_time_s", about),
        ("epochs to stable", "epochs_to_stable", lambda value: f"{value:.0f}"),
        ("time to stable", "time_to_stable_s", about),
        (f"job of {predictions[0].epochs_planned} epochs", "job_time_s", about),
        ("cost of the job", "cost", money),
        ("validation accuracy", "val_accuracy", accuracy),
    ]
    known = [column for column in shown if any(getattr(p, column[1]) is not None for p in predictions)]
    return HtmlTable(
        headings=("workers", *(heading for heading, _, _ in known)),
        rows=tuple(
            (
                Cell(text=hardware(p.workers, p.gpu, hosts=p.hosts), key=float(p.workers)),
                *(_forecast(p, name, show) for _, name, show in known),
            )
            for p in predictions
        ),
        tags=tuple("measured" if p.measured else "forecast" for p in predictions),
    )


def _forecast(p: Prediction, name: str, show: Callable[[float], str]) -> Cell:
    measured: Spread | None = p.measured.get(name)
    if measured is not None:
        text = duration(measured.value) if show is about else show(measured.value)
        return Cell(text=f"{text} measured", key=measured.value)
    forecast: Interval | None = getattr(p, name)
    if forecast is None:
        return Cell(text=UNKNOWN)
    return Cell(text=f"{show(forecast.value)} ({show(forecast.low)} to {show(forecast.high)})", key=forecast.value)
