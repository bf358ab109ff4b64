"""A forecast for the terminal: lines with their style, no wider than the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from turnaround.findings.forecasts import Answer
from turnaround.findings.interruptions import interruptions_notes, interruptions_text
from turnaround.findings.queue import queue_notes, ready_text
from turnaround.forecast.question import Prediction, Question
from turnaround.reporting.forecast_words import figure_rows, headline, next_in_words
from turnaround.reporting.text_layout import TextColumn, clean, tables, wrapped


def answer_lines(p: Prediction, question: Question, width: int) -> Iterator[tuple[str, str]]:
    """Yield the answer first, then the figures, what they rest on, what was assumed, what to mind, what to run next."""
    yield from ready_lines([p], width)
    yield from ((line, "bold") for line in clean_lines(headline(p, question), width))
    if (said := interruptions_text(p)) is not None:
        yield from ((line, "bold") for line in clean_lines(said, width))
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
        yield from section_lines(name, sentences, width)
    if following:
        yield f"    {following[1]}", ""


def ready_lines(predictions: Sequence[Prediction], width: int) -> Iterator[tuple[str, str]]:
    """Yield when the result is there, where a cluster was asked."""
    if (text := ready_text(predictions, datetime.now())) is not None:
        yield from ((line, "bold") for line in clean_lines(text, width))


def section_lines(name: str, sentences: Sequence[str], width: int) -> Iterator[tuple[str, str]]:
    if sentences:
        yield "", ""
        yield name, "bold"
        for sentence in sentences:
            yield from ((line, "") for line in clean_lines(sentence, width, first="  - "))


def clean_lines(text: str, width: int, *, first: str = "") -> list[str]:
    return wrapped(clean(text), width, first=first)


def note_lines(text: str, width: int) -> Iterator[tuple[str, str]]:
    """Below a table."""
    yield from ((line, "") for line in clean_lines(text, width, first="  "))


def _table(rows: Sequence[tuple[str, ...]], width: int) -> Iterator[tuple[str, str]]:
    """The first column and the last to the left, the others to the right; the first row is the heading."""
    last = len(rows[0]) - 1
    names, *columns = (
        TextColumn(heading=heading, cells=tuple(cells), is_left=number in (0, last))
        for number, (heading, *cells) in enumerate(zip(*rows, strict=True))
        if any(cells)
    )
    yield from table_lines(names, [columns], width)


def table_lines(names: TextColumn, groups: Sequence[Sequence[TextColumn]], width: int) -> Iterator[tuple[str, str]]:
    """Yield the columns as one table, or as several where the width has no room for one."""
    for part, table in enumerate(tables(names, groups, width - 2)):
        if part:
            yield "", ""
        yield from ((f"  {line}".rstrip(), "bold") for line in table.heading)
        yield from ((f"  {line}".rstrip(), "") for line in table.rows)
