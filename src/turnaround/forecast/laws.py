"""The laws of one job, fitted for one kind of GPU. Enters: observations. Leaves: forecasts by number of workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from turnaround.analysis.gpu_kinds import kind_of
from turnaround.forecast.epoch_time import EpochTime
from turnaround.forecast.epochs import EpochsToStable, PlateauAccuracy
from turnaround.forecast.hardware import carry_over
from turnaround.forecast.interval import Interval
from turnaround.forecast.observations import Observations, Times
from turnaround.forecast.remarks import Pinned, Unit
from turnaround.forecast.step_time import StepTime
from turnaround.forecast.time_law import Deployment, ScalingLaw
from turnaround.forecast.turnaround import TurnaroundParts, fixed_overhead, per_epoch_overhead

TIME_LAWS: dict[Unit, type[ScalingLaw[Any]]] = {"step": StepTime, "epoch": EpochTime}
"""The law of time for each unit that times are observed in."""

# Judgements: no published series has an input limit or an input-bound run.
MIN_WIDTH = 0.03
"""Relative: no time is known better, not even one that a measured input limit decides."""
INPUT_BOUND = 1.5
"""Factor of the half-widths of a time where the runs measured the input path: it need not follow the law of GPUs."""


@dataclass(frozen=True, kw_only=True)
class Laws:
    """The fitted laws; None where nothing could be learnt."""

    observations: Observations
    times: Times | None
    gpu: str
    """The kind that was asked for."""
    time: ScalingLaw[Any] | None
    epochs: EpochsToStable | None
    to_target: EpochsToStable | None
    accuracy: PlateauAccuracy | None

    def deployment(self, workers: int, hosts: int) -> Deployment:
        """Return so many workers, one on each GPU, with what the runs tell of their hosts."""
        assert self.times is not None, "asked only where there are times"
        return Deployment(
            processes=workers,
            hosts=hosts,
            gradient_bytes=self.times.gradient_bytes,
            input_images_per_s=self.times.input_images_per_s,
        )

    def epoch_time_s(self, workers: int, hosts: int) -> Interval | None:
        """Return the steps of an epoch for our own runs, a whole one where a table told it; on the kind asked for."""
        if self.time is None or self.times is None:
            return None
        time_s = self.time.epoch_s(self.time.predict(self.deployment(workers, hosts)), steps=self.steps(workers))
        # In this order: a least width, the doubt of an input-bound run, then the ratio of data sheets on top of both.
        time_s = time_s.reaching(low=time_s.value * (1 - MIN_WIDTH), high=time_s.value * (1 + MIN_WIDTH))
        if self.times.input_bound:
            time_s = time_s.widened(INPUT_BOUND)
        return self._carried_over(time_s, self.times) if self.is_carried_over else time_s

    def _carried_over(self, time_s: Interval, times: Times) -> Interval:
        """Return the time on the kind asked for. Another GPU need not make faster what the input path held up."""
        carried = carry_over(time_s, measured_on=times.gpu, target=self.gpu, precision=times.precision).time_s
        return replace(carried, high=max(carried.high, time_s.high)) if times.input_bound else carried

    @property
    def is_carried_over(self) -> bool:
        return self.times is not None and kind_of(self.gpu) != self.times.gpu

    def steps(self, workers: int) -> float | None:
        """Return the updates in an epoch."""
        batch, images = self.observations.global_batch(workers), self.observations.images_per_epoch
        return None if not batch or not images else -(-images // batch)

    def images_per_s(self, workers: int, hosts: int) -> Interval | None:
        time_s, images = self.epoch_time_s(workers, hosts), self.observations.images_per_epoch
        return None if time_s is None or not images else time_s.into(images)

    def parts(self, workers: int, hosts: int) -> TurnaroundParts | None:
        """Return what a job consists of."""
        epoch_s = self.epoch_time_s(workers, hosts)
        if epoch_s is None or self.times is None:
            return None
        overheads = self.times.overheads
        return TurnaroundParts(
            epoch_s=epoch_s,
            per_epoch_overhead_s=per_epoch_overhead(overheads, workers),
            fixed_overhead_s=fixed_overhead(overheads),
        )

    def at_batch(self, law: EpochsToStable | PlateauAccuracy | None, workers: int) -> Interval | None:
        batch = self.observations.global_batch(workers)
        return None if law is None or batch is None else law.predict(batch)

    def pinned(self) -> tuple[tuple[str, Pinned], ...]:
        """Return what the runs could not tell, and what stands in for it, by law and parameter."""
        named = (("time", self.time), ("epochs", self.epochs), ("accuracy", self.accuracy))
        return tuple((f"{what}: {key}", pin) for what, law in named if law for key, pin in law.pinned_.items())


def fit_laws(observations: Observations, *, measured_on: str | None, gpu: str) -> Laws:
    """Fit all laws; `measured_on` is the kind of GPU whose times are learnt from, None where there are none."""
    times = observations.times.get(measured_on) if measured_on is not None else None
    return Laws(
        observations=observations,
        times=times,
        gpu=gpu,
        time=TIME_LAWS[times.unit](scaling=times.scaling).fit(times.observed) if times else None,
        epochs=_epochs_law(observations),
        to_target=EpochsToStable(noise_scale=observations.noise_scale).fit(observations.to_target)
        if observations.to_target
        else None,
        accuracy=PlateauAccuracy().fit(observations.accuracies) if observations.accuracies else None,
    )


def _epochs_law(observations: Observations) -> EpochsToStable | None:
    """Fit the law of epochs; a censored run ("at least") counts where the law would put it below its bound."""
    law = EpochsToStable(noise_scale=observations.noise_scale)
    if not observations.epochs:
        return None
    # Censored regression in two passes: bounds that the first fit already satisfies would only pull it down.
    law.fit(observations.epochs)
    later = [o for o in observations.not_yet if o.epochs > law.predict(o.global_batch).value]
    return law.fit([*observations.epochs, *later]) if later else law


def epochs_planned(observations: Observations) -> Interval | None:
    """Return the epochs of the recipe."""
    return Interval.exact(float(observations.epochs_planned)) if observations.epochs_planned else None
