"""Measured times that hardly can be what they are called: what a reader must know before the forecast is believed.

Enters: the time of a unit of work on each count. Leaves: the doubts, with their figures. Nothing is left out for them:
a series may be as bad as it looks. None of the published series that bench/forecast.py uses is doubted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from turnaround.forecast.interval import Interval
from turnaround.forecast.remarks import DoubtfulTime, DoubtKind
from turnaround.forecast.trend import CountTime, Trend

SAME_TIME = 0.05
"""Throughputs of all counts that are this near to one another: the work is not divided."""
TOO_SLOW = 1.5
"""Times the upper end of what the smaller counts lead to expect."""
LOST_AT_ONCE = 0.4
"""Efficiency of the larger of two counts alone, below which it is named. The least published is 0.58."""


def doubts_of(points: Sequence[CountTime]) -> tuple[DoubtfulTime, ...]:
    """Return at most one doubt: the one that explains most."""
    ordered = sorted(points, key=lambda p: (p.processes, p.is_on_several_hosts))
    if len({p.processes for p in ordered}) < 2:
        return ()
    return tuple(_doubts(ordered))[:1]


def _doubts(ordered: Sequence[CountTime]) -> Iterator[DoubtfulTime]:
    rates = [p.processes / p.time_s for p in ordered]
    first, last = ordered[0], ordered[-1]
    # In this order, as the first is told: work that is not divided explains a slow count as well.
    if max(rates) < min(rates) * (1 + SAME_TIME):
        yield _doubt("same time", last, first)
    fastest = max(range(len(rates)), key=lambda k: rates[k])
    slower = [p for p, rate in zip(ordered[fastest:], rates[fastest:], strict=True) if rate < rates[fastest]]
    if slower:
        yield _doubt("slower than fewer", slower[-1], ordered[fastest])
    # Two counts alone have no trend that the second could be held against.
    if len(ordered) > 2:
        expected = _expected(ordered[:-1], last)
        if last.time_s > TOO_SLOW * expected.high:
            yield _doubt("too slow", last, ordered[-2], factor=last.time_s / expected.value)
    elif first.time_s / last.time_s < LOST_AT_ONCE:
        yield _doubt("lost at once", last, first)


def _expected(known: Sequence[CountTime], asked: CountTime) -> Interval:
    trend = Trend.of(known, is_on_several_hosts=asked.is_on_several_hosts)
    value_s = trend.last.time_s * trend.growth(asked.processes)
    return Interval.around(value_s, trend.half_widths(trend.doublings(asked.processes)))


def _doubt(kind: DoubtKind, odd: CountTime, against: CountTime, *, factor: float | None = None) -> DoubtfulTime:
    rate = (odd.processes / odd.time_s) / (against.processes / against.time_s)
    assert math.isfinite(rate), "times are above 0 and finite"
    return DoubtfulTime(
        kind=kind,
        processes=odd.processes,
        against_processes=against.processes,
        factor=rate if factor is None else factor,
    )
