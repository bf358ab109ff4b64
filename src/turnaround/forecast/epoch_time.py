"""Epoch time from whole epochs, for runs whose steps nobody timed: other people's tables, plain logs.

    T(N) = overhead + steps(N) x t(N)

The overhead is what does not shrink with N: evaluation on one process, the start of an epoch, the checkpoint. Runs of
our own measure it; there, forecast the step and add the overhead. Here it is fitted only where four counts on one host
identify it. With fewer, whatever epochs lose would look like overhead, and a forecast of many processes would be mostly
that; across hosts, the cost of the second host would. So it is then taken as nothing: what is lost goes on as in steps.

An example: 80 s on 4 and 44 s on 8 V100s. Steps that go on losing say 24 s for 16, a + b/N alone (steps that lose
nothing) 26 s. The forecast is 24 s; the interval has room for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from turnaround.errors import InputError
from turnaround.forecast.interval import Interval
from turnaround.forecast.remarks import Pinned, Unit
from turnaround.forecast.time_law import Deployment, ScalingLaw, TimeObservation

# No published series has whole epochs at hand, so these are judgements.
OVERHEAD_SD = 0.2
"""Prior width of the overhead, as a share of the longest epoch."""
MIN_COUNTS_FOR_OVERHEAD = 4
"""The law has four parameters with it. Of 10 s in epochs of 240 s to 40 s, four counts find 10.6 s."""
WITHOUT_OVERHEAD = 0.01
"""A law without overhead that meets every epoch to this, relatively, needs none. It misses those of the 10 s by 5 %."""
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
        # The last step of an epoch has fewer images, and is a step as well.
        return math.ceil(self.images_per_epoch_ / (processes * self.batch_per_process_))

    def images(self, processes: int) -> float:
        # Not known: (1 / N) x N x batch, the same for every N as the images of an epoch are.
        return self.images_per_epoch_ or self.steps(processes) * processes * self.batch_per_process_

    def epoch_s(self, time_s: Interval, *, steps: float | None) -> Interval:
        # What was measured is a whole epoch: its steps are in the law already.
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

    def _between_hosts_s(self, configuration: Deployment) -> tuple[float, float]:
        # Where the steps of an epoch are not known, neither are its all-reduces: as if the gradients were not known.
        is_known = self.images_per_epoch_ is not None
        return super()._between_hosts_s(configuration if is_known else replace(configuration, gradient_bytes=None))

    def _overhead_prior(self) -> float | None:
        # Across hosts, the cost of the second host would look like overhead.
        if len(set(self.counts_)) < MIN_COUNTS_FOR_OVERHEAD or self.hosts_ > 1:
            return None
        # Without an overhead first: with one in the fit, c1 and c2 would lose to it also where they explain the times.
        law = self._fitted(self.measured_, None)
        misfits = [self._law_s(m.processes, law) / m.time_s - 1 for m in self.measured_]
        return OVERHEAD_SD if max(map(abs, misfits)) > WITHOUT_OVERHEAD else None

    def _pinned(self, counts: Sequence[int]) -> dict[str, Pinned]:
        # One time is one equation: it cannot be divided into steps, what they lose, and an overhead.
        if len(counts) == 1:
            one = Pinned(reason="one count of epochs", counts=tuple(counts))
            return {"overhead": one, "c1": one, "c2": one}
        pinned = {} if self._overhead_prior() is not None else {"overhead": Pinned(reason="no overhead")}
        if len(counts) == 2:
            pinned["c1"] = Pinned(reason="two counts", counts=tuple(counts))
        return pinned
