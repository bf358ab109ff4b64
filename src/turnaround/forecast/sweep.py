"""A sweep over the numbers of workers: what a picture of measured and forecast values needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.prices import Price
from turnaround.analysis.workloads import Survey
from turnaround.errors import InputError
from turnaround.forecast.interval import Interval
from turnaround.forecast.predict import Forecaster, fit_forecaster
from turnaround.forecast.question import Prediction, Question

AHEAD = 2
"""The laws are followed to so many times the most workers that were run or rehearsed."""


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """The forecast for one number of workers."""

    workers: int
    prediction: Prediction
    speedup: Interval | None
    """Speed-up against the baseline's measured epoch; None for a kind of GPU that nobody timed."""
    efficiency: Interval | None
    is_measured: bool
    """True where real runs of this kind of GPU had so many workers."""

    @property
    def is_shown_apart(self) -> bool:
        """A forecast worth a mark of its own: nobody has measured it, and it is a count that people ask for."""
        return not self.is_measured and self.workers & (self.workers - 1) == 0


def forecasters_of(
    job: Workload, *, price: float | None = None, prices: Mapping[str, Price] | None = None
) -> tuple[Forecaster, ...]:
    """Fit one forecaster for each kind of GPU that was timed, with the job's common target; without times one for
    epochs and accuracy; nothing where there is nothing to learn from."""
    target = job.target if job.target is not None and 0 < job.target < 1 else None
    kinds = sorted({c.gpu for c in job.configurations if c.epoch_time_s is not None})
    forecasters = []
    gpus: list[str | None] = [*kinds] or [None]
    for gpu in gpus:
        question = Question(workers=1, gpu=gpu, price=price, prices=prices or {}, target=target)
        try:
            forecasters.append(fit_forecaster(Survey(workloads=(job,)), question))
        except InputError:  # nothing to learn from: the pictures then have what was measured
            continue
    return tuple(forecasters)


def sweep(forecaster: Forecaster) -> tuple[SweepPoint, ...]:
    """Return the forecasts from the fewest workers that were run to twice the most, and to the number asked for."""
    first, last = _range(forecaster)
    measured = (
        set(forecaster.laws.times.counts) if forecaster.laws.times and not forecaster.laws.is_carried_over else set()
    )
    baseline = baseline_of(forecaster)
    return tuple(_point(forecaster, n, n in measured, baseline) for n in _counts(first, last, measured))


def _range(forecaster: Forecaster) -> tuple[int, int]:
    configurations = (
        forecaster.laws.times.configurations if forecaster.laws.times else forecaster.laws.observations.learned_from
    )
    counts = [configuration.workers for configuration in configurations] or [1]
    rehearsed = [configuration.workers for configuration in forecaster.laws.observations.learned_from]
    return min(counts), max(AHEAD * max(counts), *rehearsed, forecaster.question.workers)


def _counts(first: int, last: int, measured: set[int]) -> list[int]:
    """Return powers of two, what lies halfway between them, and what was measured: enough for a smooth line."""
    powers = [2**k for k in range(last.bit_length() + 1)]
    halfway = [3 * n // 2 for n in powers if n > 1]
    return sorted({n for n in (*powers, *halfway, *measured, first, last) if first <= n <= last})


def baseline_of(forecaster: Forecaster) -> ConfigurationRuns | None:
    """Return the timed configuration with the fewest workers."""
    if forecaster.laws.times is None or forecaster.laws.is_carried_over:
        return None
    return min(forecaster.laws.times.configurations, key=lambda configuration: configuration.workers)


def _point(forecaster: Forecaster, workers: int, is_measured: bool, baseline: ConfigurationRuns | None) -> SweepPoint:
    prediction = forecaster.predict(workers)
    speedup = efficiency = None
    time_s, base = prediction.epoch_time_s, baseline.epoch_time_s if baseline else None
    if time_s is not None and baseline is not None and base is not None and time_s.low > 0:
        speedup = time_s.into(base.value)
        efficiency = speedup.scaled(baseline.workers / workers)
    return SweepPoint(
        workers=workers, prediction=prediction, speedup=speedup, efficiency=efficiency, is_measured=is_measured
    )


def set_aside(forecaster: Forecaster) -> tuple[ConfigurationRuns, ...]:
    """Return the timed configurations that the law of time was not fitted to."""
    if forecaster.laws.time is None or forecaster.laws.times is None:
        return ()
    aside = {observation.processes for observation in forecaster.laws.time.set_aside_}
    return tuple(c for c in forecaster.laws.times.configurations if c.workers in aside)


def same_epochs_law(first: Sequence[SweepPoint], second: Sequence[SweepPoint]) -> bool:
    """Return whether two sweeps forecast the same epochs wherever both have a point: kinds of GPU share that law."""
    ours = {point.workers: point.prediction.epochs_to_stable for point in first}
    return all(ours[p.workers] == p.prediction.epochs_to_stable for p in second if p.workers in ours)
