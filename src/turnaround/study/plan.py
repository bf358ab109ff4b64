"""Which runs answer the question, and in which order. Pure: no run is started here.

Enters: the configurations somebody wants to compare. Leaves: the runs, those that answer most first:

    1. the fewest workers: every speed-up is counted from it
    2. the most workers that run for real: with 1 they fix the law of the step times
    3. the most workers that are rehearsed: with 1 they fix the law of the epochs
    4. what lies between, and then the repeats, seed by seed
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from turnaround.errors import InputError

MOST_RUNS = 1000


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a study. Its name is its directory's."""

    workers: int
    processes: int
    seed: int

    @property
    def is_rehearsal(self) -> bool:
        return self.processes < self.workers

    @property
    def name(self) -> str:
        return f"{self.workers}w{'-rehearsed' if self.is_rehearsal else ''}-seed{self.seed}"

    @property
    def label(self) -> str:
        """For people."""
        what = f"{self.workers} worker{'s' * (self.workers > 1)}"
        return f"{what}{' rehearsed' if self.is_rehearsal else ''}, seed {self.seed}"


def plan(
    *, workers: Sequence[int], rehearse: Sequence[int], seeds: Sequence[int], devices: int
) -> tuple[PlannedRun, ...]:
    """The runs in their order. `devices` are the GPUs here, or without any the cores."""
    too_many = [n for n in workers if n > devices]
    if too_many:
        raise InputError(
            f"--workers {too_many[0]} needs as many devices; here {'is 1' if devices == 1 else f'are {devices}'}. "
            f"Rehearse it instead: --rehearse {too_many[0]} (its accuracy is that of {too_many[0]} GPUs, its times are "
            "not)."
        )
    if not workers and not rehearse:
        raise InputError("A study needs configurations: --workers 1,2,4, or --rehearse 8,16, or both.")
    real = [(n, n) for n in _answering_most(workers)]
    rehearsed = [(n, 1) for n in sorted(set(rehearse) - {1}, reverse=True)]
    first, *others = real or rehearsed
    rest = [*others[:1], *rehearsed[:1], *others[1:], *rehearsed[1:]] if real else others
    runs = [PlannedRun(workers=n, processes=p, seed=seed) for seed in seeds for n, p in [first, *rest]]
    if len(runs) > MOST_RUNS:
        raise InputError(f"This study would have {len(runs):,} runs; {MOST_RUNS:,} are the most. Ask for fewer.")
    return tuple(runs)


def _answering_most(workers: Iterable[int]) -> list[int]:
    """The fewest, the most, then the others in order."""
    ascending = sorted(set(workers))
    return [*ascending[:1], *ascending[1:][-1:], *ascending[1:-1]]


def counts(text: str, *, flag: str) -> list[int]:
    """`1,2,4` -> [1, 2, 4]."""
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InputError(f"{flag} takes whole numbers from 1, separated by commas: 1,2,4. Received: {text!r}.")
    return found
