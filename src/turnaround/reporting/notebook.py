"""Runs in a notebook: tables for pandas, and what is shown where a run or a report is the last line of a cell.

Enters: summaries, epochs and findings. Leaves: a DataFrame, or a list of dicts where pandas is not installed; html
without scripts and without a style of its own, so that it looks like the notebook.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from turnaround.analysis.summary import RunSummary
from turnaround.findings import Finding
from turnaround.record.schema import EpochRecord
from turnaround.words import accuracy, counted, duration

Rows = list[dict[str, Any]]

COLUMNS = ("run", "workers", "GPU", "batch", "epochs", "epoch time", "final accuracy", "best accuracy", "turnaround")


def as_table(rows: Rows) -> Any:
    """Return a pandas DataFrame where pandas is installed, else the rows themselves."""
    return rows if find_spec("pandas") is None else import_module("pandas").DataFrame(rows)


def epoch_rows(epochs: Iterable[EpochRecord]) -> Rows:
    """Return a row for each epoch, with the names of epochs.jsonl."""
    return [asdict(epoch) for epoch in epochs]


def run_rows(summaries: Iterable[RunSummary]) -> Rows:
    """Return a row for each run: its plain figures, and the parts of its turnaround as columns of their own."""
    return [_run_row(summary) for summary in summaries]


def _run_row(summary: RunSummary) -> dict[str, Any]:
    plain = {name: value for name, value in vars(summary).items() if not isinstance(value, dict) and name != "curve"}
    return {**plain, **{f"{part}_s": time_s for part, time_s in summary.turnaround_parts_s.items()}}


def runs_html(summaries: Sequence[RunSummary]) -> str:
    """Return a table of runs; a rehearsal's times stand in brackets, as they are not those of its workers."""
    return _table(COLUMNS, [_cells(summary) for summary in summaries])


def report_html(summaries: Sequence[RunSummary], findings: Sequence[Finding]) -> str:
    """Return the runs, and below them what stands out."""
    items = "".join(f"<li><b>{escape(each.severity)}</b>: {escape(each.text)}</li>" for each in findings)
    return f"{runs_html(summaries)}<p>{counted(len(findings), 'finding')}</p><ul>{items}</ul>"


def _cells(summary: RunSummary) -> list[str]:
    times = [duration(summary.epoch_time_s), duration(summary.turnaround_s)]
    epoch_time, turnaround = [f"({time})" for time in times] if summary.is_rehearsal else times
    return [
        summary.directory,
        str(summary.workers),
        summary.gpu,
        "-" if summary.global_batch is None else str(summary.global_batch),
        str(summary.epochs),
        epoch_time,
        accuracy(summary.final_val_accuracy),
        accuracy(summary.best_val_accuracy),
        turnaround,
    ]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
