"""Hardware utilization over time: load, memory, power of each GPU of a run; of hosts without GPUs, their cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnaround.analysis.configurations import Workload
from turnaround.analysis.usage import Usage, usages
from turnaround.reporting.page.fig_common import (
    Figure,
    Series,
    TimeUnit,
    Trace,
    axis,
    is_drawn,
    layout,
    meta,
    numbers,
    plain,
    sentences,
    series_of,
    slug,
)

MAX_RUNS = 6
"""Largest number of runs of one job whose usage is drawn: the first of each configuration."""
MAX_GPUS = 32
"""Largest number of GPUs drawn in one figure."""
DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """One quantity over time; panels stand above each other."""

    column: str
    title: str
    unit: str


PANELS = (
    _Panel(column="busy_percent", title="busy (%)", unit="%"),
    _Panel(column="memory_gib", title="memory (GiB)", unit="GiB"),
    _Panel(column="power_w", title="power (W)", unit="W"),
)


def usage_figures(job: Workload) -> list[Figure]:
    """One picture for the first run of each configuration that has telemetry; rehearsals have no times to show."""
    drawn: list[tuple[Series, str, tuple[Usage, ...]]] = []
    others = 0
    for series in series_of(job):
        if series.is_rehearsal:
            continue
        for summary, run in series.configuration.members:
            if len(drawn) >= MAX_RUNS:
                # By the names of files alone: samples are read only of what is drawn.
                others += bool(run.directory.telemetry_hosts())
            elif of_run := usages(run):
                drawn.append((series, summary.name, of_run))
                break
    return [
        _figure(series, name, of_run, others if place == len(drawn) - 1 else 0)
        for place, (series, name, of_run) in enumerate(drawn)
    ]


def _figure(series: Series, run: str, everything: Sequence[Usage], others: int) -> Figure:
    shown = everything[:MAX_GPUS]
    panels = [panel for panel in PANELS if any(usage.knows(panel.column) for usage in shown)]
    unit = TimeUnit.of(time_s for usage in shown for time_s in usage.time_s)
    traces = [
        _trace(usage, panel, number, place, unit) | is_drawn(place, len(shown))
        for number, panel in enumerate(panels)
        for place, usage in enumerate(shown)
        if usage.knows(panel.column)
    ]
    are_gpus = all(usage.is_gpu for usage in shown)
    return Figure(
        id=f"usage-{slug(series)}",
        section="gpus",
        title=f"{'GPU' if are_gpus else 'Processor'} utilization over time: {series.name}",
        caption=sentences(
            f"Run {run}, by telemetry since its first sample.",
            "Busy is the share of a sampling period in which any kernel ran; it does not say how well the GPU was used."
            if are_gpus
            else "Of all cores and the memory of the host together, by all processes.",
            "Each point is the mean of a few samples.",
            f"{len(shown)} of {len(everything)} are drawn." if len(shown) < len(everything) else "",
            f"{others} more runs with telemetry are not drawn." if others else "",
        ),
        alt=f"{series.name}: {'; '.join(_spoken(usage) for usage in shown[:8])}.",
        data=traces,
        layout=_layout(panels, unit, len(shown)),
    )


def _trace(usage: Usage, panel: _Panel, number: int, place: int, unit: TimeUnit) -> Trace:
    suffix = "" if number == 0 else str(number + 1)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(usage.name),
        "x": [unit(time_s) for time_s in usage.time_s],
        "y": numbers(getattr(usage, panel.column)),
        "yaxis": f"y{suffix}",
        "connectgaps": False,
        # The page has eight colours: from the ninth GPU on the dash tells it from the first.
        "line": {"width": 1.5, "dash": DASHES[place // 8 % len(DASHES)]},
        "legendgroup": str(place),
        "showlegend": number == 0,
        "hovertemplate": f"%{{fullData.name}}<br>%{{x}} {unit.name}: %{{y}} {panel.unit}<extra></extra>",
        "meta": meta(place, "measured"),
    }


def _layout(panels: Sequence[_Panel], unit: TimeUnit, count: int) -> Trace:
    """Panels above each other with one time axis, the first on top."""
    height = 1 / len(panels)
    axes: dict[str, Trace] = {}
    for place, panel in enumerate(panels):
        top = 1 - place * height
        # Above 100 %, or a line at full load would be cut in half by the frame.
        bounds = {"range": [0, 105]} if panel.column == "busy_percent" else {"rangemode": "tozero"}
        # In shares of the height of all panels; the gap of 5 % keeps the ticks of two axes apart.
        domain = [round(top - height + (0.05 if place < len(panels) - 1 else 0.0), 4), round(top, 4)]
        axes[f"yaxis{place + 1 if place else ''}"] = axis(panel.title, domain=domain, **bounds)
    last = f"y{len(panels)}" if len(panels) > 1 else "y"
    xaxis = axis(f"time ({unit.name})", anchor=last, rangemode="tozero")
    return layout(height=140 + 130 * len(panels), entries=count, xaxis=xaxis) | axes


def _spoken(usage: Usage) -> str:
    busy, memory = usage.mean_busy_percent, usage.max_memory_gib
    clauses = [f"busy {busy:.0f} % on average"] if busy is not None else []
    clauses += [f"at most {memory:.1f} GiB"] if memory is not None else []
    return f"{usage.name} {' and '.join(clauses)}"
