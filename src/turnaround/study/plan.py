"""Plans which runs answer the question, and in which order. Pure: no run is started here.

Enters: the configurations somebody wants to compare. Leaves: the runs, those that answer most first:

    1. the fewest workers: every speed-up is counted from it
    2. the most workers that run for real: with 1 they fix the law of the step times
    3. the most workers that are rehearsed: with 1 they fix the law of the epochs
    4. what lies between, and then the repeats, seed by seed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from turnaround.errors import InputError
from turnaround.words import counted

MAX_RUNS = 1000


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a study. Its name is its directory's."""

    workers: int
    processes: int
    seed: int
    gpu: str | None = None
    """The kind, on a cluster; None takes what there is."""
    hosts: int = 1

    @property
    def is_rehearsal(self) -> bool:
        return self.processes < self.workers

    @property
    def name(self) -> str:
        rehearsed, kind = "-rehearsed" if self.is_rehearsal else "", f"-{self.gpu}" if self.gpu else ""
        return f"{self.workers}w{rehearsed}{kind}{f'-{self.hosts}hosts' if self.hosts > 1 else ''}-seed{self.seed}"

    @property
    def label(self) -> str:
        """The name of the run for people."""
        what = f"{counted(self.workers, 'worker')}{' rehearsed' if self.is_rehearsal else ''}"
        where = [f"{self.hosts} hosts"] * (self.hosts > 1) + [self.gpu] * bool(self.gpu)
        return f"{what}{' on ' * bool(where)}{' with '.join(map(str, where))}, seed {self.seed}"


def plan(
    *, workers: Sequence[int], rehearse: Sequence[int], seeds: Sequence[int], devices: int
) -> tuple[PlannedRun, ...]:
    """Return the runs in their order. `devices` are the GPUs here, or without any the cores."""
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
    _refuse_too_many(runs)
    return tuple(runs)


def plan_there(
    base: Sequence[PlannedRun], *, kinds: Sequence[str | None], hosts_for: Callable[[PlannedRun], Sequence[int]]
) -> tuple[PlannedRun, ...]:
    """On a cluster: every run on every kind of GPU, and on every number of hosts that it may have."""
    on_kinds = [replace(run, gpu=kind) for run in base for kind in dict.fromkeys(kinds)]
    runs = [replace(run, hosts=hosts) for run in on_kinds for hosts in dict.fromkeys(hosts_for(run))]
    _refuse_too_many(runs)
    return tuple(runs)


def _refuse_too_many(runs: Sequence[PlannedRun]) -> None:
    if len(runs) > MAX_RUNS:
        raise InputError(f"This study would have {len(runs):,} runs; {MAX_RUNS:,} are the most. Ask for fewer.")


def _answering_most(workers: Iterable[int]) -> list[int]:
    """Return the fewest, the most, then the others in order."""
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
