"""The laws along the numbers of workers: what a picture of measured and forecast values needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.workloads import Survey
from turnaround.errors import InputError
from turnaround.forecast.contract import Forecast
from turnaround.forecast.laws import planned
from turnaround.forecast.predict import Forecaster, forecaster
from turnaround.forecast.question import Prediction, Question
from turnaround.forecast.turnaround import TurnaroundParts, exact, job_time

AHEAD = 2
"""The laws are followed to so many times the most workers that were run or rehearsed."""


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """What the laws say about one number of workers."""

    workers: int
    prediction: Prediction
    speedup: Forecast | None
    """Against the baseline's measured epoch; None for a kind of GPU that nobody timed."""
    efficiency: Forecast | None
    is_measured: bool
    """Whether real runs of this kind of GPU had so many workers."""

    @property
    def is_shown_apart(self) -> bool:
        """A forecast worth a mark of its own: nobody has measured it, and it is a count that people ask for."""
        return not self.is_measured and self.workers & (self.workers - 1) == 0


def forecasters_of(job: Workload, *, price: float | None = None) -> tuple[Forecaster, ...]:
    """One for each kind of GPU that was timed, with the job's common target; without times one for epochs and accuracy;
    nothing where there is nothing to learn from."""
    target = job.target if job.target is not None and 0 < job.target < 1 else None
    kinds = sorted({case.configuration.gpu for case in job.cases if case.epoch_time_s is not None})
    found = []
    asked: list[str | None] = [*kinds] or [None]
    for kind in asked:
        try:
            found.append(forecaster(Survey(jobs=(job,)), Question(workers=1, gpu=kind, price=price, target=target)))
        except InputError:  # nothing to learn from: the pictures then have what was measured
            continue
    return tuple(found)


def points(asked: Forecaster) -> tuple[SweepPoint, ...]:
    """From the fewest workers that were run to twice the most, and to what was asked for."""
    first, last = _range(asked)
    measured = set(asked.laws.times.counts) if asked.laws.times and not asked.laws.is_carried_over else set()
    baseline = baseline_of(asked)
    return tuple(_point(asked, n, n in measured, baseline) for n in _counts(first, last, measured))


def _range(asked: Forecaster) -> tuple[int, int]:
    cases = asked.laws.times.cases if asked.laws.times else asked.laws.observations.learned_from
    counts = [case.configuration.workers for case in cases] or [1]
    rehearsed = [case.configuration.workers for case in asked.laws.observations.learned_from]
    return min(counts), max(AHEAD * max(counts), *rehearsed, asked.question.workers)


def _counts(first: int, last: int, measured: set[int]) -> list[int]:
    """Powers of two, what lies halfway between them, and what was measured: enough for a smooth line."""
    powers = [2**k for k in range(last.bit_length() + 1)]
    halfway = [3 * n // 2 for n in powers if n > 1]
    return sorted({n for n in (*powers, *halfway, *measured, first, last) if first <= n <= last})


def baseline_of(asked: Forecaster) -> ConfigurationRuns | None:
    """The timed case with the fewest workers."""
    if asked.laws.times is None or asked.laws.is_carried_over:
        return None
    return min(asked.laws.times.cases, key=lambda case: case.configuration.workers)


def _point(asked: Forecaster, workers: int, is_measured: bool, baseline: ConfigurationRuns | None) -> SweepPoint:
    prediction = asked.predict(workers)
    speedup = efficiency = None
    time_s, base = prediction.epoch_time_s, baseline.epoch_time_s if baseline else None
    if time_s is not None and baseline is not None and base is not None and time_s.low > 0:
        speedup = Forecast(value=base.value / time_s.value, low=base.value / time_s.high, high=base.value / time_s.low)
        ratio = workers / baseline.configuration.workers
        efficiency = Forecast(value=speedup.value / ratio, low=speedup.low / ratio, high=speedup.high / ratio)
    return SweepPoint(
        workers=workers, prediction=prediction, speedup=speedup, efficiency=efficiency, is_measured=is_measured
    )


def measured_time_to_stable(asked: Forecaster, case: ConfigurationRuns) -> Forecast | None:
    """Of a timed case that became stable, with start-up and evaluations as the forecast has them; the interval is that
    of its epochs alone."""
    times, stable, epoch_s = asked.laws.times, case.stable, case.epoch_time_s
    if times is None or stable.status != "stable" or stable.epoch is None or epoch_s is None:
        return None
    own = next((o for c, o in zip(times.cases, times.overheads, strict=True) if c is case), None)
    if own is None:
        return None
    once = [o.once_s for o in times.overheads if o.once_s is not None]
    once_s = own.once_s if own.once_s is not None else median(once) if once else 0.0
    parts = TurnaroundParts(
        epoch_s=exact(epoch_s.value),
        after_epoch_s=exact(own.evaluation_s + own.checkpoint_s),
        once_s=exact(once_s),
    )
    low, high = stable.low or stable.epoch, stable.high or stable.epoch
    ends = [job_time(parts, exact(epochs)).value for epochs in (low, stable.epoch, high)]
    return Forecast(low=ends[0], value=ends[1], high=ends[2])


def set_aside(asked: Forecaster) -> tuple[ConfigurationRuns, ...]:
    """Timed cases that the law of time was not fitted to."""
    if asked.laws.time is None or asked.laws.times is None:
        return ()
    aside = {observation.processes for observation in asked.laws.time.set_aside_}
    return tuple(case for case in asked.laws.times.cases if case.configuration.workers in aside)


def epochs_planned(asked: Forecaster) -> float | None:
    """Those of the recipe."""
    found = planned(asked.laws.observations)
    return None if found is None else found.value


def same_epochs_law(first: Sequence[SweepPoint], second: Sequence[SweepPoint]) -> bool:
    """Whether two forecasters say the same of the epochs wherever both speak: kinds of GPU share that law."""
    ours = {point.workers: point.prediction.epochs_to_stable for point in first}
    return all(ours[p.workers] == p.prediction.epochs_to_stable for p in second if p.workers in ours)
