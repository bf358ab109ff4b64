"""Small charts in text: a curve in one row of blocks, bars with a mark for the ideal. ASCII where there are none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, kw_only=True)
class Glyphs:
    """What a chart is drawn with."""

    levels: str
    """From the lowest to the highest."""
    eighths: str
    """Of a bar's last cell, from one eighth on; nothing where cells cannot be divided."""
    full: str
    mark: str
    rule: str
    """Under a heading."""

    @property
    def is_ascii(self) -> bool:
        return self.levels.isascii()


BLOCKS = Glyphs(levels="▁▂▃▄▅▆▇█", eighths="▏▎▍▌▋▊▉", full="█", mark="│", rule="─")
ASCII = Glyphs(levels="_.:-=+*#", eighths="", full="#", mark="|", rule="-")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Blocks where the terminal's encoding has them."""
    everything = BLOCKS.levels + BLOCKS.eighths + BLOCKS.full + BLOCKS.mark + BLOCKS.rule
    try:
        everything.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def sparkline(
    values: Sequence[float], *, low: float, high: float, glyphs: Glyphs = BLOCKS, values_per_cell: int = 1
) -> str:
    """One cell for each `values_per_cell` values, drawn by their mean; a blank where there is no number."""
    groups = [values[start : start + values_per_cell] for start in range(0, len(values), values_per_cell)]
    return "".join(_level(group, low, high, glyphs) for group in groups)


def _level(group: Sequence[float], low: float, high: float, glyphs: Glyphs) -> str:
    known = [value for value in group if math.isfinite(value)]
    if not known:
        return " "
    share = (fmean(known) - low) / (high - low) if high > low else 0.5
    return glyphs.levels[min(max(int(share * len(glyphs.levels)), 0), len(glyphs.levels) - 1)]


def bar(value: float, *, longest: float, cells: int, glyphs: Glyphs = BLOCKS, mark: float | None = None) -> str:
    """A bar of at most `cells` cells for `longest`, with a mark where another value would end."""
    parts = max(len(glyphs.eighths) + 1, 1)
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
