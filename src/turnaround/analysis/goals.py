"""Time and cost of each configuration to one goal, with the interval that its epochs and its repeats allow.

time = epochs to the goal x seconds an epoch        cost = time x processes
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from turnaround.analysis.compare import Fact
from turnaround.analysis.configurations import ConfigurationRuns, Spread, Workload
from turnaround.analysis.stable import EpochEstimate

SAME_TIME = 1.05
"""A judgement: times and costs nearer than this are the same."""

Basis = Literal["target", "stable", "job"]


def device_time_s(time_s: float, devices: int) -> float:
    """Return the seconds of all devices together, which is what is paid for."""
    return devices * time_s


@dataclass(frozen=True, kw_only=True)
class Reached:
    """One configuration on its way to the goal."""

    configuration: ConfigurationRuns
    value_s: float
    low_s: float | None = None
    high_s: float | None = None
    is_lower_bound: bool = False
    """True where the goal was not reached by the end of the runs."""
    has_overheads: bool = False
    """True where start-up and evaluations are in it, False where it is the training time alone."""

    def device_s(self, time_s: float | None) -> float | None:
        """Return the time of all its processes together: GPU-seconds where each has a GPU."""
        return None if time_s is None else device_time_s(time_s, self.configuration.processes)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The configurations that can be compared, in the job's order."""

    basis: Basis
    """`target`: an accuracy that all have reached; `stable`: each its own plateau; `job`: all epochs."""
    reached: tuple[Reached, ...]
    accuracy: float | None = None
    """The accuracy of a target."""


def goals(job: Workload) -> tuple[Goal, ...]:
    """Return the goals that at least one configuration has a time to, the fairest first."""
    to_target = [_reached(c, c.to_target(job.target)) for c in job.configurations]
    to_stable = [_reached(configuration, configuration.stable) for configuration in job.configurations]
    whole = [_whole_job(configuration) for configuration in job.configurations]
    found = (
        Goal(basis="target", reached=tuple(one for one in to_target if one is not None), accuracy=job.target),
        Goal(basis="stable", reached=tuple(one for one in to_stable if one is not None)),
        Goal(basis="job", reached=tuple(one for one in whole if one is not None)),
    )
    return tuple(goal for goal in found if goal.reached)


def time_to_target_s(configuration: ConfigurationRuns, target: float | None) -> float | None:
    """Return epochs to an accuracy x seconds an epoch; None where either is not known, or it was not reached."""
    epochs = configuration.to_target(target)
    found = _reached(configuration, epochs)
    return found.value_s if found is not None and epochs is not None and epochs.status == "reached" else None


def _reached(configuration: ConfigurationRuns, epochs: EpochEstimate | None) -> Reached | None:
    time_s = configuration.epoch_time_s
    if epochs is None or epochs.epoch is None or time_s is None or not math.isfinite(time_s.value):
        return None
    return Reached(
        configuration=configuration,
        # Fewest epochs at the shortest time, most at the longest: wider than independent errors would make it.
        value_s=epochs.epoch * time_s.value,
        low_s=None if epochs.low is None else epochs.low * time_s.low,
        high_s=None if epochs.high is None else epochs.high * time_s.high,
        is_lower_bound=epochs.status == "not yet stable",
    )


def _whole_job(configuration: ConfigurationRuns) -> Reached | None:
    time_s: Spread | None = configuration.job_time_s
    if time_s is None or not math.isfinite(time_s.value):
        return None
    has_repeats = time_s.count > 1
    return Reached(
        configuration=configuration,
        value_s=time_s.value,
        low_s=time_s.low if has_repeats else None,
        high_s=time_s.high if has_repeats else None,
    )


# --- the configurations of a workload by time


@dataclass(frozen=True, kw_only=True)
class TimeRanking:
    """The configurations that can be ranked by time, with the time by which they are."""

    basis: Literal["target", "job", "epoch"]
    time_s: tuple[tuple[ConfigurationRuns, float], ...]
    target: float | None = None

    def fastest(self) -> tuple[list[ConfigurationRuns], float]:
        """Return the configuration with the shortest time, those that are as fast, and that time."""
        ordered = sorted(self.time_s, key=lambda pair: pair[1])
        time_s = ordered[0][1]
        return [c for c, value in ordered if value < time_s * SAME_TIME or value == time_s], time_s


def time_ranking(job: Workload) -> TimeRanking | None:
    """Rank by time to the common target; else by job time, else by epoch time, where the settings are the same.

    A configuration that ended no better than guessing is not ranked: it was fast at nothing.
    """
    useful = [configuration for configuration in job.configurations if not configuration.is_at_chance]
    real = [configuration for configuration in useful if configuration.epoch_time_s is not None]
    to_target = tuple((c, time_s) for c in real if (time_s := time_to_target_s(c, job.target)) is not None)
    if len(to_target) > 1:
        return TimeRanking(basis="target", time_s=to_target, target=job.target)
    # To one accuracy any settings are fair. A whole job, or an epoch, is only compared with one of the same settings.
    by_settings: defaultdict[tuple[Fact, ...], list[ConfigurationRuns]] = defaultdict(list)
    for configuration in useful:
        by_settings[configuration.settings].append(configuration)
    alike = max(by_settings.values(), key=len, default=[])
    jobs = tuple((c, c.job_time_s.value) for c in alike if c.job_time_s is not None)
    if len(jobs) > 1:
        return TimeRanking(basis="job", time_s=jobs)
    epochs = tuple((c, c.epoch_time_s.value) for c in alike if c.epoch_time_s is not None)
    return TimeRanking(basis="epoch", time_s=epochs) if len(epochs) > 1 else None
