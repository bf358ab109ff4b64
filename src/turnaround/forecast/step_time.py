"""Step time against processes and hosts: the law of scaling.py, a measured input limit, and a second host's cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from turnaround.errors import InputError
from turnaround.forecast.contract import Forecast
from turnaround.forecast.scaling import (
    FARTHEST,
    MIN_TO_LEAVE_OUT,
    Z_80,
    Array,
    HalfWidths,
    Measured,
    Scaling,
    check_positive,
    check_spread,
    efficiency,
    extrapolation_factor,
    features,
    fit_law,
    half_widths,
    more_than_linear,
    prior_rows,
    repeat_spread,
)

TEN_GIGABIT_BYTES_PER_S = 1.25e9
HIDDEN_SHARE = 0.5
"""Of an all-reduce between hosts that nobody has measured, the share that the value takes as hidden behind computation.
The interval's lower end takes all of it as hidden, the upper end none."""
UNKNOWN_GRADIENTS = 1.5
"""Factor of the upper half-width where hosts are crossed for the first time and the gradients' size is not known."""


@dataclass(frozen=True, kw_only=True)
class StepObservation:
    """The median step time of one run, or of several runs of one configuration."""

    processes: int
    hosts: int = 1
    step_time_s: float
    images_per_step: int
    """Of the whole step: the global batch."""
    repeats: int = 1
    spread: float = 0.0
    """Relative standard deviation over the repeats."""

    def __post_init__(self) -> None:
        for what in ("processes", "hosts", "step_time_s", "images_per_step", "repeats"):
            check_positive(f"{what} of a step observation", getattr(self, what))
        check_spread("spread of a step observation", self.spread)


@dataclass(frozen=True, kw_only=True)
class StepConfiguration:
    """What nobody has run yet."""

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
        """One all-reduce of the gradients as a ring over the hosts; 0 where it cannot be known or is not needed."""
        share = 2 * (self.hosts - 1) / self.hosts
        return share * (self.gradient_bytes or 0.0) / self.inter_host_bytes_per_s


class StepTime:
    """Estimator of the step time in seconds.

    `coefficients_` are c0, c1, c2 in seconds; `pinned_` says which of them the data could not identify; `set_aside_`
    and `warnings_` what was not believed and why; `leave_one_out_` the relative error at each count that is left out.
    """

    pinned_: dict[str, str]

    def __init__(self, *, scaling: Scaling = "weak") -> None:
        self.scaling = scaling

    def fit(self, observations: Sequence[StepObservation]) -> Self:
        if not observations:
            raise InputError("No step times to learn from: received none. Give at least one run that was measured.")
        self.images_ = self._common_batch(observations)
        ordered = sorted(observations, key=lambda o: o.processes)
        measured = [
            Measured(processes=o.processes, time_s=o.step_time_s, spread=o.spread, repeats=o.repeats) for o in ordered
        ]
        aside = more_than_linear(measured, self.scaling)
        self.set_aside_ = tuple(ordered[i] for i in aside)
        self.measured_ = [m for i, m in enumerate(measured) if i not in aside]
        self.counts_ = [m.processes for m in self.measured_]
        self.hosts_ = max(o.hosts for i, o in enumerate(ordered) if i not in aside)
        self.coefficients_ = self._coefficients(self.measured_)
        self.repeat_spread_ = repeat_spread(self.measured_)
        self.pinned_ = pinned(self.counts_)
        self.leave_one_out_ = self._leave_one_out()
        self.warnings_ = exclusion_warnings(measured, aside, self.scaling, unit="a step")
        return self

    def predict(self, configuration: StepConfiguration) -> Forecast:
        widths = self._half_widths(configuration)
        law_s = self._law_s(configuration.processes)
        extra_s = configuration.between_hosts_s() if self.crosses_hosts(configuration) else 0.0
        low = law_s * (1 - min(widths.less, 0.9))
        value = law_s + extra_s * (1 - HIDDEN_SHARE)
        high = (law_s + extra_s) * (1 + widths.more)
        input_s = self.input_s(configuration)
        return Forecast(value=max(value, input_s), low=max(low, input_s), high=max(high, input_s))

    def throughput(self, configuration: StepConfiguration) -> Forecast:
        """Images per second of all processes together."""
        step = self.predict(configuration)
        images = self.images_per_step(configuration.processes)
        return Forecast(value=images / step.value, low=images / step.high, high=images / step.low)

    def input_s(self, configuration: StepConfiguration) -> float:
        """The least time in which a host can read its share of a step; 0 where no limit was measured."""
        if configuration.input_images_per_s is None:
            return 0.0
        images_per_host = self.images_per_step(configuration.processes) / configuration.hosts
        return images_per_host / configuration.input_images_per_s

    def images_per_step(self, processes: int) -> float:
        return self.images_ * processes if self.scaling == "weak" else self.images_

    def crosses_hosts(self, configuration: StepConfiguration) -> bool:
        """More than one host where only single hosts were measured."""
        return configuration.hosts > 1 and self.hosts_ == 1

    def cautions(self, configuration: StepConfiguration) -> tuple[str, ...]:
        """What a reader must know about this one forecast, in sentences."""
        return cautions_for(configuration, self.counts_, crosses_hosts=self.crosses_hosts(configuration))

    def _law_s(self, processes: int) -> float:
        return float(features(processes, self.scaling) @ self.coefficients_)

    def _half_widths(self, configuration: StepConfiguration) -> HalfWidths:
        n = configuration.processes
        computed = float(features(n, self.scaling)[0] * self.coefficients_[0])
        widths = half_widths(n, self.counts_, share_lost=1 - computed / self._law_s(n))
        widths = widths.joined(Z_80 * self.repeat_spread_, root_mean_square(self.leave_one_out_))
        return wider_between_hosts(widths, configuration, crosses_hosts=self.crosses_hosts(configuration))

    def _coefficients(self, measured: Sequence[Measured]) -> Array:
        rows = np.array([features(m.processes, self.scaling) for m in measured])
        return fit_law(rows, measured, prior_rows())

    def _leave_one_out(self) -> dict[int, float]:
        counts = sorted(set(self.counts_))
        if len(counts) < MIN_TO_LEAVE_OUT:
            return {}
        errors = {}
        for count in counts:
            others = self._coefficients([m for m in self.measured_ if m.processes != count])
            left_out = [m.time_s for m in self.measured_ if m.processes == count]
            errors[count] = float(features(count, self.scaling) @ others / np.median(left_out) - 1)
        return errors

    def _common_batch(self, observations: Sequence[StepObservation]) -> float:
        """Images per process (weak) or per step (strong), which the law takes as fixed."""
        per = {"weak": "process", "strong": "step"}[self.scaling]
        images = sorted(o.images_per_step / (o.processes if self.scaling == "weak" else 1) for o in observations)
        if images[-1] > 1.01 * images[0]:
            raise InputError(
                f"The runs differ in images per {per}: from {images[0]:g} to {images[-1]:g}. One law needs the same in "
                f"all of them: leave out those that differ, or ask for the other kind of scaling."
            )
        return images[-1]


def pinned(counts: Sequence[int]) -> dict[str, str]:
    """Which coefficients the process counts could not identify, and what stands in for them."""
    different = sorted(set(counts))
    if len(different) == 1:
        why = f"only {in_processes(different[0])} measured: typical of published series"
        return {"c1": why, "c2": why}
    if len(different) == 2:
        few, many = different
        why = (
            f"{few} and {many} processes cannot tell what the second one costs (c1) from what every doubling costs (c2)"
        )
        return {"c1": f"{why}: their ratio is that of published series"}
    return {}


def in_processes(count: int) -> str:
    return f"{count} processes were" if count > 1 else "1 process was"


def exclusion_warnings(
    measured: Sequence[Measured], aside: Sequence[int], scaling: Scaling, *, unit: str
) -> tuple[str, ...]:
    """A sentence for each measurement that was set aside, with the one that contradicts it most."""
    sentences = []
    for odd in (measured[i] for i in aside):
        against = [(max(efficiency(odd, m, scaling), efficiency(m, odd, scaling)), m) for m in measured]
        ratio, other = max(against, key=lambda pair: pair[0])
        sentences.append(
            f"{odd.processes} processes ({odd.time_s:.3g} s {unit}) set aside: against {other.processes} "
            f"({other.time_s:.3g} s) the scaling is {100 * ratio:.0f} % of linear, so the two are not comparable."
        )
    return tuple(sentences)


def cautions_for(configuration: StepConfiguration, counts: Sequence[int], *, crosses_hosts: bool) -> tuple[str, ...]:
    """Distance and first crossing of a host's boundary, said in words."""
    said = []
    distance = extrapolation_factor(configuration.processes, counts)
    if distance > FARTHEST:
        said.append(
            f"{configuration.processes} processes are {distance:.0f} times away from what was measured "
            f"({_range(counts)}); the law was tested up to {FARTHEST:.0f} times."
        )
    if crosses_hosts and configuration.gradient_bytes is None:
        said.append(
            f"No run was on more than one host, and the gradients' size is not known: what {configuration.hosts} hosts "
            "cost is a guess."
        )
    elif crosses_hosts:
        said.append(
            "No run was on more than one host: from no extra cost up to "
            f"{configuration.between_hosts_s():.3g} s a step for {configuration.hosts} hosts "
            f"at {configuration.inter_host_bytes_per_s / 1e9:.3g} GB/s."
        )
    return tuple(said)


def _range(counts: Sequence[int]) -> str:
    few, many = min(counts), max(counts)
    return f"{few} to {many}" if few < many else str(few)


def wider_between_hosts(widths: HalfWidths, configuration: StepConfiguration, *, crosses_hosts: bool) -> HalfWidths:
    if crosses_hosts and configuration.gradient_bytes is None:
        return HalfWidths(less=widths.less, more=widths.more * UNKNOWN_GRADIENTS)
    return widths


def root_mean_square(errors: dict[int, float]) -> float:
    return math.sqrt(sum(e * e for e in errors.values()) / len(errors)) if errors else 0.0
