"""Epoch time from whole epochs, for runs whose steps nobody timed: other people's tables, plain logs.

    T(N) = overhead + steps(N) x t(N)

The overhead is what does not shrink with N: evaluation on one process, the start of an epoch, the checkpoint. Runs of
our own measure it; there, forecast the step and add the overhead. Here it is fitted together with t(N), the law of
scaling.py at a fixed batch per process, whose c1 and c2 are drawn towards published series. So with two counts, what
the epochs lose beyond what steps typically lose is put down to the overhead.

An example: 80 s on 4 and 44 s on 8 V100s. A step law alone (no overhead) says 24 s for 16, a + b/N alone (steps that
lose nothing) 26 s. The fit takes 6 s as overhead and says 25.5 s; the interval has room for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from turnaround.errors import InputError
from turnaround.forecast.interval import Z_80, HalfWidths, Interval
from turnaround.forecast.remarks import Pinned, Unit
from turnaround.forecast.scaling import Deployment, ScalingLaw, TimeObservation, root_mean_square

# No published series has whole epochs at hand, so these two are judgements, not measurements.
OVERHEAD_SD = 0.2
"""How large the overhead may be, as a share of the longest epoch."""
EPOCH_SCATTER = 0.10
"""Relative: what else is in an epoch (readers, other users of the host), 80 %."""
WHOLE_SECOND_SD_S = 0.29
"""Standard deviation of a time that was rounded to a second."""


@dataclass(frozen=True, kw_only=True)
class EpochTimeObservation(TimeObservation):
    """The time of a steady epoch of one run, evaluation included."""

    batch_per_process: int
    images_per_epoch: int | None = None
    """Where nobody knows, the steps of an epoch are taken as proportional to 1/N."""

    unit: ClassVar[Unit] = "epoch"
    article: ClassVar[str] = "an"

    def _further_numbers(self) -> tuple[str, ...]:
        known = () if self.images_per_epoch is None else ("images_per_epoch",)
        return ("batch_per_process", *known)

    @property
    def noise(self) -> float:
        """Over repeats, and by rounding where the time is a whole number of seconds, as tables have it."""
        rounding_s = WHOLE_SECOND_SD_S if self.time_s == round(self.time_s) else 0.0
        return math.hypot(self.spread, rounding_s / self.time_s)


class EpochTime(ScalingLaw[EpochTimeObservation]):
    """Estimator of the epoch time in seconds, at a fixed batch per process.

    `coefficients_` are those of a step in seconds, or, where the images of an epoch are not known, of an epoch on one
    process.
    """

    unit = "epoch"
    overhead_sd = OVERHEAD_SD

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
        """Nothing can be said where the steps of an epoch are not known."""
        return 0.0 if self.images_per_epoch_ is None else super()._between_hosts_s(configuration)

    def _widths(self, widths: HalfWidths) -> HalfWidths:
        """As wide downwards as upwards: what is overhead and what is a slower step may be split wrongly either way."""
        either = max(widths.less, widths.more)
        return HalfWidths(less=either, more=either).joined(
            Z_80 * self.repeat_spread_, root_mean_square(self.leave_one_out_), EPOCH_SCATTER
        )

    def _pinned(self, counts: Sequence[int]) -> dict[str, Pinned]:
        if len(counts) == 1:
            one = Pinned(reason="one count of epochs", counts=tuple(counts))
            return {"overhead": one, "c1": one, "c2": one}
        if len(counts) == 2:
            two = Pinned(reason="two counts of epochs", counts=tuple(counts))
            return {"c1": two, "c2": two}
        return {"c1": Pinned(reason="three counts of epochs", counts=tuple(counts))} if len(counts) == 3 else {}
