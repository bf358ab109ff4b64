"""Times that cannot be compared with others: epochs that do not fit into their job, runs that shared a host.

Scaling that is more than linear is found in speed.py. Findings tell these; forecasts that rest on one tell them too.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from turnaround.analysis.compare import value_at
from turnaround.analysis.configurations import Member
from turnaround.analysis.summary import RunSummary
from turnaround.record.reader import Run

CONTRADICTION = 1.02
"""Epochs that take longer than the job they are in, by more than rounding."""
MIN_TOGETHER_S = 1.0
"""A judgement: a shorter overlap is the end of one run and the start of the next."""


def epochs_longer_than_job(run: RunSummary) -> float | None:
    """Return the time of all epochs of an imported run that is longer than its job; None where they fit."""
    if not run.is_imported or not run.epoch_time_s or not run.job_time_s:
        return None
    together_s = run.epochs * run.epoch_time_s
    return together_s if together_s > CONTRADICTION * run.job_time_s else None


@dataclass(frozen=True, kw_only=True)
class RunsTogether:
    """Two runs that were on one host at the same time: each slowed the other down."""

    first: RunSummary
    second: RunSummary
    both_s: float


def ran_together(members: Sequence[Member]) -> list[RunsTogether]:
    """Return the pairs of runs that shared a host, the longest first."""
    spans = [(summary, span) for summary, run in members if (span := _span(run)) is not None]
    pairs = [
        RunsTogether(first=a, second=b, both_s=both_s)
        for (a, (hosts_a, *one)), (b, (hosts_b, *other)) in itertools.combinations(spans, 2)
        if hosts_a & hosts_b and (both_s := min(one[1], other[1]) - max(one[0], other[0])) > MIN_TOGETHER_S
    ]
    return sorted(pairs, key=lambda pair: -pair.both_s)


def _span(run: Run) -> tuple[frozenset[str], float, float] | None:
    """Hosts, begin and end; None where the record does not tell, or where breaks between segments may lie within."""
    ranks, status = run.machine.get("ranks"), run.status
    hosts = {str(host) for rank in ranks if (host := value_at(rank, "host"))} if isinstance(ranks, list) else set()
    try:
        times = [datetime.fromisoformat(at or "").timestamp() for at in (status.started_at, status.ended_at)]
    except (ValueError, OverflowError, OSError):
        return None
    return (frozenset(hosts), times[0], times[1]) if hosts and status.segments == 1 else None
