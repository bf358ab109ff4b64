"""The words for the queue: who is ready first, how long the wait is, and how far the cluster's estimates are off.

Enters: predictions with their queue (turnaround.forecast.queue). Leaves: sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from turnaround.forecast.interval import Interval
from turnaround.forecast.question import Prediction, QueueForecast
from turnaround.forecast.queue import CYCLE_S, MAX_ASKED, MAX_ASKING_S, PRIOR_RATIO, ready_first
from turnaround.words import about, clock, counted, hardware, listed


def ready_text(predictions: Sequence[Prediction], now: datetime) -> str | None:
    """Return who has the result first, the queue included: the headline of a question to a cluster."""
    found = ready_first(predictions)
    if found is None:
        return None
    first, fastest = found.first, found.fastest
    here = hardware(first.workers, first.gpu)
    if len(predictions) == 1:
        return f"{here} would {_start_text(first)}: {_ready(first, now)}."
    if first is fastest:
        return f"Ready first, the queue included: {here}, which would {_start_text(first)}: {_ready(first, now)}."
    there = hardware(fastest.workers, fastest.gpu)
    doubt = " The intervals overlap: it may be the other way round." if found.is_open else ""
    return (
        f"{here}, which would {_start_text(first)}, are ready before {there}, which would {_start_text(fastest)}: "
        f"{_ready(first, now)}, against {_ready(fastest, now, goal=False)}.{doubt}"
    ).replace(" are ready", " is ready" if first.workers == 1 else " are ready", 1)


def queue_notes(predictions: Sequence[Prediction], cluster: str) -> Iterator[str]:
    """Yield what the waits rest on, and for which numbers of workers there is none."""
    known = [p.queue for p in predictions if p.queue is not None and p.queue.wait_s is not None]
    estimated = [queue for queue in known if queue.estimated_wait_s is not None and queue.ratio is not None]
    if estimated and estimated[0].ratio is not None:
        yield _error_text(estimated[0], estimated[0].ratio, cluster)
    if len(estimated) < len(known):
        jobs = max(queue.learned_from for queue in known if queue.estimated_wait_s is None)
        yield f"{cluster} does not say when such a job would start: the wait is that of {counted(jobs, 'earlier job')}"
    if not known:
        yield f"{cluster} does not say when such a job would start, and no earlier job is known: the queue is left out"
    refused = [p for p in predictions if p.queue is not None and p.queue.refused is not None]
    is_one_kind = len({p.gpu for p in predictions}) == 1
    for gpu in dict.fromkeys(p.gpu for p in refused):
        of_kind = [p for p in refused if p.gpu == gpu]
        assert of_kind[0].queue is not None, "only queues refuse"
        counts = f"{_counts(of_kind, predictions)} {'workers' if is_one_kind else gpu}"
        # Each number has its own reason: that of the first stands for all.
        first = f"with {of_kind[0].workers}, " if len(of_kind) > 1 else ""
        yield f"no start of {counts} on {cluster}: {first}{of_kind[0].queue.refused}"
    yield from _not_asked(predictions, cluster)


def _not_asked(predictions: Sequence[Prediction], cluster: str) -> Iterator[str]:
    """Yield of which numbers of workers the cluster was not asked, of the kinds of which it was, and why."""
    asked = {p.gpu for p in predictions if p.queue is not None}
    left = [p for p in predictions if p.queue is None and p.gpu in asked]
    if left:
        shown = [
            f"{_counts([p for p in left if p.gpu == gpu], left)} {gpu}" for gpu in dict.fromkeys(p.gpu for p in left)
        ]
        yield (
            f"{cluster} was not asked about {listed(shown)}: each question makes it plan anew, so there are at most "
            f"{MAX_ASKED}, and none after {about(MAX_ASKING_S)}. Ask for fewer numbers of workers"
        )


def absent_kinds(gpus: Sequence[str], cluster: str) -> Iterator[str]:
    """Yield which kinds have no queue, since the cluster does not have them."""
    if gpus:
        yield f"{cluster} has no {' or '.join(gpus)}: times without a queue"


def silence_text(why: str) -> str:
    """Return the message of a cluster that has not answered a question which has an answer without it."""
    return f"Without the queue: {why}"


def _counts(some: Sequence[Prediction], predictions: Sequence[Prediction]) -> str:
    """Return their numbers of workers; of many that follow one another in the predictions, the ends."""
    counts = [p.workers for p in some]
    between = [p.workers for p in predictions if p.gpu == some[0].gpu and counts[0] <= p.workers <= counts[-1]]
    return f"{counts[0]} to {counts[-1]}" if len(counts) > 3 and between == counts else listed(counts)


def _error_text(queue: QueueForecast, ratio: Interval, cluster: str) -> str:
    within = f"{ratio.low:.2g} to {ratio.high:.2g} times the estimate in 80 %"
    if not queue.learned_from:
        return (
            f"{cluster}'s own estimate of the start, which is rough; no job here has shown how rough, so a typical "
            f"error is taken: about {PRIOR_RATIO:g} times, {within}"
        )
    return (
        f"{cluster}'s own estimate of the start, and its error in {counted(queue.learned_from, 'earlier job')}: a job "
        f"has waited about {ratio.value:.2g} times as long, {within}"
    )


def _start_text(p: Prediction) -> str:
    wait_s = p.queue.wait_s if p.queue else None
    assert wait_s is not None, "who is ready has a wait"
    return "start at once" if wait_s.value < CYCLE_S else f"wait about {about(wait_s.value)}"


def _ready(p: Prediction, now: datetime, *, goal: bool = True) -> str:
    assert p.queue is not None
    ready_s = p.queue.ready_s
    assert ready_s is not None, "only what is ready at a known time is compared"
    what = "" if not goal else "a stable accuracy in " if p.queue.is_to_stable else "the end of the job in "
    at = clock(now + timedelta(seconds=ready_s.value), now)
    return f"{what}about {about(ready_s.value)} ({about(ready_s.low)} to {about(ready_s.high)}), {at}"
