"""Findings about speed across configurations: what more or faster GPUs brought."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.gpu_kinds import data_sheet
from turnaround.analysis.speed import Speedup, comparable_in_time, speedup_of
from turnaround.findings.finding import Finding, Rule
from turnaround.findings.words import epoch_times, epochs, image_rates
from turnaround.words import factor, percent

FASTER_BANDWIDTH = 1.5
EXPECTED_GAIN = 1.15
GOOD_EFFICIENCY = 0.8
LINEAR_EFFICIENCY = 0.98

_SHARED_LIMIT = {
    "communication": "the exchange of gradients",
    "host": "how fast the host launches kernels",
    "straggler": "their slowest process",
}


def faster_gpu_no_gain(job: Workload) -> Iterator[Finding]:
    """The same workers on a kind with far more bandwidth, and no faster: something else set the pace."""
    timed = [case for group in comparable_in_time(job) for case in group]
    for slow, fast in itertools.permutations(timed, 2):
        ratio = _bandwidth_ratio(slow, fast)
        if ratio >= FASTER_BANDWIDTH and _is_same_but_gpu(slow, fast) and _gain(slow, fast) < EXPECTED_GAIN:
            yield _no_gain(job, slow, fast, ratio)


def _bandwidth_ratio(slow: ConfigurationRuns, fast: ConfigurationRuns) -> float:
    sheets = [data_sheet(case.configuration.gpu) for case in (slow, fast)]
    return sheets[1].bandwidth_gb_s / sheets[0].bandwidth_gb_s if sheets[0] and sheets[1] else 0.0


def _is_same_but_gpu(a: ConfigurationRuns, b: ConfigurationRuns) -> bool:
    left, right = a.configuration, b.configuration
    return (left.workers, left.hosts, left.settings_for("time")) == (
        right.workers,
        right.hosts,
        right.settings_for("time"),
    )


def _gain(slow: ConfigurationRuns, fast: ConfigurationRuns) -> float:
    return speedup_of(slow, fast).speedup.value


def _no_gain(job: Workload, slow: ConfigurationRuns, fast: ConfigurationRuns, ratio: float) -> Finding:
    gain = _gain(slow, fast)
    verdict = fast.bottleneck.kind if fast.bottleneck else "unknown"
    limit = _SHARED_LIMIT.get(verdict, "the input pipeline")
    rate = f" ({fast.images_per_s.value:,.0f} images/s)" if fast.images_per_s else ""
    compared = "longer than" if gain < 0.95 else "as long as" if gain < 1.05 else "almost as long as"
    verb = "takes" if fast.configuration.workers == 1 else "take"
    text = (
        f"{fast.label} {verb} {compared} {slow.label} ({' and '.join(epochs(fast, slow))} "
        f"an epoch) although a {fast.configuration.gpu} has {ratio:.1f} times the "
        f"memory bandwidth: these runs measured {limit}{rate}, not the GPUs."
    )
    advice = (
        "Measure the input alone (turnaround bench), make it faster (decoded pixels in the cache, more cores), and "
        "measure both kinds again before you pay for the faster one."
    )
    evidence = (*epoch_times(slow, fast), *image_rates(slow, fast))
    return Finding(
        id="faster-gpu-no-gain", severity="problem", text=text, evidence=evidence, advice=advice, job=job.name
    )


def more_than_linear(job: Workload) -> Iterator[Finding]:
    """For each case the nearest smaller one against which it is impossibly fast."""
    for group in comparable_in_time(job):
        for number, case in enumerate(group):
            found = ((smaller, speedup_of(smaller, case)) for smaller in reversed(group[:number]))
            first = next(((smaller, speedup) for smaller, speedup in found if speedup.is_superlinear), None)
            if first is not None:
                yield _superlinear(job, *first, case)


def _superlinear(job: Workload, smaller: ConfigurationRuns, speedup: Speedup, case: ConfigurationRuns) -> Finding:
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
    return Finding(
        id="more-than-linear",
        severity="caution",
        text=text,
        evidence=epoch_times(smaller, case),
        advice=advice,
        job=job.name,
    )


def efficiency_falls(job: Workload) -> Iterator[Finding]:
    """For each kind of GPU the case that loses most, against the baseline of its kind."""
    for group in comparable_in_time(job):
        found = [(speedup_of(group[0], case), case) for case in group[1:]]
        losing = [(speedup, case) for speedup, case in found if speedup.efficiency.value < LINEAR_EFFICIENCY]
        if losing:
            speedup, case = min(losing, key=lambda pair: pair[0].efficiency.value)
            yield _efficiency(job, group, speedup, case)


def _efficiency(job: Workload, group: list[ConfigurationRuns], speedup: Speedup, case: ConfigurationRuns) -> Finding:
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
    return Finding(
        id="efficiency-falls",
        severity="caution" if efficiency < GOOD_EFFICIENCY else "note",
        text=text,
        evidence=epoch_times(*group),
        advice=advice,
        job=job.name,
    )


RULES: dict[str, Rule] = {
    "faster-gpu-no-gain": faster_gpu_no_gain,
    "more-than-linear": more_than_linear,
    "efficiency-falls": efficiency_falls,
}
