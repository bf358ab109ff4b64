"""Energy of a configuration that nobody has run: the power that runs on the same kind of GPU measured, times the time.

    energy = workers x watts of one GPU x time

Where there is no run at all, a share of the power of its board (analysis/gpu_kinds.toml) stands for the watts.

More GPUs each do less of the work in a second, and a GPU that waits uses less power. How much less is not known: at
least the power it would have if all of it went with the images a second, at most that of the run it is taken from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from turnaround.analysis.configurations import ConfigurationRuns
from turnaround.analysis.energy import EnergyRates
from turnaround.analysis.gpu_kinds import GpuKind
from turnaround.forecast.interval import HalfWidths, Interval
from turnaround.record.energy import JOULES_PER_WH

POWER_SCATTER = 0.1
"""Least relative 80 % half-width of the mean power from run to run: boards of one kind differ, and so do their rooms. A
judgement: no published series of trainings has the power of each of its runs."""

# Five short trainings on an H200 (docs/LOG.md, "estimates from zero runs, scored on a GPU") used 0.18 to 0.73 Wh by its
# counter. From the first step to the end, saving and the pauses between epochs among them, that is 211 to 362 W of
# the 700 W of its board: shares of 0.30 to 0.52. Over the epochs alone it is 360 to 573 W: 0.51 to 0.82.
BOARD_SHARE = Interval(value=0.5, low=0.2, high=1.0)
"""Power of a GPU that trains, as a share of its board's. At most the whole, to which the driver holds it, and which a
small board as a T4 reaches sooner; the lower end leaves room for steps too small for a large GPU."""
POWER_OVER_A_RUN = Interval(value=0.8, low=0.5, high=1.1)
"""Mean power from the first step to the end over that of the steps alone, which a trial measures: 0.43 to 0.77 in those
runs of some seconds; in longer ones less of the time is between epochs."""
START_POWER = Interval(value=0.2, low=0.05, high=0.6)
"""Power from the command to the first step over that of training. A judgement: a GPU that nobody uses draws a tenth to
a third of its board's power, and the record counts from the moment when its first sample was taken."""


def board_watts(kind: GpuKind | None, *, while_training: float | None = None) -> Interval | None:
    """Return the mean power of one GPU in a training that nobody has run: from what a trial on it drew while it
    trained, else a share of its board's; None where neither is known."""
    if while_training is not None:
        return POWER_OVER_A_RUN.scaled(while_training)
    return None if kind is None or kind.board_watts is None else BOARD_SHARE.scaled(kind.board_watts)


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
