"""What the largest measured counts say about larger ones: how the time of a unit of work grows, and how surely.

    log t(N) = log t(N_last) + D (per doubling + share x slope),        D = log2(N / N_last)
    half-width of log t(N) = D^0.75 (constant + factor x unrest)

The slope is that of the last two counts, a doubling; the unrest is the mean size of all slopes, so a steep and a rough
series are wide, a flat one is narrow. Between one host and several lies a boundary: what a step loses inside a host
(processors, PCIe, one input path) says little about what it loses between hosts. So there are three places: on the side
of the boundary that was measured, across it for the first time, and beyond a single count on its far side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from turnaround.forecast.interval import HalfWidths

Place = Literal["measured side", "first hosts", "one count beyond"]

GROWTH: dict[Place, tuple[float, float]] = {
    "measured side": (0.010, 0.75),
    "first hosts": (0.025, 0.25),
    "one count beyond": (0.015, 0.0),
}
"""(growth for each doubling, share of the slope that goes on). Judgements near the least error over the published
series of bench/forecast.py, all of which were in sight: mean error a doubling 3.9, 3.3 and 1.2 %, the best of a grid
3.7, 3.2 and 1.1 %. On the measured side those series, all on DGX machines, would follow all of the slope; step times on
slow networks level off, and 0.75 is the share that was found there."""

# Derived by width_constants in bench/forecast_constants.py from NVIDIA's Deep Learning Examples: 84 series with three
# or more GPU counts of 10 examples. `python bench/forecast.py --published DIR` derives them again, and tests each
# example with the constants of the other nine.
FASTER: dict[Place, tuple[float, float]] = {
    "measured side": (0.008, 1.369),
    "first hosts": (0.006, 0.667),
    "one count beyond": (0.005, 0.155),
}
"""80 % half-widths of the logarithm of a time, downwards: (constant, factor of the unrest)."""
SLOWER: dict[Place, tuple[float, float]] = {
    "measured side": (0.020, 1.134),
    "first hosts": (0.048, 0.362),
    "one count beyond": (0.025, 0.186),
}
"""Upwards."""
WIDTH_POWER = 0.75
"""Between a random walk from doubling to doubling (0.5) and a slope that is wrong throughout (1)."""
STEEPEST = math.log(2)
"""A step that takes twice as long on twice as many processes: nothing is gained. What is steeper is no trend."""
MIN_DOUBLINGS = 0.4
"""Nearer to a measured count no less is claimed: 0.5 to 1.5 % either way where all is flat."""
BETWEEN_DOUBLINGS = 0.8
"""A count between two measured ones is known as one so far beyond the last: of 119 counts that were left out of the
published series 82 % were inside, 65 % with MIN_DOUBLINGS."""


@dataclass(frozen=True, kw_only=True)
class CountTime:
    """The time of a unit of work (a step at a fixed batch per process) on one count, the median of its runs."""

    processes: int
    is_on_several_hosts: bool
    time_s: float


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The trend towards larger counts on one host, or on several."""

    place: Place
    last: CountTime
    """Where it starts: the largest count on the side asked for, else on the other."""
    slope: float
    """Growth of the logarithm of the time for each doubling, at least 0."""
    unrest: float

    @classmethod
    def of(cls, points: Sequence[CountTime], *, is_on_several_hosts: bool) -> Trend:
        """Return the trend of two or more counts."""
        ordered = sorted(points, key=lambda p: (p.processes, p.is_on_several_hosts))
        side = [p for p in ordered if p.is_on_several_hosts == is_on_several_hosts]
        place: Place = "measured side" if len(side) > 1 else "one count beyond" if side else "first hosts"
        if not is_on_several_hosts and len(side) < 2:  # one host, but hardly anything was measured on one
            place, side = "measured side", ordered
        # The slope is that of one side where two counts lie on it: across the boundary it would be the price of a
        # second host, paid once and not for every doubling. The unrest is that of all counts, the step across included.
        slopes = _slopes(side if len(side) > 1 else [p for p in ordered if p not in side])
        sizes = [abs(slope) for slope in _slopes(ordered)]
        return cls(
            place=place,
            last=side[-1] if side else ordered[-1],
            slope=min(max(slopes[-1], 0.0), STEEPEST) if slopes else 0.0,  # below 0: noise
            unrest=min(sum(sizes) / len(sizes), STEEPEST) if sizes else 0.0,
        )

    def doublings(self, processes: int) -> float:
        """Return how far away a count is; a first second host is at least as far as twice the processes."""
        beyond = max(math.log2(processes / self.last.processes), 0.0)
        return max(beyond, 1.0) if self.place == "first hosts" else beyond

    def growth(self, processes: int) -> float:
        """Return the factor of the time of a unit of work between the last count and this one: at least 1."""
        each, share = GROWTH[self.place]
        # Exponential in the doublings: the same share more for each of them.
        return math.exp(self.doublings(processes) * (each + share * self.slope))

    def half_widths(self, doublings: float) -> HalfWidths:
        """Return the relative 80 % half-widths so many doublings away."""
        distance = max(doublings, MIN_DOUBLINGS) ** WIDTH_POWER
        less, more = (
            distance * (constant + factor * self.unrest)
            for constant, factor in (FASTER[self.place], SLOWER[self.place])
        )
        # From logarithms to shares of the value: a factor of e^w either way.
        return HalfWidths(less=1 - math.exp(-less), more=math.exp(more) - 1)


def _slopes(points: Sequence[CountTime]) -> list[float]:
    """Return the growth of log t for each doubling between neighbours; a count that was on both sides has none."""
    return [
        math.log(many.time_s / few.time_s) / math.log2(many.processes / few.processes)
        for few, many in pairwise(points)
        if many.processes > few.processes
    ]
