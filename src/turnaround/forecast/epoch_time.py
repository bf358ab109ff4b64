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
from typing import Self

import numpy as np

from turnaround.errors import InputError
from turnaround.forecast.contract import Forecast
from turnaround.forecast.scaling import (
    MIN_TO_LEAVE_OUT,
    Z_80,
    Array,
    HalfWidths,
    Measured,
    check_positive,
    check_spread,
    features,
    fit_law,
    half_widths,
    more_than_linear,
    prior_rows,
    repeat_spread,
)
from turnaround.forecast.step_time import (
    HIDDEN_SHARE,
    StepConfiguration,
    cautions_for,
    exclusion_warnings,
    in_processes,
    root_mean_square,
    wider_between_hosts,
)

# No published series has whole epochs at hand, so these two are judgements, not measurements.
OVERHEAD_SD = 0.2
"""How large the overhead may be, as a share of the longest epoch."""
EPOCH_SCATTER = 0.10
"""Relative: what else is in an epoch (readers, other users of the host), 80 %."""
WHOLE_SECOND_SD_S = 0.29
"""Standard deviation of a time that was rounded to a second."""


@dataclass(frozen=True, kw_only=True)
class EpochTimeObservation:
    """The time of a steady epoch of one run, evaluation included."""

    processes: int
    hosts: int = 1
    epoch_time_s: float
    batch_per_process: int
    images_per_epoch: int | None = None
    """Where nobody knows, the steps of an epoch are taken as proportional to 1/N."""
    repeats: int = 1
    spread: float = 0.0
    """Relative standard deviation over the repeats."""

    def __post_init__(self) -> None:
        for what in ("processes", "hosts", "epoch_time_s", "batch_per_process", "repeats"):
            check_positive(f"{what} of an epoch time", getattr(self, what))
        if self.images_per_epoch is not None:
            check_positive("images_per_epoch of an epoch time", self.images_per_epoch)
        check_spread("spread of an epoch time", self.spread)


class EpochTime:
    """Estimator of the epoch time in seconds, at a fixed batch per process.

    `overhead_s_` is the part that does not shrink; `coefficients_` are c0, c1, c2 of a step in seconds, or, where the
    images of an epoch are not known, of an epoch on one process. The other attributes are those of StepTime.
    """

    pinned_: dict[str, str]

    def fit(self, observations: Sequence[EpochTimeObservation]) -> Self:
        if not observations:
            raise InputError("No epoch times to learn from: received none. Give at least one run that was measured.")
        self._check_same_job(observations)
        self.batch_per_process_ = observations[0].batch_per_process
        self.images_per_epoch_ = observations[0].images_per_epoch
        ordered = sorted(observations, key=lambda o: o.processes)
        steps = [  # an epoch's time for each of its steps: what must not fall as processes are added
            Measured(
                processes=o.processes,
                time_s=o.epoch_time_s / self.steps(o.processes),
                spread=_spread(o),
                repeats=o.repeats,
            )
            for o in ordered
        ]
        aside = more_than_linear(steps, "weak")
        self.set_aside_ = tuple(ordered[i] for i in aside)
        self.measured_ = [self._measured(o) for i, o in enumerate(ordered) if i not in aside]
        self.counts_ = [m.processes for m in self.measured_]
        self.hosts_ = max(o.hosts for i, o in enumerate(ordered) if i not in aside)
        self.overhead_s_, self.coefficients_ = self._fitted(self.measured_)
        self.repeat_spread_ = repeat_spread(self.measured_)
        self.pinned_ = _pinned(self.counts_)
        self.leave_one_out_ = self._leave_one_out()
        self.warnings_ = exclusion_warnings([self._measured(o) for o in ordered], aside, "strong", unit="an epoch")
        return self

    def predict(self, configuration: StepConfiguration) -> Forecast:
        n, steps = configuration.processes, self.steps(configuration.processes)
        widths = self._half_widths(configuration)
        law_s = self._law_s(n, self.overhead_s_, self.coefficients_)
        extra_s = self._between_hosts_s(configuration)
        low = law_s * (1 - min(widths.less, 0.9))
        value = law_s + extra_s * (1 - HIDDEN_SHARE)
        high = (law_s + extra_s) * (1 + widths.more)
        input_s = 0.0
        if configuration.input_images_per_s is not None:
            images = self.images_per_epoch_ or steps * n * self.batch_per_process_
            input_s = images / configuration.hosts / configuration.input_images_per_s
        return Forecast(value=max(value, input_s), low=max(low, input_s), high=max(high, input_s))

    def steps(self, processes: int) -> float:
        """Steps of an epoch; without the number of images, the share 1/N of those of one process."""
        if self.images_per_epoch_ is None:
            return 1.0 / processes
        return math.ceil(self.images_per_epoch_ / (processes * self.batch_per_process_))

    def crosses_hosts(self, configuration: StepConfiguration) -> bool:
        """More than one host where only single hosts were measured."""
        return configuration.hosts > 1 and self.hosts_ == 1

    def cautions(self, configuration: StepConfiguration) -> tuple[str, ...]:
        """What a reader must know about this one forecast, in sentences."""
        return cautions_for(configuration, self.counts_, crosses_hosts=self.crosses_hosts(configuration))

    def _measured(self, o: EpochTimeObservation) -> Measured:
        return Measured(processes=o.processes, time_s=o.epoch_time_s, spread=_spread(o), repeats=o.repeats)

    def _row(self, processes: int) -> Array:
        return np.array([1.0, *(self.steps(processes) * features(processes, "weak"))])

    def _fitted(self, measured: Sequence[Measured]) -> tuple[float, Array]:
        """Overhead and c0, c1, c2. Steps are counted in those of the first count: all columns are then of one size."""
        unit = self.steps(measured[0].processes)
        rows = np.array([self._row(m.processes) / np.array([1.0, unit, unit, unit]) for m in measured])
        longest = max(m.time_s for m in measured) / measured[0].time_s
        no_overhead = [1 / (OVERHEAD_SD * longest), 0.0, 0.0, 0.0]
        priors = np.vstack([no_overhead, np.column_stack([np.zeros(2), prior_rows()])])
        overhead_s, *law = fit_law(rows, measured, priors)
        return float(overhead_s), np.array(law) / unit

    def _law_s(self, processes: int, overhead_s: float, coefficients: Array) -> float:
        return float(self._row(processes) @ np.array([overhead_s, *coefficients]))

    def _between_hosts_s(self, configuration: StepConfiguration) -> float:
        if not self.crosses_hosts(configuration) or self.images_per_epoch_ is None:
            return 0.0
        return configuration.between_hosts_s() * self.steps(configuration.processes)

    def _half_widths(self, configuration: StepConfiguration) -> HalfWidths:
        """As wide downwards as upwards: what is overhead and what is a slower step may be split wrongly either way."""
        n = configuration.processes
        computed_s = self.steps(n) * float(self.coefficients_[0])
        lost = 1 - computed_s / self._law_s(n, self.overhead_s_, self.coefficients_)
        widths = half_widths(n, self.counts_, share_lost=lost)
        either = max(widths.less, widths.more)
        widths = HalfWidths(less=either, more=either).joined(
            Z_80 * self.repeat_spread_, root_mean_square(self.leave_one_out_), EPOCH_SCATTER
        )
        return wider_between_hosts(widths, configuration, crosses_hosts=self.crosses_hosts(configuration))

    def _leave_one_out(self) -> dict[int, float]:
        counts = sorted(set(self.counts_))
        if len(counts) < MIN_TO_LEAVE_OUT:
            return {}
        errors = {}
        for count in counts:
            overhead_s, law = self._fitted([m for m in self.measured_ if m.processes != count])
            left_out = [m.time_s for m in self.measured_ if m.processes == count]
            errors[count] = float(self._law_s(count, overhead_s, law) / np.median(left_out) - 1)
        return errors

    def _check_same_job(self, observations: Sequence[EpochTimeObservation]) -> None:
        for what in ("batch_per_process", "images_per_epoch"):
            values = {getattr(o, what) for o in observations}
            if len(values) > 1:
                received = ", ".join(str(v) for v in sorted(values, key=str))
                raise InputError(
                    f"The runs differ in {what}: {received}. One law needs the same in all of them: leave out those "
                    "that differ."
                )


def _spread(o: EpochTimeObservation) -> float:
    """Over repeats, and by rounding where the time is a whole number of seconds, as tables have it."""
    rounding_s = WHOLE_SECOND_SD_S if o.epoch_time_s == round(o.epoch_time_s) else 0.0
    return math.hypot(o.spread, rounding_s / o.epoch_time_s)


def _pinned(counts: Sequence[int]) -> dict[str, str]:
    different = sorted(set(counts))
    if len(different) == 1:
        why = (
            f"only {in_processes(different[0])} measured: nothing in an epoch is taken as never shrinking, and steps "
            "as getting slower like those of published series"
        )
        return {"overhead": why, "c1": why, "c2": why}
    if len(different) == 2:
        why = (
            "two counts cannot tell what never shrinks (evaluation, the start of an epoch) from steps that get slower: "
            "the latter are taken as near what is typical"
        )
        return {"c1": why, "c2": why}
    if len(different) == 3:
        why = "three counts cannot tell what the second process costs (c1) from what every doubling costs (c2)"
        return {"c1": f"{why}: their ratio is that of published series"}
    return {}
