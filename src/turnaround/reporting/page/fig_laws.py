"""Measured points, ideal lines, laws with their bands, and forecasts set apart: the traces of pictures of scaling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnaround.analysis.configurations import ConfigurationRuns, Spread
from turnaround.findings.labels import label_of
from turnaround.forecast.interval import Interval
from turnaround.forecast.predict import Forecaster
from turnaround.forecast.sweep import SweepPoint
from turnaround.reporting.page.fig_common import TimeUnit, Tone, Trace, error_bars, meta, plain
from turnaround.words import about, duration, hardware


@dataclass(frozen=True, kw_only=True)
class ScalingGroup:
    """The timed configurations that can be compared, and the law fitted to them."""

    name: str
    series: int
    """The series of its first configuration."""
    tone: Tone
    configurations: Sequence[ConfigurationRuns]
    forecaster: Forecaster | None
    points: Sequence[SweepPoint]

    @property
    def baseline(self) -> ConfigurationRuns:
        return self.configurations[0]


@dataclass(frozen=True, kw_only=True)
class LawCurve:
    """The functions by which one figure reads its quantity out of a group: measured, by the law, ideal."""

    measured: Callable[[ScalingGroup, ConfigurationRuns], Spread | Interval | None]
    law: Callable[[SweepPoint], Interval | None]
    ideal: Callable[[ScalingGroup, int], float] | None = None


@dataclass(frozen=True, kw_only=True)
class Law:
    """The predictions of one law along the workers, ready to be drawn."""

    name: str
    """The name that stands before the words "law" and "forecast" in the legend."""
    series: int
    tone: Tone
    points: Sequence[tuple[SweepPoint, Interval]]
    unit: TimeUnit
    shown: Callable[[float], str]
    """The function that writes a forecast as text, for the tooltip."""


def scaling_traces(
    groups: Sequence[ScalingGroup], curve: LawCurve, unit: TimeUnit, shown: Callable[[float], str]
) -> list[Trace]:
    """Return the traces from back to front: bands, lines, measured points, forecasts."""
    # Plotly draws, and lists in the legend, in the order of the traces: nothing may lie under a band.
    layers: list[list[Trace]] = [[], [], [], []]
    for group in groups:
        along = [(p, f) for p in group.points if (f := curve.law(p)) is not None]
        if along:
            law = Law(
                name=group.name,
                series=group.series,
                tone=group.tone,
                points=along,
                unit=unit,
                shown=about if shown is duration else shown,
            )
            band, line, *forecasts = law_traces(law)
            layers[0].append(band)
            layers[1].append(line)
            layers[3] += forecasts
        if curve.ideal is not None:
            layers[1] += _ideal(group, curve.ideal, unit)
        layers[2] += _measured(group, curve, unit, shown)
    return _named_once([trace for layer in layers for trace in layer])


def law_traces(law: Law) -> list[Trace]:
    """Return the band, the line, and the forecasts that have a mark of their own."""
    workers = [p.workers for p, _ in law.points]
    low, high = ([law.unit(getattr(f, end)) for _, f in law.points] for end in ("low", "high"))
    common = {"type": "scatter", "legendgroup": law.name}
    # One closed outline: along the upper ends, and back along the lower ones.
    band = {
        "mode": "lines",
        "x": [*workers, *reversed(workers)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "line": {"width": 0},
        "meta": meta(law.series, "band", law.tone),
    }
    line = {
        "mode": "lines",
        "name": f"{plain(law.name)} law",
        "x": workers,
        "y": [law.unit(f.value) for _, f in law.points],
        "line": {"dash": "dash", "width": 1.5},
        "meta": meta(law.series, "law", law.tone),
    }
    quiet = {"hoverinfo": "skip", "showlegend": False}
    return [common | band | quiet, common | line | quiet, *(common | trace for trace in _forecasts(law))]


def _forecasts(law: Law) -> list[Trace]:
    apart = [(p, f) for p, f in law.points if p.is_shown_apart]
    if not apart:
        return []
    unit, shown = law.unit, law.shown
    values = [unit(f.value) for _, f in apart]
    return [
        {
            "mode": "markers",
            "name": f"{plain(law.name)} forecast".strip(),
            "x": [p.workers for p, _ in apart],
            "y": values,
            **error_bars("y", values, [unit(f.low) for _, f in apart], [unit(f.high) for _, f in apart]),
            "marker": {"symbol": "circle-open", "size": 10},
            "text": [
                f"forecast for {plain(hardware(p.workers, p.prediction.gpu, hosts=p.prediction.hosts))}: about "
                f"{shown(f.value)} (80 %: {shown(f.low)} to {shown(f.high)})"
                for p, f in apart
            ],
            "hovertemplate": "%{text}<extra></extra>",
            "meta": meta(law.series, "forecast", law.tone),
        }
    ]


def _ideal(group: ScalingGroup, ideal: Callable[[ScalingGroup, int], float], unit: TimeUnit) -> list[Trace]:
    counts = sorted({c.workers for c in group.configurations} | {p.workers for p in group.points})
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "ideal",
            "x": counts,
            "y": [unit(ideal(group, count)) for count in counts],
            "line": {"dash": "dot", "width": 1.5},
            "hoverinfo": "skip",
            "legendgroup": "ideal",
            "meta": meta(group.series, "ideal", group.tone),
        }
    ] * (len(counts) > 1)


def _named_once(traces: Sequence[Trace]) -> list[Trace]:
    """Keep one of the ideal lines in the legend; all of them are drawn."""
    first = next((trace for trace in traces if trace["meta"]["role"] == "ideal"), None)
    return [{**t, "showlegend": False} if t["meta"]["role"] == "ideal" and t is not first else t for t in traces]


def _measured(group: ScalingGroup, curve: LawCurve, unit: TimeUnit, shown: Callable[[float], str]) -> list[Trace]:
    known = [(c, value) for c in group.configurations if (value := curve.measured(group, c)) is not None]
    if not known:
        return []
    values = [unit(value.value) for _, value in known]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"{plain(group.name)} measured",
            "x": [configuration.workers for configuration, _ in known],
            "y": values,
            **error_bars("y", values, [unit(v.low) for _, v in known], [unit(v.high) for _, v in known]),
            "marker": {"symbol": "circle", "size": 10},
            "text": [f"{plain(label_of(c))}: {shown(value.value)}, {_runs(c)}" for c, value in known],
            "hovertemplate": "%{text}<extra></extra>",
            "legendgroup": group.name,
            "meta": meta(group.series, "measured", group.tone),
        }
    ]


def _runs(configuration: ConfigurationRuns) -> str:
    return f"{len(configuration.summaries)} runs" if len(configuration.summaries) > 1 else "one run"


def heights(traces: Sequence[Trace]) -> list[float]:
    """Return the y values that an axis must show, with error bars; a wide band may reach beyond the figure."""
    known: list[float] = []
    for trace in traces:
        if trace["meta"]["role"] == "band":
            continue
        known += [y for y in trace["y"] if y is not None]
        if "error_y" in trace:
            errors = trace["error_y"]
            known += [y + e for y, e in zip(trace["y"], errors["array"], strict=True) if y is not None and e]
            known += [y - e for y, e in zip(trace["y"], errors["arrayminus"], strict=True) if y is not None and e]
    return known
