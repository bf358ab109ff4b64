"""One figure as plotly takes it, and what all figures share: numbers, names that stay text, axes, what is drawn."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.repeats import evenly
from turnaround.reporting.comparison_table import configuration_names
from turnaround.reporting.text_layout import clean
from turnaround.words import duration

MAX_DRAWN = 12
"""Largest number of series drawn at first; the legend switches the others on."""
MAX_SERIES = 40
"""Largest number of series in one figure: nobody reads a longer legend."""
MAX_BARS = 30
MAX_COUNTS = 8
"""Largest number of worker counts with a tick on an axis."""
LABEL_WIDTH = 20
"""Characters of a line beside a bar: what a telephone has room for."""

Trace = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One plotly figure as plain JSON values; colours come from the page, so that light, dark and paper work."""

    id: str
    """Unique in its job; small letters, digits and hyphens."""
    section: str
    """``curves``, ``time``, ``scaling``, ``inside``, ``gpus``, ``training`` or ``classes``."""
    title: str
    caption: str
    """One or two sentences: what is shown, by which rule, what was assumed; units."""
    alt: str
    """The message in words, for people who do not see the picture."""
    data: list[dict[str, Any]]
    """Plotly traces without colours. ``meta={"series": i, "role": r}`` says what a trace is; the page colours it by
    that. ``series`` is the place of the configuration in the job, of the part in a stack, or of the GPU; ``hue`` and
    ``shade``, where a configuration or a kind of GPU is drawn, are its `Tone`. Roles:

    - lines and points in the colour of their series: train, validation, rehearsal, running, measured, forecast, law,
      stable
    - areas in the same colour, faint: band (repeats or interval), overfit
    - in grey: ideal
    - bars: measured, part (one colour for each part of a stack)
    - matrix: a heat map, whose colour scale the page gives

    Dashes, symbols and patterns are in the traces already, so that nothing rests on colour alone."""
    layout: dict[str, Any]
    """Axes with titles and units; no colours, no template, no fonts."""


def number(value: float | None) -> float | int | None:
    """Round to five digits for JSON; None for what is not known or not finite.

    An integer where it is one: 3 is shorter than 3.0, and above 2**53 a browser would not have it exactly.
    """
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def numbers(values: Iterable[float | None]) -> list[float | int | None]:
    return [number(value) for value in values]


def plain(text: str) -> str:
    """Escape a name that comes from others: plotly would take tags in it for its own."""
    return clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def label_lines(text: str, width: int = LABEL_WIDTH) -> str:
    """Return the escaped name in lines short enough to stand beside a bar."""
    lines = textwrap.wrap(clean(text), width, break_long_words=True) or [""]
    return "<br>".join(plain(line) for line in lines)


KIND_HUES = {"CPU": 0, "V100": 1, "T4": 2, "A100": 3, "H100": 4}
"""The page's colour of each common kind of GPU, by its number there; other kinds share the rest of them."""
OTHER_HUES, UNKNOWN_HUE = (5, 7), 6
MAX_SHADES = 6
"""Most shades of one colour that can be told apart; beyond, colours tell configurations instead of kinds."""


@dataclass(frozen=True, kw_only=True)
class Tone:
    """A colour of the page by its number, and how light (0) or dark (1) it is; 0.5 is the colour itself."""

    hue: int
    shade: float = 0.5


def tone_of_kind(gpu: str) -> Tone:
    """Return the colour of a kind of GPU: the same in every figure of every job."""
    if gpu == "unknown":
        return Tone(hue=UNKNOWN_HUE)
    known = next((hue for kind, hue in KIND_HUES.items() if kind in re.split("[^A-Z0-9]+", gpu.upper())), None)
    # A checksum and not hash(), which differs from process to process: a kind keeps its colour.
    return Tone(hue=OTHER_HUES[crc32(gpu.encode()) % len(OTHER_HUES)] if known is None else known)


def meta(series: int, role: str, tone: Tone | None = None) -> dict[str, Any]:
    """Say what a trace is; without a tone it has the colour of its series' number."""
    colour = {} if tone is None else {"hue": tone.hue, "shade": number(tone.shade)}
    return {"series": series, "role": role, **colour}


@dataclass(frozen=True, kw_only=True)
class Series:
    """One configuration as the pictures of its job name and colour it."""

    index: int
    name: str
    """Plain text, not yet escaped for plotly: `plain` does that."""
    configuration: ConfigurationRuns
    tone: Tone
    """The colour of its kind of GPU, darker for more workers."""

    @property
    def is_rehearsal(self) -> bool:
        return self.configuration.is_rehearsal


def series_of(job: Workload) -> list[Series]:
    tones = _tones(job)
    return [
        Series(index=i, name=name, configuration=configuration, tone=tones[i])
        for i, (name, configuration) in enumerate(zip(configuration_names(job), job.configurations, strict=True))
    ]


def _tones(job: Workload) -> list[Tone]:
    kinds = [configuration.gpu for configuration in job.configurations]
    tones = []
    for place, kind in enumerate(kinds):
        own = [other for other, one in enumerate(kinds) if one == kind]
        if len(own) > MAX_SHADES:
            tones.append(Tone(hue=place))
        else:
            # Configurations are in the order of their workers: the most have the darkest shade.
            shade = own.index(place) / (len(own) - 1) if len(own) > 1 else 0.5
            tones.append(replace(tone_of_kind(kind), shade=shade))
    return tones


def slug(series: Series) -> str:
    """Return small letters, digits and hyphens for an id that stays the same when other configurations come."""
    c = series.configuration.key
    words = f"{series.name} {c.hosts} {c.processes} {c.global_batch or 0}"
    return re.sub("[^a-z0-9]+", "-", words.lower()).strip("-")


def spread_out(items: Sequence[Series], most: int) -> list[Series]:
    """Return all, or so many of them evenly spread from the first to the last."""
    return [items[place] for place in evenly(range(len(items)), most)]


def is_drawn(place: int, of: int) -> dict[str, Any]:
    """Return the `visible` attribute of a trace: of very many series a few, evenly spread, are drawn at first."""
    return {} if place in evenly(range(of), MAX_DRAWN) else {"visible": "legendonly"}


def left_out(shown: int, of: int, what: str = "configurations") -> str:
    """Return a sentence for the caption where not all are in the figure."""
    return f"Shown: {shown} of {of} {what}; the table has all." if shown < of else ""


def shown_at_first(count: int) -> str:
    return f"{MAX_DRAWN} are drawn at first; the legend switches the others on." if count > MAX_DRAWN else ""


def sentences(*parts: str) -> str:
    """Join the sentences of a caption; empty ones are left out."""
    return " ".join(part for part in parts if part)


def layout(*, height: int = 380, entries: int = 0, legend_share: float = 0.45, **more: Any) -> dict[str, Any]:
    """Return a layout with room for axes, and for a legend of so many entries above the figure."""
    legend = {
        "orientation": "h",
        "x": 0,
        "xanchor": "left",
        "y": 1.02,
        "yanchor": "bottom",
        "maxheight": legend_share,
        "traceorder": "normal",
        "tracegroupgap": 0,
    }
    return {
        # Twelve px for each entry after the second: the legend wraps into rows, and the plot keeps its height.
        "height": height + 12 * min(max(entries - 2, 0), MAX_DRAWN),
        "margin": {"l": 56, "r": 16, "t": 12, "b": 48},
        "showlegend": entries > 1,
        "legend": legend,
        "hovermode": "closest",
        **more,
    }


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 10}, "automargin": True, **more}


def share_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis of fractions, shown in percent."""
    return axis(title, tickformat=".3~p", **more)


def epoch_axis(bands: Iterable[Sequence[int]]) -> dict[str, Any]:
    """Return an axis of these epochs: whole numbers, from the first one, which is 1."""
    last = max((epochs[-1] for epochs in bands if epochs), default=1)
    # The smallest of these steps that leaves at most eight ticks, which a telephone has room for.
    step = next((step for step in EPOCH_STEPS if last / step <= 8), EPOCH_STEPS[-1])
    ticks = [1, *(n for n in range(step, last + 1, step) if n > 1)]
    # No range: plotly's own ends where the data do, and a reader's zoom survives the next epoch of a live page.
    return axis("epoch", tickmode="array", tickvals=ticks)


EPOCH_STEPS = (1, 2, *(digit * 10**power for power in range(7) for digit in (5, 10, 20)))


def worker_axis(counts: Iterable[int], configurations: Sequence[ConfigurationRuns]) -> dict[str, Any]:
    """Return a logarithmic axis of workers; ticks at powers of two and, where there is room, at what was run."""
    known = sorted(set(counts))
    run = {configuration.workers for configuration in configurations}
    is_gpus = all(configuration.gpu not in ("CPU", "unknown") for configuration in configurations)
    # Room of 0.3 doublings at both ends; plotly takes the range of a logarithmic axis as powers of ten.
    ends = [math.log2(known[0]), math.log2(known[-1])]
    low, high = (end * math.log10(2) for end in (ends[0] - 0.3, ends[1] + 0.3))
    powers = [n for n in known if n & (n - 1) == 0]
    named = both if len(both := sorted({*powers, *run})) <= MAX_COUNTS else powers
    return axis(
        "workers (GPUs)" if is_gpus else "workers (processes)",
        type="log",
        range=[number(low), number(high)],
        tickmode="array",
        tickvals=named,
        ticktext=[str(n) for n in named],
    )


def log_ticks(values: Iterable[float | None]) -> dict[str, Any]:
    """Return a logarithmic axis with few round ticks, and a quarter more room at both ends."""
    known = [value for value in values if value is not None and math.isfinite(value) and value > 0]
    low, high = min(known, default=1.0) / 1.25, max(known, default=10.0) * 1.25
    # The coarsest steps that leave three ticks.
    finer = (_ticks_between(low, high, steps) for steps in LOG_STEPS)
    ticks = next((ticks for ticks in finer if len(ticks) >= 3), [low, high])
    return {
        "type": "log",
        "range": [number(math.log10(low)), number(math.log10(high))],
        "tickmode": "array",
        "tickvals": numbers(ticks),
        "ticktext": [f"{tick:,g}" if tick < 1e6 else f"{tick:.0e}" for tick in ticks],
    }


def _ticks_between(low: float, high: float, steps: Sequence[float]) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


LOG_STEPS: tuple[tuple[float, ...], ...] = (
    (1,),
    (1, 2, 5),
    (1, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 1.2, 1.4, 1.6, 1.8, 2, 2.2, 2.5, 2.8, 3.2, 3.6, 4, 4.5, 5, 5.5, 6, 7, 8, 9),
)
"""Steps of ticks within a power of ten, from few to many."""


@dataclass(frozen=True, kw_only=True)
class TimeUnit:
    """The unit in which times of some size read well."""

    name: str
    seconds: float

    @classmethod
    def of(cls, times_s: Iterable[float | None]) -> TimeUnit:
        longest = max((t for t in times_s if t is not None and math.isfinite(t)), default=0.0)
        # Each limit leaves numbers of three digits at most: 500 ms, 300 s, 180 min.
        if longest < 0.5:
            return cls(name="ms", seconds=0.001)
        if longest < 300:
            return cls(name="s", seconds=1.0)
        return cls(name="min", seconds=60.0) if longest < 3 * 3600 else cls(name="h", seconds=3600.0)

    def __call__(self, time_s: float | None) -> float | int | None:
        return None if time_s is None else number(time_s / self.seconds)

    def text(self, time_s: float) -> str:
        """Return the time as people say it, also where it is small beside the others."""
        return duration(time_s)


def bar_axis(labels: Sequence[str]) -> dict[str, Any]:
    """Return an axis for bars from top to bottom as given; positions are numbers, since names may be equal."""
    return {
        "automargin": True,
        "tickmode": "array",
        "tickvals": list(range(len(labels))),
        "ticktext": [label_lines(label) for label in labels],
        "ticklabelstandoff": 4,
        "range": [len(labels) - 0.5, -0.5],  # reversed: plotly puts 0 at the bottom
        "zeroline": False,
        "showgrid": False,
    }


def bar_height(labels: Sequence[str]) -> int:
    """Return the height in px of a figure with these bars: its labels have so many lines."""
    lines = [max(label_lines(label).count("<br>") + 1, 2) for label in labels]
    # 110 px for axis and margins; a line of a label takes 14, and 8 lie between two bars.
    return 110 + sum(8 + 14 * count for count in lines)


def error_bars(
    along: str, values: Sequence[float | None], lows: Sequence[float | None], highs: Sequence[float | None]
) -> Trace:
    """Return error bars along x or y, as distances; empty where no end is known or differs from its value."""
    above = [_distance(value, high) for value, high in zip(values, highs, strict=True)]
    below = [_distance(low, value) for value, low in zip(values, lows, strict=True)]
    if not any(above) and not any(below):
        return {}
    bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.5, "width": 5}
    return {f"error_{along}": bars}


def _distance(low: float | None, high: float | None) -> float | int | None:
    return None if low is None or high is None or high <= low else number(high - low)
