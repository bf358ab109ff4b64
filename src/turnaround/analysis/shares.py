"""Parts of the time of a configuration: of its turnaround, and of a step. Real runs only."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from turnaround.analysis.bottleneck import MIN_SPANS
from turnaround.analysis.configurations import ConfigurationRuns, Spread
from turnaround.analysis.summary import RunSummary
from turnaround.errors import RunDirectoryError
from turnaround.record.reader import Run
from turnaround.record.schema import DISJOINT_TIME_PARTS, Span

TURNAROUND_PARTS = ("queue", *DISJOINT_TIME_PARTS, "other", "preloaded")
STEP_PARTS = ("wait", "copy", "compute", "reduce", "update")


def turnaround_parts_s(configuration: ConfigurationRuns) -> dict[str, float]:
    """Return the median of each part over the finished runs, or over all as long as none is; nothing for rehearsals."""
    if configuration.is_rehearsal:
        return {}
    each = [parts for run in configuration.finished or configuration.summaries if (parts := parts_of_run_s(run))]
    # Of runs that share the loading of code, the first has it in its start-up: none of it was loaded before.
    if any("preloaded" in parts for parts in each):
        each = [{"preloaded": 0.0, **parts} for parts in each]
    return _medians(each, TURNAROUND_PARTS)


def parts_of_run_s(run: RunSummary) -> dict[str, float]:
    """Return the parts of one run; a table tells two: its epochs, and what is left of the job."""
    if not run.is_imported:
        return run.turnaround_parts_s
    if run.job_time_s is None or run.outside_epochs_s is None:
        return {}
    other_s = max(0.0, run.outside_epochs_s)  # a slow epoch told as typical: not beyond the job
    return {"training_steady": run.job_time_s - other_s, "other": other_s}


BEFORE_LIMIT = ("queue", "preloaded")
"""Parts of a turnaround that do not count against a time limit: the program had not begun."""


def limited_s(run: RunSummary) -> float:
    """Return the seconds of a run that count against its time limit."""
    return sum(time_s for part, time_s in run.turnaround_parts_s.items() if part not in BEFORE_LIMIT)


def lost_s(run: RunSummary) -> dict[str, float]:
    """Return the seconds of the turnaround by part that were not steady training; empty where it is not known.

    Of the cold epoch only what it took longer than a steady one. A table has one part: the job less its epochs.
    """
    if not run.is_recorded:
        return {}
    if run.is_imported:
        return {} if run.outside_epochs_s is None else {"other": max(0.0, run.outside_epochs_s)}
    parts = {name: time_s for name, time_s in run.turnaround_parts_s.items() if not name.startswith("training")}
    cold_s = run.turnaround_parts_s.get("training_cold", 0.0) - (run.epoch_time_s or 0.0)
    return {**parts, "training_cold": max(0.0, cold_s)} if run.turnaround_parts_s else {}


def step_parts_s(configuration: ConfigurationRuns) -> dict[str, float]:
    """Return the seconds of a typical step by part: medians over its steps, then over processes and runs."""
    if configuration.is_rehearsal:
        return {}
    return _medians([parts for _, run in configuration.members for parts in _typical_steps(run)], STEP_PARTS)


def _typical_steps(run: Run) -> Iterable[dict[str, float]]:
    """Yield the median parts of each process, without its first step, which is cold."""
    try:
        by_rank = [run.spans(rank)[1:] for rank in run.ranks]
    except RunDirectoryError:  # of a newer format, or damaged: the bottleneck of the run says so
        return
    for spans in by_rank:
        if len(spans) >= MIN_SPANS:
            yield {part: median(_known(span, part) for span in spans) for part in STEP_PARTS}


def _known(span: Span, part: str) -> float:
    value = float(getattr(span, f"{part}_s"))
    return value if math.isfinite(value) and value > 0 else 0.0


def _medians(each: list[dict[str, float]], parts: Iterable[str]) -> dict[str, float]:
    found = {part: Spread.of(one.get(part) for one in each) for part in parts}
    return {part: spread.value for part, spread in found.items() if spread is not None}
