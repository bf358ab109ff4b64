"""A forecast for the terminal: lines with their style, no wider than the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from turnaround.findings.forecasts import Answer, interval_text
from turnaround.findings.interruptions import interruptions_notes, interruptions_text
from turnaround.findings.queue import queue_notes, ready_text
from turnaround.forecast.predict import best_of_range, within_noise
from turnaround.forecast.question import Prediction, Question
from turnaround.forecast.turnaround import Best
from turnaround.reporting.forecast_words import (
    counts_in_words,
    figure_rows,
    headline,
    next_in_words,
    queue_cells,
    range_text,
    time_text,
)
from turnaround.reporting.text_layout import TextColumn, clean, tables, wrapped
from turnaround.words import UNKNOWN, hardware, money
from turnaround.words import accuracy as accuracy_text


def answer_lines(p: Prediction, question: Question, width: int) -> Iterator[tuple[str, str]]:
    """Yield the answer first, then the figures, what they rest on, what was assumed, what to mind, what to run next."""
    yield from _ready_lines([p], width)
    yield from ((line, "bold") for line in _wrapped(headline(p, question), width))
    if (said := interruptions_text(p)) is not None:
        yield from ((line, "bold") for line in _wrapped(said, width))
    rows = figure_rows(p, question)
    if rows:
        yield "", ""
        heading = ("", "estimate" if p.kind not in ("forecast", "measured") else "forecast", "80 % interval")
        measured = any(row[3] for row in rows)
        yield from _table([(*heading, "measured" if measured else ""), *rows], width)
    answer = Answer.of(p)
    sections = (
        ("based on", answer.rests_on),
        ("interruptions", list(interruptions_notes(p))),
        ("queue", list(queue_notes([p], question.cluster or "the cluster")) if p.queue else []),
        ("assumed", [*answer.assumed, *answer.left_open]),
        ("caveats", list(answer.warnings)),
        ("run next", [following[0]] if (following := next_in_words(p)) else []),
    )
    for name, sentences in sections:
        yield from _section(name, sentences, width)
    if following:
        yield f"    {following[1]}", ""


def range_lines(predictions: Sequence[Prediction], question: Question, width: int) -> Iterator[tuple[str, str]]:
    """Yield the best of the range first, then a row for each number of workers."""
    best = best_of_range(predictions)
    yield from _ready_lines(predictions, width)
    yield from ((line, "bold") for line in _wrapped(_best_in_words(predictions, best), width))
    yield "", ""
    shown = [p for p in predictions if _is_shown(p, predictions, best)]
    has_stable = any(p.time_to_stable_s is not None for p in shown)
    has_queue = any(p.queue is not None for p in shown)
    headings = _range_headings(question, predictions[0].gpu, has_queue=has_queue)
    rows = [*headings, *(_range_row(p, best, has_stable=has_stable) for p in shown)]
    yield from _table(rows, width, headings=2)
    if any(p.kind == "measured" for p in shown):
        yield from _note("run: figures without an interval as measured, where they were; all else is forecast.", width)
    if any(_is_late(p) for p in shown):
        yield from _note(f"* later than the {predictions[0].epochs_planned} epochs of the recipe", width)
    if len(shown) < len(predictions):
        yield from _note(f"{len(predictions)} numbers of workers were compared; --json has them all", width)
    first, last = Answer.of(predictions[0]), Answer.of(predictions[-1])
    # What is said of one number of workers is said of those at the ends, which are the farthest from the runs.
    warnings = list(dict.fromkeys(warning for answer in (first, last) for warning in answer.warnings))
    for name, sentences in (
        ("based on", last.basis),
        ("interruptions", list(interruptions_notes(predictions[-1]))),
        ("queue", list(queue_notes(predictions, question.cluster or "the cluster")) if has_queue else []),
        ("assumed", [*last.assumed, *last.left_open]),
        ("caveats", warnings),
    ):
        yield from _section(name, sentences, width)


def _ready_lines(predictions: Sequence[Prediction], width: int) -> Iterator[tuple[str, str]]:
    """Yield when the result is there, where a cluster was asked."""
    if (text := ready_text(predictions, datetime.now())) is not None:
        yield from ((line, "bold") for line in _wrapped(text, width))


def _range_headings(question: Question, gpu: str, *, has_queue: bool) -> list[tuple[str, ...]]:
    paid = "cost" if question.price_of(gpu) else "GPU-h" if gpu != "CPU" else "CPU-h"
    queue = (("in the", "ready"), ("queue", "in")) if has_queue else (("", ""), ("", ""))
    interrupted = ("interrupted", "interrupted")
    return [
        ("", *queue[0], "an", "epochs", "time", "", *interrupted, paid, "", ""),
        ("workers", *queue[1], "epoch", "to stable", "to stable", "job", "job", "cost", "of job", "accuracy", ""),
    ]


def _range_row(p: Prediction, best: Best | None, *, has_stable: bool) -> tuple[str, ...]:
    """`has_stable`: the range has times to stable, which then carry the intervals; else the job's times do."""
    price = p.best_known("cost")
    paid = money(price) if price is not None else None if p.gpu_hours is None else f"{p.gpu_hours:.2g}"
    epochs, late = p.best_known("epochs_to_stable"), "*" if _is_late(p) else " "
    return (
        f"{p.workers} run" if p.kind == "measured" else f"{p.workers}    ",
        *queue_cells(p),
        time_text(p, "epoch_time_s"),
        "-" if epochs is None else f"{epochs:.0f}{late}",
        range_text(p, "time_to_stable_s"),
        time_text(p, "job_time_s") if has_stable else range_text(p, "job_time_s"),
        *_interrupted_cells(p),
        paid or "-",
        accuracy_text(p.best_known("val_accuracy")),
        _marks(p.workers, best),
    )


def _interrupted_cells(p: Prediction) -> tuple[str, str]:
    """The job's time and cost on machines that are taken away; empty where nobody asked about such."""
    found = p.interrupted
    if found is None:
        return "", ""
    time_s, price = found.job_time_s, found.cost
    return (
        UNKNOWN if time_s is None else interval_text(time_s),
        money(price.value) if price is not None else "",
    )


def _is_late(p: Prediction) -> bool:
    """Return whether a stable accuracy is forecast for later than the end; one that was seen came in time."""
    return p.reaches_stable is False and "epochs_to_stable" not in p.measured


def _marks(workers: int, best: Best | None) -> str:
    if best is None:
        return ""
    if best.fastest == best.cheapest == workers:
        return "best"
    places = {best.enough: "enough", best.cheapest: "cheapest", best.fastest: "fastest"}
    return places.get(workers, "")


def _is_shown(p: Prediction, predictions: Sequence[Prediction], best: Best | None) -> bool:
    """Choose the rows: all of a short range; of a long one the ends, powers of two, what was run, and the best."""
    is_end = p.workers in (predictions[0].workers, predictions[-1].workers)
    is_power = p.workers & (p.workers - 1) == 0
    return len(predictions) <= 16 or is_end or is_power or p.kind == "measured" or bool(_marks(p.workers, best))


def _best_in_words(predictions: Sequence[Prediction], best: Best | None) -> str:
    first = predictions[0]
    if best is None:
        unknown = "times are" if first.epoch_time_s is None else "the epochs of a job are"
        return f"{first.job}: {unknown} not known, so the fastest and the cheapest cannot be told."
    by_workers = {p.workers: p for p in predictions}

    def timed(workers: int, alike: Sequence[int]) -> str:
        p = by_workers[workers]
        time = time_text(p, "time_to_stable_s" if best.by == "time to stable" else "job_time_s")
        noise = f"; {counts_in_words(alike)} within its interval" if alike else ""
        return f"{hardware(workers, p.gpu)} ({time}{noise})"

    what = "to a stable accuracy" if best.by == "time to stable" else f"for {first.epochs_planned} epochs"
    within = within_noise(predictions, best)
    answer = (
        f"{first.job}: fastest {what} {timed(best.fastest, within.fastest)}, "
        f"cheapest {timed(best.cheapest, within.cheapest)}."
    )
    if best.near_fastest not in (best.fastest, best.cheapest):
        answer += f" Cheapest within 10 % of the fastest: {timed(best.near_fastest, ())}."
    if best.enough < best.fastest:
        answer += f" Beyond {hardware(best.enough, first.gpu)} more gain less than 5 %."
    return answer


def _section(name: str, sentences: Sequence[str], width: int) -> Iterator[tuple[str, str]]:
    if sentences:
        yield "", ""
        yield name, "bold"
        for sentence in sentences:
            yield from ((line, "") for line in _wrapped(sentence, width, first="  - "))


def _wrapped(text: str, width: int, *, first: str = "") -> list[str]:
    return wrapped(clean(text), width, first=first)


def _note(text: str, width: int) -> Iterator[tuple[str, str]]:
    """Below a table."""
    yield from ((line, "") for line in _wrapped(text, width, first="  "))


def _table(rows: Sequence[tuple[str, ...]], width: int, headings: int = 1) -> Iterator[tuple[str, str]]:
    """The first column and the last to the left, the others to the right; the first rows are headings."""
    last = len(rows[0]) - 1
    names, *columns = (
        TextColumn(heading="\n".join(cells[:headings]), cells=cells[headings:], is_left=number in (0, last))
        for number, cells in enumerate(zip(*rows, strict=True))
        if any(cells[headings:])
    )
    for part, table in enumerate(tables(names, [columns], width - 2)):
        if part:
            yield "", ""
        yield from ((f"  {line}".rstrip(), "bold") for line in table.heading)
        yield from ((f"  {line}".rstrip(), "") for line in table.rows)
