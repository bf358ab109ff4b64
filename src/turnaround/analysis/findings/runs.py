"""Findings about single runs, and about whether runs may be compared at all."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from functools import partial

from turnaround.analysis.cases import Case, Job
from turnaround.analysis.compare import Difference, fairness, value_at
from turnaround.analysis.findings.finding import Evidence, Finding, Rule, Severity
from turnaround.analysis.findings.words import listed, seconds
from turnaround.analysis.summary import RunSummary
from turnaround.record.reader import Run
from turnaround.record.schema import State

_STATES: dict[str, tuple[State, Severity, str, str]] = {
    "run-diverged": (
        "diverged",
        "problem",
        "diverged: the loss is no longer a number",
        "Lower the learning rate, lengthen the warm-up, or use training.scaling=auto.",
    ),
    "run-failed": ("failed", "problem", "failed", "Repair the cause, then: turnaround resume DIR."),
    "run-interrupted": (
        "interrupted",
        "note",
        "was interrupted, so its accuracy is left out",
        "Go on with it: turnaround resume DIR.",
    ),
    "still-running": (
        "running",
        "note",
        "is still running: its times so far are in, its accuracy is not",
        "Look again when it has ended.",
    ),
}


def _state(finding_id: str, job: Job) -> Iterator[Finding]:
    """One finding for all runs of the job in one state."""
    state, severity, what, advice = _STATES[finding_id]
    found = [(summary, run) for summary, run in _runs(job) if summary.state == state]
    if found:
        (first, run), others = found[0], [summary.name for summary, _ in found[1:]]
        cause = f" ({run.status.cause.rstrip('.')})" if run.status.cause else ""
        also = f"; so is it with {listed(others)}" if others else ""
        yield Finding(
            id=finding_id,
            severity=severity,
            text=f"{first.name} {what} after {first.epochs} of {first.epochs_planned or '?'} epochs{cause}{also}.",
            evidence=tuple(_epochs_done(summary, run) for summary, run in found),
            advice=advice,
            job=job.name,
        )


def _epochs_done(summary: RunSummary, run: Run) -> Evidence:
    return Evidence(run=summary.name, what=f"epochs done, {run.status.cause or summary.state}", value=summary.epochs)


MOST_PAIRS = 10
"""Of runs that were on one host together: twenty runs make 190."""

# Told by findings of their own, with their size; another seed is chance, not unfair.
_TOLD_ELSEWHERE = frozenset({"global batch", "rehearsal", "seed"})


def unfair_comparison(job: Job) -> Iterator[Finding]:
    """Each difference besides what was meant to vary once, with the two configurations that show it first."""
    by_what: defaultdict[str, list[tuple[Case, Difference]]] = defaultdict(list)
    for case in job.cases[1:]:
        for difference in fairness(job.cases[0], case):
            if difference.what not in _TOLD_ELSEWHERE:
                by_what[difference.what].append((case, difference))
    for what, found in by_what.items():
        case, difference = found[0]
        matters = "time and accuracy" if difference.matters_for == "both" else difference.matters_for
        others = f" (and {listed([other.label for other, _ in found[1:]])})" if len(found) > 1 else ""
        text = (
            f"{job.cases[0].label} and {case.label}{others} differ in more than the configuration: {what} is "
            f"{difference.left} and {difference.right}, which matters for {matters}."
        )
        sides = ((job.cases[0], difference.left), (case, difference.right))
        yield Finding(
            id="unfair-comparison",
            severity="caution",
            text=text,
            evidence=tuple(Evidence(run=side.label, what=what, value=value) for side, value in sides),
            advice="Compare runs that differ in one thing only; repeat one of them with the other's setting.",
            job=job.name,
        )


def ran_together(job: Job) -> Iterator[Finding]:
    """Runs that were on one host at the same time: each slowed the other down."""
    spans = [(summary, span) for summary, run in _runs(job) if (span := _span(run)) is not None]
    pairs = [
        (a, b, both_s)
        for (a, (hosts_a, *one)), (b, (hosts_b, *other)) in itertools.combinations(spans, 2)
        if hosts_a & hosts_b and (both_s := min(one[1], other[1]) - max(one[0], other[0])) > 1.0
    ]
    if pairs:
        pairs.sort(key=lambda pair: -pair[2])
        a, b, both_s = pairs[0]
        more = f", and {len(pairs) - 1} more pairs did" if len(pairs) > 1 else ""
        yield Finding(
            id="ran-together",
            severity="caution",
            text=f"{a.name} and {b.name} ran on the same host for {seconds(both_s)} at the same time{more}: their "
            "times are not those of a machine of their own.",
            evidence=tuple(
                Evidence(run=f"{x.name}, {y.name}", what="time together", value=s, unit="s")
                for x, y, s in pairs[:MOST_PAIRS]
            ),
            advice="Repeat them one after the other, or compare their accuracies only.",
            job=job.name,
        )


def _span(run: Run) -> tuple[frozenset[str], float, float] | None:
    """Hosts, begin and end; None where the record does not tell, or where breaks between segments may lie within."""
    ranks, status = run.machine.get("ranks"), run.status
    hosts = {str(host) for rank in ranks if (host := value_at(rank, "host"))} if isinstance(ranks, list) else set()
    try:
        times = [datetime.fromisoformat(at or "").timestamp() for at in (status.started_at, status.ended_at)]
    except (ValueError, OverflowError, OSError):
        return None
    return (frozenset(hosts), times[0], times[1]) if hosts and status.segments == 1 else None


def _runs(job: Job) -> Iterator[tuple[RunSummary, Run]]:
    for case in job.cases:
        yield from zip(case.runs, case.records, strict=True)


RULES: dict[str, Rule] = {
    **{finding_id: partial(_state, finding_id) for finding_id in _STATES},
    "unfair-comparison": unfair_comparison,
    "ran-together": ran_together,
}
