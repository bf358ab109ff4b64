"""Speed-up and efficiency by one definition, against one named baseline for each kind of GPU.

speed-up   = epoch time of the baseline / epoch time of the configuration
efficiency = speed-up / (workers of the configuration / workers of the baseline)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from turnaround.analysis.compare import Fact
from turnaround.analysis.configurations import Configuration, ConfigurationRuns, Spread, Workload
from turnaround.analysis.gpu_kinds import data_sheet

MAX_EFFICIENCY = 1.05
"""More than this is more than linear: one of the two times does not measure what the other does."""
# Over public pairs of kinds the speed was at least 0.7 of the ratio of memory bandwidths (forecast/hardware.py), so 1.5
# times the bandwidth is a gain of 5 % at the very least and of 35 % typically.
FASTER_GPU = 1.5
"""Ratio of memory bandwidths from which one kind of GPU must be faster than another ..."""
NO_GAIN = 1.15
"""... unless its epochs are shorter by less than this: then the GPUs were not the limit."""
_WHOLE_SECOND_S = 0.5  # what rounding to a second can hide


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """One configuration against its baseline; low and high are the most that the repeats of both allow."""

    baseline: Configuration
    speedup: Spread
    efficiency: Spread
    is_superlinear: bool
    """Faster than linear by more than 5 %, and by more than the rounding of a table's times can explain."""


def speedups(job: Workload) -> dict[Configuration, Speedup]:
    """Return the speed-up of every configuration with times; the baseline has the fewest workers of its kind of GPU."""
    return {
        c.key: speedup_of(group[0], c)
        for group in comparable_in_time(job)
        for c in group
        if not is_its_twin(group[0], c)
    }


def is_its_twin(baseline: ConfigurationRuns, configuration: ConfigurationRuns) -> bool:
    """Tell whether another is the baseline as far as time goes, with other epochs: the ratio is noise."""
    return configuration is not baseline and replace(baseline.key, settings=()) == replace(
        configuration.key, settings=()
    )


def job_speedups(job: Workload) -> dict[Configuration, Spread]:
    """Return the speed-up of whole jobs over the fewest workers, where programs were timed from outside only.

    Where epochs were timed they are the better measure: a job's time has its start in it, which no worker shortens.
    """
    timed = [
        configuration
        for configuration in job.configurations
        if configuration.job_time_s is not None and not any(r.is_recorded for r in configuration.summaries)
    ]
    if len(timed) < 2:
        return {}
    first = min(timed, key=lambda configuration: configuration.workers)
    times_s = {c.key: c.job_time_s for c in timed if c.job_time_s is not None}
    before = times_s[first.key]
    return {c: _ratio_of(before, now if c != first.key else None) for c, now in times_s.items()}


def comparable_in_time(job: Workload) -> list[list[ConfigurationRuns]]:
    """Group the configurations with times by kind of GPU and what else matters for time; fewest workers first."""
    groups: defaultdict[tuple[str, tuple[Fact, ...]], list[ConfigurationRuns]] = defaultdict(list)
    for configuration in job.configurations:
        if _is_timed(configuration):
            groups[configuration.gpu, configuration.key.settings_for("time")].append(configuration)
    return list(groups.values())


def superlinear_pairs(job: Workload) -> list[tuple[ConfigurationRuns, Speedup, ConfigurationRuns]]:
    """Return for each configuration the nearest smaller one against which it is impossibly fast, with the speed-up.

    One of the two was not measured as the other was, so neither is a time to rank by without a word.
    """
    pairs = []
    for group in comparable_in_time(job):
        for number, configuration in enumerate(group):
            # Fewer workers only: of the same number with other settings, one is simply faster.
            fewer = [one for one in group[:number] if one.workers < configuration.workers]
            # From the nearest down: the groups begin with the fewest workers.
            found = ((smaller, speedup_of(smaller, configuration), configuration) for smaller in reversed(fewer))
            pairs += [pair for pair in found if pair[1].is_superlinear][:1]
    return pairs


def speedup_of(baseline: ConfigurationRuns, configuration: ConfigurationRuns) -> Speedup:
    """Compare two configurations that have times."""
    before, now = baseline.epoch_time_s, configuration.epoch_time_s
    assert before is not None, "a baseline has times"
    assert now is not None, "a configuration has times"
    ratio = configuration.workers / baseline.workers
    # Against itself a baseline is 1 exactly, however its repeats scatter.
    speedup = _ratio_of(before, now) if configuration is not baseline else _ratio_of(before, None)
    # speedup = t_baseline / t, efficiency = speedup / (workers / baseline's workers). `fewest` is the least speed-up
    # that rounded times allow.
    fewest = (before.value - _rounding_s(baseline)) / (now.value + _rounding_s(configuration))
    return Speedup(
        baseline=baseline.key,
        speedup=speedup,
        efficiency=_divided(speedup, ratio),
        is_superlinear=speedup.value > MAX_EFFICIENCY * ratio and fewest > ratio,
    )


@dataclass(frozen=True, kw_only=True)
class NoGain:
    """A kind of GPU with far more memory bandwidth took about as long: something else set the pace of both."""

    slow: ConfigurationRuns
    fast: ConfigurationRuns
    bandwidth_ratio: float
    gain: float
    """Speed-up of its epochs that was measured."""


def gpu_without_gain(slow: ConfigurationRuns, fast: ConfigurationRuns) -> NoGain | None:
    """Compare the same workers, hosts and settings on two kinds of GPU; None where the second is faster, or no more."""
    here, there = slow.key, fast.key
    is_same = (here.workers, here.hosts, here.settings_for("time")) == (
        there.workers,
        there.hosts,
        there.settings_for("time"),
    )
    sheets = data_sheet(here.gpu), data_sheet(there.gpu)
    if not is_same or sheets[0] is None or sheets[1] is None or not _is_timed(slow) or not _is_timed(fast):
        return None
    ratio, gain = sheets[1].bandwidth_gb_s / sheets[0].bandwidth_gb_s, speedup_of(slow, fast).speedup.value
    if ratio < FASTER_GPU or gain >= NO_GAIN:
        return None
    return NoGain(slow=slow, fast=fast, bandwidth_ratio=ratio, gain=gain)


def _is_timed(configuration: ConfigurationRuns) -> bool:
    return configuration.epoch_time_s is not None and configuration.epoch_time_s.value > 0


def ideal_time_s(baseline: ConfigurationRuns, workers: int) -> float:
    """Return the epoch time that so many workers would have at an efficiency of 100 %."""
    assert baseline.epoch_time_s is not None, "a baseline has times"
    return baseline.epoch_time_s.value * baseline.workers / workers


def _ratio_of(above: Spread, below: Spread | None) -> Spread:
    """Return the quotient, its extremes, and its standard deviation (relative ones in quadrature)."""
    if below is None:
        return Spread(value=1.0, low=1.0, high=1.0, sd=0.0 if above.count > 1 else None, count=above.count)
    value = above.value / below.value
    relative = [each.sd / each.value for each in (above, below) if each.sd is not None]
    return Spread(
        value=value,
        low=above.low / below.high,
        high=above.high / below.low,
        sd=value * math.hypot(*relative) if relative else None,
        count=min(above.count, below.count),
    )


def _divided(spread: Spread, by: float) -> Spread:
    sd = None if spread.sd is None else spread.sd / by
    return Spread(value=spread.value / by, low=spread.low / by, high=spread.high / by, sd=sd, count=spread.count)


def _rounding_s(configuration: ConfigurationRuns) -> float:
    """Return the rounding error of a configuration: tables of others have whole seconds."""
    times_s: Sequence[float] = [run.epoch_time_s for run in configuration.summaries if run.epoch_time_s is not None]
    # One time with a fraction of a second shows that the table rounds none.
    is_rounded = all(run.is_imported for run in configuration.summaries) and all(
        time_s == round(time_s) for time_s in times_s
    )
    return _WHOLE_SECOND_S if is_rounded else 0.0
