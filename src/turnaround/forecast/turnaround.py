"""Both laws together: time to stable, job time and cost, with 80 % intervals by simulation.

    time = fixed overhead + epochs x (epoch + evaluation and checkpoint after it)

Each factor is drawn from its own forecast, 4,000 times with a fixed seed: the same question has the same answer.
The value is that of the values; the interval is the middle 80 % of the draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, stdev
from typing import TypeVar

import numpy as np

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.goals import device_time_s
from turnaround.analysis.prices import Price
from turnaround.errors import InputError
from turnaround.forecast.interval import Array, Interval, draws, middle_80, one_more
from turnaround.forecast.observations import Overheads, Times, times_by_kind
from turnaround.interruptions import HOUR_S

Quantity = TypeVar("Quantity", float, Array)

NEAR_FASTEST = 1.10
"""Times within a tenth of the fastest are as good for most people: the cheapest of them is the one to take."""
FIXED_SCATTER = 0.2
"""Least relative 80 % half-width of start-up and the like, from run to run. A judgement: no published series has these
parts."""


@dataclass(frozen=True, kw_only=True)
class TurnaroundParts:
    """The parts of a job's time."""

    epoch_s: Interval
    per_epoch_overhead_s: Interval
    """Evaluation and checkpoint after each epoch; 0 where they are in the epoch's time already."""
    fixed_overhead_s: Interval
    """Start-up and the like."""


def job_time(parts: TurnaroundParts, epochs: Interval) -> Interval:
    """Return the seconds from the start to the end of so many epochs, without the queue."""
    each = [epochs, parts.epoch_s, parts.per_epoch_overhead_s, parts.fixed_overhead_s]
    values = [part.value for part in each]
    # Never narrower than one part alone would make it, which opposite tails of two parts could do.
    alone = [(_sum(_with(values, k, part.low)), _sum(_with(values, k, part.high))) for k, part in enumerate(each)]
    # The parts' errors are independent: NUM_DRAWS draws of each, (NUM_DRAWS,), through the formula.
    simulated = middle_80(_sum(draws(each)), _sum(values))
    return simulated.reaching(low=min(ends[0] for ends in alone), high=max(ends[1] for ends in alone))


def measured_time_to_stable(
    times: Times, configuration: ConfigurationRuns, *, or_longer: bool = False
) -> Interval | None:
    """Return the time to stable of a timed configuration, with start-up and evaluations as the forecast has them; the
    interval is that of its epochs alone. `or_longer`: also of one that was not yet stable at its end, as a lower bound.

    It is the only definition: page, terminal, findings and forecasts ask here.
    """
    stable, epoch_s = configuration.stable, configuration.epoch_time_s
    is_counted = stable.status == "stable" or (or_longer and stable.status == "not yet stable")
    # A configuration of another kind of GPU is not among these times: it has no overheads here, and no time.
    overheads = next(
        (o for c, o in zip(times.configurations, times.overheads, strict=True) if c is configuration), None
    )
    if not is_counted or stable.epoch is None or epoch_s is None or overheads is None:
        return None
    # Where its own start-up is not known, the median of the others, which is the forecast's value too.
    fixed = [o.fixed_s for o in times.overheads if o.fixed_s is not None]
    fixed_s = overheads.fixed_s if overheads.fixed_s is not None else median(fixed) if fixed else 0.0
    parts = TurnaroundParts(
        epoch_s=Interval.exact(epoch_s.value),
        per_epoch_overhead_s=Interval.exact(overheads.evaluation_s + overheads.checkpoint_s),
        fixed_overhead_s=Interval.exact(fixed_s),
    )
    # A stable epoch that a table states has no interval, and a lower bound no upper end.
    low, high = stable.low or stable.epoch, stable.high or stable.epoch
    ends = [job_time(parts, Interval.exact(epochs)).value for epochs in (low, stable.epoch, high)]
    return Interval(low=ends[0], value=ends[1], high=ends[2])


def measured_times_to_stable(
    job: Workload, configurations: Sequence[ConfigurationRuns], *, or_longer: bool = False
) -> list[Interval] | None:
    """Return the times to stable of these configurations; None where one has none: they cannot be compared then."""
    try:
        kinds = times_by_kind(job).values()
    except InputError:  # a record with times that cannot be: nothing is to be learnt from it
        return None
    each = [
        [measured_time_to_stable(times, configuration, or_longer=or_longer) for times in kinds]
        for configuration in configurations
    ]
    found = [next((time_s for time_s in one if time_s is not None), None) for one in each]
    known = [time_s for time_s in found if time_s is not None]
    return known if len(known) == len(configurations) else None


def training_time(epoch_s: Interval, epochs: Interval) -> Interval:
    """Return the time of so many epochs alone, without start-up, evaluations and checkpoints."""
    nothing = Interval.exact(0.0)
    return job_time(TurnaroundParts(epoch_s=epoch_s, per_epoch_overhead_s=nothing, fixed_overhead_s=nothing), epochs)


def _sum(parts: Sequence[Quantity]) -> Quantity:
    """Return T = epochs (epoch + overhead of an epoch) + fixed overhead, of values or of draws."""
    epochs, epoch_s, per_epoch_s, fixed_s = parts
    return epochs * (epoch_s + per_epoch_s) + fixed_s


def _with(values: Sequence[float], position: int, value: float) -> list[float]:
    return [*values[:position], value, *values[position + 1 :]]


def gpu_hours(time_s: float, workers: int) -> float:
    """Return the hours of all GPUs together."""
    return device_time_s(time_s, workers) / HOUR_S


def price_interval(time_s: Interval | None, price: Price | None, *, workers: int) -> Interval | None:
    """Return what so many GPUs cost for that time, in whole billing units; None where time or price is not known."""
    if price is None or time_s is None:
        return None
    low, value, high = (price.cost(end, devices=workers) for end in (time_s.low, time_s.value, time_s.high))
    return Interval(value=value, low=low, high=high)


def per_epoch_overhead(measured: Sequence[Overheads], processes: int) -> Interval:
    """Return evaluation, which the processes share, and checkpoint, which one of them writes: measured, never fitted.

    From the nearest count. It is not known how well an evaluation is shared among more: the upper end takes half of the
    gain (on a logarithmic scale) as lost.
    """
    if not measured:
        return Interval.exact(0.0)
    # Nearest in doublings: 4 is as near to 8 as to 2.
    nearest = min(measured, key=lambda o: abs(math.log(o.processes / processes)))
    # value: evaluation n / N, all of the gain; the other end: evaluation sqrt(n / N), half of it in the exponent.
    shared = nearest.processes / processes
    # Towards fewer processes both are above 1, and the square root is the lower end.
    low, high = sorted(nearest.evaluation_s * share for share in (shared, math.sqrt(shared)))
    return Interval(value=nearest.evaluation_s * shared, low=low, high=high).plus(nearest.checkpoint_s)


def fixed_overhead(measured: Sequence[Overheads]) -> Interval:
    """Return the median over the configurations, their extremes, and the middle 80 % of one further run of a
    configuration; at least 20 % either way."""
    known = sorted(o.fixed_s for o in measured if o.fixed_s is not None)
    if not known:
        return Interval.exact(0.0)
    value = float(np.median(known))
    scatter = Interval(value=value, low=value * (1 - FIXED_SCATTER), high=value * (1 + FIXED_SCATTER))
    # On a busy machine one run may start in half the time of the next: each against the median of its configuration.
    ratios = [run_s / o.fixed_s for o in measured if o.fixed_s for run_s in o.fixed_runs_s] or [1.0]
    low, high = (value * float(ratio) for ratio in np.quantile(ratios, [0.1, 0.9]))
    # Few runs do not show their own 10 and 90 %: three hold the next one in half of the cases.
    repeated = [o for o in measured if o.fixed_s and len(o.fixed_runs_s) > 1]
    factor = 1 + one_more([(stdev(o.fixed_runs_s) / (o.fixed_s or 1.0), len(o.fixed_runs_s)) for o in repeated])
    return scatter.reaching(low=min(known[0], low, value / factor), high=max(known[-1], high, value * factor))
