"""Time and cost of each configuration to one goal, as bars: the comparison that people choose by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turnaround.analysis.configurations import Workload
from turnaround.analysis.goals import Goal, Reached, goals
from turnaround.analysis.prices import PriceTable, price_of
from turnaround.forecast.turnaround import measured_times_to_stable
from turnaround.reporting.page.fig_common import (
    MAX_BARS,
    Figure,
    Series,
    TimeUnit,
    Trace,
    axis,
    bar_axis,
    bar_height,
    error_bars,
    layout,
    left_out,
    meta,
    number,
    plain,
    sentences,
    series_of,
)
from turnaround.words import accuracy, duration

Row = tuple[Series, Reached]
SMALL_COST_S = 360.0  # 0.1 GPU-hours: below, costs are told in GPU-seconds


def time_figures(job: Workload, *, price: float | PriceTable | None) -> list[Figure]:
    """Return the times to one accuracy and to each one's plateau, as far as known; then the cost of the fairest."""
    by_configuration = {id(series.configuration): series for series in series_of(job)}
    shown = [_to_stable(goal, job) if goal.basis == "stable" else goal for goal in goals(job)]
    by_goal = [(goal, [(by_configuration[id(one.configuration)], one) for one in goal.reached]) for goal in shown]
    # The time of the whole job depends on the epochs that somebody asked for: drawn where nothing better is known.
    drawn = [(goal, rows) for goal, rows in by_goal if goal.basis != "job"] or by_goal
    figures = [_time_figure(goal, rows) for goal, rows in drawn if len(rows) > 1]
    several = next(((goal, rows) for goal, rows in by_goal if len(rows) > 1), None)
    return figures if several is None else [*figures, _cost_figure(*several, price=price)]


def times_to_stable(job: Workload) -> Goal | None:
    """Return the times to each configuration's plateau, as the figures have them; None where none is known."""
    goal = next((goal for goal in goals(job) if goal.basis == "stable"), None)
    return None if goal is None else _to_stable(goal, job)


def _to_stable(goal: Goal, job: Workload) -> Goal:
    """Return the goal with the times to stable that forecasts and other figures have: start-up and evaluations in them.

    Where the overheads of one configuration are not known, all keep their training times, and the title says so.
    """
    times_s = measured_times_to_stable(job, [one.configuration for one in goal.reached], or_longer=True)
    if times_s is None:
        return goal
    whole = [
        replace(
            one,
            value_s=time_s.value,
            low_s=None if one.low_s is None else time_s.low,
            high_s=None if one.high_s is None else time_s.high,
            has_overheads=True,
        )
        for one, time_s in zip(goal.reached, times_s, strict=True)
    ]
    return replace(goal, reached=tuple(whole))


def _time_figure(goal: Goal, rows: Sequence[Row]) -> Figure:
    shown = _shown(rows)
    unit = TimeUnit.of(end for _, one in shown for end in (one.value_s, one.high_s))
    names = [series.name for series, _ in shown]
    # A lower bound is no shortest time, however short: known times come before it.
    first = min(shown, key=lambda row: (row[1].is_lower_bound, row[1].value_s))
    traces = _bars(
        shown,
        [unit(one.value_s) for _, one in shown],
        [unit(one.low_s) for _, one in shown],
        [unit(one.high_s) for _, one in shown],
        unit.name,
    )
    return Figure(
        id=f"time-to-{goal.basis}" if goal.basis != "job" else "job-time",
        section="time",
        title=_title(goal),
        caption=sentences(_rule(goal), _interval(goal, shown), _bounds(shown), left_out(len(shown), len(rows))),
        alt=f"Shortest is {first[0].name} with {duration(first[1].value_s)}: "
        + "; ".join(f"{series.name} {_spoken(one)}" for series, one in shown[:8])
        + ".",
        data=traces,
        layout=layout(
            height=bar_height(names), xaxis=axis(f"time ({unit.name})", rangemode="tozero"), yaxis=bar_axis(names)
        ),
    )


def _shown(rows: Sequence[Row]) -> list[Row]:
    """Return the rows in the job's order; of very many the shortest."""
    kept = {id(row) for row in sorted(rows, key=lambda row: row[1].value_s)[:MAX_BARS]}
    return [row for row in rows if id(row) in kept]


def _title(goal: Goal) -> str:
    if goal.basis == "target":
        return f"Time to {accuracy(goal.accuracy)} validation accuracy"
    if goal.basis == "job":
        return "Time of the whole job"
    return f"{'Time' if _has_overheads(goal) else 'Training time'} to a stable validation accuracy"


def _has_overheads(goal: Goal) -> bool:
    return all(one.has_overheads for one in goal.reached)


def _rule(goal: Goal) -> str:
    if goal.basis == "job":
        return "From submit to finish, all epochs."
    if goal.basis == "target":
        return (
            "Epochs to the accuracy that every finished configuration has reached, times seconds of training an epoch; "
            "without start-up and evaluation."
        )
    counted = "with start-up and evaluations" if _has_overheads(goal) else "without start-up and evaluation"
    return (
        f"Epochs to each configuration's own plateau, times seconds of training an epoch; {counted}. Plateaus may lie "
        "at different accuracies."
    )


def _interval(goal: Goal, shown: Sequence[Row]) -> str:
    if goal.basis == "job":
        return f"Of repeats the median, with the lowest and the highest{_repeats(shown)}." if _most(shown) > 1 else ""
    if all(one.low_s is None and one.high_s is None for _, one in shown):
        return "The epochs are as stated by others, by eye: there is no interval."
    return f"Lines: the 80 % interval of the epochs, times the fastest and the slowest of the repeats{_repeats(shown)}."


def _repeats(shown: Sequence[Row]) -> str:
    return f" (up to {_most(shown)} runs)" if _most(shown) > 1 else " (one run each)"


def _most(shown: Sequence[Row]) -> int:
    return max(len(series.configuration.summaries) for series, _ in shown)


def _bounds(shown: Sequence[Row]) -> str:
    is_any = any(one.is_lower_bound for _, one in shown)
    return "Hatched: not yet stable at the end, it takes at least so long." if is_any else ""


def _spoken(one: Reached) -> str:
    return f"at least {duration(one.value_s)}" if one.is_lower_bound else duration(one.value_s)


def _bars(
    shown: Sequence[Row],
    values: Sequence[float | int | None],
    lows: Sequence[float | int | None],
    highs: Sequence[float | int | None],
    unit: str,
) -> list[Trace]:
    """Return a trace for each configuration, so that it has its colour."""
    traces: list[Trace] = []
    rows = zip(shown, values, lows, highs, strict=True)
    for place, ((series, one), value, low, high) in enumerate(rows):
        between = "" if low is None or high is None else f" ({low:.3g} to {high:.3g})"
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": plain(series.name),
                "x": [value],
                "y": [place],
                "width": 0.6,
                **error_bars("x", [value], [low], [high]),
                "marker": {"pattern": {"shape": "/" if one.is_lower_bound else "", "fillmode": "overlay"}},
                "hovertext": f"{'at least ' if one.is_lower_bound else ''}{value:.3g} {unit}{between}",
                "hovertemplate": "%{fullData.hovertext}<extra>%{fullData.name}</extra>",
                "meta": meta(series.index, "measured", series.tone),
            }
        )
    return traces


def _cost_figure(goal: Goal, rows: Sequence[Row], *, price: float | PriceTable | None) -> Figure:
    shown = _shown(rows)
    names = [series.name for series, _ in shown]
    kinds = {series.configuration.gpu for series, _ in shown}
    device = "process" if kinds & {"CPU", "unknown"} else "GPU"
    # All or none: bars in money and bars in hours cannot be compared.
    price = price if all(price_of(price, kind) is not None for kind in kinds) else None
    table = price if isinstance(price, PriceTable) else None
    # With the upper ends: the unit must suit the lines of the intervals too.
    hours = cost_unit([one.device_s(one.high_s or one.value_s) for _, one in shown], device)
    unit = hours.name if price is None else _money_name(price, device)

    def of(one: Reached, time_s: float | None) -> float | int | None:
        if time_s is not None and (own := price_of(price, one.configuration.gpu)) is not None:
            return number(own.cost(time_s, devices=one.configuration.processes))
        device_s = one.device_s(time_s)
        return None if device_s is None else number(device_s / hours.seconds)

    values = [of(one, one.value_s) for _, one in shown]
    traces = _bars(
        shown, values, [of(one, one.low_s) for _, one in shown], [of(one, one.high_s) for _, one in shown], unit
    )
    # A lower bound may yet be the dearest of all: it is named where nothing else is known.
    cheapest = min(zip(names, values, shown, strict=True), key=lambda row: (row[2][1].is_lower_bound, row[1] or 0))
    several_kinds = f"An hour of {' and of '.join(sorted(kinds))} does not cost the same." if len(kinds) > 1 else ""
    if table is not None:
        each = (f"{kind} {own.per_hour:g}" for kind in sorted(kinds) if (own := table.of(kind)) is not None)
        several_kinds = f"Your prices for one hour: {', '.join(each)} {table.currency or ''}".rstrip() + "."
    return Figure(
        id="cost",
        section="time",
        title={
            "target": f"Cost of {accuracy(goal.accuracy)} validation accuracy",
            "stable": "Cost of a stable validation accuracy",
            "job": "Cost of the whole job",
        }[goal.basis],
        caption=sentences(
            f"The time {'of the job' if goal.basis == 'job' else 'to that accuracy'}, times the number of "
            f"{'GPUs' if device == 'GPU' else 'processes'}.",
            several_kinds,
            _interval(goal, shown),
            left_out(len(shown), len(rows)),
        ),
        alt=f"Cheapest is {cheapest[0]} with {cheapest[1]:.3g} {unit}.",
        data=traces,
        layout=layout(
            height=bar_height(names), xaxis=axis(f"cost ({unit})", rangemode="tozero"), yaxis=bar_axis(names)
        ),
    )


def _money_name(price: float | PriceTable, device: str) -> str:
    return price.currency or "money" if isinstance(price, PriceTable) else f"money, at {price:g} for a {device}-hour"


def cost_unit(device_s: Sequence[float | None], device: str) -> TimeUnit:
    """Return GPU-hours, or GPU-seconds where all are small."""
    most_s = max((value for value in device_s if value is not None), default=0.0)
    is_small = most_s < SMALL_COST_S
    return TimeUnit(name=f"{device}-seconds" if is_small else f"{device}-hours", seconds=1.0 if is_small else 3600.0)
