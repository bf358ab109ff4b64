"""Values with intervals against the number of workers, as SVG that needs nothing else: for paper.

Enters: series of points. Leaves: svg text in which every name is escaped. What was measured, rehearsed or forecast is
told by shape and dash, so that nothing rests on colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import escape

from turnaround.reporting.text_layout import clean

Look = Literal["measured", "rehearsed", "forecast", "ideal"]

WIDTH, HEIGHT = 360.0, 236.0
LEFT, RIGHT, TOP, BOTTOM = 60.0, 12.0, 10.0, 34.0
"""Margins of the plot, without the legend below it."""
LEGEND_ROW, LETTER = 13.0, 5.6
"""Height of a row of the legend, and mean width of a letter at 9.5 px."""
MAX_TICKS = 8
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07800", "#2f86b8", "#5b5b5b", "#857a00")
"""The page's colours on paper, by number (web/assets/base.css), dark enough for thin lines."""
GREY, INK, GRID = "#8a93a0", "#1c2430", "#e0e4ea"


@dataclass(frozen=True, kw_only=True)
class ChartPoint:
    """One value; without `low` and `high` there is no interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class ChartSeries:
    """Points of one look and colour under one name."""

    name: str
    look: Look
    points: tuple[ChartPoint, ...]
    colour: int = 0


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One picture: workers to the right on a logarithmic scale."""

    title: str
    y_title: str
    series: tuple[ChartSeries, ...]
    y_text: Callable[[float], str]
    """The function that writes a tick of the y axis."""
    is_log: bool = False
    y_range: tuple[float, float] | None = None
    """None: what the values need."""
    x_title: str = "workers"


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """A value of one axis -> its place in the picture."""

    low: float
    high: float
    begin: float
    end: float
    is_log: bool

    def __call__(self, value: float) -> float:
        # Clamped: where the range is given, a value beyond it stands at the edge and not over the axis.
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.begin + (self.end - self.begin) * (at - low) / (high - low)


def chart_svg(chart: Chart) -> str:
    """Return the picture as one svg element."""
    points = [point for series in chart.series for point in series.points]
    ends = [end for p in points for end in (p.y, p.low, p.high) if end is not None and math.isfinite(end)]
    rows = list(_legend_rows(chart.series))
    height = HEIGHT + LEGEND_ROW * len(rows)
    x = _Scale(**_x_range([p.x for p in points]), begin=LEFT, end=WIDTH - RIGHT, is_log=True)
    low, high = chart.y_range or _y_range(ends, is_log=chart.is_log)
    y = _Scale(low=low, high=high, begin=HEIGHT - BOTTOM, end=TOP, is_log=chart.is_log)
    parts = [
        *_axes(chart, x, y, sorted({p.x for p in points})),
        *(part for series in chart.series for part in _series(series, x, y)),
        *(part for number, row in enumerate(rows) for part in _legend(row, HEIGHT + 4 + LEGEND_ROW * number)),
    ]
    name = escape(clean(chart.title))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" '
        f'height="{height:g}" role="img" font-family="sans-serif" font-size="9.5" fill="{INK}">'
        f"<title>{name}</title>{''.join(parts)}</svg>"
    )


def _x_range(counts: Sequence[float]) -> dict[str, float]:
    # A little room on both sides, also where there is a single count.
    return {"low": min(counts) / 1.15, "high": max(counts) * 1.15}


def _y_range(values: Sequence[float], *, is_log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if is_log and low > 0:
        return low / 1.2, high * 1.2
    room = (high - low) * 0.12 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _ticks(low: float, high: float, *, is_log: bool) -> list[float]:
    """Return round numbers between the ends: 1, 2, 5 and their powers of ten, or multiples of such a step."""
    if is_log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) >= 2:
            # Every third of 1, 2, 5, 10, ...: one tick a decade.
            return found if len(found) <= MAX_TICKS else found[::3]
    # About five steps; also for a logarithmic range with fewer than two round numbers in it.
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def _axes(chart: Chart, x: _Scale, y: _Scale, counts: Sequence[float]) -> Iterator[str]:
    for tick in _ticks(y.low, y.high, is_log=chart.is_log):
        at = y(tick)
        yield f'<path d="M{LEFT:g} {at:.1f}H{WIDTH - RIGHT:g}" stroke="{GRID}" fill="none"/>'
        # Text stands on its base line: 3.2 px lower, half the height of a digit, it is level with the tick.
        yield _text(LEFT - 5, at + 3.2, chart.y_text(tick), anchor="end")
    # Of too many counts the powers of two, by which people scale.
    shown = counts if len(counts) <= MAX_TICKS else [n for n in counts if math.log2(n).is_integer()]
    for count in shown:
        yield f'<path d="M{x(count):.1f} {HEIGHT - BOTTOM:g}v4" stroke="{INK}" fill="none"/>'
        yield _text(x(count), HEIGHT - BOTTOM + 14, f"{count:g}", anchor="middle")
    yield f'<path d="M{LEFT:g} {TOP:g}V{HEIGHT - BOTTOM:g}H{WIDTH - RIGHT:g}" stroke="{INK}" fill="none"/>'
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 28, chart.x_title, anchor="middle")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield (
        f'<text x="9" y="{middle:g}" text-anchor="middle" transform="rotate(-90 9 {middle:g})">'
        f"{escape(clean(chart.y_title))}</text>"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(clean(text))}</text>'


def _series(series: ChartSeries, x: _Scale, y: _Scale) -> Iterator[str]:
    colour = _colour(series)
    places = [(x(point.x), y(point.y)) for point in series.points]
    if len(places) > 1 and series.look != "rehearsed":
        dash = {"ideal": ' stroke-dasharray="2 3"', "forecast": ' stroke-dasharray="5 3"'}.get(series.look, "")
        line = "L".join(f"{at_x:.1f} {at_y:.1f}" for at_x, at_y in places)
        yield f'<path d="M{line}" stroke="{colour}" fill="none"{dash}/>'
    if series.look == "ideal":
        return
    for point, (at_x, at_y) in zip(series.points, places, strict=True):
        if point.low is not None and point.high is not None and point.low < point.high:
            top, bottom = y(point.high), y(point.low)
            ends = "".join(f"M{at_x - 3:.1f} {end:.1f}h6" for end in (top, bottom))
            yield f'<path d="M{at_x:.1f} {top:.1f}V{bottom:.1f}{ends}" stroke="{colour}" fill="none"/>'
        yield _mark(series.look, at_x, at_y, colour)


def _mark(look: Look, x: float, y: float, colour: str) -> str:
    if look == "ideal":
        return f'<path d="M{x - 7:.1f} {y:.1f}h14" stroke="{colour}" stroke-dasharray="2 3" fill="none"/>'
    if look == "rehearsed":
        return f'<path d="M{x:.1f} {y - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5z" stroke="{colour}" fill="#ffffff"/>'
    fill = colour if look == "measured" else "#ffffff"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4" stroke="{colour}" fill="{fill}"/>'


def _colour(series: ChartSeries) -> str:
    return GREY if series.look == "ideal" else COLOURS[series.colour % len(COLOURS)]


def _legend_rows(series: Sequence[ChartSeries]) -> Iterator[list[tuple[float, ChartSeries]]]:
    """Yield the entries of each row with their places: as many as have room beside one another."""
    row: list[tuple[float, ChartSeries]] = []
    at = LEFT
    named = {one.name: one for one in reversed(series)}  # each name once, in its first look
    for one in reversed(named.values()):
        width = 24 + LETTER * len(clean(one.name))
        if row and at + width > WIDTH:
            yield row
            row, at = [], LEFT
        row.append((at, one))
        at += width
    if row:
        yield row


def _legend(row: Sequence[tuple[float, ChartSeries]], y: float) -> Iterator[str]:
    for at, one in row:
        yield _mark(one.look, at + 8, y, _colour(one))
        yield _text(at + 18, y + 3.2, one.name)
