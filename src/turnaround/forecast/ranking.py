"""The best numbers of workers of a range: fastest, cheapest, enough.

Enters: predictions of one job on one kind of GPU. Leaves: a `Best`, by the times and costs that a user would have: with
interruptions those of the interrupted job, where one was measured the measurement, where it has a price its money.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnaround.forecast.interval import Interval
from turnaround.forecast.question import Prediction
from turnaround.forecast.remarks import MoreProcessesThanCores
from turnaround.forecast.turnaround import NEAR_FASTEST

WORTH_IT = 0.05
"""Gain in time below which more GPUs buy nothing."""
TO_STABLE, WHOLE_JOB = "time to stable", "job time"
"""The times by which a range is ranked, the first of them where it is known for all."""
_FIGURES = {TO_STABLE: ("time_to_stable_s", "cost_to_stable"), WHOLE_JOB: ("job_time_s", "cost")}


@dataclass(frozen=True, kw_only=True)
class RankedCount:
    """One number of workers, with what is compared. An interval without width is a measurement."""

    workers: int
    time_s: Interval
    paid: Interval
    """Money; without a price the seconds of all GPUs together."""

    @property
    def paid_key(self) -> tuple[float, float, int]:
        """Where a begun hour is paid whole, many cost the same: of those the faster is the cheaper."""
        return self.paid.value, self.time_s.value, self.workers


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best numbers of workers of a range, by the values of the forecasts."""

    fastest: int
    cheapest: int
    """Lowest cost; without a price the fewest GPU-hours."""
    enough: int
    """The fewest workers beyond which the time falls by less than 5 %."""
    near_fastest: int
    """Lowest cost, or fewest GPU-hours, within a tenth of the fastest."""
    by: str
    """The time that was compared: "time to stable" or "job time"."""
    is_interrupted: bool = False
    """The times and costs are those of interrupted jobs."""
    is_priced: bool = False
    """The costs are money; else GPU-hours."""
    hopeless: tuple[int, ...] = ()
    """Numbers of workers that interruptions would hardly ever let get anywhere: they are no choice."""


@dataclass(frozen=True, kw_only=True)
class WithinNoise:
    """Numbers of workers whose value lies inside the interval of the fastest, or of the cheapest: no worse, as far as
    anybody can tell."""

    fastest: tuple[int, ...] = ()
    cheapest: tuple[int, ...] = ()


def best_of_range(predictions: Sequence[Prediction], *, undisturbed: bool = False) -> Best | None:
    """Rank by time to stable where all have it, else by job time; None where neither is known, or where interruptions
    let none end. `undisturbed`: as if there were no interruptions."""
    by = _ranked_by(predictions)
    if by is None:
        return None
    is_interrupted = not undisturbed and _are_interrupted(predictions)
    candidates = _candidates(predictions, by, is_interrupted=is_interrupted)
    if not candidates:
        return None
    known = {candidate.workers for candidate in candidates}
    return _best_of(
        candidates,
        by=by,
        is_interrupted=is_interrupted,
        is_priced=_are_priced(predictions, by, is_interrupted=is_interrupted),
        hopeless=tuple(p.workers for p in _choices(predictions) if is_interrupted and p.workers not in known),
    )


def are_hopeless(predictions: Sequence[Prediction]) -> bool:
    """Tell whether interruptions let no number of workers reach the goal of the range."""
    by = _ranked_by(predictions)
    is_known = by is not None and _are_interrupted(predictions)
    return is_known and not _candidates(predictions, by or WHOLE_JOB, is_interrupted=True)


def within_noise(predictions: Sequence[Prediction], best: Best) -> WithinNoise:
    """Return them; nothing is within the noise of what was measured."""
    each = _candidates(predictions, best.by, is_interrupted=best.is_interrupted)
    by_workers = {candidate.workers: candidate for candidate in each}
    fastest, cheapest = by_workers[best.fastest], by_workers[best.cheapest]

    def others(chosen: RankedCount, limit: Interval, values: dict[int, float]) -> tuple[int, ...]:
        is_exact = chosen.time_s.low == chosen.time_s.high
        return () if is_exact else tuple(n for n, v in values.items() if n != chosen.workers and v <= limit.high)

    return WithinNoise(
        fastest=others(fastest, fastest.time_s, {n: c.time_s.value for n, c in by_workers.items()}),
        cheapest=others(cheapest, cheapest.paid, {n: c.paid.value for n, c in by_workers.items()}),
    )


def ranked_time(p: Prediction, best: Best) -> Interval | None:
    """Return the time by which a prediction was ranked; without width where it was measured."""
    candidate = _candidate(p, best.by, is_interrupted=best.is_interrupted)
    return None if candidate is None else candidate.time_s


def ranked_cost(p: Prediction, best: Best) -> float | None:
    """Return the money by which a prediction was ranked; None without a price."""
    candidate = _candidate(p, best.by, is_interrupted=best.is_interrupted) if best.is_priced else None
    return None if candidate is None else candidate.paid.value


def _best_of(
    candidates: Sequence[RankedCount], *, by: str, is_interrupted: bool, is_priced: bool, hopeless: tuple[int, ...]
) -> Best:
    fastest = min(candidates, key=lambda c: (c.time_s.value, c.workers))
    limit_s = NEAR_FASTEST * fastest.time_s.value
    near = [c for c in candidates if c.time_s.value <= limit_s]
    # The fewest from which even the fastest gains less than WORTH_IT.
    enough = [c for c in candidates if c.time_s.value * (1 - WORTH_IT) <= fastest.time_s.value]
    return Best(
        fastest=fastest.workers,
        cheapest=min(candidates, key=lambda c: c.paid_key).workers,
        near_fastest=min(near, key=lambda c: c.paid_key).workers,
        enough=min(c.workers for c in enough if c.workers <= fastest.workers),
        by=by,
        is_interrupted=is_interrupted,
        is_priced=is_priced,
        hopeless=hopeless,
    )


def _ranked_by(predictions: Sequence[Prediction]) -> str | None:
    # All or none: a count whose time is unknown would silently lose against the others.
    own = _choices(predictions)
    for by, (time, _) in _FIGURES.items():
        if own and all(p.best_known(time) is not None for p in own):
            return by
    return None


def _choices(predictions: Sequence[Prediction]) -> Sequence[Prediction]:
    """Processes that would share cores are no choice, nor what a cluster would never start, unless all would."""
    own = [p for p in predictions if not any(isinstance(w, MoreProcessesThanCores) for w in p.remarks.warnings)]
    startable = [p for p in own or predictions if p.queue is None or p.queue.refused is None]
    return startable or own or predictions


def _are_interrupted(predictions: Sequence[Prediction]) -> bool:
    return any(p.interrupted is not None for p in predictions)


def _are_priced(predictions: Sequence[Prediction], by: str, *, is_interrupted: bool) -> bool:
    each = [_cost(p, by, is_interrupted=is_interrupted) for p in predictions]
    return any(cost is not None for cost in each)


def _candidates(predictions: Sequence[Prediction], by: str, *, is_interrupted: bool) -> list[RankedCount]:
    each = (_candidate(p, by, is_interrupted=is_interrupted) for p in _choices(predictions))
    return [candidate for candidate in each if candidate is not None]


def _candidate(p: Prediction, by: str, *, is_interrupted: bool) -> RankedCount | None:
    time_s = paid_s = _known(p, _FIGURES[by][0])
    if is_interrupted:
        found = p.interrupted
        times = (found.time_to_stable_s, found.paid_to_stable_s) if by == TO_STABLE and found else (None, None)
        time_s, paid_s = (found.job_time_s, found.paid_job_s) if by == WHOLE_JOB and found else times
    if time_s is None or paid_s is None:
        return None
    paid = _cost(p, by, is_interrupted=is_interrupted) or paid_s.scaled(p.workers)
    return RankedCount(workers=p.workers, time_s=time_s, paid=paid)


def _cost(p: Prediction, by: str, *, is_interrupted: bool) -> Interval | None:
    if not is_interrupted:
        return _known(p, _FIGURES[by][1])
    if p.interrupted is None:
        return None
    return p.interrupted.cost_to_stable if by == TO_STABLE else p.interrupted.cost


def _known(p: Prediction, name: str) -> Interval | None:
    """Return the measurement, which has no width, else the forecast."""
    measured = p.measured.get(name)
    forecast: Interval | None = getattr(p, name)
    return Interval.exact(measured.value) if measured is not None else forecast
