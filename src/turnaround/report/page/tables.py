"""Tables of the page, before they are html: the comparison of a job, and what is forecast of it.

Every cell has a text to read and a key to sort by. Times of rehearsals are nowhere: cases have none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from turnaround.analysis.configurations import Configuration, ConfigurationRuns, Spread, Workload
from turnaround.analysis.speed import Speedup, speedups
from turnaround.analysis.stable import EpochEstimate
from turnaround.findings.best import time_to_target_s
from turnaround.forecast.contract import Forecast
from turnaround.forecast.predict import Forecaster
from turnaround.forecast.question import Prediction
from turnaround.report.job_table import case_names, column_groups, meanings
from turnaround.words import UNKNOWN, about, accuracy, duration, hardware, money

Key = float | str | None
"""What a column is sorted by; None is always last."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table."""

    text: str
    key: Key = None


@dataclass(frozen=True, kw_only=True)
class HtmlTable:
    """Rows of cells under headings; the first column names the row."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    tags: tuple[str, ...] = ()
    """For each row a word beside its name: "rehearsed", "running"; empty for none."""
    words: tuple[tuple[str, str], ...] = ()
    """What the headings mean."""


_Column = tuple[str, list[Cell]]
"""A heading and its cells."""


# --- the comparison of a job


def comparison(job: Workload) -> HtmlTable:
    """A row for each configuration. Columns of which nothing is known are left out."""
    ups = speedups(job)
    told = [_column(job, ups, c.heading, c.cells) for group in column_groups(job, ups) for c in group]
    columns = [_names(job), *_with_time_to_target(job, told)]
    known = [(heading, cells) for heading, cells in columns if any(cell.text != UNKNOWN for cell in cells)]
    headings = tuple(heading for heading, _ in known)
    return HtmlTable(
        headings=headings,
        rows=tuple(zip(*(cells for _, cells in known), strict=True)),
        tags=tuple(_tag(case) for case in job.cases),
        words=tuple(meanings([job], headings[1:])),
    )


def _names(job: Workload) -> _Column:
    # The job's order is by kind of GPU and by workers, which the words alone would not give.
    return "configuration", [Cell(text=name, key=float(place)) for place, name in enumerate(case_names(job))]


def _column(job: Workload, ups: Mapping[Configuration, Speedup], heading: str, texts: Sequence[str]) -> _Column:
    name = heading.replace("\n", " ")
    read = _KEYS.get("epochs to" if name.startswith("epochs to") else name)
    if read is None:
        return name, [Cell(text=text, key=_number_in(text)) for text in texts]
    keys = [read(case, ups.get(case.configuration)) for case in job.cases]
    return name, [Cell(text=text, key=key) for text, key in zip(texts, keys, strict=True)]


def _number_in(text: str) -> Key:
    """The number that a text begins with; else the text itself."""
    found = re.match(r"-?[0-9][0-9,]*(?:\.[0-9]+)?", text)
    return float(found[0].replace(",", "")) if found else None if text == UNKNOWN else text


def _value(spread: Spread | None) -> float | None:
    return None if spread is None else spread.value


def _epoch(found: EpochEstimate | None) -> float | None:
    return None if found is None else found.epoch


_KEYS: dict[str, Callable[[ConfigurationRuns, Speedup | None], float | None]] = {
    "batch": lambda case, _: case.configuration.global_batch,
    "runs": lambda case, _: len(case.runs),
    "s/epoch": lambda case, _: _value(case.epoch_time_s),
    "images/s": lambda case, _: _value(case.images_per_s),
    "speed-up": lambda _, up: up.speedup.value if up else None,
    "efficiency": lambda _, up: up.efficiency.value if up else None,
    "job time": lambda case, _: _value(case.job_time_s),
    "stable epoch": lambda case, _: _epoch(case.stable),
    "epochs to": lambda case, _: _epoch(case.to_target),
    "validation accuracy": lambda case, _: _value(case.final_val_accuracy),
    "training accuracy": lambda case, _: _value(case.final_train_accuracy),
}


def _with_time_to_target(job: Workload, columns: Sequence[_Column]) -> Iterator[_Column]:
    """After the epochs to the common accuracy, the time that they took: by it configurations are compared."""
    for heading, cells in columns:
        yield heading, cells
        if heading.startswith("epochs to"):
            times = [time_to_target_s(case) for case in job.cases]
            yield (
                heading.replace("epochs", "time"),
                [Cell(text=UNKNOWN if time_s is None else duration(time_s), key=time_s) for time_s in times],
            )


def _tag(case: ConfigurationRuns) -> str:
    """What must be known before the row is compared with the others."""
    if case.configuration.is_rehearsal:
        return "rehearsed"
    states = {run.state for run in case.runs}
    return "" if "finished" in states or len(states) != 1 else states.pop()


# --- forecasts


def asked_counts(forecaster: Forecaster) -> list[int]:
    """The numbers of workers that were timed, and powers of two to twice the most of them."""
    timed = forecaster.laws.times.counts if forecaster.laws.times else []
    counted = timed or sorted({case.configuration.workers for case in forecaster.job.cases})
    return sorted({*counted, *(2**k for k in range((2 * max(counted)).bit_length()))})


def forecasts(predictions: Sequence[Prediction]) -> HtmlTable:
    """What other numbers of workers would do, in each cell the value and its 80 % interval; what was run is marked."""
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
    forecast: Forecast | None = getattr(p, name)
    if forecast is None:
        return Cell(text=UNKNOWN)
    return Cell(text=f"{show(forecast.value)} ({show(forecast.low)} to {show(forecast.high)})", key=forecast.value)
