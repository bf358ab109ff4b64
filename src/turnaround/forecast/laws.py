"""The laws of one job, fitted for one kind of GPU. Enters: observations. Leaves: forecasts by number of workers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from turnaround.analysis.gpu_kinds import kind_of
from turnaround.forecast.contract import Forecast
from turnaround.forecast.epoch_time import EpochTime
from turnaround.forecast.epochs import EpochsToStable, PlateauAccuracy
from turnaround.forecast.hardware import carry_over
from turnaround.forecast.observations import Observations, Times
from turnaround.forecast.step_time import StepConfiguration, StepTime
from turnaround.forecast.turnaround import TurnaroundParts, exact, fixed_overhead, per_epoch_overhead

MIN_WIDTH = 0.03
"""Relative: no time is known better, not even one that a measured input limit decides."""
INPUT_BOUND = 1.5
"""Factor of the half-widths of a time where the runs measured the input path: it need not follow the law of GPUs."""


@dataclass(frozen=True, kw_only=True)
class Laws:
    """What was learnt; None where nothing could be."""

    observations: Observations
    times: Times | None
    gpu: str
    """The kind that was asked for."""
    time: StepTime | EpochTime | None
    epochs: EpochsToStable | None
    to_target: EpochsToStable | None
    accuracy: PlateauAccuracy | None

    def configuration(self, workers: int, hosts: int) -> StepConfiguration:
        assert self.times is not None, "asked only where there are times"
        return StepConfiguration(
            processes=workers,
            hosts=hosts,
            gradient_bytes=self.times.gradient_bytes,
            input_images_per_s=self.times.input_images_per_s,
        )

    def epoch_time_s(self, workers: int, hosts: int) -> Forecast | None:
        """Of the steps of an epoch for our own runs, of a whole one where a table told of it; on the kind asked for."""
        if self.time is None or self.times is None:
            return None
        on = self.configuration(workers, hosts)
        measured = self.time.predict(on)
        if isinstance(self.time, StepTime):
            measured = scaled(measured, self.steps(workers) or 1.0)
        measured = Forecast(
            value=measured.value,
            low=min(measured.low, measured.value * (1 - MIN_WIDTH)),
            high=max(measured.high, measured.value * (1 + MIN_WIDTH)),
        )
        if self.times.input_bound:
            measured = widened(measured, INPUT_BOUND)
        return self._carried_over(measured, self.times) if self.is_carried_over else measured

    def _carried_over(self, time_s: Forecast, times: Times) -> Forecast:
        """On the kind asked for. What the input path held up, another GPU need not make faster."""
        carried = carry_over(time_s, measured_on=times.gpu, target=self.gpu, precision=times.precision).time_s
        return replace(carried, high=max(carried.high, time_s.high)) if times.input_bound else carried

    @property
    def is_carried_over(self) -> bool:
        return self.times is not None and kind_of(self.gpu) != self.times.gpu

    def steps(self, workers: int) -> float | None:
        """Updates in an epoch."""
        batch, images = self.observations.global_batch(workers), self.observations.images_per_epoch
        return None if not batch or not images else -(-images // batch)

    def images_per_s(self, workers: int, hosts: int) -> Forecast | None:
        time_s, images = self.epoch_time_s(workers, hosts), self.observations.images_per_epoch
        if time_s is None or not images:
            return None
        return Forecast(value=images / time_s.value, low=images / time_s.high, high=images / time_s.low)

    def parts(self, workers: int, hosts: int) -> TurnaroundParts | None:
        """What a job consists of."""
        epoch_s = self.epoch_time_s(workers, hosts)
        if epoch_s is None or self.times is None:
            return None
        overheads = self.times.overheads
        return TurnaroundParts(
            epoch_s=epoch_s, after_epoch_s=per_epoch_overhead(overheads, workers), once_s=fixed_overhead(overheads)
        )

    def at_batch(self, law: EpochsToStable | PlateauAccuracy | None, workers: int) -> Forecast | None:
        batch = self.observations.global_batch(workers)
        return None if law is None or batch is None else law.predict(batch)

    def pinned(self) -> dict[str, str]:
        """What the runs could not tell, and what stands in for it."""
        named = {"time": self.time, "epochs": self.epochs, "accuracy": self.accuracy}
        return {f"{what}: {key}": why for what, law in named.items() if law for key, why in law.pinned_.items()}


def fit_laws(observations: Observations, *, measured_on: str | None, gpu: str) -> Laws:
    """`measured_on`: the kind of GPU whose times are learnt from; None where there are none."""
    times = observations.times.get(measured_on) if measured_on is not None else None
    return Laws(
        observations=observations,
        times=times,
        gpu=gpu,
        time=_time_law(times) if times else None,
        epochs=_epochs_law(observations),
        to_target=EpochsToStable(noise_scale=observations.noise_scale).fit(observations.to_target)
        if observations.to_target
        else None,
        accuracy=PlateauAccuracy().fit(observations.accuracies) if observations.accuracies else None,
    )


def _time_law(times: Times) -> StepTime | EpochTime:
    if times.steps:
        return StepTime(scaling=times.scaling).fit(times.steps)
    return EpochTime().fit(times.epochs)


def _epochs_law(observations: Observations) -> EpochsToStable | None:
    """A run that was not stable by its end says "at least": it counts where the law would put it below that."""
    law = EpochsToStable(noise_scale=observations.noise_scale)
    if not observations.epochs:
        return None
    law.fit(observations.epochs)
    later = [o for o in observations.not_yet if o.epochs > law.predict(o.global_batch).value]
    return law.fit([*observations.epochs, *later]) if later else law


def scaled(forecast: Forecast, factor: float) -> Forecast:
    return Forecast(value=forecast.value * factor, low=forecast.low * factor, high=forecast.high * factor)


def widened(forecast: Forecast, factor: float) -> Forecast:
    """Both half-widths multiplied; the lower end stays above a tenth of the value."""
    low = forecast.value - factor * (forecast.value - forecast.low)
    high = forecast.value + factor * (forecast.high - forecast.value)
    return Forecast(value=forecast.value, low=max(low, 0.1 * forecast.value), high=high)


def planned(observations: Observations) -> Forecast | None:
    """The epochs of the recipe."""
    return exact(float(observations.epochs_planned)) if observations.epochs_planned else None
