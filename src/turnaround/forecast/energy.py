"""Energy of a configuration that nobody has run: the power that runs on the same kind of GPU measured, times the time.

    energy = workers x watts of one GPU x time

More GPUs each do less of the work in a second, and a GPU that waits uses less power. How much less is not known: at
least the power it would have if all of it went with the images a second, at most that of the run it is taken from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from turnaround.analysis.configurations import ConfigurationRuns
from turnaround.analysis.energy import EnergyRates
from turnaround.forecast.interval import HalfWidths, Interval
from turnaround.record.energy import JOULES_PER_WH

POWER_SCATTER = 0.1
"""Least relative 80 % half-width of the mean power from run to run: boards of one kind differ, and so do their rooms. A
judgement: no published series of trainings has the power of each of its runs."""


def watts_of_gpu(
    configurations: Sequence[ConfigurationRuns], *, workers: int, images_per_s: float | None
) -> Interval | None:
    """Return the mean power of one GPU among so many, from the measured configuration with the nearest number of
    workers; None where none has measured its power."""
    # Several processes on one GPU measured a GPU with more to do than one worker gives it.
    own = [c for c in configurations if all(one.num_gpus in (0, c.workers) for one in c.energies)]
    known = [(c, watts) for c in own if (watts := c.gpu_watts) is not None and watts.value > 0]
    if not known:
        return None
    nearest, watts = min(known, key=lambda pair: abs(math.log(pair[0].workers / workers)))
    pace = 1.0
    if images_per_s is not None and nearest.images_per_s is not None:
        pace = (images_per_s / workers) / (nearest.images_per_s.value / nearest.workers)
    # The value is halfway between the two ends: half of the power goes with the work.
    low, high = sorted((watts.value, watts.value * pace))
    scatter = max(POWER_SCATTER, (watts.high - watts.low) / 2 / watts.value)
    around = Interval.around((low + high) / 2, HalfWidths(less=scatter, more=scatter))
    return around.reaching(low=low * (1 - scatter) if pace != 1 else around.low, high=max(high, around.high))


def energy_wh(time_s: Interval | None, watts: Interval | None, *, workers: int) -> Interval | None:
    """Return the watt-hours of so many GPUs over a time; None where the one or the other is not known."""
    if time_s is None or watts is None or not time_s.low > 0:
        return None
    return time_s.multiplied_by(watts).scaled(workers / JOULES_PER_WH)


def electricity_cost(wh: Interval | None, rates: EnergyRates) -> Interval | None:
    """Return the price of an energy; None where the one or the other is not known."""
    return None if wh is None or rates.price_per_wh is None else wh.scaled(rates.price_per_wh)


def emissions_kg(wh: Interval | None, rates: EnergyRates) -> Interval | None:
    """Return the kilograms of CO2 equivalents of an energy; None where the one or the other is not known."""
    return None if wh is None or rates.kg_per_wh is None else wh.scaled(rates.kg_per_wh)
