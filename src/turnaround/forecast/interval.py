"""One value with its 80 % interval, and the arithmetic of such values. No torch; numpy only for draws.

Errors are relative and skewed: a time is more often twice as long as expected than no time at all. So independent
errors are joined on a logarithmic scale, each side of the value by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

Z_80 = 1.2816
"""Half-width of an 80 % interval in standard deviations."""
NUM_DRAWS = 4000
"""Number of draws: their 10 % and 90 % quantiles are good to about 1 % of the interval's width."""
SEED = 0
"""Fixed: the same question has the same answer."""
MIN_LOW = 0.1
"""Least lower end, as a share of the value: a wide interval must not reach 0, where no logarithm is."""


@dataclass(frozen=True, kw_only=True)
class HalfWidths:
    """Relative half-widths of an interval: how much less and how much more than the value."""

    less: float
    more: float

    def joined(self, *others: float) -> HalfWidths:
        """Return them in quadrature with independent errors that go both ways."""
        return HalfWidths(less=math.hypot(self.less, *others), more=math.hypot(self.more, *others))


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value that nobody has measured, with its 80 % interval."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        assert self.low <= self.value <= self.high, f"{self.value} outside {self.low}..{self.high}"

    @classmethod
    def exact(cls, value: float) -> Interval:
        """Return a value that is known without error."""
        return cls(value=value, low=value, high=value)

    @classmethod
    def around(cls, value: float, widths: HalfWidths) -> Interval:
        """Return the interval with these relative half-widths; the lower end stays above MIN_LOW of the value."""
        return cls(value=value, low=value * (1 - min(widths.less, 1 - MIN_LOW)), high=value * (1 + widths.more))

    @property
    def relative_width(self) -> float:
        return (self.high - self.low) / self.value

    def scaled(self, factor: float) -> Interval:
        """Multiply by a positive number that is known exactly."""
        return Interval(value=self.value * factor, low=self.low * factor, high=self.high * factor)

    def plus(self, constant: float) -> Interval:
        """Add a number that is known exactly."""
        return Interval(value=self.value + constant, low=self.low + constant, high=self.high + constant)

    def into(self, amount: float) -> Interval:
        """Return amount / self: a rate from a time, a speed-up from an epoch's time. The ends change places."""
        return Interval(value=amount / self.value, low=amount / self.high, high=amount / self.low)

    def at_least(self, limit: float) -> Interval:
        """Cut value and ends off below a limit."""
        return Interval(value=max(self.value, limit), low=max(self.low, limit), high=max(self.high, limit))

    def clipped(self, least: float, most: float) -> Interval:
        """Keep value and ends between two limits."""
        low, value, high = (min(max(end, least), most) for end in (self.low, self.value, self.high))
        return Interval(value=value, low=low, high=high)

    def reaching(self, *, low: float, high: float) -> Interval:
        """Widen the interval so that it holds these two as well."""
        return Interval(value=self.value, low=min(self.low, low), high=max(self.high, high))

    def widened(self, factor: float) -> Interval:
        """Multiply both half-widths; the lower end stays above MIN_LOW of the value."""
        low = self.value - factor * (self.value - self.low)
        high = self.value + factor * (self.high - self.value)
        return Interval(value=self.value, low=max(low, MIN_LOW * self.value), high=high)

    def divided_by(self, other: Interval) -> Interval:
        """Return self / other for independent errors: in quadrature on a logarithmic scale."""
        # The quotient is low where self is low or other is high.
        value = self.value / other.value
        less = math.hypot(_log_ratio(self.value, self.low), _log_ratio(other.high, other.value))
        more = math.hypot(_log_ratio(self.high, self.value), _log_ratio(other.value, other.low))
        return Interval(value=value, low=value * math.exp(-less), high=value * math.exp(more))

    def multiplied_by(self, other: Interval) -> Interval:
        """Return self x other for independent errors, both above 0: in quadrature on a logarithmic scale."""
        return self.divided_by(other.into(1.0))

    def share_below(self, limit: float) -> float:
        """Return the probability that it is at most the limit."""
        return float(np.mean(draws([self])[0] <= limit))

    def spread(self, z: Array) -> Array:
        """Return the values at these standard scores: each side of the value is half of a normal distribution, on a
        logarithmic scale where the interval is above 0."""
        # Two-piece lognormal: z = -+Z_80 gives low and high, the 10 % and 90 % quantiles; z = 0 the value, the median.
        if self.low > 0:
            below, above = math.log(self.value / self.low), math.log(self.high / self.value)
            return np.asarray(self.value * np.exp(z / Z_80 * np.where(z < 0, below, above)))
        below, above = self.value - self.low, self.high - self.value
        return np.asarray(np.maximum(self.value + z / Z_80 * np.where(z < 0, below, above), 0.0))


def draws(intervals: Sequence[Interval]) -> list[Array]:
    """Return NUM_DRAWS draws of each, independent of one another."""
    from scipy.special import ndtri  # loading scipy takes longer than all that is computed here

    # Latin hypercube: evenly spread quantiles in random order, so there is no luck in the draws of one interval alone.
    quantiles = np.asarray(ndtri((np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS))
    rng = np.random.default_rng(SEED)
    return [interval.spread(rng.permutation(quantiles)) for interval in intervals]


def one_more(repeats: Sequence[tuple[float, int]]) -> float:
    """Return the 80 % half-width of one further value beside groups of repeats, each with its standard deviation and
    number; 0 without repeats."""
    from scipy.special import stdtrit  # loading scipy takes longer than all that is computed here

    groups = [(sd, count) for sd, count in repeats if count > 1]
    if not groups:
        return 0.0
    # t(f, 0.9) s sqrt(1 + 1/n): three values tell their own scatter badly. With 1.28 s, 62 % lie inside beside three
    # repeats and 51 % beside two.
    counts = [count for _, count in groups]
    freedom = sum(counts) - len(counts)
    sd = math.sqrt(sum((count - 1) * sd**2 for sd, count in groups) / freedom)
    return float(stdtrit(freedom, 0.9)) * sd * math.sqrt(1 + len(counts) / sum(counts))


def middle_80(drawn: Array, value: float) -> Interval:
    """Return the interval that holds the middle 80 % of the draws, and the value."""
    low, high = np.quantile(drawn, [0.1, 0.9])
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))


def _log_ratio(larger: float, smaller: float) -> float:
    return math.log(larger / smaller)
