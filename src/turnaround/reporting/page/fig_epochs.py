"""Epochs to a stable accuracy against the workers: measured, rehearsed, and the law."""

from __future__ import annotations

from collections.abc import Sequence

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.forecast.predict import Forecaster
from turnaround.forecast.sweep import SweepPoint, same_epochs_law, sweep
from turnaround.reporting.comparison_table import epoch_text
from turnaround.reporting.page.fig_common import (
    Figure,
    Series,
    TimeUnit,
    Tone,
    Trace,
    axis,
    error_bars,
    layout,
    meta,
    number,
    plain,
    sentences,
    series_of,
    tone_of_kind,
    worker_axis,
)
from turnaround.reporting.page.fig_curves import stable_words
from turnaround.reporting.page.fig_laws import Law, heights, law_traces
from turnaround.words import hardware

EPOCHS = TimeUnit(name="epochs", seconds=1.0)
KINDS = {
    "stable": "measured",
    "stated": "measured, stated by others",
    "rehearsed": "rehearsed",
    "not yet": "not yet stable: at least",
    "rehearsed, not yet": "rehearsed, not yet stable: at least",
}
SYMBOLS = {
    "stable": "circle",
    "stated": "square",
    "rehearsed": "diamond-open",
    "not yet": "triangle-up",
    "rehearsed, not yet": "triangle-up-open",
}


def epochs_figure(job: Workload, forecasters: Sequence[Forecaster]) -> Figure | None:
    """Return the figure; None where no run became stable, or there is a single number of workers and no law."""
    known = [series for series in series_of(job) if series.configuration.stable.epoch is not None]
    laws = _laws(forecasters)
    counts = {s.configuration.workers for s in known} | {p.workers for _, law in laws for p in law}
    if not known or len(counts) < 2:
        return None
    kinds = {series.configuration.gpu for series in known}
    # One law of several kinds of GPU has the colour of none of them.
    tone = tone_of_kind(kinds.pop() if len(kinds) == 1 else "unknown")
    behind, apart = _law_traces(laws, tone)
    traces = [*behind, *_points(known, tone), *apart]
    top = max([*heights(traces), 1.0]) * 1.12  # room above the highest mark, which is not cut in half
    planned = next((n for forecaster, _ in laws if (n := forecaster.laws.observations.epochs_planned)), None)
    return Figure(
        id="epochs-to-stable",
        section="scaling",
        title="Epochs to stable accuracy vs. workers",
        caption=_caption(known, laws, planned),
        alt=_alt(known, laws),
        data=[*traces, *_planned_line(planned, counts, top)],
        layout=layout(
            entries=sum(trace.get("showlegend", True) for trace in traces) + 1,
            xaxis=worker_axis(counts, [series.configuration for series in known]),
            yaxis=axis("epochs to stable", range=[0, number(top)]),
        ),
    )


def _laws(forecasters: Sequence[Forecaster]) -> list[tuple[Forecaster, Sequence[SweepPoint]]]:
    """Return the distinct laws: kinds of GPU mostly share that of epochs, which is drawn once, as far as any goes."""
    found: list[tuple[Forecaster, Sequence[SweepPoint]]] = []
    for forecaster in forecasters:
        own = [point for point in sweep(forecaster) if point.prediction.epochs_to_stable is not None]
        same = next((place for place, (_, law) in enumerate(found) if same_epochs_law(law, own)), None)
        if own and same is None:
            found.append((forecaster, own))
        elif own and same is not None:
            both = {point.workers: point for point in (*own, *found[same][1])}
            found[same] = found[same][0], [both[workers] for workers in sorted(both)]
    return found


def _law_traces(laws: Sequence[tuple[Forecaster, Sequence[SweepPoint]]], tone: Tone) -> tuple[list[Trace], list[Trace]]:
    """Return the traces behind the measured points (bands, lines), and those in front of them (forecasts)."""
    behind: list[Trace] = []
    apart: list[Trace] = []
    for place, (forecaster, law) in enumerate(laws):
        along = [(p, f) for p in law if (f := p.prediction.epochs_to_stable) is not None]
        own = tone if len(laws) == 1 else tone_of_kind(forecaster.laws.gpu)
        law_of_epochs = Law(
            name="", series=place, tone=own, points=along, unit=EPOCHS, shown=lambda n: f"{n:.0f} epochs"
        )
        band, line, *forecasts = law_traces(law_of_epochs)
        behind += [band, line]
        apart += forecasts
    return behind, apart


def _kind(configuration: ConfigurationRuns) -> str:
    is_bound = configuration.stable.status == "not yet stable"
    if configuration.is_rehearsal:
        return "rehearsed, not yet" if is_bound else "rehearsed"
    return "not yet" if is_bound else "stated" if configuration.stable.method == "stated" else "stable"


def _points(known: Sequence[Series], tone: Tone) -> list[Trace]:
    """Return a trace for each kind of answer, with its symbol; colours by series would need one for each point."""
    traces = []
    for kind, name in KINDS.items():
        own = [series for series in known if _kind(series.configuration) == kind]
        if not own:
            continue
        stables = [series.configuration.stable for series in own]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [series.configuration.workers for series in own],
                "y": [number(s.epoch) for s in stables],
                **error_bars("y", [s.epoch for s in stables], [s.low for s in stables], [s.high for s in stables]),
                "marker": {"symbol": SYMBOLS[kind], "size": 10},
                "text": [
                    f"{plain(s.name)}: {stable_words(s.configuration.stable)}{_repeats(s.configuration)}" for s in own
                ],
                "hovertemplate": "%{text}<extra></extra>",
                "meta": meta(0, "rehearsal" if kind.startswith("rehearsed") else "measured", tone),
            }
        )
    return traces


def _repeats(configuration: ConfigurationRuns) -> str:
    return f", {configuration.stable.repeats} runs" if configuration.stable.repeats > 1 else ""


def _planned_line(planned: int | None, counts: set[int], top: float) -> list[Trace]:
    # A plan far above the highest mark would press all points to the bottom.
    if planned is None or planned > top:
        return []
    ends = [min(counts), max(counts)]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"the recipe's {planned:.0f} epochs",
            "x": ends,
            "y": [number(planned)] * 2,
            "line": {"dash": "dot", "width": 1.5},
            "hoverinfo": "skip",
            "meta": meta(0, "ideal"),
        }
    ]


def _caption(
    known: Sequence[Series], laws: Sequence[tuple[Forecaster, Sequence[SweepPoint]]], planned: int | None
) -> str:
    methods = {series.configuration.stable.method for series in known}
    most = max(series.configuration.stable.repeats for series in known)
    has_interval = any(series.configuration.stable.low is not None for series in known)
    return sentences(
        "The first epoch of the plateau, where validation accuracy stays within one percentage point (or its noise) of "
        "the best level seen" + (", as their author saw it by eye." if methods == {"stated"} else "."),
        f"Lines: 80 % interval{f', of up to {most} runs' if most > 1 else ', of one run each'}."
        if has_interval
        else "",
        "Rehearsed points tell of so many workers, without their GPUs." if any(s.is_rehearsal for s in known) else "",
        "Dashed, open circles and band: the fitted law of the global batch, its forecasts and their 80 % interval."
        if laws
        else "",
    )


def _alt(known: Sequence[Series], laws: Sequence[tuple[Forecaster, Sequence[SweepPoint]]]) -> str:
    said = [f"{series.name}: {stable_words(series.configuration.stable)}" for series in known[:10]]
    for _, law in laws:
        last = next((p for p in reversed(law) if p.is_shown_apart), None)
        if last is not None and (f := last.prediction.epochs_to_stable) is not None:
            said.append(
                f"forecast for {hardware(last.workers, last.prediction.gpu)}: about {f.value:.0f} epochs "
                f"({epoch_text(round(f.low))} to {epoch_text(round(f.high))})"
            )
    return f"{'; '.join(said)}."
