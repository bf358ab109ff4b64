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
from turnaround.findings.labels import label_of
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
    """Report the same workers on a kind with far more bandwidth, and no faster: something else set the pace."""
    timed = [configuration for group in comparable_in_time(job) for configuration in group]
    # Both orders: which of two kinds should be the faster one is known from their data sheets only.
    for slow, fast in itertools.permutations(timed, 2):
        if (found := gpu_without_gain(slow, fast)) is not None:
            yield _no_gain(found)


def _no_gain(found: NoGain) -> Draft:
    slow, fast, gain = found.slow, found.fast, found.gain
    # By the verdict on the faster kind: it is the one that must have waited.
    verdict = fast.bottleneck.kind if fast.bottleneck else "unknown"
    limit = _SHARED_LIMIT.get(verdict, "the input pipeline")
    rate = f" ({fast.images_per_s.value:,.0f} images/s)" if fast.images_per_s else ""
    compared = "longer than" if gain < 0.95 else "as long as" if gain < 1.05 else "almost as long as"  # up to NO_GAIN
    verb = "takes" if fast.workers == 1 else "take"
    text = (
        f"{label_of(fast)} {verb} {compared} {label_of(slow)} ({' and '.join(epochs(fast, slow))} "
        f"an epoch) although a {fast.gpu} has {found.bandwidth_ratio:.1f} times the "
        f"memory bandwidth: these runs measured {limit}{rate}, not the GPUs."
    )
    advice = (
        "Measure the input alone (turnaround bench), make it faster (decoded pixels in the cache, more cores), and "
        "measure both kinds again before you pay for the faster one."
    )
    evidence = (*epoch_times(slow, fast), *image_rates(slow, fast))
    return Draft(text=text, evidence=evidence, advice=advice)


def more_than_linear(job: Workload) -> Iterator[Draft]:
    """Report for each configuration the nearest smaller one against which it is impossibly fast."""
    return (_superlinear(*pair) for pair in superlinear_pairs(job))


def _superlinear(smaller: ConfigurationRuns, speedup: Speedup, configuration: ConfigurationRuns) -> Draft:
    before, now = smaller.key, configuration.key
    text = (
        f"{before.workers} -> {label_of(configuration)} is {speedup.speedup.value:.2f} times faster "
        f"({' and '.join(epochs(smaller, configuration))} an epoch) on "
        f"{factor(now.workers / before.workers)} times the workers: more than linear, so one of the two is not "
        "comparable; a cold cache or a shared machine are the usual causes."
    )
    advice = (
        f"Run {label_of(smaller)} again on a quiet machine with warm caches, and do not use it as a baseline until "
        "then."
    )
    return Draft(
        text=text,
        evidence=epoch_times(smaller, configuration),
        advice=advice,
    )


def efficiency_falls(job: Workload) -> Iterator[Draft]:
    """Report for each kind of GPU the configuration that loses most, against the baseline of its kind."""
    for group in comparable_in_time(job):
        fewest = group[0].workers
        found = [(speedup_of(group[0], c), c) for c in group if c.workers > fewest]
        losing = [(speedup, c) for speedup, c in found if speedup.efficiency.value < LINEAR_EFFICIENCY]
        if losing:
            speedup, configuration = min(losing, key=lambda pair: pair[0].efficiency.value)
            yield _efficiency(group, speedup, configuration)


def _efficiency(group: list[ConfigurationRuns], speedup: Speedup, configuration: ConfigurationRuns) -> Draft:
    baseline = group[0]
    ratio = configuration.workers / baseline.workers
    efficiency = speedup.efficiency.value
    verb = "is" if configuration.workers == 1 else "are"
    text = (
        f"{label_of(configuration)} {verb} {speedup.speedup.value:.2f} times as fast as {label_of(baseline)} "
        f"({' -> '.join(epochs(baseline, configuration))} an epoch) on {factor(ratio)} "
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
