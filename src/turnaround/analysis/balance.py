"""Does one process hold up the others? From the spans that every process writes.

In a synchronous step all wait for the slowest. What each one computes until its last gradient is its own; the ratio of
the slowest to the median tells how much of every step is waiting for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from statistics import median

from turnaround.record.reader import Run

STRAGGLER_RATIO = 1.15
"""A judgement: the slowest process against the median one."""
MIN_SPANS = 3  # of each process: a median that one outlier does not decide


@dataclass(frozen=True, kw_only=True)
class Balance:
    """Median seconds of a step up to its exchange, by process: for each hosted worker where all should have as many."""

    compute_s: dict[int, float]
    slowest_rank: int
    ratio: float
    """Time of the slowest process over that of the median one."""

    @property
    def has_straggler(self) -> bool:
        return self.ratio > STRAGGLER_RATIO


def balance(run: Run) -> Balance | None:
    """Return the balance of the processes; None for one process, or where too few steps were sampled."""
    # Steps of an earlier start, or before the workers were shared out anew, tell nothing about the processes of now.
    starts = [(epoch.segment, epoch.shares) for epoch in run.epochs]
    as_now = takewhile(lambda epoch: (epoch.segment, epoch.shares) == starts[-1], reversed(run.epochs))
    first_epoch = min((epoch.epoch for epoch in as_now), default=1)
    spans: dict[int, list[float]] = {}
    for rank, share in enumerate(_shares(run)):
        # The first span of a start is cold. Input counts as well as computation: the others wait for either.
        now = [s for s in run.spans(rank) if s.epoch >= first_epoch][1:]
        spans[rank] = [(s.wait_s + s.copy_s + s.compute_s) / share for s in now]
    if len(spans) < 2 or min(map(len, spans.values())) < MIN_SPANS:
        return None
    compute_s = {rank: median(values) for rank, values in spans.items()}
    slowest = max(compute_s, key=lambda rank: compute_s[rank])
    return Balance(compute_s=compute_s, slowest_rank=slowest, ratio=compute_s[slowest] / median(compute_s.values()))


def _shares(run: Run) -> list[int]:
    """Return the workers of each process: twice as many are twice the work. Empty where the record does not say.

    Ones where the shares were asked for, or go by speed: a slow process that hosts fewer holds nobody up.
    """
    ranks = run.machine.get("ranks")
    known = ranks if isinstance(ranks, list) else []
    hosted = [facts.get("workers") if isinstance(facts, dict) else None for facts in known]
    shares = [len(workers) if isinstance(workers, list) else 0 for workers in hosted]
    if not all(shares):
        return []
    return [1] * len(shares) if "share" in run.machine else shares
