"""Findings that answer: which configuration? For speed, for cost and for accuracy, each with its caveat.

Time and cost are compared to one common accuracy where there are curves. Epochs to a configuration's own plateau reward
the one that comes to rest early at a worse level, so they are told but never ranked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.goals import SAME_TIME, TimeRanking, device_time_s, time_ranking
from turnaround.analysis.pools import Pool, PooledGroup, groups_of
from turnaround.analysis.speed import superlinear_pairs
from turnaround.analysis.stable import BAND
from turnaround.findings.finding import Draft, Evidence, Unit, final_accuracies, who
from turnaround.findings.labels import label_of, pool_label
from turnaround.forecast.turnaround import measured_times_to_stable
from turnaround.words import accuracy, duration, durations, listed


def _what(ranked: TimeRanking) -> str:
    return {"target": f"to {accuracy(ranked.target or 0.0)}", "job": "for the job", "epoch": "an epoch"}[ranked.basis]


def _left_out(ranked: TimeRanking) -> str:
    """Say what the ranking leaves out."""
    if ranked.basis == "target":
        return ""
    of_what = "all epochs" if ranked.basis == "job" else "one epoch"
    return f"; without curves this is the time of {of_what}, not the time to one accuracy"


def best_for_speed(job: Workload) -> Iterator[Draft]:
    """Report the shortest time."""
    if ranked := time_ranking(job):
        yield _best(job, ranked, "speed", ranked.time_s)


def best_for_cost(job: Workload) -> Iterator[Draft]:
    """Report the fewest GPU-seconds, or process-seconds."""
    if ranked := time_ranking(job):
        costs = tuple((c, device_time_s(time_s, c.processes)) for c, time_s in ranked.time_s)
        yield _best(job, ranked, "cost", costs)


def _doubt(job: Workload, *compared: ConfigurationRuns) -> str:
    """Say when one of those compared was measured in another way than its baseline."""
    for smaller, _, configuration in superlinear_pairs(job):
        if any(one is configuration or one is smaller for one in compared):
            return (
                f"; not settled: {label_of(configuration)} is more than linear against {label_of(smaller)}, so one of "
                "the two times is not comparable"
            )
    return ""


def _best(
    job: Workload,
    ranked: TimeRanking,
    goal: Literal["speed", "cost"],
    values: Sequence[tuple[ConfigurationRuns, float]],
) -> Draft:
    # Two or more: a ranking of one is none (analysis/goals.py).
    (best, value), (second, next_value), *_ = sorted(values, key=lambda pair: pair[1])
    unit: Unit = "s" if goal == "speed" else _device_unit(values)
    both = (value, next_value)
    shown, next_shown = durations(*both) if goal == "speed" else (_device_time(one, unit=unit) for one in both)
    what = _what(ranked)
    text = (
        f"Best for {goal}: {label_of(best)} with {shown} {what} ({_next(next_value / value)} {label_of(second)} with "
        f"{next_shown}){_left_out(ranked)}{_prices(values) if goal == 'cost' else ''}{_doubt(job, best, second)}."
    )
    figures = tuple(Evidence(run=who(c), what=f"{goal} {what}", value=v, unit=unit) for c, v in values)
    advice = {
        "speed": "Take it when the deadline decides; turnaround predict tells what more GPUs would bring.",
        "cost": "Take it when the budget decides; page and predict tell the money (turnaround prices set).",
    }[goal]
    evidence = (*figures, *final_accuracies(best))
    return Draft(text=text, evidence=evidence, advice=advice)


def _next(ratio: float) -> str:
    return "practically the same:" if ratio < SAME_TIME else "next:"


def _device_time(value_s: float, *, unit: str) -> str:
    return f"{value_s:,.0f} {unit}" if value_s >= 100 else f"{value_s:.3g} {unit}"


def _device_unit(values: Sequence[tuple[ConfigurationRuns, float]]) -> Unit:
    """Return the unit that is paid for: GPUs, or processes where some had none."""
    kinds = {configuration.gpu for configuration, _ in values}
    return "process-seconds" if kinds & {"CPU", "unknown"} else "GPU-seconds"


def _prices(values: Sequence[tuple[ConfigurationRuns, float]]) -> str:
    kinds = {configuration.gpu for configuration, _ in values}
    return f"; a second of {listed(sorted(kinds))} does not cost the same" if len(kinds) > 1 else ""


def best_for_accuracy(job: Workload) -> Iterator[Draft]:
    """Report the highest final accuracy, and which others chance alone may put below it."""
    groups = groups_of(job)
    pools = [(pool, group) for group in groups for pool in group.pools]
    if len(pools) < 2:
        return
    best, group = max(pools, key=lambda pair: pair[0].accuracy)
    text = f"Best for accuracy: {pool_label(best)} with {accuracy(best.accuracy)}{_caveat(best, group, pools)}."
    yield Draft(
        text=text,
        evidence=final_accuracies(*(c for pool, _ in pools for c in pool.configurations)),
        advice="Repeat the best ones with three seeds before you choose by accuracy; within noise, choose by time.",
    )


def _caveat(best: Pool, group: PooledGroup, pools: Sequence[tuple[Pool, PooledGroup]]) -> str:
    others = [pool for pool, _ in pools if pool is not best]
    if group.noise is None:
        second = max(others, key=lambda pool: pool.accuracy)
        once = "one run each" if all(len(pool.accuracies) == 1 for pool, _ in pools) else "few runs"
        return f", before {pool_label(second)} with {accuracy(second.accuracy)} ({once}: the noise is not known)"
    limits = [(pool, group.noise.limit(best, pool)) for pool in others]
    near = [pool_label(pool) for pool, limit in limits if best.accuracy - pool.accuracy <= limit]
    return f", but {listed(near)} may be as good, within noise" if near else ", more than noise above the others"


def own_plateau_only(job: Workload) -> Iterator[Draft]:
    """A table states when each configuration came to rest, but not at which epoch it reached one common accuracy."""
    stated = [c for c in job.configurations if c.stable.method == "stated" and c.epoch_time_s is not None]
    known = [(c, c.stable.level) for c in stated if c.stable.level is not None]
    if len(known) < 2:
        return
    whole_s = measured_times_to_stable(job, [configuration for configuration, _ in known])
    # Without the overheads of one of them they are compared without those of all.
    times_s = (
        [time_s.value for time_s in whole_s]
        if whole_s is not None
        else [_training_s(configuration) for configuration, _ in known]
    )
    what = "Times" if whole_s is not None else "Training times, without start-up and evaluation,"
    shown = [
        f"{label_of(configuration)} {duration(time_s)} at {accuracy(level)}"
        for (configuration, level), time_s in zip(known, times_s, strict=True)
    ]
    # Within the band of a plateau two levels are one, as far as curves tell.
    apart = max(level for _, level in known) - min(level for _, level in known)
    verdict = "so they do not rank the configurations" if apart > BAND else "near enough for a rough comparison"
    yield Draft(
        text=f"{what} to each configuration's own plateau, as stated: {listed(shown, 8)}; these are different "
        f"levels, seen by eye, {verdict}.",
        evidence=tuple(
            Evidence(run=who(c), what="epochs to its own plateau, as stated", value=c.stable.epoch or 0.0)
            for c, _ in known
        ),
        advice="Import the curves (turnaround import TABLE --curves CURVES): they give times to one accuracy.",
    )


def _training_s(configuration: ConfigurationRuns) -> float:
    assert configuration.epoch_time_s is not None, "only timed configurations are shown"
    return (configuration.stable.epoch or 0.0) * configuration.epoch_time_s.value
