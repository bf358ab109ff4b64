"""Epoch time from whole epochs, for runs whose steps nobody timed: other people's tables, plain logs.

    T(N) = overhead + steps(N) x t(N)

The overhead is what does not shrink with N: evaluation on one process, the start of an epoch, the checkpoint. Runs of
our own measure it; there, forecast the step and add the overhead. Here it is fitted only where four counts on one host
identify it. With fewer, whatever epochs lose would look like overhead, and a forecast of many processes would be mostly
that; across hosts, the cost of the second host would. So it is then taken as nothing, and the interval's upper end has
room for it: it holds what a fit with an overhead says.

An example: 80 s on 4 and 44 s on 8 V100s. A step law alone says 24 s for 16, a + b/N alone (steps that lose nothing)
26 s. The forecast is 24 s; the interval has room for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from turnaround.errors import InputError
from turnaround.forecast.interval import HalfWidths, Interval
from turnaround.forecast.remarks import Pinned, Unit
from turnaround.forecast.time_law import Deployment, ScalingLaw, TimeObservation

# No published series has whole epochs at hand, so these are judgements. On the calibration half of bench/forecast.py,
# whose epochs have no overhead, a prior of 0.2 fitted from two counts on gave errors of 2.5 % (80 %: 8.4 %) at the
# largest count where a law without overhead gave 1.5 % (5.4 %); a scatter of 0.02 had 86 % inside, of 0.10 93 %.
OVERHEAD_SD = 0.2
"""Prior width of the overhead, as a share of the longest epoch."""
MIN_COUNTS_FOR_OVERHEAD = 4
"""The law has four parameters with it. Of 10 s in epochs of 240 s to 40 s, four counts find 9.8 s."""
EPOCH_SCATTER = 0.02
"""Relative 80 % half-width of what else is in an epoch (readers, other users of the host)."""
WHOLE_SECOND_SD_S = 0.29
"""Standard deviation of a time that was rounded to a second: uniform over 1 s, 1 / sqrt(12)."""


@dataclass(frozen=True, kw_only=True)
class EpochTimeObservation(TimeObservation):
    """The time of a steady epoch of one run, evaluation included."""

    batch_per_process: int
    images_per_epoch: int | None = None
    """None where it is not known: the steps of an epoch are then taken as proportional to 1/N."""

    unit: ClassVar[Unit] = "epoch"
    article: ClassVar[str] = "an"

    def _further_numbers(self) -> tuple[str, ...]:
        known = () if self.images_per_epoch is None else ("images_per_epoch",)
        return ("batch_per_process", *known)

    @property
    def noise(self) -> float:
        """Return the noise over repeats, and by rounding where the time is a whole number of seconds, as in tables."""
        rounding_s = WHOLE_SECOND_SD_S if self.time_s == round(self.time_s) else 0.0
        return math.hypot(self.spread, rounding_s / self.time_s)


class EpochTime(ScalingLaw[EpochTimeObservation]):
    """Estimator of the epoch time in seconds, at a fixed batch per process.

    `coefficients_` are those of a step in seconds, or, where the images of an epoch are not known, of an epoch on one
    process.
    """

    unit = "epoch"

    def steps(self, processes: int) -> float:
        """Return the steps of an epoch; without the number of images, the share 1/N of those of one process."""
        if self.images_per_epoch_ is None:
            return 1.0 / processes
        return math.ceil(self.images_per_epoch_ / (processes * self.batch_per_process_))

    def images(self, processes: int) -> float:
        return self.images_per_epoch_ or self.steps(processes) * processes * self.batch_per_process_

    def epoch_s(self, time_s: Interval, *, steps: float | None) -> Interval:
        return time_s

    def _check_same_work(self, observations: Sequence[EpochTimeObservation]) -> None:
        for what in ("batch_per_process", "images_per_epoch"):
            values = {getattr(o, what) for o in observations}
            if len(values) > 1:
                received = ", ".join(str(v) for v in sorted(values, key=str))
                raise InputError(
                    f"The runs differ in {what}: {received}. One law needs the same in all of them: leave out those "
                    "that differ."
                )
        self.batch_per_process_ = observations[0].batch_per_process
        self.images_per_epoch_ = observations[0].images_per_epoch

    def _between_hosts_s(self, configuration: Deployment) -> float:
        """Return 0 where the steps of an epoch, and so the all-reduces, are not known."""
        return 0.0 if self.images_per_epoch_ is None else super()._between_hosts_s(configuration)

    def _overhead_prior(self) -> float | None:
        # Across hosts, the cost of the second host would look like overhead.
        is_identified = len(set(self.counts_)) >= MIN_COUNTS_FOR_OVERHEAD and self.hosts_ == 1
        return OVERHEAD_SD if is_identified else None

    def _doubt_s(self, processes: int) -> float:
        """Return the time if what epochs lose were overhead."""
        if self._overhead_prior() is not None:
            return 0.0
        return self._law_s(processes, self._fitted(self.measured_, OVERHEAD_SD))

    def _widths(self, widths: HalfWidths) -> HalfWidths:
        return super()._widths(widths).joined(EPOCH_SCATTER)

    def _pinned(self, counts: Sequence[int]) -> dict[str, Pinned]:
        if len(counts) == 1:
            one = Pinned(reason="one count of epochs", counts=tuple(counts))
            return {"overhead": one, "c1": one, "c2": one}
        pinned = {} if self._overhead_prior() is not None else {"overhead": Pinned(reason="no overhead")}
        if len(counts) == 2:
            pinned["c1"] = Pinned(reason="two counts", counts=tuple(counts))
        return pinned
