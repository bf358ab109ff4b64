"""Tables of the page, before they are html: the comparison of a job, its classes, and what is forecast of it.

Every cell has a text to read and a key to sort by. Times of rehearsals are nowhere: configurations have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from turnaround.analysis.configurations import ConfigurationRuns, Spread, Workload
from turnaround.analysis.confusion import Pair, confused_pairs
from turnaround.forecast.interval import Interval
from turnaround.forecast.predict import Forecaster
from turnaround.forecast.question import Prediction
from turnaround.record.schema import ClassResult, Evaluation
from turnaround.reporting.comparison_table import COLUMNS, SortKey, accuracy_text, filled_columns, meanings, table_rows
from turnaround.words import UNKNOWN, about, accuracy, duration, energy, hardware, money


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table."""

    text: str
    key: SortKey = None
    target: str = ""
    """The id of the element that it leads to; empty where it is no link."""


@dataclass(frozen=True, kw_only=True)
class HtmlTable:
    """Rows of cells under headings; the first column names the row."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    tags: tuple[str, ...] = ()
    """A word beside the name of each row: "rehearsed", "running"; empty for none."""
    words: tuple[tuple[str, str], ...] = ()
    """Headings with their meanings."""
    more: int = 0
    """Rows that were left out."""


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
        tags=tuple(_tag(configuration) for configuration in job.configurations),
        words=tuple(meanings([job], columns)),
    )


MAX_BOARD_ROWS = 500
"""Rows of the table over all jobs: more would make the page slow; each job's own table has all."""


def leaderboard(jobs: Sequence[tuple[Workload, str]]) -> HtmlTable:
    """Return a row for each configuration of every job, the most accurate of each job first; with the jobs' keys."""
    rows = []
    for place, (job, key) in enumerate(jobs):
        best = sorted(table_rows(job), key=lambda row: -(_final(row.configuration) or 0.0))
        rows += [(place, job, key, row) for row in best]
    shown = rows[:MAX_BOARD_ROWS]
    columns = [
        column
        for column in COLUMNS
        if column.figure in BOARD_FIGURES and any(column.text(row) != UNKNOWN for *_, row in shown)
    ]
    return HtmlTable(
        headings=("configuration", "accuracy", "job", *(column.word for column in columns)),
        rows=tuple(
            (
                Cell(text=row.name, key=row.name),
                Cell(text=accuracy_text(row.configuration.final_val_accuracy), key=_final(row.configuration)),
                Cell(text=job.name, key=float(place), target=f"{key}-heading"),
                *(Cell(text=column.text(row), key=column.key(row)) for column in columns),
            )
            for place, job, key, row in shown
        ),
        tags=tuple(_tag(row.configuration) for *_, row in shown),
        words=(
            ("accuracy", "final accuracy: share of validation images recognised after the last epoch"),
            *((column.word, column.meaning) for column in columns if column.meaning),
        ),
        more=len(rows) - len(shown),
    )


BOARD_FIGURES = ("epoch_time_s", "images_per_s", "job_time_s", "stable", "final_train_accuracy")
"""Columns of the table over all jobs, by their names in `--json`: those that mean the same in every job."""


def _final(configuration: ConfigurationRuns) -> float | None:
    return configuration.final_val_accuracy.value if configuration.final_val_accuracy else None


def _tag(configuration: ConfigurationRuns) -> str:
    """Return what must be known before the row is compared with the others."""
    if configuration.is_rehearsal:
        return "rehearsed"
    states = {run.state for run in configuration.summaries}
    return "" if "finished" in states or len(states) != 1 else states.pop()


# --- classes


MAX_CLASS_ROWS = 500
"""Rows of the table of classes: more would make the page slow; evaluation.json has all."""


def class_table(evaluation: Evaluation) -> HtmlTable:
    """Return a row for each class, in the network's order; of very many, those with the lowest F1."""
    weakest = sorted(range(len(evaluation.per_class)), key=lambda place: _f1(evaluation.per_class[place]))
    places = sorted(weakest[:MAX_CLASS_ROWS])
    taken_for = {pair.true: pair for pair in reversed(confused_pairs(evaluation))}
    has_matrix = bool(evaluation.confusion)
    last = ("taken for",) if has_matrix else ()
    return HtmlTable(
        headings=("class", "F1", "precision", "recall", "images", "predicted", *last),
        rows=tuple(
            (
                Cell(text=evaluation.per_class[place].name, key=float(place)),
                *_class_cells(evaluation.per_class[place]),
                *([_taken_for(evaluation, taken_for.get(place))] if has_matrix else []),
            )
            for place in places
        ),
        words=(
            ("F1", "harmonic mean of precision and recall"),
            ("precision", "of the images that were taken for this class, the share that is of it"),
            ("recall", "of the images of this class, the share that was recognised"),
            ("images", "validation images of this class"),
            ("predicted", "validation images that were taken for it, rightly or not"),
            *(
                [("taken for", "the class that its images were mistaken for most often, and how many were")]
                * has_matrix
            ),
        ),
    )


def _f1(one: ClassResult) -> float:
    return 2.0 if one.f1 is None else one.f1  # without images nothing is weak


def _class_cells(one: ClassResult) -> Iterator[Cell]:
    for share in (one.f1, one.precision, one.accuracy):
        yield Cell(text=accuracy(share), key=share)
    yield Cell(text=f"{one.num_images:,}", key=float(one.num_images))
    predicted = one.num_predicted
    yield Cell(text=UNKNOWN if predicted is None else f"{predicted:,}", key=None if predicted is None else predicted)


def _taken_for(evaluation: Evaluation, pair: Pair | None) -> Cell:
    if pair is None:
        return Cell(text="", key="")
    name = evaluation.classes[pair.predicted]
    return Cell(text=f"{name} ({pair.num_images})", key=float(pair.num_images))


# --- forecasts


def asked_counts(forecaster: Forecaster) -> list[int]:
    """Return the numbers of workers that were timed, and powers of two to twice the most of them."""
    timed = forecaster.laws.times.counts if forecaster.laws.times else []
    counted = timed or sorted({configuration.workers for configuration in forecaster.job.configurations})
    return sorted({*counted, *(2**k for k in range((2 * max(counted)).bit_length()))})


def forecasts(predictions: Sequence[Prediction]) -> HtmlTable:
    """Forecasts for other numbers of workers, in each cell the value and its 80 % interval; what was run is marked."""
    paid = f" ({currency})" if (currency := predictions[0].currency) else ""
    shown: list[tuple[str, str, Callable[[float], str]]] = [
        ("an epoch", "epoch_time_s", about),
        ("epochs to stable", "epochs_to_stable", lambda value: f"{value:.0f}"),
        ("time to stable", "time_to_stable_s", about),
        (f"job of {predictions[0].epochs_planned} epochs", "job_time_s", about),
        (f"cost of the job{paid}", "cost", money),
        (f"cost to stable{paid}", "cost_to_stable", money),
        ("energy of the GPUs", "energy_wh", energy),
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
