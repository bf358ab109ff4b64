"""Times in doubt: epochs that do not fit into their job, runs that shared a host, speeds that no GPU has.

Scaling that is more than linear is found in speed.py. Findings tell these; forecasts that rest on one tell them too.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from turnaround.analysis.compare import value_at
from turnaround.analysis.configurations import Member
from turnaround.analysis.gpu_kinds import data_sheet, known_kinds
from turnaround.analysis.summary import RunSummary
from turnaround.record.reader import Run

CONTRADICTION = 1.02
"""Epochs that take longer than the job they are in, by more than rounding."""
MIN_MB_AN_IMAGE = 5.0
"""Memory traffic of training on one image, at the least. airbench94, a record of speed on pictures of 32 x 32, trains
on about 150,000 images/s on an A100 of 1,555 GB/s: 10 MB each. Half of that is nobody's."""
MIN_JOB_S = 2.0
"""A judgement: loading a framework alone takes longer, so no job of several epochs ends sooner."""
MIN_TOGETHER_S = 1.0
"""A judgement: a shorter overlap is the end of one run and the start of the next."""


def epochs_longer_than_job(run: RunSummary) -> float | None:
    """Return the time of all epochs of an imported run that is longer than its job; None where they fit."""
    if not run.is_imported or not run.epoch_time_s or not run.job_time_s:
        return None
    together_s = run.epochs * run.epoch_time_s
    return together_s if together_s > CONTRADICTION * run.job_time_s else None


@dataclass(frozen=True, kw_only=True)
class ImpossibleSpeed:
    """A table's run that is faster than any training: its times are probably not in seconds."""

    run: RunSummary
    images_per_s_each: float | None = None
    """Images/s of each process; None where the job's time is what cannot be."""
    limit: float | None = None
    """The most that a GPU of this kind can do."""


def impossible_speed(run: RunSummary) -> ImpossibleSpeed | None:
    """Return what is impossible about the times that a table tells of a run; None where nothing is."""
    if not run.is_imported:
        return None
    sheet = data_sheet(run.gpu)
    fastest = max(kind.bandwidth_gb_s for name in known_kinds() if (kind := data_sheet(name)) is not None)
    # MB/s / (MB an image); a kind without a sheet has the fastest one's bandwidth, so only what no GPU can do is told.
    limit = 1000 * (sheet.bandwidth_gb_s if sheet is not None else fastest) / MIN_MB_AN_IMAGE
    rate = run.images_per_epoch / run.epoch_time_s if run.images_per_epoch and run.epoch_time_s else None
    each = None if rate is None else rate / max(run.processes, 1)
    if each is not None and each > limit:
        return ImpossibleSpeed(run=run, images_per_s_each=each, limit=limit)
    is_too_short = run.job_time_s is not None and run.epochs > 1 and run.job_time_s < MIN_JOB_S
    return ImpossibleSpeed(run=run) if is_too_short else None


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
