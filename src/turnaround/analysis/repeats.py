"""The curves of a configuration's repeats as one band, and long curves in fewer points."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from turnaround.analysis.configurations import ConfigurationRuns, Member, Spread
from turnaround.analysis.summary import RunSummary
from turnaround.record.reader import Run

MAX_POINTS = 200
"""Points of one curve: more than a screen has room for."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """One quantity by epoch, over the repeats that know it at that epoch."""

    epochs: tuple[int, ...]
    spreads: tuple[Spread, ...]
    runs: int
    """Number of runs with at least one value."""


def curve_band(runs: Iterable[RunSummary], quantity: str, *, most: int = MAX_POINTS) -> Band | None:
    """Return the band of `val_accuracy`, `train_accuracy`, `val_loss` or `train_loss`; None where nobody has values."""
    curves = [run.curve.filled() for run in runs]
    return _band((dict(zip(c.epochs, getattr(c, quantity), strict=True)) for c in curves), most)


def epoch_band(runs: Iterable[Run], quantity: str, *, most: int = MAX_POINTS) -> Band | None:
    """Return the band of any other number in the records of the epochs, such as `learning_rate`."""
    return _band(({e.epoch: getattr(e, quantity) for e in run.epochs} for run in runs), most)


def drawn_runs(configuration: ConfigurationRuns) -> tuple[Member, ...]:
    """Return the runs whose curve counts; where all have diverged, those: a broken curve is better than none."""
    return configuration.curves or configuration.members


def _band(curves: Iterable[dict[int, float | None]], most: int) -> Band | None:
    by_epoch: defaultdict[int, list[float]] = defaultdict(list)
    num_runs = 0
    for curve in curves:
        known = {epoch: value for epoch, value in curve.items() if value is not None and math.isfinite(value)}
        num_runs += bool(known)
        for epoch, value in known.items():
            by_epoch[epoch].append(value)
    kept = evenly(sorted(by_epoch), most)
    spreads = [spread for epoch in kept if (spread := Spread.of(by_epoch[epoch])) is not None]
    return Band(epochs=tuple(kept), spreads=tuple(spreads), runs=num_runs) if kept else None


def evenly(items: Sequence[int], most: int) -> list[int]:
    """Return all items, or so many of them evenly spread, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def means_of_groups(values: Sequence[float | None], most: int) -> list[float | None]:
    """Return at most so many values: means of equally long groups, None for a group without a known value."""
    size = max(1, math.ceil(len(values) / most))
    groups = (values[start : start + size] for start in range(0, len(values), size))
    return [_mean(group) for group in groups]


def _mean(group: Sequence[float | None]) -> float | None:
    known = [value for value in group if value is not None and math.isfinite(value)]
    return fmean(known) if known else None
