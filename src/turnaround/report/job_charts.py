"""The charts of one job: accuracy by epoch, seconds an epoch with the ideal, epochs to stable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

from turnaround.analysis.configurations import Configuration, ConfigurationRuns, Workload
from turnaround.analysis.speed import Speedup
from turnaround.report.charts import Glyphs, bar, sparkline
from turnaround.report.job_table import case_names, stable_text
from turnaround.report.lines import GAP, wrapped
from turnaround.words import accuracy, number

MAX_CURVES = 8
WIDEST = 100
"""Cells of a line with a chart: a bar across a very wide terminal is no easier to read."""


@dataclass(frozen=True, kw_only=True)
class ChartRow:
    """One bar: its name, how long it is, and what stands behind it."""

    name: str
    value: float
    text: str
    mark: float | None = None


def accuracy_chart(job: Workload, width: int, glyphs: Glyphs) -> list[str]:
    """A curve for each configuration, all on one scale; of repeats the first that has one."""
    curves = [
        (name, curve)
        for name, case in zip(case_names(job), job.cases, strict=True)
        if (curve := _curve(case)) is not None
    ]
    if not curves:
        return []
    shown = _chosen(curves, MAX_CURVES)
    known = [value for _, curve in shown for value in curve if math.isfinite(value)]
    low, high, epochs = min(known), max(known), max(len(curve) for _, curve in shown)
    names = _padded([name for name, _ in shown], width // 2)
    ends = [_curve_end(curve) for _, curve in shown]
    cells = max(width - cell_len(names[0]) - 2 * GAP - max(len(end) for end in ends), 1)
    per_cell = math.ceil(epochs / cells)
    title = f"Validation accuracy from epoch 1 to {epochs}: {_scale(low, high, glyphs)}"
    rest = [f"{len(shown)} of {len(curves)} configurations are shown."] if len(shown) < len(curves) else []
    lines = wrapped(" ".join([title, *rest]), width)
    for name, (_, curve), end in zip(names, shown, ends, strict=True):
        drawn = sparkline(curve, low=low, high=high, glyphs=glyphs, values_per_cell=per_cell)
        lines.append(f"{name}{' ' * GAP}{drawn.ljust(math.ceil(epochs / per_cell))}{' ' * GAP}{end}".rstrip())
    return lines


def _curve(case: ConfigurationRuns) -> tuple[float, ...] | None:
    """By epoch from 1, NaN where an epoch is missing; None where no run has two values to join."""
    for run in case.runs:
        by_epoch = dict(zip(run.curve.epochs, run.curve.val_accuracy, strict=True))
        if sum(math.isfinite(value) for value in by_epoch.values()) >= 2:
            return tuple(by_epoch.get(epoch, math.nan) for epoch in range(1, max(by_epoch) + 1))
    return None


def _scale(low: float, high: float, glyphs: Glyphs) -> str:
    return f"{glyphs.levels[0]} is {accuracy(low)}, {glyphs.levels[-1]} is {accuracy(high)}."


def _curve_end(curve: Sequence[float]) -> str:
    return f"last {accuracy(next(value for value in reversed(curve) if math.isfinite(value)))}"


def _chosen(items: list[tuple[str, tuple[float, ...]]], most: int) -> list[tuple[str, tuple[float, ...]]]:
    """All, or so many of them evenly spread from the first to the last."""
    if len(items) <= most:
        return items
    return [items[round(number * (len(items) - 1) / (most - 1))] for number in range(most)]


def time_chart(job: Workload, speedups: Mapping[Configuration, Speedup], width: int, glyphs: Glyphs) -> list[str]:
    """Seconds an epoch; nothing for fewer than two configurations with times."""
    rows = []
    for name, case in zip(case_names(job), job.cases, strict=True):
        if case.epoch_time_s is None or not math.isfinite(case.epoch_time_s.value):
            continue
        value, up = case.epoch_time_s.value, speedups.get(case.configuration)
        # efficiency = ideal time / time
        ideal = value * up.efficiency.value if up is not None and up.baseline != case.configuration else None
        text = f"{number(value)} s" + ("" if ideal is None else f" (ideal {number(ideal)})")
        rows.append(ChartRow(name=name, value=value, text=text, mark=ideal))
    has_ideal = any(row.mark is not None for row in rows)
    meaning = f"; {glyphs.mark} is the ideal: twice the workers, half the baseline's time" if has_ideal else ""
    return _bars(f"Seconds an epoch, shorter is better{meaning}", rows, width, glyphs)


def stable_chart(job: Workload, width: int, glyphs: Glyphs) -> list[str]:
    """Epochs to stable; nothing for fewer than two configurations that have an answer."""
    rows = [
        ChartRow(name=name, value=case.stable.epoch, text=stable_text(case.stable))
        for name, case in zip(case_names(job), job.cases, strict=True)
        if case.stable.epoch is not None
    ]
    return _bars("Epochs to a stable validation accuracy, fewer is better", rows, width, glyphs)


def _bars(title: str, rows: Sequence[ChartRow], width: int, glyphs: Glyphs) -> list[str]:
    if len(rows) < 2:
        return []
    names = _padded([row.name for row in rows], width // 2)
    cells = min(width, WIDEST) - cell_len(names[0]) - 2 * GAP - max(len(row.text) for row in rows)
    longest = max(max(row.value, row.mark or 0.0) for row in rows)
    lines = wrapped(f"{title}.", width)
    for name, row in zip(names, rows, strict=True):
        if cells < 1:  # no room for bars: the numbers alone
            lines += wrapped(f"{name.strip()}: {row.text}", width)
            continue
        drawn = bar(row.value, longest=longest, cells=cells, glyphs=glyphs, mark=row.mark)
        lines.append(f"{name}{' ' * GAP}{drawn.ljust(cells)}{' ' * GAP}{row.text}")
    return lines


def _padded(names: Sequence[str], most: int) -> list[str]:
    """The names, equally wide; a longer one is cut, since the table has it in full."""
    cut = [name if cell_len(name) <= most else f"{chop_cells(name, max(most - 2, 1))[0]}.." for name in names]
    widest = max(cell_len(name) for name in cut)
    return [name + " " * (widest - cell_len(name)) for name in cut]
