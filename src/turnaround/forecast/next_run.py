"""The single run that would make a forecast surest, and its cost.

Each candidate is tried out: an observation that lies on the law is added, the laws are fitted again, and the interval
is looked at. The configuration that was asked for is no candidate, since running it needs no forecast; its rehearsal
is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from turnaround.forecast.epochs import EpochsObservation
from turnaround.forecast.interval import Interval
from turnaround.forecast.laws import Laws, epochs_planned, fit_laws
from turnaround.forecast.observations import Observations, Times
from turnaround.forecast.predict import Forecaster
from turnaround.forecast.question import NextRun, NextRunReason, Prediction
from turnaround.forecast.turnaround import gpu_hours, job_time

EPOCHS_SD = 2.0
"""Standard deviation of the stable epoch of one run of about 30 epochs: simulated curves of five shapes, with
binomial noise of 2,500 validation images and 0.3 to 0.6 points between epochs, gave 1.2 to 2.4."""
WORTH_SAYING = 0.03
"""Least part of the interval's width that a run must take away."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A run that could be done."""

    workers: int
    is_rehearsal: bool


def next_run(forecaster: Forecaster, prediction: Prediction) -> NextRun | None:
    """Return the run that narrows the interval most; None where no single run helps."""
    laws = forecaster.laws
    if laws.time is None:
        return _next_run(forecaster, Candidate(workers=1, is_rehearsal=False), "no times")
    if laws.epochs is None and laws.global_batch(prediction.workers) is not None:
        # Of one worker a rehearsal is a plain run.
        alone = Candidate(workers=prediction.workers, is_rehearsal=prediction.workers > 1)
        return _next_run(forecaster, alone, "no stable epoch")
    # Expected gain of a run: the interval's relative width after refitting with it, against the width now.
    before = _width(prediction)
    tried = [(_width(_with(forecaster, c).predict(prediction.workers)), c) for c in _candidates(laws, prediction)]
    useful = [(after, c) for after, c in tried if before and after and after < before * (1 - WORTH_SAYING)]
    if not useful or before is None:
        return None
    # Of those that are as good to a hundredth: rehearsals need one GPU only, and few workers end sooner.
    after, best = min(useful, key=lambda pair: (round(pair[0], 2), not pair[1].is_rehearsal, pair[1].workers))
    return replace(_next_run(forecaster, best, "narrower"), width_before=before, width_after=after)


def _candidates(laws: Laws, prediction: Prediction) -> Iterator[Candidate]:
    """Yield rehearsals up to the workers asked for, and real runs below: powers of two, and half of what was asked."""
    wanted, seen = prediction.workers, laws.observations
    counts = sorted({2**k for k in range(wanted.bit_length()) if 2**k <= wanted} | {wanted, -(-wanted // 2)})
    known = set(laws.epochs.batches_) if laws.epochs else set()
    for workers in counts:
        # With a fixed global batch more workers are no other batch; and one worker needs no rehearsal.
        if seen.batch_total is None and laws.global_batch(workers) not in known and workers > 1:
            yield Candidate(workers=workers, is_rehearsal=True)
        if laws.times and workers < wanted and workers not in laws.times.counts:
            yield Candidate(workers=workers, is_rehearsal=False)


def _with(forecaster: Forecaster, candidate: Candidate) -> Forecaster:
    """Return the forecaster refitted as if the candidate had been run and had measured what the laws predict."""
    laws, n = forecaster.laws, candidate.workers
    seen, epochs = laws.observations, laws.at_batch(laws.epochs, n)
    batch = laws.global_batch(n)
    more: Observations = seen
    if epochs is not None and batch is not None:
        found = EpochsObservation(global_batch=batch, epochs=epochs.value, sd=EPOCHS_SD)
        more = replace(more, epochs=(*seen.epochs, found))
    if not candidate.is_rehearsal and laws.times is not None:
        more = replace(more, times=seen.times | {laws.times.gpu: _with_time(laws, laws.times, n)})
    measured_on = laws.times.gpu if laws.times else None
    return replace(forecaster, laws=fit_laws(more, measured_on=measured_on, gpu=laws.gpu, asked=laws.asked))


def _with_time(laws: Laws, times: Times, workers: int) -> Times:
    assert laws.time is not None, "asked only where there are times"
    time_s = laws.time.predict(laws.deployment(workers, 1)).value
    global_batch = laws.observations.global_batch(workers) or workers
    return replace(
        times, observed=(*times.observed, times.observed[0].predicted(workers, time_s, global_batch=global_batch))
    )


def _width(prediction: Prediction) -> float | None:
    figures = (prediction.time_to_stable_s, prediction.job_time_s, prediction.epochs_to_stable)
    known = next((f for f in figures if f is not None), None)
    return None if known is None else known.relative_width


def _next_run(forecaster: Forecaster, candidate: Candidate, reason: NextRunReason) -> NextRun:
    """Return the run with its costs: a rehearsal takes one GPU as long as a run of one worker."""
    gpus = 1 if candidate.is_rehearsal else candidate.workers
    time_s = _time_s(forecaster.laws, gpus)
    hours = None if time_s is None else gpu_hours(time_s.value, gpus)
    price = forecaster.question.price_of(forecaster.laws.gpu)
    return NextRun(
        workers=candidate.workers,
        is_rehearsal=candidate.is_rehearsal,
        reason=reason,
        time_s=time_s,
        gpu_hours=hours,
        cost=price.cost(time_s.value, devices=gpus) if time_s is not None and price else None,
        width_before=None,
        width_after=None,
    )


def _time_s(laws: Laws, workers: int) -> Interval | None:
    parts, epochs = laws.parts(workers, 1), epochs_planned(laws.observations)
    return job_time(parts, epochs) if parts and epochs else None
