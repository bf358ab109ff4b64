"""The one run that would narrow an estimate from zero runs most: a training on one device of that kind, or a rehearsal.

Enters: the trial, the question and the estimate that it is about. Leaves: a `NarrowingRun` with the widths of the
interval before and after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from turnaround.forecast import prior
from turnaround.forecast.epochs import INSIDE
from turnaround.forecast.estimate import Estimate, EstimateQuestion, TrialFacts, estimate_one, parts_of
from turnaround.forecast.interval import Interval
from turnaround.forecast.turnaround import FIXED_SCATTER, job_time

MEASURED_HALF_WIDTH = 0.05
"""80 % half-width of the logarithm of an epoch's time after a run on the very kind: what is left is the scaling."""

NarrowingKind = Literal["train there", "rehearse here"]


@dataclass(frozen=True, kw_only=True)
class NarrowingRun:
    """The one run that would narrow the estimate of a configuration most."""

    kind: NarrowingKind
    workers: int
    gpu: str
    """Where it runs."""
    time_s: Interval
    cost: float | None
    width_before: float
    """Upper over lower end of the time to stable, now and after that run."""
    width_after: float
    about: Estimate


def narrowing_run(measured: TrialFacts, question: EstimateQuestion, about: Estimate) -> NarrowingRun | None:
    """Return the run that narrows the time to stable of one estimate most; None where none does."""
    now = about.prediction.time_to_stable_s
    if now is None or now.low <= 0:
        return None
    # Ratios of the ends: errors are relative, so the widths of short and of long times compare.
    before = now.high / now.low
    tried = list(_candidates(measured, question, about, before))
    best = min(tried, key=lambda run: run.width_after, default=None)
    return best if best is not None and best.width_after < before else None


def _candidates(
    measured: TrialFacts, question: EstimateQuestion, about: Estimate, before: float
) -> Iterator[NarrowingRun]:
    """Yield a training on one device of the kind, and a rehearsal of all workers on this machine."""
    p = about.prediction
    assert p.epochs_to_stable is not None
    parts = parts_of(measured, question, p.gpu, p.workers, p.hosts)
    planned = Interval.exact(float(measured.epochs))
    # What a training on one GPU of that kind would tell: its rate, taken to be the estimate's own value, and its
    # start-up, to within FIXED_SCATTER. How well more GPUs scale stays as unsure as it is.
    alone = estimate_one(measured, question, p.gpu, 1)
    timed = parts_of(_as_measured(measured, p.gpu, alone), question, p.gpu, p.workers, p.hosts)
    start_s = timed.fixed_overhead_s.value
    known = Interval(value=start_s, low=start_s * (1 - FIXED_SCATTER), high=start_s * (1 + FIXED_SCATTER))
    timed = replace(timed, fixed_overhead_s=known)
    # Its stable epoch is that of one worker: to more it goes by the law of the batch.
    share = prior.STABLE_SHARE.value * measured.epochs
    own = Interval(value=share, low=share * (1 - INSIDE), high=share * (1 + INSIDE))
    ratio = prior.epochs_to_stable(planned=measured.epochs, batch=measured.batch, global_batch=p.global_batch or 1)
    epochs = own if p.workers == 1 else _like(ratio, own)
    there = job_time(timed, epochs)
    assert alone.prediction.job_time_s is not None
    yield NarrowingRun(
        kind="train there",
        workers=1,
        gpu=p.gpu,
        time_s=alone.prediction.job_time_s,
        cost=None if alone.prediction.cost is None else alone.prediction.cost.value,
        width_before=before,
        width_after=there.high / there.low,
        about=about,
    )
    if p.gpu == measured.device and p.workers == 1:
        return  # a rehearsal of one worker here is that very run
    # A rehearsal tells when so many workers become stable, to within INSIDE, and nothing of their times. It costs what
    # a plain run costs (docs/architecture.md), so its own time is that of one worker here.
    value = p.epochs_to_stable.value
    rehearsed = job_time(parts, Interval(value=value, low=value * (1 - INSIDE), high=value * (1 + INSIDE)))
    own_parts = parts_of(measured, question, measured.device, 1, 1)
    yield NarrowingRun(
        kind="rehearse here",
        workers=p.workers,
        gpu=measured.device,
        time_s=job_time(own_parts, planned),
        cost=None,
        width_before=before,
        width_after=rehearsed.high / rehearsed.low,
        about=about,
    )


def _as_measured(measured: TrialFacts, kind: str, alone: Estimate) -> TrialFacts:
    """Return the measurement as if a run on one device of the kind had found the estimate's own value."""
    rate = alone.prediction.images_per_s
    assert rate is not None, "every estimate has a rate"
    found = replace(measured, images_per_s=Interval.exact(rate.value), half_width=MEASURED_HALF_WIDTH)
    if kind == measured.device:
        return found
    # Of another device: what this one takes for a backbone's pass, to start and in watts says nothing there.
    return replace(found, device=kind, backbone_images_per_s=None, start_up_s=None, training_watts=None)


def _like(known: Interval, own: Interval) -> Interval:
    """Return the interval of a law from one batch with the width of what was measured there instead of the prior's."""
    alone = prior.STABLE_SHARE
    # Independent errors add up in squares of logarithms: the prior's share is taken out, what was measured comes in.
    # Where the lower end was cut off at one epoch (prior.epochs_to_stable) the rest may be negative: 0 then.
    less = math.log(known.value / known.low) ** 2 - math.log(alone.value / alone.low) ** 2
    more = math.log(known.high / known.value) ** 2 - math.log(alone.high / alone.value) ** 2
    low = math.hypot(math.sqrt(max(less, 0.0)), math.log(own.value / own.low))
    high = math.hypot(math.sqrt(max(more, 0.0)), math.log(own.high / own.value))
    return Interval(value=known.value, low=known.value * math.exp(-low), high=known.value * math.exp(high))
