"""Both laws together: time to stable, job time and cost, with 80 % intervals by simulation; the best number of GPUs.

    time = once + epochs x (epoch + evaluation and checkpoint after it)

Each factor is drawn from its own forecast, 4,000 times with a fixed seed: the same question has the same answer.
The value is that of the values; the interval is the middle 80 % of the draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from turnaround.forecast.contract import Forecast
from turnaround.forecast.observations import Overheads
from turnaround.forecast.scaling import Z_80, Array

NUM_DRAWS = 4000
SEED = 0
Quantity = TypeVar("Quantity", float, Array)

WORTH_IT = 0.05
"""Gain in time below which more GPUs buy nothing."""
# Judgements: no series of others has these parts.
ONCE_SCATTER = 0.2
"""Relative, 80 %: how far start-up and the like differ from run to run, where fewer than two were measured."""


@dataclass(frozen=True, kw_only=True)
class TurnaroundParts:
    """What a job consists of."""

    epoch_s: Forecast
    after_epoch_s: Forecast
    """Evaluation and checkpoint after each epoch; 0 where they are in the epoch's time already."""
    once_s: Forecast
    """Start-up and the like."""


def exact(value: float) -> Forecast:
    return Forecast(value=value, low=value, high=value)


def job_time(parts: TurnaroundParts, epochs: Forecast) -> Forecast:
    """Seconds from the start to the end of so many epochs, without the queue."""
    each = [epochs, parts.epoch_s, parts.after_epoch_s, parts.once_s]
    values = [part.value for part in each]
    low, high = np.quantile(_sum(_draws(each)), [0.1, 0.9])
    # Never narrower than one part alone would make it, which opposite tails of two parts could do.
    alone = [(_sum(_with(values, k, part.low)), _sum(_with(values, k, part.high))) for k, part in enumerate(each)]
    low, high = min(float(low), *(ends[0] for ends in alone)), max(float(high), *(ends[1] for ends in alone))
    return Forecast(value=_sum(values), low=low, high=high)


def _sum(parts: Sequence[Quantity]) -> Quantity:
    epochs, epoch_s, after_epoch_s, once_s = parts
    return epochs * (epoch_s + after_epoch_s) + once_s


def _with(values: Sequence[float], position: int, value: float) -> list[float]:
    return [*values[:position], value, *values[position + 1 :]]


def cost(time_s: Forecast, *, workers: int, price_per_hour: float) -> Forecast:
    """Of all GPUs for that time, in the price's currency."""
    factor = workers * price_per_hour / 3600
    return Forecast(value=time_s.value * factor, low=time_s.low * factor, high=time_s.high * factor)


def per_epoch_overhead(measured: Sequence[Overheads], processes: int) -> Forecast:
    """Evaluation, which the processes share, and the checkpoint, which one of them writes; as measured, never fitted.

    From the nearest count. It is not known how well an evaluation is shared among more: the upper end takes half of the
    gain (on a logarithmic scale) as lost.
    """
    if not measured:
        return exact(0.0)
    nearest = min(measured, key=lambda o: abs(math.log(o.processes / processes)))
    shared = nearest.processes / processes
    ends = sorted(nearest.evaluation_s * share for share in (shared, math.sqrt(shared)))
    value_s, c = nearest.evaluation_s * shared, nearest.checkpoint_s
    return Forecast(value=value_s + c, low=ends[0] + c, high=ends[1] + c)


def fixed_overhead(measured: Sequence[Overheads]) -> Forecast:
    """The median over the configurations, and their extremes; at least 20 % either way."""
    known = sorted(o.once_s for o in measured if o.once_s is not None)
    if not known:
        return exact(0.0)
    value = float(np.median(known))
    low, high = min(known[0], value * (1 - ONCE_SCATTER)), max(known[-1], value * (1 + ONCE_SCATTER))
    return Forecast(value=value, low=low, high=high)


def share_below(forecast: Forecast, limit: float) -> float:
    """The probability that it is at most the limit."""
    return float(np.mean(_draws([forecast])[0] <= limit))


def _draws(forecasts: Sequence[Forecast]) -> list[Array]:
    """Draws of independent forecasts: each side of the value is half of a normal, on a logarithmic scale."""
    rng = np.random.default_rng(SEED)
    quantiles = _normal_quantiles()
    return [_spread(forecast, rng.permutation(quantiles)) for forecast in forecasts]


def _spread(forecast: Forecast, z: Array) -> Array:
    if forecast.low > 0:
        below, above = math.log(forecast.value / forecast.low), math.log(forecast.high / forecast.value)
        return np.asarray(forecast.value * np.exp(z / Z_80 * np.where(z < 0, below, above)))
    below, above = forecast.value - forecast.low, forecast.high - forecast.value
    return np.asarray(np.maximum(forecast.value + z / Z_80 * np.where(z < 0, below, above), 0.0))


def _normal_quantiles() -> Array:
    """Evenly spread over the normal distribution: no luck in the draws of one forecast alone."""
    from scipy.special import ndtri

    return np.asarray(ndtri((np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS))


@dataclass(frozen=True, kw_only=True)
class Best:
    """Over a range of workers, by the values of the forecasts."""

    fastest: int
    cheapest: int
    """Fewest GPU-hours."""
    enough: int
    """The fewest workers beyond which the time falls by less than 5 %."""
    by: str
    """What was compared: "time to stable" or "job time"."""


def best_of(times_s: dict[int, float], *, by: str) -> Best | None:
    """`times_s` by number of workers; None for an empty range."""
    if not times_s:
        return None
    fastest = min(times_s, key=lambda n: (times_s[n], n))
    return Best(
        fastest=fastest,
        cheapest=min(times_s, key=lambda n: (n * times_s[n], n)),
        enough=min(n for n in times_s if n <= fastest and times_s[n] * (1 - WORTH_IT) <= times_s[fastest]),
        by=by,
    )
