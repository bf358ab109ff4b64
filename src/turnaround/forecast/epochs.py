"""Epochs and accuracy against the global batch.

    E(B) = e0 (1 + B / B_crit)         epochs to a stable (or a wanted) accuracy
    a(B) = a0 - k log2(B / B_0)        accuracy at the plateau

The first is McCandlish's law written in epochs: beyond the critical batch, more images per step only cost epochs. It
holds for a learning rate that is scaled with the batch; with another rule the line is still a line, with that rule's
B_crit. Both e0 and the slope are at least 0: a larger batch never takes fewer epochs. The second has a weak prior: a
small drop per doubling, and an accuracy that stays between 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.optimize import nnls

from turnaround.errors import InputError
from turnaround.forecast.estimator import Estimator, check_positive, check_spread
from turnaround.forecast.interval import Z_80, Array, HalfWidths, Interval
from turnaround.forecast.remarks import BatchesClose, BatchFarFromRun, Caution, Pinned

# The constants down to TWO_BATCHES were derived, by the rule of epochs_constants in bench/forecast.py, from the 16
# benchmarks of MLPerf's reference convergence points with three or more batches over a factor of 2. ResNet, SSD and
# RetinaNet are not among them: they are the test. `python bench/forecast.py --published DIR --mlperf DIR` does both.
TYPICAL_SLOPE, SLOPE_SD = 0.50, 0.40
"""Prior of B_max / B_crit, B_max being the largest batch run: mean and standard deviation over benchmarks."""
SCATTER = 0.04
"""Relative scatter of a benchmark's points about the law."""
INSIDE, BELOW = 0.13, 0.24
"""80 % half-widths of fits to three batches, inside them and below the smallest."""
BEYOND = ((1.5, 0.13), (2.0, 0.20), (4.0, 0.33), (16.0, 0.67))
"""(up to this multiple of the largest batch, half-width); farther away it grows with the distance."""
TWO_BATCHES = 1.0
"""Factor of the half-widths with two batches only."""
ONE_BATCH_RATIO = 16.0
"""With a single batch and a larger one asked for: the critical batch in units of the one that was run. Batches that
people run first are small ones: over the pairs of MLPerf's ResNet-50 points, from the smaller to the larger batch, 16
gave errors of 8 % up to 4.5 times and 27 % beyond, 2 gave 12 % and 186 %. For a smaller batch the one that was run is
the large one: see ONE_BATCH_BELOW."""
ONE_BATCH_BELOW = (0.42, 1.11, 2.63)
"""With a single batch and a smaller one asked for: the batch that was run over the critical one, as 10 %, 50 % and 90 %
quantiles over the pairs of MLPerf's ResNet, SSD and RetinaNet, mean of the three. With those of the two
others each benchmark has errors of 11, 5 and 8 % and 77, 100 and 75 % inside (66, 6 and 36 pairs)."""
NOISE_SCALE_FACTOR = 2.5
"""The gradient noise scale is the critical batch within this factor, either way: McCandlish's B_simple equals B_crit
only for a loss that curves alike in all directions."""

MIN_BATCH_RATIO = 2.0
"""Largest to smallest batch below which the slope is mostly noise: the benchmarks above span at least this."""

# Accuracy: no published series is at hand, so these are judgements, wide on purpose.
TYPICAL_FALL, FALL_SD = 0.005, 0.01
"""Prior of the fall of accuracy for each doubling of the global batch: mean and standard deviation."""
ACCURACY_SCATTER = 0.01
"""Between runs that differ in their seed only: 80 %."""


@dataclass(frozen=True, kw_only=True)
class EpochsObservation:
    """Epochs that one configuration needed."""

    global_batch: int
    epochs: float
    sd: float | None = None
    """Standard deviation of `epochs`, where it is known."""

    def __post_init__(self) -> None:
        check_positive("global_batch of an observation", self.global_batch)
        check_positive("epochs of an observation", self.epochs)
        check_spread("sd of an observation", self.sd or 0.0)


@dataclass(frozen=True, kw_only=True)
class AccuracyObservation:
    """Accuracy at the plateau, a fraction, of one configuration."""

    global_batch: int
    accuracy: float
    sd: float | None = None

    def __post_init__(self) -> None:
        check_positive("global_batch of an observation", self.global_batch)
        if not 0 <= self.accuracy <= 1:
            raise InputError(
                f"An accuracy is a fraction from 0 to 1, not {self.accuracy!r}. Divide a percentage by 100."
            )
        check_spread("sd of an observation", self.sd or 0.0)


class EpochsToStable(Estimator[EpochsObservation, int]):
    """Estimator of the epochs at a global batch: `e0_`, `critical_batch_` (infinite where the batch costs nothing).

    With a single batch, `noise_scale` (measured, in images) stands in for the critical batch; without it, a typical
    value does, and the interval is very wide.
    """

    def __init__(self, *, noise_scale: float | None = None) -> None:
        if noise_scale is not None:
            check_positive("noise_scale", noise_scale)
        self.noise_scale = noise_scale

    def fit(self, observations: Sequence[EpochsObservation]) -> Self:
        if not observations:
            raise InputError("No epochs to learn from: received none. Give at least one run that became stable.")
        self.observations_ = sorted(observations, key=lambda o: o.global_batch)
        self.batches_ = sorted({o.global_batch for o in observations})
        self.e0_, self.epochs_per_image_ = self._line()
        self.critical_batch_ = self.e0_ / self.epochs_per_image_ if self.epochs_per_image_ > 0 else math.inf
        self.pinned_, self.leave_one_out_ = self._pinned(), {}
        return self

    def predict(self, configuration: int) -> Interval:
        """Return the epochs at this global batch."""
        check_positive("The global batch", configuration)
        if len(self.batches_) == 1:
            return self._from_one(configuration)
        value = self.e0_ + self.epochs_per_image_ * configuration
        # Extrapolation error of the published benchmarks and the observations' own errors are independent.
        half = math.hypot(self._empirical(configuration), self._propagated(configuration) / value)
        return Interval.around(value, HalfWidths(less=half, more=half))

    def cautions(self, configuration: int) -> tuple[Caution, ...]:
        """Return whether the batch is far from those that were run, and whether those are close together."""
        smallest, largest = self.batches_[0], self.batches_[-1]
        farthest = BEYOND[-1][0]
        cautions: list[Caution] = []
        if configuration > farthest * largest:
            cautions.append(BatchFarFromRun(batch=configuration, largest=largest, tested_factor=farthest))
        if len(self.batches_) > 1 and largest < MIN_BATCH_RATIO * smallest:
            cautions.append(BatchesClose(smallest=smallest, largest=largest))
        return tuple(cautions)

    def _through_one(self, batch: float, critical_batch: float) -> float:
        """Return the law through a single observation: E(B) = E_1 (1 + B / B_crit) / (1 + B_1 / B_crit)."""
        return self._epochs_of_one() * (1 + batch / critical_batch) / (1 + self.batches_[0] / critical_batch)

    def _line(self) -> tuple[float, float]:
        """Return e0, and the epochs for each image of the global batch, e0 / B_crit."""
        largest = self.batches_[-1]
        if len(self.batches_) == 1:
            critical = self.noise_scale or ONE_BATCH_RATIO * largest
            e0 = self._epochs_of_one() / (1 + largest / critical)
            return e0, e0 / critical
        solution, _ = nnls(*self._system())  # (e0, e0 B_max / B_crit), in units of the last observation's epochs
        scale = self.observations_[-1].epochs
        return float(solution[0]) * scale, float(solution[1]) * scale / largest

    def _system(self) -> tuple[Array, Array]:
        """Return rows and targets of the least squares: the slope's prior, then relative residuals by scatter."""
        # With x = (e0, e0 B_max / B_crit) / scale, least of
        #   ((x1 - 0.50 x0) / 0.40)^2 + sum_i (((x0 + x1 B_i / B_max) scale / E_i - 1) / scatter_i)^2,
        # scatter_i^2 = SCATTER^2 + (sd_i / E_i)^2. The prior is the first row.
        largest, scale = self.batches_[-1], self.observations_[-1].epochs
        # Rows: (1 + observations, 2).
        rows, targets = [[-TYPICAL_SLOPE / SLOPE_SD, 1 / SLOPE_SD]], [0.0]
        for o in self.observations_:
            weight = 1 / math.hypot(SCATTER, (o.sd or 0.0) / o.epochs)
            rows.append([weight * scale / o.epochs, weight * scale / o.epochs * o.global_batch / largest])
            targets.append(weight)
        return np.array(rows), np.array(targets)

    def _epochs_of_one(self) -> float:
        return float(np.mean([o.epochs for o in self.observations_]))

    def _from_one(self, batch: int) -> Interval:
        """Return the law at both ends of what the critical batch may be, joined with the scatter of an observation."""
        one = self.batches_[0]
        if self.noise_scale:
            critical = self.noise_scale
            ends = (self.noise_scale / NOISE_SCALE_FACTOR, self.noise_scale * NOISE_SCALE_FACTOR)
        else:
            # Upwards the ends are the prior's steep one, and a batch that costs nothing.
            critical, ends = ONE_BATCH_RATIO * one, (one / (TYPICAL_SLOPE + Z_80 * SLOPE_SD), math.inf)
            if batch < one:
                few, usual, many = ONE_BATCH_BELOW
                critical, ends = one / usual, (one / few, one / many)
        value = self._through_one(batch, critical)
        first, second = sorted(self._through_one(batch, end) for end in ends)
        sd = max((o.sd or 0.0) / o.epochs for o in self.observations_)
        own = math.hypot(INSIDE, Z_80 * sd)
        return Interval.around(
            value, HalfWidths(less=math.hypot(own, 1 - first / value), more=math.hypot(own, second / value - 1))
        )

    def _empirical(self, batch: int) -> float:
        """Return the relative 80 % half-width that the benchmarks had so far from their batches."""
        smallest, largest = self.batches_[0], self.batches_[-1]
        few = TWO_BATCHES if len(self.batches_) == 2 else 1.0
        if batch < smallest:
            return few * BELOW
        if batch <= largest:
            return few * INSIDE
        for up_to, half in BEYOND:
            if batch <= up_to * largest:
                return few * half
        farthest, half = BEYOND[-1]
        return few * half * math.sqrt(batch / largest / farthest)

    def _propagated(self, batch: int) -> float:
        """Return the 80 % half-width, in epochs, that the observations' own standard deviations leave."""
        rows, targets = self._system()
        here = np.array([1.0, batch / self.batches_[-1]])
        # The weighted estimate is linear in the measured epochs: target_i moves by weight_i sd_i / epochs_i.
        moved = np.array(
            [0.0, *(t * (o.sd or 0.0) / o.epochs for t, o in zip(targets[1:], self.observations_, strict=True))]
        )
        gain = here @ np.linalg.pinv(rows)  # (rows,): change of the forecast by each target, bounds of NNLS left aside
        return float(Z_80 * np.linalg.norm(gain * moved) * self.observations_[-1].epochs)

    def _pinned(self) -> dict[str, Pinned]:
        if len(self.batches_) > 1:
            return {}
        if self.noise_scale:
            return {
                "critical_batch": Pinned(reason="noise scale", noise_scale=self.noise_scale, factor=NOISE_SCALE_FACTOR)
            }
        return {"critical_batch": Pinned(reason="typical critical batch")}


class PlateauAccuracy(Estimator[AccuracyObservation, int]):
    """Estimator of the accuracy at the plateau against the global batch: `level_` at the smallest batch that was run,
    `fall_` for each doubling of it."""

    def fit(self, observations: Sequence[AccuracyObservation]) -> Self:
        if not observations:
            raise InputError("No accuracies to learn from: received none. Give at least one run that was evaluated.")
        self.observations_ = list(observations)
        self.batches_ = sorted({o.global_batch for o in observations})
        # Least of ((k - 0.005) / 0.01)^2 + sum_i ((a0 - k log2(B_i / B_0) - a_i) / sd_i)^2 with a0, k >= 0.
        rows, targets = [[0.0, 1 / FALL_SD]], [TYPICAL_FALL / FALL_SD]
        for o in observations:
            weight = 1 / math.hypot(ACCURACY_SCATTER / Z_80, o.sd or 0.0)
            rows.append([weight, -weight * self._doublings(o.global_batch)])
            targets.append(weight * o.accuracy)
        self._rows = np.array(rows)
        (self.level_, self.fall_), _ = nnls(self._rows, np.array(targets))
        self.pinned_, self.leave_one_out_ = {}, {}
        if len(self.batches_) == 1:
            self.pinned_["fall"] = Pinned(reason="typical fall", fall=TYPICAL_FALL)
        return self

    def predict(self, configuration: int) -> Interval:
        """Return the accuracy at this global batch, a fraction."""
        check_positive("The global batch", configuration)
        here = np.array([1.0, -self._doublings(configuration)])
        value = float(here @ np.array([self.level_, self.fall_]))
        # Standard error of the line at this batch, sqrt(x'(X'X)^-1 x) since rows are divided by their standard
        # deviations, and the scatter of one run about it.
        se = math.sqrt(float(here @ np.linalg.inv(self._rows.T @ self._rows) @ here))
        spread = max(o.sd or 0.0 for o in self.observations_)
        half = math.hypot(self._excess() * Z_80 * se, self._excess() * ACCURACY_SCATTER, Z_80 * spread)
        return Interval(value=value, low=value - half, high=value + half).clipped(0.0, 1.0)

    def cautions(self, configuration: int) -> tuple[Caution, ...]:
        """Return nothing: the law of epochs, learnt from the same batches, says how far away this one is."""
        return ()

    def _excess(self) -> float:
        """Return the residual standard deviation in units of that of seeds alone; at least 1."""
        freedom = len(self.observations_) - 2
        if freedom < 1:
            return 1.0
        lines = (self.level_ - self.fall_ * self._doublings(o.global_batch) for o in self.observations_)
        squares = sum((o.accuracy - line) ** 2 for o, line in zip(self.observations_, lines, strict=True))
        # ACCURACY_SCATTER is a half-width at 80 %, so the deviations become one. Below 1 the line fits by luck.
        return max(1.0, Z_80 * math.sqrt(squares / freedom) / ACCURACY_SCATTER)

    def _doublings(self, batch: int) -> float:
        return math.log2(batch / self.batches_[0])
