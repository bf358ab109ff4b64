"""Base of the laws of time: a step was measured, or an epoch of s(N) steps with an overhead.

    T(N) = overhead + s(N) t(N)        a step: overhead = 0, s = 1

Up to the largest count t(N) is the law of scaling.py, beyond it the trend of trend.py goes on from the largest count; a
fixed global batch, for which no series was at hand, keeps the law. Limits: no time is below what the input path of a
host needs; more hosts than one, where only single hosts were measured, cost up to an all-reduce that is not hidden.

A further law of time is a subclass of ScalingLaw in a file of its own, and a row of TIME_LAWS in laws.py.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeVar

import numpy as np

from turnaround.errors import InputError
from turnaround.forecast.estimator import Estimator, check_positive, check_spread, check_time
from turnaround.forecast.interval import Array, HalfWidths, Interval
from turnaround.forecast.remarks import Caution, Exclusion, FarFromMeasured, FirstHosts, Pinned, Unit
from turnaround.forecast.scaling import (
    FARTHEST,
    MIN_COMPUTED,
    MIN_TO_LEAVE_OUT,
    Measured,
    Scaling,
    efficiency,
    extrapolation_factor,
    features,
    fit_law,
    half_widths_from_one,
    more_than_linear,
    prior_rows,
    repeat_half_width,
)
from turnaround.forecast.trend import BETWEEN_DOUBLINGS, CountTime, Trend

# A second host: nobody's published series has both the gradients' size and the network, so these are judgements.
TEN_GIGABIT_BYTES_PER_S = 1.25e9
"""10 Gbit/s Ethernet: what the value takes a network as that nobody has told."""
SLOW_BYTES_PER_S = 0.3e9
"""What an all-reduce gets on a slow network between rented hosts: what the upper end takes a network as."""
HIDDEN_SHARE = 0.5
"""Share of an all-reduce between hosts, unmeasured, that the forecast's value takes as hidden behind computation.
The upper end takes none of it as hidden."""
ON_A_SLOW_NETWORK = 1.0
"""What a first crossing of hosts adds at most, relative to its value, on a network of SLOW_BYTES_PER_S when the
gradients' size is not known; less as the network is faster. ResNet-50's 100 MB take 0.33 s, as long as its step on a
T4."""


@dataclass(frozen=True, kw_only=True)
class TimeObservation:
    """The median time of one run, or of several runs of one configuration. A subclass names the unit."""

    processes: int
    hosts: int = 1
    time_s: float
    repeats: int = 1
    spread: float = 0.0
    """Relative standard deviation over the repeats; 0 when it was run once."""

    unit: ClassVar[Unit]
    article: ClassVar[str] = "a"
    """Before the unit, in messages."""

    def __post_init__(self) -> None:
        for what in ("processes", "hosts", "time_s", "repeats", *self._further_numbers()):
            check_positive(f"{what} of {self.article} {self.unit} observation", getattr(self, what))
        check_time(f"time_s of {self.article} {self.unit} observation", self.time_s)
        check_spread(f"spread of {self.article} {self.unit} observation", self.spread)

    def _further_numbers(self) -> tuple[str, ...]:
        """Return the names of the other fields that must be above 0."""
        return ()

    @property
    def noise(self) -> float:
        """Relative standard deviation of one such time, from the observation alone."""
        return self.spread

    def predicted(self, processes: int, time_s: float, *, global_batch: int) -> Self:
        """Return an observation of the same work on another count, as if a law's value had been measured."""
        return replace(self, processes=processes, time_s=time_s, spread=0.0)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Processes on hosts that nobody has run yet, and what is known of the hosts."""

    processes: int
    hosts: int = 1
    gradient_bytes: float | None = None
    """Bytes that a step sends: 4 for each trained parameter, 2 where gradients travel in half precision."""
    inter_host_bytes_per_s: float | None = None
    """What an all-reduce gets between hosts; None where nobody has told."""
    input_images_per_s: float | None = None
    """Measured limit of one host's input path; never fitted."""

    def __post_init__(self) -> None:
        for what in ("processes", "hosts"):
            check_positive(f"{what} of a configuration", getattr(self, what))
        for what in ("gradient_bytes", "input_images_per_s", "inter_host_bytes_per_s"):
            if getattr(self, what) is not None:
                check_positive(f"{what} of a configuration", getattr(self, what))
        if self.hosts > self.processes:
            raise InputError(
                f"{self.hosts} hosts for {self.processes} processes: a host needs at least one. "
                "Ask for fewer hosts or more processes."
            )

    def between_hosts_s(self, otherwise_bytes_per_s: float) -> float:
        """Return the time of one ring all-reduce of the gradients over the hosts, 2 (h-1)/h S / BW, with another
        bandwidth where it is not known; 0 where the gradients are not known or need not travel."""
        share = 2 * (self.hosts - 1) / self.hosts
        return share * (self.gradient_bytes or 0.0) / (self.inter_host_bytes_per_s or otherwise_bytes_per_s)


Observed = TypeVar("Observed", bound=TimeObservation)


class ScalingLaw(Estimator[Observed, Deployment]):
    """Estimator base of the laws of time; a subclass adds the measured unit and the work in it.

    `coefficients_` are c0, c1, c2 in seconds, `overhead_s_` is what does not shrink; `counts_` are the numbers of
    processes learnt from, `hosts_` the most hosts among them.
    """

    unit: ClassVar[Unit]

    def __init__(self, *, scaling: Scaling = "weak") -> None:
        self.scaling = scaling

    # --- what a law of its own says

    @abstractmethod
    def steps(self, processes: int) -> float:
        """Return the steps in the measured time."""

    @abstractmethod
    def images(self, processes: int) -> float:
        """Return the images of all processes in the measured time."""

    @abstractmethod
    def epoch_s(self, time_s: Interval, *, steps: float | None) -> Interval:
        """Return the time of an epoch of so many steps; None where that is not known."""

    @abstractmethod
    def _check_same_work(self, observations: Sequence[Observed]) -> None:
        """Note what the observations have in common; InputError where they cannot follow one law."""

    @abstractmethod
    def _pinned(self, counts: Sequence[int]) -> dict[str, Pinned]:
        """Return the parameters that these different counts, ascending, cannot identify."""

    def _widths(self, widths: HalfWidths) -> HalfWidths:
        """Return the trend's half-widths joined with what the runs themselves show of noise."""
        return widths.joined(self.repeat_half_width_)

    def _overhead_prior(self) -> float | None:
        """Return the prior width of an overhead, as a share of the longest time; None: none is fitted."""
        return None

    # --- what all laws share

    def fit(self, observations: Sequence[Observed]) -> Self:
        if not observations:
            raise InputError(
                f"No {self.unit} times to learn from: received none. Give at least one run that was measured."
            )
        self._check_same_work(observations)
        ordered = sorted(observations, key=lambda o: o.processes)
        measured = [
            Measured(processes=o.processes, time_s=o.time_s, spread=o.noise, repeats=o.repeats) for o in ordered
        ]
        # Compared by the time of one step, which must not fall as processes are added.
        aside = more_than_linear(
            [replace(m, time_s=m.time_s / self.steps(m.processes)) for m in measured], self.scaling
        )
        kept = [position for position in range(len(ordered)) if position not in aside]
        self.set_aside_ = tuple(ordered[i] for i in aside)
        self.measured_ = [measured[i] for i in kept]
        self.counts_ = [m.processes for m in self.measured_]
        self.hosts_ = max(ordered[i].hosts for i in kept)
        # In this order: the prior of the overhead looks at counts, hosts and times, and the points at the overhead.
        self._parameters = self._fitted(self.measured_, self._overhead_prior())
        self.coefficients_, self.overhead_s_ = self._parameters[-3:], float(sum(self._parameters[:-3]))
        self.points_ = self._points([ordered[i] for i in kept])
        self.repeat_half_width_ = repeat_half_width(self.measured_)
        self.pinned_ = self._pinned(sorted(set(self.counts_)))
        self.leave_one_out_ = self._leave_one_out()
        self.exclusions_ = self._exclusions(measured, aside)
        return self

    def predict(self, configuration: Deployment) -> Interval:
        """Return the time on so many processes; never less than the input path needs."""
        # The physical limits, in this order: of a first all-reduce between hosts the value hides half, the lower end
        # all and the upper end none; the input path bounds all three from below, t = max(t, images of a host / rate).
        value_s, widths = self._value_s(configuration), self._half_widths(configuration)
        extra_s, slow_s = self._between_hosts_s(configuration)
        forecast = Interval(
            value=value_s + extra_s * (1 - HIDDEN_SHARE),
            low=Interval.around(value_s, widths).low,
            high=(value_s + slow_s) * (1 + widths.more),
        )
        trend = self._trend(configuration)
        if self.scaling == "strong" and trend is not None:  # what a step lost it may have lost for good
            forecast = forecast.reaching(low=trend.last.time_s * self._work(configuration.processes), high=0.0)
        return forecast.at_least(self.input_s(configuration))

    def share_lost(self, configuration: Deployment) -> float:
        """Return the share of the forecast time that is not computation."""
        value_s = self._value_s(configuration)
        computed_s = self._work(configuration.processes) * float(self.coefficients_[0])
        return min(max(1 - computed_s / value_s, 0.0), 1.0)

    def input_s(self, configuration: Deployment) -> float:
        """Return the least time in which a host can read its share; 0 where no limit was measured."""
        if configuration.input_images_per_s is None:
            return 0.0
        return self.images(configuration.processes) / configuration.hosts / configuration.input_images_per_s

    def crosses_hosts(self, configuration: Deployment) -> bool:
        """Return whether these are more hosts than one where only single hosts were measured."""
        return configuration.hosts > 1 and self.hosts_ == 1

    def cautions(self, configuration: Deployment) -> tuple[Caution, ...]:
        """Return whether it is far from what was measured, and whether hosts are crossed for the first time."""
        cautions: list[Caution] = []
        distance = extrapolation_factor(configuration.processes, self.counts_)
        if distance > FARTHEST:
            cautions.append(
                FarFromMeasured(
                    processes=configuration.processes,
                    factor=distance,
                    counts=tuple(self.counts_),
                    tested_factor=FARTHEST,
                )
            )
        if self.crosses_hosts(configuration):
            is_known = configuration.gradient_bytes is not None
            cautions.append(
                FirstHosts(
                    hosts=configuration.hosts,
                    extra_s=configuration.between_hosts_s(SLOW_BYTES_PER_S) if is_known else None,
                    bytes_per_s=configuration.inter_host_bytes_per_s or SLOW_BYTES_PER_S,
                    is_network_known=configuration.inter_host_bytes_per_s is not None,
                )
            )
        return tuple(cautions)

    def _points(self, observations: Sequence[Observed]) -> list[CountTime]:
        """Return the time of a unit of work, without the overhead, on each count and side of the host boundary."""
        # The same count on one host and on two are two points, not repeats of one.
        times: dict[tuple[int, bool], list[float]] = {}
        for o in observations:
            times.setdefault((o.processes, o.hosts > 1), []).append(o.time_s)
        points = []
        for (n, is_on_several_hosts), each in times.items():
            time_s = float(np.median(each))
            # An overhead may be nearly all of a short epoch; what is left of it is work.
            work_s = max(time_s - self.overhead_s_, MIN_COMPUTED * time_s) / self._work(n)
            points.append(CountTime(processes=n, is_on_several_hosts=is_on_several_hosts, time_s=work_s))
        return points

    def _work(self, processes: int) -> float:
        """Return the units of work in the measured time: s(N) f0(N), steps and, at a fixed global batch, their size."""
        return self.steps(processes) * float(features(processes, self.scaling)[0])

    def _trend(self, configuration: Deployment) -> Trend | None:
        """Return the trend towards this configuration; None with one count alone."""
        if len(self.points_) == 1:
            return None
        return Trend.of(self.points_, is_on_several_hosts=configuration.hosts > 1)

    def _value_s(self, configuration: Deployment) -> float:
        n, trend = configuration.processes, self._trend(configuration)
        if trend is None or self.scaling == "strong":
            return self._law_s(n, self._parameters)
        last = trend.last.processes
        if n <= last:
            # Growth is 1 here, but for a first crossing: that is a doubling away even with no more processes.
            start_s = (self._law_s(n, self._parameters) - self.overhead_s_) / self._work(n)
            factor = trend.growth(n)
        else:
            # Not below the law at the last count: times never fall as processes are added.
            law_s = (self._law_s(last, self._parameters) - self.overhead_s_) / self._work(last)
            start_s, factor = max(trend.last.time_s, law_s), trend.growth(n)
        return self.overhead_s_ + self._work(n) * start_s * factor

    def _fitted(self, measured: Sequence[Measured], overhead_sd: float | None) -> Array:
        """Return c0, c1, c2, with an overhead before them where it has a prior width.

        Steps are counted in those of the first count: all columns are then of one size.
        """
        # rows: (observations, 3), the factors of c0, c1, c2 in each time.
        unit = self.steps(measured[0].processes)
        rows = np.array([self.steps(m.processes) / unit * features(m.processes, self.scaling) for m in measured])
        if overhead_sd is None:
            return np.asarray(fit_law(rows, measured, prior_rows()) / unit)
        longest = max(m.time_s for m in measured) / measured[0].time_s
        # Prior of the overhead: 0 +- overhead_sd x the longest time, in the units of fit_law.
        no_overhead = [1 / (overhead_sd * longest), 0.0, 0.0, 0.0]
        priors = np.vstack([no_overhead, np.column_stack([np.zeros(2), prior_rows()])])
        overhead_s, *law = fit_law(np.column_stack([np.ones(len(rows)), rows]), measured, priors)
        return np.array([overhead_s, *(coefficient / unit for coefficient in law)])

    def _law_s(self, processes: int, parameters: Array) -> float:
        step_s = float(features(processes, self.scaling) @ parameters[-3:])  # (3,) @ (3,)
        return float(sum(parameters[:-3])) + self.steps(processes) * step_s

    def _between_hosts_s(self, configuration: Deployment) -> tuple[float, float]:
        """Return what a first crossing of hosts adds on the network that is told, else on one of 10 Gbit/s; and the
        most that it adds, on a slow one."""
        if not self.crosses_hosts(configuration):
            return 0.0, 0.0
        if configuration.gradient_bytes is not None:
            steps = self.steps(configuration.processes)
            usual_s, slow_s = (configuration.between_hosts_s(b) for b in (TEN_GIGABIT_BYTES_PER_S, SLOW_BYTES_PER_S))
            return steps * usual_s, steps * slow_s
        # How many bytes would cross is not known, so the value stays; the upper end has room for a step of twice the
        # time on a slow network, and for less on a faster one.
        share = SLOW_BYTES_PER_S / (configuration.inter_host_bytes_per_s or SLOW_BYTES_PER_S)
        return 0.0, min(share, 1.0) * ON_A_SLOW_NETWORK * self._value_s(configuration)

    def _half_widths(self, configuration: Deployment) -> HalfWidths:
        n, trend = configuration.processes, self._trend(configuration)
        if trend is None:
            return self._widths(half_widths_from_one(n, self.counts_[0]))
        is_between = trend.last.processes > n not in self.counts_
        widths = trend.half_widths(BETWEEN_DOUBLINGS if is_between else trend.doublings(n))
        if n < min(self.counts_):  # downwards the law's own direction is turned round
            widths = trend.half_widths(math.log2(min(self.counts_) / n))
            widths = HalfWidths(less=widths.more, more=widths.less)
        elif n <= trend.last.processes and trend.place != "first hosts":  # on or between counts it can be either way
            both = (widths.less + widths.more) / 2
            widths = HalfWidths(less=both, more=both)
        return self._widths(widths)

    def _leave_one_out(self) -> dict[int, float]:
        """Return the relative error at each count; with fewer than four counts the rest would not tell enough."""
        counts = sorted(set(self.counts_))
        if len(counts) < MIN_TO_LEAVE_OUT:
            return {}
        errors = {}
        for count in counts:
            # All repeats of a count go at once: one that stayed would tell what is asked.
            others = self._fitted([m for m in self.measured_ if m.processes != count], self._overhead_prior())
            left_out = [m.time_s for m in self.measured_ if m.processes == count]
            errors[count] = float(self._law_s(count, others) / np.median(left_out) - 1)
        return errors

    def _exclusions(self, measured: Sequence[Measured], aside: Sequence[int]) -> tuple[Exclusion, ...]:
        """Return each time that was set aside with the one that contradicts it most."""
        # The work of an epoch is divided among the processes, whatever their batch.
        scaling: Scaling = "strong" if self.unit == "epoch" else self.scaling
        found = []
        for odd in (measured[i] for i in aside):
            against = [(max(efficiency(odd, m, scaling), efficiency(m, odd, scaling)), m) for m in measured]
            # With both orders: the odd one may be the smaller count of the pair; the other order is 0.
            ratio, other = max(against, key=lambda pair: pair[0])
            found.append(
                Exclusion(
                    processes=odd.processes,
                    time_s=odd.time_s,
                    against_processes=other.processes,
                    against_time_s=other.time_s,
                    efficiency=ratio,
                    unit=self.unit,
                )
            )
        return tuple(found)
