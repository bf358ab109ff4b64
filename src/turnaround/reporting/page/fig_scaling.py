"""Seconds an epoch, speed-up, efficiency and time to stable against the workers: measured, ideal, law and forecast."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.speed import Speedup, comparable_in_time, ideal_time_s, is_its_twin, speedup_of
from turnaround.findings.forecasts import assumption_text
from turnaround.findings.labels import facts_label, hardware_label, label_of
from turnaround.forecast.interval import Interval
from turnaround.forecast.predict import Forecaster
from turnaround.forecast.sweep import set_aside, sweep
from turnaround.forecast.turnaround import measured_time_to_stable
from turnaround.reporting.page.fig_common import (
    Figure,
    Series,
    TimeUnit,
    Tone,
    Trace,
    axis,
    layout,
    log_ticks,
    number,
    sentences,
    series_of,
    share_axis,
    tone_of_kind,
    worker_axis,
)
from turnaround.reporting.page.fig_laws import LawCurve, ScalingGroup, heights, scaling_traces
from turnaround.words import about, duration, hardware, percent

EPOCH_TIME = "epoch-time"
"""The id of the figure of epoch times."""


def groups_of(job: Workload, forecasters: Sequence[Forecaster]) -> list[ScalingGroup]:
    """Group by kind of GPU and by what else matters for time; a law goes with the group it learnt from."""
    series = {id(one.configuration): one for one in series_of(job)}
    found = []
    comparable = comparable_in_time(job)
    for configurations in comparable:
        forecaster = next((f for f in forecasters if _is_learnt_from(f, configurations)), None)
        found.append(
            ScalingGroup(
                name=_name(configurations, [other for other in comparable if other is not configurations]),
                series=series[id(configurations[0])].index,
                tone=_tone(series[id(configurations[0])], comparable),
                configurations=configurations,
                forecaster=forecaster,
                points=sweep(forecaster) if forecaster is not None else (),
            )
        )
    return found


def _is_learnt_from(forecaster: Forecaster, configurations: Sequence[ConfigurationRuns]) -> bool:
    times = forecaster.laws.times
    # A law that was carried over from another kind of GPU has no measured points here to lie beside.
    return times is not None and not forecaster.laws.is_carried_over and times.configurations[0] in configurations


def _tone(first: Series, comparable: Sequence[Sequence[ConfigurationRuns]]) -> Tone:
    """Return the colour of the kind of GPU; of its first configuration where several groups have the same kind."""
    kind = first.configuration.gpu
    groups = [group for group in comparable if group[0].gpu == kind]
    return tone_of_kind(kind) if len(groups) == 1 else first.tone


def _name(configurations: Sequence[ConfigurationRuns], others: Sequence[Sequence[ConfigurationRuns]]) -> str:
    """Return the kind of GPU; with the settings where another group has the same kind."""
    own = configurations[0].key
    kind = own.gpu if own.gpu != "unknown" else "workers"
    if all(group[0].gpu != own.gpu for group in others):
        return kind
    return ", ".join(part for part in (kind, facts_label(own.settings_for("time"))) if part)


def scaling_figures(job: Workload, forecasters: Sequence[Forecaster]) -> list[Figure]:
    """Return the figures; none where no real run has times, or there is a single number of workers and no law."""
    groups = groups_of(job, forecasters)
    counts = {c.workers for group in groups for c in group.configurations}
    counts |= {point.workers for group in groups for point in group.points}
    # One number of workers is a point, and no curve.
    if len(counts) < 2:
        return []
    several = any(len(group.configurations) > 1 for group in groups)
    figures = [_epoch_time(groups), *([_speedup(groups), _efficiency(groups)] if several else [])]
    stable = _time_to_stable(groups)
    return [*figures, stable] if stable is not None else figures


def _epoch_time(groups: Sequence[ScalingGroup]) -> Figure:
    curve = LawCurve(
        measured=lambda _, configuration: configuration.epoch_time_s,
        law=lambda point: point.prediction.epoch_time_s,
        ideal=lambda group, workers: ideal_time_s(group.baseline, workers),
    )
    unit = TimeUnit(name="s", seconds=1.0)
    traces = scaling_traces(groups, curve, unit, duration)
    return Figure(
        id=EPOCH_TIME,
        section="scaling",
        title="Epoch time vs. workers",
        caption=sentences(
            "Training of one epoch, on logarithmic scales; ideal is half the time for twice the workers.",
            _measured_rule(groups),
            _law_rule(groups),
        ),
        alt=_alt(groups, curve, duration),
        data=traces,
        layout=_layout(groups, traces, axis("time of an epoch (s)", **log_ticks(heights(traces)))),
    )


def _speedup(groups: Sequence[ScalingGroup]) -> Figure:
    curve = LawCurve(
        measured=lambda group, configuration: (
            speed.speedup if (speed := _speedup_over(group.baseline, configuration)) is not None else None
        ),
        law=lambda point: point.speedup,
        ideal=lambda group, workers: workers / group.baseline.workers,
    )
    traces = scaling_traces(groups, curve, TimeUnit(name="", seconds=1.0), lambda value: f"{value:.2f}x")
    return Figure(
        id="speed-up",
        section="scaling",
        title="Speed-up vs. workers",
        caption=sentences(
            f"Time of an epoch of the baseline ({_baselines(groups)}), divided by the time of an epoch.",
            _measured_rule(groups),
            _law_rule(groups),
        ),
        alt=_alt(groups, curve, lambda value: f"{value:.2f} times"),
        data=traces,
        layout=_layout(groups, traces, axis("speed-up (times the baseline)", **log_ticks(heights(traces)))),
    )


def _speedup_over(baseline: ConfigurationRuns, configuration: ConfigurationRuns) -> Speedup | None:
    return None if is_its_twin(baseline, configuration) else speedup_of(baseline, configuration)


def _efficiency(groups: Sequence[ScalingGroup]) -> Figure:
    curve = LawCurve(
        measured=lambda group, configuration: (
            speed.efficiency if (speed := _speedup_over(group.baseline, configuration)) is not None else None
        ),
        law=lambda point: point.efficiency,
        ideal=lambda group, workers: 1.0,
    )
    traces = scaling_traces(groups, curve, TimeUnit(name="", seconds=1.0), percent)
    # From 0, or losses would look larger than they are; a little room above the ideal 100 % and the highest point.
    top = max([1.1, *(value * 1.08 for value in heights(traces))])
    return Figure(
        id="efficiency",
        section="scaling",
        title="Efficiency vs. workers",
        caption=sentences(
            f"Speed-up, divided by how many times as many workers there are as in the baseline ({_baselines(groups)}); "
            "100 % is ideal.",
            _measured_rule(groups),
            _law_rule(groups),
        ),
        alt=_alt(groups, curve, percent),
        data=traces,
        # At most 250 %: one superlinear point must not press all others to the bottom.
        layout=_layout(groups, traces, share_axis("efficiency (%)", range=[0, number(min(top, 2.5))])),
    )


def _measured_to_stable(group: ScalingGroup, configuration: ConfigurationRuns) -> Interval | None:
    times = group.forecaster.laws.times if group.forecaster else None
    return measured_time_to_stable(times, configuration) if times is not None else None


def _time_to_stable(groups: Sequence[ScalingGroup]) -> Figure | None:
    """Return the figure of time to stable; measured times include start-up and evaluations, as the forecasts do."""
    with_law = [g for g in groups if any(point.prediction.time_to_stable_s for point in g.points)]
    if not with_law:
        return None
    curve = LawCurve(
        measured=_measured_to_stable,
        law=lambda point: point.prediction.time_to_stable_s,
    )
    # With the upper ends: the unit of the axis must suit the band as well as the line.
    ends = [end for g in with_law for p in g.points if (f := curve.law(p)) for end in (f.value, f.high)]
    unit = TimeUnit.of(ends)
    traces = scaling_traces(with_law, curve, unit, duration)
    return Figure(
        id="time-to-stable-by-workers",
        section="scaling",
        title="Time to stable accuracy vs. workers",
        caption=sentences(
            "From the start to the first epoch of the plateau, with start-up and evaluations, without the queue: the "
            "law of epochs times the law of seconds an epoch.",
            "Full points: measured epochs, with their 80 % interval, times the measured seconds.",
            _law_rule(with_law),
        ),
        alt=_alt(with_law, curve, duration),
        data=traces,
        layout=_layout(with_law, traces, axis(f"time to stable ({unit.name})", **log_ticks(heights(traces)))),
    )


def _layout(groups: Sequence[ScalingGroup], traces: Sequence[Trace], yaxis: Trace) -> Trace:
    counts = {c.workers for g in groups for c in g.configurations} | {p.workers for g in groups for p in g.points}
    entries = len({trace["name"] for trace in traces if trace.get("showlegend", True)})
    return layout(
        entries=entries,
        xaxis=worker_axis(counts, [c for group in groups for c in group.configurations]),
        yaxis=yaxis,
    )


def _measured_rule(groups: Sequence[ScalingGroup]) -> str:
    most = max(len(configuration.summaries) for group in groups for configuration in group.configurations)
    repeats = f"the median of up to {most} runs, with the lowest and the highest" if most > 1 else "one run each"
    return f"Full points: measured, {repeats}."


def _law_rule(groups: Sequence[ScalingGroup]) -> str:
    last = [group.points[-1].prediction for group in groups if group.points]
    if not last:
        return ""
    aside = [label_of(c) for group in groups if group.forecaster for c in set_aside(group.forecaster)]
    assumed = [
        f"for {hardware(p.workers, p.gpu)} "
        + "; ".join(assumption_text(assumption, flags=False) for assumption in p.remarks.assumed)
        for p in last
        if p.remarks.assumed
    ]
    return sentences(
        "Dashed, open circles and band: the fitted law, its forecasts and their 80 % interval, not measured.",
        f"Not learnt from, since no law explains it with the others: {', '.join(aside)}." if aside else "",
        f"Assumed: {', '.join(assumed)}." if assumed else "",
    )


def _baselines(groups: Sequence[ScalingGroup]) -> str:
    return " and ".join(dict.fromkeys(hardware_label(group.baseline) for group in groups))


def _alt(groups: Sequence[ScalingGroup], curve: LawCurve, shown: Callable[[float], str]) -> str:
    said, forecast = [], about if shown is duration else shown
    for group in groups:
        measured = {c.workers: (c, v) for c in group.configurations if (v := curve.measured(group, c)) is not None}
        said += [f"{hardware_label(c)} {shown(v.value)}" for c, v in [*measured.values()][:8]]
        ahead = [(p, f) for p in group.points if p.is_shown_apart and (f := curve.law(p)) is not None][-1:]
        said += [
            f"forecast for {hardware(p.workers, p.prediction.gpu, hosts=p.prediction.hosts)} about {forecast(f.value)} "
            f"({forecast(f.low)} to {forecast(f.high)})"
            for p, f in ahead
        ]
    return f"{'; '.join(said)}."
