"""Base of the laws of time: a step was measured, or an epoch of s(N) steps with an overhead.

    T(N) = overhead + s(N) t(N)        a step: overhead = 0, s = 1

t(N) is the law of scaling.py. Limits: no time is below what the input path of a host needs; more hosts than one, where
only single hosts were measured, cost from nothing up to an all-reduce that is not hidden; and beyond the largest count
the interval holds the case that nothing more is lost.

A further law of time is a subclass of ScalingLaw in a file of its own, and a row of TIME_LAWS in laws.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeVar

import numpy as np

from turnaround.errors import InputError
from turnaround.forecast.estimator import Estimator, check_positive, check_spread
from turnaround.forecast.interval import Z_80, Array, HalfWidths, Interval
from turnaround.forecast.remarks import Caution, Exclusion, FarFromMeasured, FirstHosts, Pinned, Unit
from turnaround.forecast.scaling import (
    FARTHEST,
    MIN_TO_LEAVE_OUT,
    Measured,
    Scaling,
    efficiency,
    extrapolation_factor,
    features,
    fit_law,
    half_widths,
    more_than_linear,
    prior_rows,
    repeat_spread,
    root_mean_square,
)

# A second host: nobody's published series has both the gradients' size and the network, so these are judgements.
TEN_GIGABIT_BYTES_PER_S = 1.25e9
"""10 Gbit/s Ethernet: the slowest network that data-parallel training is usually run on."""
HIDDEN_SHARE = 0.5
"""Share of an all-reduce between hosts, unmeasured, that the forecast's value takes as hidden behind computation.
The interval's lower end takes all of it as hidden, the upper end none."""
UNKNOWN_GRADIENTS = 1.5
"""Factor of the upper half-width where hosts are crossed for the first time and the gradients' size is not known."""


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
    inter_host_bytes_per_s: float = TEN_GIGABIT_BYTES_PER_S
    input_images_per_s: float | None = None
    """Measured limit of one host's input path; never fitted."""

    def __post_init__(self) -> None:
        for what in ("processes", "hosts", "inter_host_bytes_per_s"):
            check_positive(f"{what} of a configuration", getattr(self, what))
        for what in ("gradient_bytes", "input_images_per_s"):
            if getattr(self, what) is not None:
                check_positive(f"{what} of a configuration", getattr(self, what))
        if self.hosts > self.processes:
            raise InputError(
                f"{self.hosts} hosts for {self.processes} processes: a host needs at least one. "
                "Ask for fewer hosts or more processes."
            )

    def between_hosts_s(self) -> float:
        """Return the time of one ring all-reduce of the gradients over the hosts, 2 (h-1)/h S / BW; 0 where it cannot
        be known or is not needed."""
        share = 2 * (self.hosts - 1) / self.hosts
        return share * (self.gradient_bytes or 0.0) / self.inter_host_bytes_per_s


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
        """Return the law's own half-widths joined with what the runs themselves show of noise and misfit."""
        return widths.joined(Z_80 * self.repeat_spread_, root_mean_square(self.leave_one_out_))

    def _overhead_prior(self) -> float | None:
        """Return the prior width of an overhead, as a share of the longest time; None: none is fitted."""
        return None

    def _doubt_s(self, processes: int) -> float:
        """Return a longer time that the interval must hold besides; 0 where there is none."""
        return 0.0

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
        self._parameters = self._fitted(self.measured_, self._overhead_prior())
        self.coefficients_, self.overhead_s_ = self._parameters[-3:], float(sum(self._parameters[:-3]))
        self.repeat_spread_ = repeat_spread(self.measured_)
        self.pinned_ = self._pinned(sorted(set(self.counts_)))
        self.leave_one_out_ = self._leave_one_out()
        self.exclusions_ = self._exclusions(measured, aside)
        return self

    def predict(self, configuration: Deployment) -> Interval:
        """Return the time on so many processes; never less than the input path needs."""
        n, widths = configuration.processes, self._half_widths(configuration)
        # The physical limits, in this order: the value hides half of a first all-reduce between hosts, the lower end
        # all, the upper end none; the lower end reaches to the case that nothing more is lost; the input path bounds
        # all three from below: t = max(t_law, images of a host / its images per second).
        law_s, extra_s = self._law_s(n, self._parameters), self._between_hosts_s(configuration)
        forecast = Interval(
            value=law_s + extra_s * (1 - HIDDEN_SHARE),
            low=Interval.around(law_s, widths).low,
            high=(law_s + extra_s) * (1 + widths.more),
        )
        forecast = forecast.reaching(low=self._last_efficiency_s(n) or forecast.low, high=self._doubt_s(n))
        return forecast.at_least(self.input_s(configuration))

    def throughput(self, configuration: Deployment) -> Interval:
        """Return the images per second of all processes together."""
        return self.predict(configuration).into(self.images(configuration.processes))

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
                    extra_s=configuration.between_hosts_s() if is_known else None,
                    bytes_per_s=configuration.inter_host_bytes_per_s,
                )
            )
        return tuple(cautions)

    def _last_efficiency_s(self, processes: int) -> float | None:
        """Return the time if nothing more were lost than at the largest count; None below it, or with one count.

        What a step loses, it mostly loses at once (a second process, a second host): series that had lost a tenth and
        more often stayed where they were. So the interval always holds this. On halves of six splits that the constants
        had not seen, 79 % were then inside at a mean width of 12.3 %; without it 77 % at 12.7 %.
        """
        largest = max(self.counts_)
        if processes <= largest or len(set(self.counts_)) == 1:
            return None
        # t(N) = t(N_last) s(N) f0(N) / (s(N_last) f0(N_last)): computation alone changes, efficiency stays.
        last_s = float(np.median([m.time_s for m in self.measured_ if m.processes == largest]))
        here, there = (self.steps(n) * float(features(n, self.scaling)[0]) for n in (processes, largest))
        return last_s * here / there

    def _fitted(self, measured: Sequence[Measured], overhead_sd: float | None) -> Array:
        """Return c0, c1, c2, with an overhead before them where it has a prior width.

        Steps are counted in those of the first count: all columns are then of one size.
        """
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

    def _between_hosts_s(self, configuration: Deployment) -> float:
        """Return what a first crossing of hosts adds at most."""
        if not self.crosses_hosts(configuration):
            return 0.0
        return configuration.between_hosts_s() * self.steps(configuration.processes)

    def _half_widths(self, configuration: Deployment) -> HalfWidths:
        n = configuration.processes
        # share lost = 1 - s(N) c0 f0(N) / T(N). What is lost need not grow by the law: it widens FASTER of scaling.py.
        computed_s = self.steps(n) * float(features(n, self.scaling)[0] * self.coefficients_[0])
        lost = 1 - computed_s / self._law_s(n, self._parameters)
        widths = self._widths(half_widths(n, self.counts_, share_lost=lost))
        if self.crosses_hosts(configuration) and configuration.gradient_bytes is None:
            return replace(widths, more=widths.more * UNKNOWN_GRADIENTS)
        return widths

    def _leave_one_out(self) -> dict[int, float]:
        """Return the relative error at each count; with fewer than four counts the rest would not tell enough."""
        counts = sorted(set(self.counts_))
        if len(counts) < MIN_TO_LEAVE_OUT:
            return {}
        errors = {}
        for count in counts:
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
