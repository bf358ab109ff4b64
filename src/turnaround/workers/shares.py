"""How many workers each process hosts: equal shares, shares that were asked for, or shares by measured speed.

Workers are mathematics: whatever their shares, the training is the same. A step takes as long as its slowest process,
so a process that is twice as fast should host twice as many. No torch: the command line asks too.

    even      as equal as can be (the default)
    11,5      as given, one number for each process
    auto      equal at first; at an epoch's end by the seconds that each process has taken for a worker
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from turnaround.errors import InputError

EVEN, AUTO = "even", "auto"
MIN_GAIN = 0.10
"""Shares change only where the step would be shorter by more than this: single epochs differ by a few per cent, and
every change is a little work on GPUs (kernels for other numbers of images)."""

Shares = tuple[int, ...]
"""Workers of each process, by rank."""


@dataclass(frozen=True, kw_only=True)
class FasterShares:
    """Better shares, and how much shorter a step would be with them."""

    shares: Shares
    gain: float
    """Share of the time of a step, up to the exchange, that would be saved: 0 to 1."""


def even_shares(*, workers: int, processes: int) -> Shares:
    """Return the most equal shares: where `workers` cannot be divided, the numbers differ by one."""
    # Bounds of equal stretches, rounded down: larger shares are spread over the ranks, and so over the hosts.
    bounds = [rank * workers // processes for rank in range(processes + 1)]
    return tuple(stop - start for start, stop in pairwise(bounds))


def hosted_by(rank: int, shares: Shares) -> range:
    """Return the workers of process `rank`: contiguous, so that its images are one slice of the global batch."""
    start = sum(shares[:rank])
    return range(start, start + shares[rank])


def checked_share(text: str) -> str:
    """Return `even`, `auto` or numbers as they are written down; InputError for anything else."""
    words = [word.strip() for word in text.split(",")]
    if len(words) == 1 and words[0].casefold() in (EVEN, AUTO):
        return words[0].casefold()
    # isdigit alone is true of a superscript two, which int() does not read.
    if not all(word.isascii() and word.isdigit() for word in words):
        raise InputError(
            f"--share takes auto, even, or the workers of each process with commas between them, as 11,5. "
            f"Received: {text!r}."
        )
    if any(int(word) == 0 for word in words):
        raise InputError(
            f"--share {text}: a process without a worker would have nothing to do. Leave its number out, and have one "
            "process fewer."
        )
    return ",".join(str(int(word)) for word in words)


def processes_of(share: str) -> int | None:
    """Return the number of processes that a share has numbers for; None where it has none."""
    return None if share in (EVEN, AUTO) else len(share.split(","))


def shares_of(share: str, *, workers: int, processes: int) -> Shares:
    """Return the shares that a run begins with; InputError where they do not fit it."""
    if share in (EVEN, AUTO):
        return even_shares(workers=workers, processes=processes)
    shares = tuple(int(word) for word in share.split(","))
    if len(shares) != processes:
        raise InputError(
            f"--share {share} is for {len(shares)} processes, and there are {processes}. Give one number for each "
            "process, or --share auto."
        )
    if sum(shares) != workers:
        raise InputError(
            f"--share {share} places {sum(shares)} workers, and there are {workers}. Use --workers {sum(shares)}, or "
            f"numbers whose sum is {workers}."
        )
    return shares


def fastest_shares(seconds: Sequence[float], *, workers: int) -> Shares:
    """Return the shares whose slowest process is the fastest, at least one worker for each.

    `seconds` are those that each process takes for one worker.
    """
    # One each first: a process hosts at least one (contract.py), however slow it is.
    shares = [1] * len(seconds)
    # The next worker goes where it would end first: this minimises the largest sum. Equal ones go to the lower rank, so
    # every process that has the same seconds comes to the same shares.
    # (seconds of a process with one worker more, its rank)
    after = [(2 * each_s, rank) for rank, each_s in enumerate(seconds)]
    heapq.heapify(after)
    for _ in range(workers - len(seconds)):
        _, rank = after[0]
        shares[rank] += 1
        heapq.heapreplace(after, ((shares[rank] + 1) * seconds[rank], rank))
    return tuple(shares)


def slowest_s(shares: Shares, seconds: Sequence[float]) -> float:
    """Return the seconds of the slowest process of a step with these shares."""
    return max(share * each_s for share, each_s in zip(shares, seconds, strict=True))


def better_shares(shares: Shares, seconds: Sequence[float]) -> FasterShares | None:
    """Return shares that are worth a change; None where the present ones are good enough.

    A process also has work that does not grow with its workers, so the seconds for one change with the shares. Where
    all end at the same time nothing is proposed, whatever that work is; and every proposal comes closer to that point.
    """
    proposed = fastest_shares(seconds, workers=sum(shares))
    gain = 1 - slowest_s(proposed, seconds) / slowest_s(shares, seconds)
    return FasterShares(shares=proposed, gain=gain) if gain > MIN_GAIN else None
