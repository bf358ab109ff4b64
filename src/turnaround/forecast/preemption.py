"""Trainings on machines that are taken away: the time and the money that interruptions cost, and how often to save.

An interruption loses what was done since the last checkpoint; then the job waits for a machine, starts again and goes
on. Interruptions come at random, at a rate for each host; any host that is lost interrupts the job. On average (work in
k intervals x with a checkpoint c after each, start s, rate r):

    paid = (e^(r (s + x + c)) - 1) / r + (k - 1) e^(r s) (e^(r (x + c)) - 1) / r        time = paid + r paid x wait

The interval is the middle 80 % of simulated jobs, whose work, start, pause and wait are drawn from their own intervals;
where many jobs are not interrupted at all, it reaches down to the interval of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from turnaround.analysis.configurations import ConfigurationRuns
from turnaround.analysis.prices import Price
from turnaround.forecast.interval import NUM_DRAWS, SEED, Array, Interval, draws, middle_80
from turnaround.forecast.laws import Laws, epochs_planned
from turnaround.forecast.question import InterruptedForecast, InterruptionCosts, Prediction, Question
from turnaround.forecast.turnaround import (
    TurnaroundParts,
    fixed_overhead,
    job_time,
    per_epoch_overhead,
    price_interval,
)
from turnaround.interruptions import HOUR_S, USUAL_EVERY_S, best_interval_s
from turnaround.record.reader import Run

UNKNOWN_PAUSE_S = Interval(value=1.0, low=0.1, high=10.0)
"""Pause of a checkpoint that no run has measured: some MB to some GB copied to host memory. A judgement."""
PAUSE_SCATTER = 0.3
"""Least relative 80 % half-width of pauses and waits, from run to run. A judgement."""
HOPELESS = 5.0
"""Mean times between interruptions that a start and one interval may take: with more, fewer than 1 % of the starts save
anything, and no forecast of such a job means much."""
MANY = 100.0
"""Interruptions from which on a job is not played through: the luck of so many is that of fewer, smaller by the root of
their number."""
PLAYED = 1000
"""Interruptions of one job that are played through; the rest is that of the mean. Of thousands of draws some have a
start or a checkpoint that is too long for the rate: such a job never ends."""
UNDISTURBED_SHARE = 1 / 3
"""Share of jobs without an interruption from which on the interval reaches down to theirs. So many times crowd at its
lower edge, and an error that all of them share, of the start or of the speed, would put many below it. 90 % less a
tenth of the share lie inside then: at most 87 %. A judgement."""


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """A job with interruptions."""

    time_s: Interval
    """With the waits for machines."""
    paid_s: Interval
    """Without them."""
    count: float
    """Interruptions on average."""


def expected_paid_s(work_s: float, costs: tuple[float, float], *, every_s: float, per_h: float) -> float:
    """Return the mean time on machines; `costs` are those of a start and of a checkpoint, in seconds."""
    start_s, pause_s = costs
    arrays = [np.array([each]) for each in (work_s, start_s, pause_s)]
    return float(_expected_paid(*arrays, every_s=every_s, rate=per_h / HOUR_S)[0])


def _expected_paid(work: Array, start: Array, pause: Array, *, every_s: float, rate: float) -> Array:
    # All arrays: (draws,). (e^(r t) - 1) / r is the mean time paid until a stretch t has passed without an
    # interruption, begun anew after each.
    every = np.minimum(every_s, np.maximum(work, 1e-9))  # of a job whose last checkpoint is there, nothing is left
    full = np.floor(work / every)
    rest = np.maximum(work - full * every, 0.0)
    if rate <= 0:
        return np.asarray(start + work + (full + (rest > 0)) * pause)
    # The last interval is shorter; the first one is begun by a start, the others only after an interruption.
    again, whole = np.exp(_bounded(rate * start)), np.expm1(_bounded(rate * (every + pause)))
    last = np.where(rest > 0, np.expm1(_bounded(rate * (rest + pause))), 0.0)
    first = np.expm1(_bounded(rate * (start + every + pause)))
    return np.asarray((first + again * ((full - 1) * whole + last)) / rate)


def _bounded(mean_times: Array) -> Array:
    """Return them so that their exponential is a number: nothing ends that needs so many without an interruption."""
    return np.minimum(mean_times, 100.0)


def interrupted(work_s: Interval, costs: InterruptionCosts, *, every_s: float, per_h: float) -> Interrupted | None:
    """Return the time of a job of so much work; None where it would hardly ever get anywhere."""
    rate, start_s, pause_s = per_h / HOUR_S, costs.start_s.value, costs.pause_s.value
    every_s = min(every_s, work_s.value)
    # A start gets as far as its first checkpoint with probability e^-(r (s + x + c)): e^-5 = 0.7 %.
    if rate * (start_s + every_s + pause_s) > HOPELESS:
        return None
    value_s = expected_paid_s(work_s.value, (start_s, pause_s), every_s=every_s, per_h=per_h)
    count = rate * value_s
    drawn = draws([work_s, costs.start_s, costs.pause_s, costs.wait_s])  # four of (NUM_DRAWS,)
    if count > MANY:
        # The luck alone, from a job of MANY interruptions with exact parts; what jobs differ in besides (work, start)
        # is in the formula. The relative luck of n interruptions falls with sqrt(n).
        exact = [np.full(NUM_DRAWS, each) for each in (work_s.value * MANY / count, start_s, pause_s)]
        lucky, _ = _simulated(exact, every_s=every_s, rate=rate)
        luck = 1 + (lucky / lucky.mean() - 1) * math.sqrt(MANY / count)
        paid = luck * _expected_paid(drawn[0], drawn[1], drawn[2], every_s=every_s, rate=rate)
        counts = rate * paid
    else:
        paid, counts = _simulated(drawn, every_s=every_s, rate=rate)
    # The draws give the ends; the value is the mean of the formula, which has no luck in it.
    time_s = middle_80(paid + counts * drawn[3], value_s + count * costs.wait_s.value)
    paid_s = middle_80(paid, value_s)
    if np.mean(counts == 0) >= UNDISTURBED_SHARE:
        low = middle_80(drawn[1] + drawn[0] + np.ceil(drawn[0] / every_s) * drawn[2], value_s).low
        time_s, paid_s = (each.reaching(low=low, high=each.high) for each in (time_s, paid_s))
    return Interrupted(time_s=time_s, paid_s=paid_s, count=count)


def _simulated(drawn: Sequence[Array], *, every_s: float, rate: float) -> tuple[Array, Array]:
    """Return seconds on machines and interruptions of NUM_DRAWS jobs, each with its own work, start and pause."""
    rng = np.random.default_rng(SEED)
    work, start, pause = drawn[0], drawn[1], drawn[2]
    paid, counts, done = np.zeros(NUM_DRAWS), np.zeros(NUM_DRAWS), np.zeros(NUM_DRAWS)
    alive = np.arange(NUM_DRAWS)
    # Each turn is one start of every job that is not done yet.
    for _ in range(PLAYED):
        if not len(alive):
            break
        left = work[alive] - done[alive]
        needed = start[alive] + left + np.ceil(left / every_s) * pause[alive]
        # Memoryless: how long a machine stays does not depend on how long it has been there.
        until = rng.exponential(1 / rate, len(alive)) if rate > 0 else np.full(len(alive), np.inf)
        paid[alive] += np.minimum(needed, until)
        lost = alive[until < needed]
        # Whole intervals, each with its checkpoint: what came after the last one is done again.
        saved = np.floor(np.maximum(until[until < needed] - start[lost], 0) / (every_s + pause[lost]))
        done[lost] = np.minimum(done[lost] + saved * every_s, work[lost])
        counts[lost] += 1
        alive = lost
    if len(alive):
        more = _expected_paid(work[alive] - done[alive], start[alive], pause[alive], every_s=every_s, rate=rate)
        paid[alive] += more
        counts[alive] += rate * more
    return paid, counts


def costs_in(laws: Laws) -> InterruptionCosts:
    """Return what the runs tell of starts, checkpoints, waits for machines, and of work that was lost."""
    times = laws.times
    runs = [run for c in (times.configurations if times else ()) for run in _own_runs(c)]
    pauses = [pause_s for run in runs if (pause_s := _pause_s(run)) is not None]
    # The first start waited in the queue, which no interruption costs: one wait fewer than starts.
    waits = [r.job.requeued_s / (r.job.starts - 1) for run in runs if (r := run.status).job and r.job.starts > 1]
    losses = [(run.status.time_s["lost"], run.status.segments - 1) for run in runs if _has_lost(run)]
    interruptions = sum(count for _, count in losses)
    return InterruptionCosts(
        start_s=fixed_overhead(times.overheads) if times else Interval.exact(0.0),
        pause_s=_spread(pauses) if pauses else UNKNOWN_PAUSE_S,
        wait_s=_spread(waits) if waits else Interval.exact(0.0),
        is_pause_measured=bool(pauses),
        is_wait_measured=bool(waits),
        lost_s=math.fsum(lost_s for lost_s, _ in losses) / interruptions if interruptions else None,
        interruptions_seen=interruptions,
    )


def _own_runs(configuration: ConfigurationRuns) -> list[Run]:
    return [run for summary, run in configuration.members if not summary.is_imported]


def _has_lost(run: Run) -> bool:
    lost_s = run.status.time_s.get("lost", 0.0)
    return run.status.segments > 1 and 0 < lost_s < math.inf


def _pause_s(run: Run) -> float | None:
    """Return the mean pause of a run's checkpoints; None where it has none, or nobody counted them."""
    total_s, saves = run.status.time_s.get("checkpoint", math.nan), run.status.saves
    return total_s / saves if saves and 0 <= total_s < math.inf else None


def _spread(values: Sequence[float]) -> Interval:
    value = median(values)
    around = Interval(value=value, low=value * (1 - PAUSE_SCATTER), high=value * (1 + PAUSE_SCATTER))
    return around.reaching(low=min(values), high=max(values))


def work_time(laws: Laws, prediction: Prediction, epochs: Interval) -> Interval:
    """Return the time of so many epochs without start and checkpoints, whose times interruptions change."""
    parts = laws.parts(prediction.workers, prediction.hosts)
    assert parts is not None, "asked only where there are times"
    assert laws.times is not None, "as above"
    # The formula of an interrupted job has a checkpoint for each interval and a start for each interruption: here they
    # would count twice.
    overheads = [replace(each, checkpoint_s=0.0) for each in laws.times.overheads]
    work = TurnaroundParts(
        epoch_s=parts.epoch_s,
        per_epoch_overhead_s=per_epoch_overhead(overheads, laws.evaluating(prediction.workers, prediction.hosts)),
        fixed_overhead_s=Interval.exact(0.0),
    )
    return job_time(work, epochs)


def with_interruptions(prediction: Prediction, laws: Laws, question: Question) -> Prediction:
    """Return the prediction with the time and the cost on machines that are taken away at the rate of the question."""
    if question.interruptions_per_h is None or laws.parts(prediction.workers, prediction.hosts) is None:
        return prediction
    costs, per_h = costs_in(laws), question.interruptions_per_h * prediction.hosts
    every_s = best_interval_s(pause_s=costs.pause_s.value, per_h=per_h)
    all_epochs, epochs = epochs_planned(laws.observations), prediction.epochs_to_stable
    # The job and its stable epoch, saved as often as is best; the job saved as usual shows what that is worth.
    job, stable, usual = (
        interrupted(work_time(laws, prediction, each), costs, every_s=interval_s, per_h=per_h) if each else None
        for each, interval_s in ((all_epochs, every_s), (epochs, every_s), (all_epochs, USUAL_EVERY_S))
    )
    # Beside a row that was run, what interruptions add to a forecast is added to what it took.
    job, usual = (_as_measured(each, prediction, "job_time_s") for each in (job, usual))
    stable = _as_measured(stable, prediction, "time_to_stable_s")
    spot = _spot_price(question.prices.get(laws.gpu))
    price = spot or question.price_of(laws.gpu)
    paid_job_s, paid_to_stable_s = (each.paid_s if each else None for each in (job, stable))
    return replace(
        prediction,
        interrupted=InterruptedForecast(
            per_h=per_h,
            checkpoint_every_s=every_s if math.isfinite(every_s) else None,
            interruptions=job.count if job else None,
            job_time_s=job.time_s if job else None,
            time_to_stable_s=stable.time_s if stable else None,
            usual_job_time_s=usual.time_s if usual else None,
            paid_job_s=paid_job_s,
            paid_to_stable_s=paid_to_stable_s,
            cost=price_interval(paid_job_s, price, workers=prediction.workers),
            cost_to_stable=price_interval(paid_to_stable_s, price, workers=prediction.workers),
            currency=price.currency if price else None,
            is_spot=spot is not None,
            costs=costs,
        ),
    )


def _as_measured(found: Interrupted | None, prediction: Prediction, figure: str) -> Interrupted | None:
    """Return the interrupted job longer or shorter as its undisturbed time was measured to be against the forecast."""
    measured, forecast = prediction.measured.get(figure), getattr(prediction, figure)
    if found is None or measured is None or forecast is None:
        return found
    ratio = measured.value / forecast.value
    return Interrupted(time_s=found.time_s.scaled(ratio), paid_s=found.paid_s.scaled(ratio), count=found.count * ratio)


def _spot_price(price: Price | None) -> Price | None:
    """Return what the same GPU costs on machines that may be taken away; None where that is not known."""
    spot = price.spot_per_hour if price else None
    return replace(price, per_hour=spot) if price and spot is not None else None
