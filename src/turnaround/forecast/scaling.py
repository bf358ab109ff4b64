"""The law of N that step times and epoch times share, and how far it is off.

    at a fixed batch per process   t(N) = c0 + c1 (N-1)/N + c2 log2 N
    at a fixed global batch        t(N) = c0 / N + c1 + c2 log2 N

c0 is computation; c1 is what the second process costs once and for all (a ring moves (N-1)/N of the gradients; at a
fixed global batch a step has a floor besides); c2 is what every doubling costs. All are at least 0, so more processes
never make a step with the same batch per process faster. Residuals are relative.

What is measured may be a step, or an epoch of s(N) steps with an overhead that does not shrink:

    T(N) = overhead + s(N) t(N)        a step: overhead = 0, s = 1

Two process counts cannot tell c1 from c2, and one count tells neither. So both are drawn towards what is typical of the
published series (a prior), as strongly as those series agree: with one count the typical values decide, with four the
data.

A further law of time is a subclass of ScalingLaw in a file of its own, and a row of TIME_LAWS in laws.py.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import stdev
from typing import ClassVar, Literal, Self, TypeVar

import numpy as np
from scipy.optimize import nnls

from turnaround.errors import InputError
from turnaround.forecast.estimator import Estimator, check_positive, check_spread
from turnaround.forecast.interval import Z_80, Array, HalfWidths, Interval
from turnaround.forecast.remarks import Caution, Exclusion, FarFromMeasured, FirstHosts, Pinned, Unit

Scaling = Literal["weak", "strong"]
"""weak: the batch per process stays; strong: the global batch stays."""

# The constants down to SLOWER_FROM_ONE were derived, by the rule of step_constants in bench/forecast.py, from half of
# the series of NVIDIA's Deep Learning Examples (42 of 84 with three or more GPU counts, 120 of 240 with two or more),
# drawn by a hash of their names. `python bench/forecast.py --published DIR` derives them again, and tests them on the
# other half.
TYPICAL_RING, RING_SD = 0.01, 0.025
"""c1 / c0: what is typical, and how far series differ."""
TYPICAL_DOUBLING, DOUBLING_SD = 0.02, 0.08
"""c2 / c0, the same."""
NOISE = 0.005
"""Relative scatter of one step time about the law."""

# 80 % half-widths, relative, of a time at twice the largest count: (constant, factor of the share of the predicted time
# that is not computation). They grow with the root of the distance. Times are more often longer than predicted than
# shorter.
FASTER = (0.012, 0.06)
SLOWER = (0.114, 0.0)
# With a single count: for each doubling away from it.
FASTER_FROM_ONE, SLOWER_FROM_ONE = 0.015, 0.062
MIN_DOUBLINGS = 0.4  # so that the count that was measured is not known to better than 1 to 3 %

MIN_COMPUTED = 0.1
"""Least share of the shortest time that is taken as computation, however steep the times."""
FARTHEST = 8.0
"""Beyond this multiple of what was measured no series was at hand to test the law."""
MORE_THAN_LINEAR = 1.05
"""Efficiency against a smaller count above which one of the two measurements is not comparable."""
MIN_TO_LEAVE_OUT = 4

# A second host: nobody's published series has both the gradients' size and the network, so these are judgements.
TEN_GIGABIT_BYTES_PER_S = 1.25e9
"""10 Gbit/s Ethernet: the slowest network that data-parallel training is usually run on."""
HIDDEN_SHARE = 0.5
"""Of an all-reduce between hosts that nobody has measured, the share that the value takes as hidden behind computation.
The interval's lower end takes all of it as hidden, the upper end none."""
UNKNOWN_GRADIENTS = 1.5
"""Factor of the upper half-width where hosts are crossed for the first time and the gradients' size is not known."""


@dataclass(frozen=True, kw_only=True)
class TimeObservation:
    """The median time of one run, or of several runs of one configuration. Subclasses say of what."""

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
        """Names of the other fields that must be above 0."""
        return ()

    @property
    def noise(self) -> float:
        """Relative standard deviation of one such time, as far as it tells itself."""
        return self.spread

    def predicted(self, processes: int, time_s: float, *, global_batch: int) -> Self:
        """Return an observation of the same work on another count, as if a law's value had been measured."""
        return replace(self, processes=processes, time_s=time_s, spread=0.0)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One measured time on `processes`, as the fit sees it."""

    processes: int
    time_s: float
    spread: float = 0.0
    """Relative standard deviation over its repeats; 0 when it was run once."""
    repeats: int = 1


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Processes on hosts that nobody has run yet, and what is known of the hosts."""

    processes: int
    hosts: int = 1
    gradient_bytes: float | None = None
    """What a step sends: 4 bytes for each trained parameter, 2 where gradients travel in half precision."""
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
    """Base of the laws of time: all but what was measured, and how much work is in it.

    `coefficients_` are c0, c1, c2 in seconds, `overhead_s_` is what does not shrink; `counts_` are the numbers of
    processes learnt from, `hosts_` the most hosts among them.
    """

    unit: ClassVar[Unit]
    overhead_sd: ClassVar[float | None] = None
    """Prior width of the overhead, as a share of the longest time; None: the law has none."""

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
        self._parameters = self._fitted(self.measured_)
        self.coefficients_ = self._parameters[-3:]
        self.overhead_s_ = float(self._parameters[0]) if self.overhead_sd is not None else 0.0
        self.repeat_spread_ = repeat_spread(self.measured_)
        self.pinned_ = self._pinned(sorted(set(self.counts_)))
        self.leave_one_out_ = self._leave_one_out()
        self.exclusions_ = self._exclusions(measured, aside)
        return self

    def predict(self, configuration: Deployment) -> Interval:
        """Return the time on so many processes; never less than the input path needs."""
        widths = self._half_widths(configuration)
        law_s = self._law_s(configuration.processes, self._parameters)
        extra_s = self._between_hosts_s(configuration)
        return Interval(
            value=law_s + extra_s * (1 - HIDDEN_SHARE),
            low=Interval.around(law_s, widths).low,
            high=(law_s + extra_s) * (1 + widths.more),
        ).at_least(self.input_s(configuration))

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

    def _row(self, processes: int) -> Array:
        """Return what the overhead, c0, c1 and c2 are multiplied with."""
        law = self.steps(processes) * features(processes, self.scaling)
        return law if self.overhead_sd is None else np.array([1.0, *law])

    def _fitted(self, measured: Sequence[Measured]) -> Array:
        """Return the parameters. Steps are counted in those of the first count: all columns are then of one size."""
        columns = np.full(3, self.steps(measured[0].processes))
        priors = prior_rows()
        if self.overhead_sd is not None:
            longest = max(m.time_s for m in measured) / measured[0].time_s
            no_overhead = [1 / (self.overhead_sd * longest), 0.0, 0.0, 0.0]
            columns = np.array([1.0, *columns])
            priors = np.vstack([no_overhead, np.column_stack([np.zeros(2), priors])])
        rows = np.array([self._row(m.processes) / columns for m in measured])
        return np.asarray(fit_law(rows, measured, priors) / columns)

    def _law_s(self, processes: int, parameters: Array) -> float:
        return float(self._row(processes) @ parameters)

    def _between_hosts_s(self, configuration: Deployment) -> float:
        """Return what a first crossing of hosts adds at most."""
        if not self.crosses_hosts(configuration):
            return 0.0
        return configuration.between_hosts_s() * self.steps(configuration.processes)

    def _half_widths(self, configuration: Deployment) -> HalfWidths:
        n = configuration.processes
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
            others = self._fitted([m for m in self.measured_ if m.processes != count])
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


def features(processes: int, scaling: Scaling) -> Array:
    """Return what c0, c1 and c2 are multiplied with."""
    n = float(processes)
    first_two = (1.0, (n - 1) / n) if scaling == "weak" else (1 / n, 1.0)
    return np.array([*first_two, math.log2(n)])


def fit_law(rows: Array, measured: Sequence[Measured], priors: Array) -> Array:
    """Non-negative coefficients: rows @ coefficients is close to the times, relatively; priors @ coefficients to 0.

    The last three columns are those of c0, c1 and c2. c0 is kept above 0, or one process would need no time.
    """
    scale_s = measured[0].time_s
    weights = np.array([scale_s / (m.time_s * noise_of(m)) for m in measured])
    targets = np.array([1 / noise_of(m) for m in measured])
    system = np.vstack([rows * weights[:, None], priors])
    computed = rows[:, -3]
    least = np.zeros(rows.shape[1])
    least[-3] = MIN_COMPUTED * min(m.time_s / c for m, c in zip(measured, computed, strict=True)) / scale_s
    above, _ = nnls(system, np.concatenate([targets, np.zeros(len(priors))]) - system @ least)
    return np.asarray((above + least) * scale_s)


def noise_of(measured: Measured) -> float:
    return math.hypot(NOISE, measured.spread / math.sqrt(measured.repeats))


def prior_rows() -> Array:
    """The two rows that draw c1 and c2 towards the published series."""
    return np.array(
        [
            [-TYPICAL_RING / RING_SD, 1 / RING_SD, 0.0],
            [-TYPICAL_DOUBLING / DOUBLING_SD, 0.0, 1 / DOUBLING_SD],
        ]
    )


def half_widths(processes: int, counts: Sequence[int], *, share_lost: float) -> HalfWidths:
    """Empirical half-widths of a time on `processes` from measurements on `counts`."""
    distance = extrapolation_factor(processes, counts)
    if len(set(counts)) == 1:
        doublings = max(math.log2(distance), MIN_DOUBLINGS)
        less, more = FASTER_FROM_ONE * doublings, SLOWER_FROM_ONE * doublings
    else:
        growth = math.sqrt(max(distance, 2.0) / 2)
        less, more = (growth * (constant + factor * share_lost) for constant, factor in (FASTER, SLOWER))
    if processes < min(counts):  # downwards the law's own direction is turned round
        less, more = more, less
    elif distance == 1.0:  # between two counts it can be wrong either way
        less = more = (less + more) / 2
    return HalfWidths(less=less, more=more)


def extrapolation_factor(processes: int, counts: Sequence[int]) -> float:
    """1 inside the measured counts, else the multiple of the nearest one."""
    return max(processes / max(counts), min(counts) / processes, 1.0)


def repeat_spread(measured: Sequence[Measured]) -> float:
    """The largest relative standard deviation over repeats that is known."""
    by_count: dict[int, list[float]] = {}
    for m in measured:
        by_count.setdefault(m.processes, []).append(math.log(m.time_s))
    between = [stdev(logs) for logs in by_count.values() if len(logs) > 1]
    return max([*between, *(m.spread for m in measured)])


def more_than_linear(measured: Sequence[Measured], scaling: Scaling) -> list[int]:
    """Positions to set aside so that no count is more than linearly faster than a smaller one.

    The one that contradicts most others goes first. Between two alone it is the smaller count: cold caches and busy
    nodes make a measurement too slow, hardly ever too fast.
    """
    kept = list(range(len(measured)))
    aside: list[int] = []
    while True:
        conflicts = [
            (i, j) for i in kept for j in kept if efficiency(measured[i], measured[j], scaling) > _limit(measured, i, j)
        ]
        if not conflicts:
            return sorted(aside)
        involved = [position for pair in conflicts for position in pair]
        worst = max(set(involved), key=lambda p: (involved.count(p), -measured[p].processes, -p))
        kept.remove(worst)
        aside.append(worst)


def efficiency(few: Measured, many: Measured, scaling: Scaling) -> float:
    """Throughput per process on many, relative to few; 0 where `many` are not more."""
    if many.processes <= few.processes:
        return 0.0
    return few.time_s / many.time_s * (few.processes / many.processes if scaling == "strong" else 1.0)


def _limit(measured: Sequence[Measured], i: int, j: int) -> float:
    return MORE_THAN_LINEAR + Z_80 * math.hypot(measured[i].spread, measured[j].spread)


def root_mean_square(errors: dict[int, float]) -> float:
    return math.sqrt(sum(e * e for e in errors.values()) / len(errors)) if errors else 0.0
