"""The best of a range in sentences, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turnaround.findings.interruptions import rate_text
from turnaround.forecast.question import Prediction, Question
from turnaround.forecast.ranking import (
    TO_STABLE,
    Best,
    are_hopeless,
    best_of_range,
    ranked_cost,
    ranked_time,
    within_noise,
)
from turnaround.words import about, duration, hardware, listed, money, plural

MAX_COUNTS = 3
"""Counts that are named one by one."""


def best_in_words(predictions: Sequence[Prediction], question: Question) -> str:
    """Return which numbers of workers are fastest, cheapest and enough, and which others may be as good."""
    best = best_of_range(predictions)
    if best is None:
        return _unranked(predictions, question)
    first, within = predictions[0], within_noise(predictions, best)
    what = "to a stable accuracy" if best.by == TO_STABLE else f"for {first.epochs_planned} epochs"
    answer = (
        f"fastest {what} {_choice(predictions, best, best.fastest, within.fastest)}, "
        f"cheapest {_choice(predictions, best, best.cheapest, within.cheapest)}."
    )
    if best.near_fastest not in (best.fastest, best.cheapest):
        answer += f" Cheapest within 10 % of the fastest: {_choice(predictions, best, best.near_fastest)}."
    if best.enough < best.fastest:
        answer += f" Beyond {hardware(best.enough, first.gpu)} more gain less than 5 %."
    return " ".join([answer, *_with_interruptions(predictions, best, question)])


def _unranked(predictions: Sequence[Prediction], question: Question) -> str:
    if are_hopeless(predictions):
        return (
            f"{_rate(question)}: hardly any job would get as far as its first checkpoint, so none of these would "
            "ever be done. Ask about fewer hosts, or about machines that stay longer."
        )
    unknown = "times are" if predictions[0].epoch_time_s is None else "the epochs of a job are"
    return f"{unknown} not known, so the fastest and the cheapest cannot be told."


def _choice(predictions: Sequence[Prediction], best: Best, workers: int, alike: Sequence[int] = ()) -> str:
    """One number of workers with its time and its cost."""
    p = next(p for p in predictions if p.workers == workers)
    time_s, cost = ranked_time(p, best), ranked_cost(p, best)
    assert time_s is not None, "what was ranked has a time"
    is_measured = (
        not best.is_interrupted and ("time_to_stable_s" if best.by == TO_STABLE else "job_time_s") in p.measured
    )
    said = [duration(time_s.value) if is_measured else about(time_s.value)]
    if cost is not None:
        currency = p.interrupted.currency if best.is_interrupted and p.interrupted else p.currency
        said.append(f"{money(cost)} {currency}" if currency else f"cost {money(cost)}")
    noise = f"; {counts_in_words(alike)} within its interval" if alike else ""
    return f"{hardware(workers, p.gpu)} ({', '.join(said)}{noise})"


def _with_interruptions(predictions: Sequence[Prediction], best: Best, question: Question) -> Iterator[str]:
    """Yield that the ranking is that of interrupted jobs, and what would be the fastest without."""
    if not best.is_interrupted:
        return
    price = ""
    if best.is_priced:
        is_spot = any(p.interrupted is not None and p.interrupted.is_spot for p in predictions)
        price = (
            " and costs (at the spot price)" if is_spot else " and costs (at the full price, no spot price is known)"
        )
    text = f"{_rate(question)}: these are times{price} of the interrupted job"
    plain = best_of_range(predictions, undisturbed=True)
    if plain is not None and plain.fastest != best.fastest:
        text += f"; undisturbed, the fastest would be {_choice(predictions, plain, plain.fastest)}"
    yield f"{text}."
    if best.hopeless:
        yield f"With {hopeless_in_words(best.hopeless)} it would hardly ever be done."


def _rate(question: Question) -> str:
    assert question.interruptions_per_h is not None, "only then there are interrupted jobs"
    return f"Each host is taken away {rate_text(question.interruptions_per_h)}"


def hopeless_in_words(counts: Sequence[int]) -> str:
    """Name the numbers of workers that are never done."""
    few = listed([str(count) for count in counts]) if len(counts) <= MAX_COUNTS else f"{min(counts)} to {max(counts)}"
    return f"{few} {plural(max(counts), 'worker')}"


def counts_in_words(counts: Sequence[int]) -> str:
    """Name a few counts one by one, of many the ends."""
    if len(counts) > MAX_COUNTS:
        return f"{len(counts)} others from {min(counts)} to {max(counts)}"
    return listed([str(count) for count in counts])
