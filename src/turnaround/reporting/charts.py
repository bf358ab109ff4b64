"""Charts in text: a curve in one row of blocks, bars with a mark for the ideal; and those of one job.

ASCII where the terminal has no blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.cells import cell_len, chop_cells

from turnaround.analysis.configurations import Configuration, ConfigurationRuns, Workload
from turnaround.analysis.speed import Speedup
from turnaround.reporting.comparison_table import configuration_names, stable_text
from turnaround.reporting.text_layout import GAP, wrapped
from turnaround.words import accuracy, number


@dataclass(frozen=True, kw_only=True)
class Glyphs:
    """The characters a chart is drawn with."""

    levels: str
    """Characters of rising height, lowest first."""
    eighths: str
    """Fractions of a bar's last cell, from one eighth on; empty where cells cannot be divided."""
    full: str
    mark: str
    rule: str
    """Drawn under a heading."""


BLOCKS = Glyphs(levels="▁▂▃▄▅▆▇█", eighths="▏▎▍▌▋▊▉", full="█", mark="│", rule="─")
ASCII = Glyphs(levels="_.:-=+*#", eighths="", full="#", mark="|", rule="-")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Return blocks where the terminal's encoding has them, else ASCII."""
    everything = BLOCKS.levels + BLOCKS.eighths + BLOCKS.full + BLOCKS.mark + BLOCKS.rule
    try:
        everything.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def sparkline(
    values: Sequence[float], *, low: float, high: float, glyphs: Glyphs = BLOCKS, values_per_cell: int = 1
) -> str:
    """Return a cell for each `values_per_cell` values, drawn by their mean; a blank where there is no number."""
    groups = [values[start : start + values_per_cell] for start in range(0, len(values), values_per_cell)]
    return "".join(_level(group, low, high, glyphs) for group in groups)


def _level(group: Sequence[float], low: float, high: float, glyphs: Glyphs) -> str:
    known = [value for value in group if math.isfinite(value)]
    if not known:
        return " "
    share = (fmean(known) - low) / (high - low) if high > low else 0.5
    return glyphs.levels[min(max(int(share * len(glyphs.levels)), 0), len(glyphs.levels) - 1)]


def bar(value: float, *, longest: float, cells: int, glyphs: Glyphs = BLOCKS, mark: float | None = None) -> str:
    """Return a bar of at most `cells` cells for `longest`, with a mark where another value would end."""
    parts = max(len(glyphs.eighths) + 1, 1)  # of a cell: 8 with blocks, 1 in ASCII
    filled, rest = divmod(round(_share(value, longest) * cells * parts), parts)
    drawn = glyphs.full * filled + (glyphs.eighths[rest - 1] if rest else "")
    if not drawn and value > 0:
        drawn = glyphs.eighths[0] if glyphs.eighths else glyphs.full  # something is not nothing
    if mark is None or cells < 1:
        return drawn
    position = min(round(_share(mark, longest) * cells), cells - 1)
    drawn = drawn.ljust(position + 1)
    return drawn[:position] + glyphs.mark + drawn[position + 1 :]


def _share(value: float, longest: float) -> float:
    if not (math.isfinite(value) and math.isfinite(longest)) or longest <= 0:
        return 0.0
    return min(max(value / longest, 0.0), 1.0)


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
    """Return a sparkline for each configuration, all on one scale; of repeats the first that has a curve."""
    curves = [
        (name, curve)
        for name, configuration in zip(configuration_names(job), job.configurations, strict=True)
        if (curve := _curve(configuration)) is not None
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


def _curve(configuration: ConfigurationRuns) -> tuple[float, ...] | None:
    """Return accuracies from epoch 1 on, NaN for a missing epoch; None where no run has two values to join."""
    for run in configuration.summaries:
        by_epoch = dict(zip(run.curve.epochs, run.curve.val_accuracy, strict=True))
        if sum(math.isfinite(value) for value in by_epoch.values()) >= 2:
            return tuple(by_epoch.get(epoch, math.nan) for epoch in range(1, max(by_epoch) + 1))
    return None


def _scale(low: float, high: float, glyphs: Glyphs) -> str:
    return f"{glyphs.levels[0]} is {accuracy(low)}, {glyphs.levels[-1]} is {accuracy(high)}."


def _curve_end(curve: Sequence[float]) -> str:
    return f"last {accuracy(next(value for value in reversed(curve) if math.isfinite(value)))}"


def _chosen(items: list[tuple[str, tuple[float, ...]]], most: int) -> list[tuple[str, tuple[float, ...]]]:
    """Return all, or so many of them evenly spread from the first to the last."""
    if len(items) <= most:
        return items
    return [items[round(number * (len(items) - 1) / (most - 1))] for number in range(most)]


def time_chart(job: Workload, speedups: Mapping[Configuration, Speedup], width: int, glyphs: Glyphs) -> list[str]:
    """Return bars of seconds an epoch; nothing for fewer than two configurations with times."""
    rows = []
    for name, configuration in zip(configuration_names(job), job.configurations, strict=True):
        if configuration.epoch_time_s is None or not math.isfinite(configuration.epoch_time_s.value):
            continue
        value, up = configuration.epoch_time_s.value, speedups.get(configuration.key)
        # efficiency = ideal time / time
        ideal = value * up.efficiency.value if up is not None and up.baseline != configuration.key else None
        text = f"{number(value)} s" + ("" if ideal is None else f" (ideal {number(ideal)})")
        rows.append(ChartRow(name=name, value=value, text=text, mark=ideal))
    has_ideal = any(row.mark is not None for row in rows)
    meaning = f"; {glyphs.mark} is the ideal: twice the workers, half the baseline's time" if has_ideal else ""
    return _bars(f"Seconds an epoch, shorter is better{meaning}", rows, width, glyphs)


def stable_chart(job: Workload, width: int, glyphs: Glyphs) -> list[str]:
    """Return bars of epochs to stable; nothing for fewer than two configurations that have an answer."""
    rows = [
        ChartRow(name=name, value=configuration.stable.epoch, text=stable_text(configuration.stable))
        for name, configuration in zip(configuration_names(job), job.configurations, strict=True)
        if configuration.stable.epoch is not None
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
    """Return the names, equally wide; a longer one is cut, since the table has it in full."""
    cut = [name if cell_len(name) <= most else f"{chop_cells(name, max(most - 2, 1))[0]}.." for name in names]
    widest = max(cell_len(name) for name in cut)
    return [name + " " * (widest - cell_len(name)) for name in cut]
