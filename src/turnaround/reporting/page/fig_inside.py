"""The parts of the turnaround, and the parts of a step: where the time goes. Rehearsals have no times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from turnaround.analysis.configurations import Workload
from turnaround.analysis.shares import STEP_PARTS, TURNAROUND_PARTS, step_parts_s, turnaround_parts_s
from turnaround.findings.times import PART_NAMES
from turnaround.reporting.page.fig_common import (
    MAX_BARS,
    Figure,
    Series,
    TimeUnit,
    Trace,
    axis,
    bar_axis,
    bar_height,
    layout,
    left_out,
    meta,
    sentences,
    series_of,
    spread_out,
)
from turnaround.words import percent

STEP_NAMES = {
    "wait": "waiting for the batch",
    "copy": "copying and augmenting",
    "compute": "computing",
    "reduce": "averaging gradients",
    "update": "updating the weights",
}
TOLD_NAMES = {"training_steady": "epochs", "other": "overhead"}
"""Names of the two parts that an imported run has."""
PATTERNS = ("", "/", "", "\\", "", ".", "x", "", "-")
"""Patterns by part, so that neighbours differ by more than their colour."""


@dataclass(frozen=True, kw_only=True)
class _Stack:
    """Bars of parts, before they are drawn."""

    shown: Sequence[Series]
    parts_s: Sequence[Mapping[str, float]]
    names: Mapping[str, str]
    order: Sequence[str]


def turnaround_figure(job: Workload) -> Figure | None:
    """Draw the time from submit to finish by part; None where no real run tells."""
    stack, known = _stack(job, {s.index: turnaround_parts_s(s.configuration) for s in series_of(job)}, PART_NAMES)
    if stack is None:
        return None
    many = _repeats(stack)
    imported = [run.is_imported for series in stack.shown for run in series.configuration.summaries]
    if all(imported):
        stack = replace(stack, names=TOLD_NAMES)
    return _figure(
        stack,
        id="where-the-time-goes",
        title="Turnaround by part",
        what="time from submit to finish",
        caption=sentences(
            f"From submit to finish by part{f'; of repeats the median of each{many}' if many else ''}.",
            "Imported runs tell two parts: their epochs (with whatever was in them) and "
            "the overhead, which is the rest of the job."
            if any(imported)
            else "The first epoch is cold: it pays for compilation and cold caches.",
            left_out(len(stack.shown), known),
        ),
    )


def step_figure(job: Workload) -> Figure | None:
    """Return a typical step by part; None where nobody took one apart."""
    stack, known = _stack(job, {s.index: step_parts_s(s.configuration) for s in series_of(job)}, STEP_NAMES)
    if stack is None:
        return None
    return _figure(
        stack,
        id="inside-a-step",
        title="Inside a step",
        what="time of a step",
        caption=sentences(
            "Medians over the sampled steps of each process, without the first one"
            + _repeats(stack)
            + ". Averaging gradients holds only what computing does not hide, and the wait for slower processes.",
            left_out(len(stack.shown), known),
        ),
    )


def _stack(
    job: Workload, parts_s: Mapping[int, Mapping[str, float]], names: Mapping[str, str]
) -> tuple[_Stack | None, int]:
    """Return what is drawn, and how many configurations could be."""
    known = [series for series in series_of(job) if sum(parts_s[series.index].values()) > 0]
    if not known:
        return None, 0
    shown = spread_out(known, MAX_BARS)
    order = [p for p in (*TURNAROUND_PARTS, *STEP_PARTS) if any(parts_s[s.index].get(p) for s in shown)]
    return _Stack(shown=shown, parts_s=[parts_s[s.index] for s in shown], names=names, order=order), len(known)


def _repeats(stack: _Stack) -> str:
    most = max(len(series.configuration.summaries) for series in stack.shown)
    return f" (up to {most} runs)" if most > 1 else ""


def _figure(stack: _Stack, *, id: str, title: str, what: str, caption: str) -> Figure:
    totals_s = [sum(parts.values()) for parts in stack.parts_s]
    unit = TimeUnit.of(totals_s)
    labels = [series.name for series in stack.shown]
    traces = [_part(stack, part, unit, totals_s) for part in stack.order]
    return Figure(
        id=id,
        section="inside",
        title=title,
        caption=caption,
        alt=f"{title}: {'; '.join(_spoken(stack, place, unit) for place in range(min(len(labels), 8)))}.",
        data=traces,
        layout=layout(
            # 14 px for the row that each part has in the legend.
            height=bar_height(labels) + 14 * len(traces),
            legend_share=0.7,
            entries=len(traces),
            barmode="stack",
            xaxis=axis(f"{what} ({unit.name})", rangemode="tozero"),
            yaxis=bar_axis(labels),
        ),
    )


def _part(stack: _Stack, part: str, unit: TimeUnit, totals_s: Sequence[float]) -> Trace:
    index = (*TURNAROUND_PARTS, *STEP_PARTS).index(part)
    # Colours and patterns begin anew for the parts of a step: the two stacks never share a figure.
    place = index if part in TURNAROUND_PARTS else STEP_PARTS.index(part)
    times_s = [parts.get(part, 0.0) for parts in stack.parts_s]
    shares = [time_s / total_s for time_s, total_s in zip(times_s, totals_s, strict=True)]
    return {
        "type": "bar",
        "orientation": "h",
        "name": stack.names.get(part, part),
        "x": [unit(time_s) for time_s in times_s],
        "y": list(range(len(times_s))),
        "width": 0.65,
        "marker": {"pattern": {"shape": PATTERNS[place % len(PATTERNS)], "fillmode": "overlay", "size": 6}},
        "customdata": [[unit.text(time_s), percent(s)] for time_s, s in zip(times_s, shares, strict=True)],
        "hovertemplate": "%{fullData.name}<br>%{customdata[0]}, %{customdata[1]}<extra></extra>",
        "meta": meta(place, "part"),
    }


def _spoken(stack: _Stack, place: int, unit: TimeUnit) -> str:
    parts = stack.parts_s[place]
    largest = max(parts, key=lambda part: parts[part])
    return (
        f"{stack.shown[place].name} takes {unit.text(sum(parts.values()))}, most of it "
        f"{stack.names.get(largest, largest)} ({unit.text(parts[largest])})"
    )
