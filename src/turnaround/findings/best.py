"""Findings that answer: which configuration? For speed, for cost and for accuracy, each with its caveat.

Time and cost are compared to one common accuracy where there are curves. Epochs to a configuration's own plateau reward
the one that comes to rest early at a worse level, so they are told but never ranked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from turnaround.analysis.compare import Fact
from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.goals import device_time_s, time_to_target_s
from turnaround.analysis.pools import Pool, PooledGroup, groups_of
from turnaround.analysis.stable import BAND
from turnaround.findings.finding import Draft, Evidence, Unit, final_accuracies, who
from turnaround.words import accuracy, duration, listed

SAME_TIME = 1.05
"""Times and costs nearer than this are the same."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The configurations that can be ranked by time, with the time by which they are."""

    basis: Literal["target", "job", "epoch"]
    time_s: tuple[tuple[ConfigurationRuns, float], ...]
    target: float | None = None

    @property
    def what(self) -> str:
        return {"target": f"to {accuracy(self.target or 0.0)}", "job": "for the job", "epoch": "an epoch"}[self.basis]

    def fastest(self) -> tuple[list[ConfigurationRuns], float]:
        """Return the configuration with the shortest time, those that are as fast, and that time."""
        ordered = sorted(self.time_s, key=lambda pair: pair[1])
        time_s = ordered[0][1]
        return [case for case, value in ordered if value < time_s * SAME_TIME or value == time_s], time_s

    @property
    def caveat(self) -> str:
        """What the ranking leaves out."""
        if self.basis == "target":
            return ""
        of_what = "all epochs" if self.basis == "job" else "one epoch"
        return f"; without curves this is the time of {of_what}, not the time to one accuracy"


def timed(job: Workload) -> Timed | None:
    """By time to the common target; else by job time, else by epoch time, of cases with the same settings."""
    real = [case for case in job.configurations if case.epoch_time_s is not None]
    to_target = tuple((case, time_s) for case in real if (time_s := time_to_target_s(case, job.target)) is not None)
    if len(to_target) > 1:
        return Timed(basis="target", time_s=to_target, target=job.target)
    by_settings: defaultdict[tuple[Fact, ...], list[ConfigurationRuns]] = defaultdict(list)
    for case in job.configurations:
        by_settings[case.configuration.settings].append(case)
    alike = max(by_settings.values(), key=len, default=[])
    jobs = tuple((case, case.job_time_s.value) for case in alike if case.job_time_s is not None)
    if len(jobs) > 1:
        return Timed(basis="job", time_s=jobs)
    epochs = tuple((case, case.epoch_time_s.value) for case in alike if case.epoch_time_s is not None)
    return Timed(basis="epoch", time_s=epochs) if len(epochs) > 1 else None


def best_for_speed(job: Workload) -> Iterator[Draft]:
    """The shortest time."""
    if ranked := timed(job):
        yield _best(ranked, "speed", ranked.time_s)


def best_for_cost(job: Workload) -> Iterator[Draft]:
    """The fewest GPU-seconds, or process-seconds."""
    if ranked := timed(job):
        costs = tuple((case, device_time_s(time_s, case.configuration.processes)) for case, time_s in ranked.time_s)
        yield _best(ranked, "cost", costs)


def _best(ranked: Timed, goal: Literal["speed", "cost"], values: Sequence[tuple[ConfigurationRuns, float]]) -> Draft:
    (best, value), (second, next_value), *_ = sorted(values, key=lambda pair: pair[1])
    unit: Unit = "s" if goal == "speed" else _device_unit(values)
    say = duration if goal == "speed" else partial(_device_time, unit=unit)
    text = (
        f"Best for {goal}: {best.label} with {say(value)} {ranked.what} ({_next(next_value / value)} {second.label} "
        f"with {say(next_value)}){ranked.caveat}{_prices(values) if goal == 'cost' else ''}."
    )
    figures = tuple(Evidence(run=who(case), what=f"{goal} {ranked.what}", value=v, unit=unit) for case, v in values)
    advice = {
        "speed": "Take it when the deadline decides; turnaround predict tells what more GPUs would bring.",
        "cost": "Take it when the budget decides; multiply by your own prices (turnaround predict --price).",
    }[goal]
    evidence = (*figures, *final_accuracies(best))
    return Draft(text=text, evidence=evidence, advice=advice)


def _next(ratio: float) -> str:
    return "practically the same:" if ratio < SAME_TIME else "next:"


def _device_time(value_s: float, *, unit: str) -> str:
    return f"{value_s:,.0f} {unit}" if value_s >= 100 else f"{value_s:.3g} {unit}"


def _device_unit(values: Sequence[tuple[ConfigurationRuns, float]]) -> Unit:
    """What is paid for: GPUs, or processes where some had none."""
    kinds = {case.configuration.gpu for case, _ in values}
    return "process-seconds" if kinds & {"CPU", "unknown"} else "GPU-seconds"


def _prices(values: Sequence[tuple[ConfigurationRuns, float]]) -> str:
    kinds = {case.configuration.gpu for case, _ in values}
    return f"; a second of {listed(sorted(kinds))} does not cost the same" if len(kinds) > 1 else ""


def best_for_accuracy(job: Workload) -> Iterator[Draft]:
    """The highest final accuracy, and which others chance alone may put below it."""
    groups = groups_of(job)
    pools = [(pool, group) for group in groups for pool in group.pools]
    if len(pools) < 2:
        return
    best, group = max(pools, key=lambda pair: pair[0].accuracy)
    text = f"Best for accuracy: {best.label} with {accuracy(best.accuracy)}{_caveat(best, group, pools)}."
    yield Draft(
        text=text,
        evidence=final_accuracies(*(case for pool, _ in pools for case in pool.cases)),
        advice="Repeat the best ones with three seeds before you choose by accuracy; within noise, choose by time.",
    )


def _caveat(best: Pool, group: PooledGroup, pools: Sequence[tuple[Pool, PooledGroup]]) -> str:
    others = [pool for pool, _ in pools if pool is not best]
    if group.noise is None:
        second = max(others, key=lambda pool: pool.accuracy)
        once = "one run each" if all(len(pool.accuracies) == 1 for pool, _ in pools) else "few runs"
        return f", before {second.label} with {accuracy(second.accuracy)} ({once}: the noise is not known)"
    limits = [(pool, group.noise.limit(best, pool)) for pool in others]
    near = [pool.label for pool, limit in limits if best.accuracy - pool.accuracy <= limit]
    return f", but {listed(near)} may be as good within the noise" if near else ", more than noise above the others"


def own_plateau_only(job: Workload) -> Iterator[Draft]:
    """A table states when each configuration came to rest, but not at which epoch it reached one common accuracy."""
    stated = [case for case in job.configurations if case.stable.method == "stated" and case.epoch_time_s is not None]
    known = [(case, case.stable.level) for case in stated if case.stable.level is not None]
    if len(known) < 2:
        return
    shown = [f"{case.label} {duration(_own_plateau_s(case))} at {accuracy(level)}" for case, level in known]
    apart = max(level for _, level in known) - min(level for _, level in known)
    verdict = "so they do not rank the configurations" if apart > BAND else "near enough for a rough comparison"
    yield Draft(
        text=f"Times to each configuration's own plateau, as stated: {listed(shown, 8)}; these are different levels, "
        f"seen by eye, {verdict}.",
        evidence=tuple(
            Evidence(run=who(case), what="epochs to its own plateau, as stated", value=case.stable.epoch or 0.0)
            for case, _ in known
        ),
        advice="Import the curves (turnaround import TABLE --curves CURVES): they give times to one accuracy.",
    )


def _own_plateau_s(case: ConfigurationRuns) -> float:
    assert case.epoch_time_s is not None, "only timed cases are shown"
    return (case.stable.epoch or 0.0) * case.epoch_time_s.value
