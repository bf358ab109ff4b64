"""The figures of a compute-time proposal: strong and weak scaling, accuracy at scale, GPU-hours and energy asked for.

Enters: a job and a question about it. Leaves: points with intervals, measured, rehearsed or forecast; a request.

    strong   the same images an epoch on more GPUs: speed-up = epoch time of the baseline / epoch time
    weak     the same images on each GPU in a step: efficiency = step time of the baseline / step time
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from turnaround.analysis.configurations import ConfigurationRuns, Spread, Workload
from turnaround.analysis.guessing import wilson_interval
from turnaround.analysis.prices import Price
from turnaround.analysis.speed import comparable_in_time
from turnaround.analysis.summary import steady_epochs
from turnaround.analysis.workloads import Survey
from turnaround.errors import InputError
from turnaround.forecast.interval import Interval
from turnaround.forecast.predict import Forecaster, fit_forecaster
from turnaround.forecast.question import Prediction, Question
from turnaround.forecast.ranking import best_of_range
from turnaround.forecast.sweep import sweep
from turnaround.forecast.turnaround import gpu_hours, price_interval

MIN_COVERAGE = 0.8
"""Coverage of the interval of a median, at least: that of the forecasts."""

PointKind = Literal["measured", "rehearsed", "forecast"]


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """The times of one configuration against its baseline. An interval without width is one that nobody can tell."""

    group: int
    """Which of the comparable groups it belongs to: one kind of GPU with one set of settings."""
    gpu: str
    workers: int
    kind: PointKind
    runs: int
    epoch_time_s: Interval
    speedup: Interval
    efficiency: Interval
    step_time_s: Interval | None
    """None where the runs of the group do not have one batch per worker, or do not say it."""
    weak_efficiency: Interval | None


@dataclass(frozen=True, kw_only=True)
class AccuracyPoint:
    """The validation accuracy of one configuration."""

    gpu: str
    workers: int
    kind: PointKind
    runs: int
    accuracy: Interval


@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """The resources that are asked for."""

    prediction: Prediction
    trainings: int
    time_s: Interval
    """Time of one training."""
    is_measured: bool
    """Runs of this very configuration tell the time."""

    @property
    def gpu_hours(self) -> Interval:
        """All trainings, all GPUs."""
        return self.time_s.scaled(gpu_hours(1.0, self.prediction.workers) * self.trainings)

    @property
    def energy_wh(self) -> Interval | None:
        """Return the energy of the GPUs over all trainings; None where it is not known."""
        known = _known(self.prediction, "energy_wh")
        return None if known is None else known.scaled(self.trainings)

    def cost(self, price: Price | None) -> Interval | None:
        """Return what all trainings cost; each is a job of its own, which pays its begun billing unit."""
        one = price_interval(self.time_s, price, workers=self.prediction.workers)
        return None if one is None else one.scaled(self.trainings)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Everything that a proposal tells."""

    job: Workload
    forecaster: Forecaster
    points: tuple[ScalingPoint, ...]
    accuracies: tuple[AccuracyPoint, ...]
    request: ResourceRequest


def make_proposal(survey: Survey, question: Question, *, workers: int | None, trainings: int = 1) -> Proposal:
    """Return the figures of the job that answers the question; `workers` None: the fewest beyond which more gain less
    than 5 %."""
    if trainings < 1:
        raise InputError(f"--trainings must be 1 or more, received {trainings}.")
    forecaster = fit_forecaster(survey, question)
    job = forecaster.job
    if forecaster.laws.times is None or forecaster.laws.is_carried_over:
        kinds = sorted({c.gpu for c in job.configurations if c.epoch_time_s is not None})
        has = f"there are times on {' and '.join(kinds)}" if kinds else "a rehearsal has accuracies alone"
        raise InputError(
            f"A proposal shows measured scaling, and no run of {job.name!r} has times on {forecaster.laws.gpu}: {has}. "
            "Train at least one configuration there, or ask with --gpu for a kind that was measured."
        )
    prediction = forecaster.predict(workers or _enough(forecaster))
    time_s = _known(prediction, "job_time_s")
    if time_s is None:
        raise InputError(
            f"The runs of {job.name!r} do not say how many epochs a training has, so its GPU-hours cannot be told. "
            "Complete the table that was imported (column epochs)."
        )
    request = ResourceRequest(
        prediction=prediction, trainings=trainings, time_s=time_s, is_measured="job_time_s" in prediction.measured
    )
    ahead = replace(forecaster, question=replace(forecaster.question, workers=prediction.workers))
    return Proposal(
        job=job,
        forecaster=forecaster,
        points=(*_measured_points(job), *_forecast_points(job, ahead)),
        accuracies=tuple(sorted(_accuracies(job), key=lambda point: (point.kind, point.workers))),
        request=request,
    )


def _enough(forecaster: Forecaster) -> int:
    predictions = [point.prediction for point in sweep(forecaster)]
    best = best_of_range(predictions)
    return best.enough if best is not None else max(p.workers for p in predictions)


def _known(prediction: Prediction, figure: str) -> Interval | None:
    """Return the measurement of this configuration with its extremes, else the forecast."""
    measured = prediction.measured.get(figure)
    forecast: Interval | None = getattr(prediction, figure)
    return Interval(value=measured.value, low=measured.low, high=measured.high) if measured else forecast


def _measured_points(job: Workload) -> list[ScalingPoint]:
    points = []
    for group, configurations in enumerate(comparable_in_time(job)):
        baseline = configurations[0]
        has_one_batch = len({_batch_per_worker(c) for c in configurations}) == 1
        for configuration in configurations:
            epoch_s, base_s = epoch_time(configuration), epoch_time(baseline)
            is_baseline = configuration is baseline
            speedup = Interval.exact(1.0) if is_baseline else base_s.divided_by(epoch_s)
            step, base_step = configuration.step_time_s, baseline.step_time_s
            is_weak = has_one_batch and step is not None and base_step is not None
            step_s = _like(epoch_s, step) if step is not None and is_weak else None
            weak = _like(base_s, base_step).divided_by(step_s) if step_s and base_step is not None else None
            points.append(
                ScalingPoint(
                    group=group,
                    gpu=configuration.gpu,
                    workers=configuration.workers,
                    kind="measured",
                    runs=len(configuration.summaries),
                    epoch_time_s=epoch_s,
                    speedup=speedup,
                    efficiency=speedup.scaled(baseline.workers / configuration.workers),
                    step_time_s=step_s,
                    weak_efficiency=Interval.exact(1.0) if weak is not None and is_baseline else weak,
                )
            )
    return points


def _like(shape: Interval, spread: Spread) -> Interval:
    """Return a value with the relative width of another: a step is an epoch, divided by a number that is known."""
    return shape.scaled(spread.value / shape.value)


def _batch_per_worker(configuration: ConfigurationRuns) -> float | None:
    return None if configuration.global_batch is None else configuration.global_batch / configuration.workers


def _forecast_points(job: Workload, forecaster: Forecaster) -> list[ScalingPoint]:
    """Return the forecasts that nobody has measured: powers of two, and the number that is asked for."""
    times = forecaster.laws.times
    groups = comparable_in_time(job)
    group = next((n for n, each in enumerate(groups) if times and times.configurations[0] in each), None)
    if group is None:
        return []
    baseline, asked = groups[group][0], forecaster.question.workers
    found = []
    for point in sweep(forecaster):
        time_s, steps = point.prediction.epoch_time_s, forecaster.laws.steps(point.workers)
        is_shown = point.is_shown_apart or (point.workers == asked and not point.is_measured)
        if not is_shown or time_s is None or point.speedup is None or point.efficiency is None:
            continue
        step_s = time_s.scaled(1 / steps) if steps and baseline.step_time_s is not None else None
        found.append(
            ScalingPoint(
                group=group,
                gpu=point.prediction.gpu,
                workers=point.workers,
                kind="forecast",
                runs=0,
                epoch_time_s=time_s,
                speedup=point.speedup,
                efficiency=point.efficiency,
                step_time_s=step_s,
                weak_efficiency=step_s.into(baseline.step_time_s.value) if step_s and baseline.step_time_s else None,
            )
        )
    return found


def _accuracies(job: Workload) -> list[AccuracyPoint]:
    found = []
    for configuration in job.configurations:
        spread = configuration.final_val_accuracy
        if spread is not None:
            found.append(
                AccuracyPoint(
                    gpu=configuration.gpu,
                    workers=configuration.workers,
                    kind="rehearsed" if configuration.is_rehearsal else "measured",
                    runs=spread.count,
                    accuracy=_accuracy(spread, configuration.num_validation),
                )
            )
    return found


def _accuracy(spread: Spread, num_validation: int | None) -> Interval:
    """Return the extremes of repeats; of a single run the 95 % interval that its validation images allow."""
    low, high = spread.low, spread.high
    if spread.count == 1 and num_validation:
        low, high = wilson_interval(spread.value, num_validation)
    return Interval(value=spread.value, low=min(low, spread.value), high=max(high, spread.value))


def epoch_time(configuration: ConfigurationRuns) -> Interval:
    """Return the time of an epoch: the extremes of repeats; of a single run the interval of the median of its steady
    epochs; of a figure from a table no interval, which is one without width."""
    spread = configuration.epoch_time_s
    assert spread is not None, "a timed configuration"
    if spread.count > 1:
        return Interval(value=spread.value, low=spread.low, high=spread.high)
    each = sorted(
        e.epoch_time_s
        for _, run in configuration.members
        for e in steady_epochs(run.epochs)
        if math.isfinite(e.epoch_time_s) and e.epoch_time_s > 0
    )
    ends = median_interval(each)
    if ends is None or not ends[0] <= spread.value <= ends[1]:
        return Interval.exact(spread.value)
    return Interval(value=spread.value, low=ends[0], high=ends[1])


def median_interval(ordered: Sequence[float]) -> tuple[float, float] | None:
    """Return two of the ordered values between which the median lies with at least 80 %, whatever the distribution;
    None for fewer than four."""
    n = len(ordered)
    # The k-th smallest and k-th largest hold the median unless fewer than k of n values fall on one side of it, each
    # with probability 1/2: coverage = 1 - 2 P(Binomial(n, 1/2) < k).
    below, ends = 0.0, None
    for k in range(1, n // 2 + 1):
        # C(n, k - 1) / 2^n, by logarithms: of a thousand epochs neither factor is a float.
        below += math.exp(math.lgamma(n + 1) - math.lgamma(k) - math.lgamma(n - k + 2) - n * math.log(2))
        if 1 - 2 * below < MIN_COVERAGE:
            break
        ends = (ordered[k - 1], ordered[n - k])
    return ends
