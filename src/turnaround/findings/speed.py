"""Findings about speed across configurations: what more or faster GPUs brought."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.speed import (
    NoGain,
    Speedup,
    comparable_in_time,
    gpu_without_gain,
    speedup_of,
    superlinear_pairs,
)
from turnaround.findings.finding import Draft, epoch_times, epochs, image_rates
from turnaround.words import factor, percent

GOOD_EFFICIENCY = 0.8
"""A judgement: below, a fifth of what is paid for is lost."""
LINEAR_EFFICIENCY = 0.98
"""A judgement: above, the loss is too small to act on."""

_SHARED_LIMIT = {
    "communication": "the exchange of gradients",
    "host": "how fast the host launches kernels",
    "straggler": "their slowest process",
}


def faster_gpu_no_gain(job: Workload) -> Iterator[Draft]:
    """The same workers on a kind with far more bandwidth, and no faster: something else set the pace."""
    timed = [case for group in comparable_in_time(job) for case in group]
    for slow, fast in itertools.permutations(timed, 2):
        if (found := gpu_without_gain(slow, fast)) is not None:
            yield _no_gain(found)


def _no_gain(found: NoGain) -> Draft:
    slow, fast, gain = found.slow, found.fast, found.gain
    verdict = fast.bottleneck.kind if fast.bottleneck else "unknown"
    limit = _SHARED_LIMIT.get(verdict, "the input pipeline")
    rate = f" ({fast.images_per_s.value:,.0f} images/s)" if fast.images_per_s else ""
    compared = "longer than" if gain < 0.95 else "as long as" if gain < 1.05 else "almost as long as"
    verb = "takes" if fast.configuration.workers == 1 else "take"
    text = (
        f"{fast.label} {verb} {compared} {slow.label} ({' and '.join(epochs(fast, slow))} "
        f"an epoch) although a {fast.configuration.gpu} has {found.bandwidth_ratio:.1f} times the "
        f"memory bandwidth: these runs measured {limit}{rate}, not the GPUs."
    )
    advice = (
        "Measure the input alone (turnaround bench), make it faster (decoded pixels in the cache, more cores), and "
        "measure both kinds again before you pay for the faster one."
    )
    evidence = (*epoch_times(slow, fast), *image_rates(slow, fast))
    return Draft(text=text, evidence=evidence, advice=advice)


def more_than_linear(job: Workload) -> Iterator[Draft]:
    """Report for each case the nearest smaller one against which it is impossibly fast."""
    return (_superlinear(*pair) for pair in superlinear_pairs(job))


def _superlinear(smaller: ConfigurationRuns, speedup: Speedup, case: ConfigurationRuns) -> Draft:
    before, now = smaller.configuration, case.configuration
    text = (
        f"{before.workers} -> {case.label} is {speedup.speedup.value:.2f} times faster "
        f"({' and '.join(epochs(smaller, case))} an epoch) on "
        f"{factor(now.workers / before.workers)} times the workers: more than linear, so one of the two is not "
        "comparable; a cold cache or a shared machine are the usual causes."
    )
    advice = (
        f"Run {smaller.label} again on a quiet machine with warm caches, and do not use it as a baseline until then."
    )
    return Draft(
        text=text,
        evidence=epoch_times(smaller, case),
        advice=advice,
    )


def efficiency_falls(job: Workload) -> Iterator[Draft]:
    """Report for each kind of GPU the case that loses most, against the baseline of its kind."""
    for group in comparable_in_time(job):
        fewest = group[0].configuration.workers
        found = [(speedup_of(group[0], case), case) for case in group if case.configuration.workers > fewest]
        losing = [(speedup, case) for speedup, case in found if speedup.efficiency.value < LINEAR_EFFICIENCY]
        if losing:
            speedup, case = min(losing, key=lambda pair: pair[0].efficiency.value)
            yield _efficiency(group, speedup, case)


def _efficiency(group: list[ConfigurationRuns], speedup: Speedup, case: ConfigurationRuns) -> Draft:
    baseline = group[0]
    ratio = case.configuration.workers / baseline.configuration.workers
    efficiency = speedup.efficiency.value
    verb = "is" if case.configuration.workers == 1 else "are"
    text = (
        f"{case.label} {verb} {speedup.speedup.value:.2f} times as fast as {baseline.label} "
        f"({' -> '.join(epochs(baseline, case))} an epoch) on {factor(ratio)} "
        f"times the workers: {percent(efficiency)} efficiency."
    )
    advice = (
        "Look at what the steps of the larger configuration wait for (its bottleneck) before you add more."
        if efficiency < GOOD_EFFICIENCY
        else "Good; the loss grows with the workers, so measure once more before you double them again."
    )
    return Draft(
        severity="caution" if efficiency < GOOD_EFFICIENCY else "note",
        text=text,
        evidence=epoch_times(*group),
        advice=advice,
    )
