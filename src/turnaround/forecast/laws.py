"""The laws of one job, fitted for one kind of GPU. Enters: observations. Leaves: forecasts by number of workers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from turnaround.analysis.gpu_kinds import kind_of
from turnaround.forecast.epoch_time import EpochTime
from turnaround.forecast.epochs import EpochsToStable, PlateauAccuracy
from turnaround.forecast.hardware import carry_over, precision_of
from turnaround.forecast.interval import MIN_LOW, Interval
from turnaround.forecast.observations import Observations, Times, input_rate
from turnaround.forecast.remarks import InputLimitBeaten, InputLimitSource, Pinned, Unit
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


BEATEN = 1.02
"""Factor by which a run must have read more than an input limit to contradict it: the last step of an epoch is smaller,
and tables are rounded."""
SHARED_CORES_HALF_WIDTH = 0.25
"""80 % half-width of the logarithm of a time on another number of processes that share the cores of the measured ones,
as estimates have it (forecast/estimate.py). A judgement: processes may hinder each other more than threads do."""
BATCH_DOUBT = 0.1
"""Relative, for each doubling of the batch per worker away from the one that was timed, either way: a GPU is filled
better by a larger batch, and worse by a smaller one."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a question asks for besides workers, hosts and kind of GPU; None: as in the runs."""

    precision: str | None = None
    batch_per_worker: int | None = None
    input_images_per_s: float | None = None
    """Limit of one host's input path that somebody has told."""
    inter_host_bytes_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class InputLimit:
    """The images/s that one host can read at most, as the forecast takes them."""

    images_per_s: float
    source: InputLimitSource
    beaten: InputLimitBeaten | None = None
    """The run that read more than what was told or measured alone: its images/s were taken instead."""


@dataclass(frozen=True, kw_only=True)
class CoreSharing:
    """Processes on CPUs that share cores with one another: the threads of the measured ones have used them all."""

    measured: int
    """Processes of the runs."""
    cores: int


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
    asked: Asked = Asked()

    def deployment(self, workers: int, hosts: int) -> Deployment:
        """Return so many workers, one on each GPU, with what the runs tell of their hosts."""
        assert self.times is not None, "asked only where there are times"
        return Deployment(
            processes=workers,
            hosts=hosts,
            gradient_bytes=self.times.gradient_bytes,
            inter_host_bytes_per_s=self.asked.inter_host_bytes_per_s,
            input_images_per_s=limit.images_per_s if (limit := self.input_limit) is not None else None,
        )

    @property
    def input_limit(self) -> InputLimit | None:
        """Return the limit that somebody has told, else the one measured alone; never below what a run has read."""
        if self.times is None or (limit := self.asked.input_images_per_s or self.times.input_images_per_s) is None:
            return None
        source: InputLimitSource = "told" if self.asked.input_images_per_s else "measured"
        fastest = max(self.times.configurations, key=input_rate)
        # What a run has read, a host can read: a lower limit is wrong, and the run's rate the least that it can be.
        if (most := input_rate(fastest)) <= BEATEN * limit:
            return InputLimit(images_per_s=limit, source=source)
        beaten = InputLimitBeaten(limit=limit, source=source, configuration=fastest, images_per_s=most)
        return InputLimit(images_per_s=most, source=source, beaten=beaten)

    def global_batch(self, workers: int) -> int | None:
        """Return the global batch asked for, else that of the runs."""
        if self.asked.batch_per_worker is not None:
            return workers * self.asked.batch_per_worker
        return self.observations.global_batch(workers)

    def epoch_time_s(self, workers: int, hosts: int) -> Interval | None:
        """Return the steps of an epoch for our own runs, a whole one where a table told it; on the kind asked for."""
        if self.time is None or self.times is None:
            return None
        # The steps of an epoch are known and only multiply.
        time_s = self._in_steps(workers, hosts)
        time_s = self._on_cores(self.time.epoch_s(time_s, steps=self.steps(workers)), workers, hosts)
        # In this order: a least width, the doubt of an input-bound run, then the ratio of data sheets on top of both.
        time_s = time_s.reaching(low=time_s.value * (1 - MIN_WIDTH), high=time_s.value * (1 + MIN_WIDTH))
        if self.times.input_bound:
            time_s = time_s.widened(INPUT_BOUND)
        return self._carried_over(time_s, self.times, hosts) if self.is_carried_over else time_s

    def _in_steps(self, workers: int, hosts: int) -> Interval:
        """Return the time of what the law is about, a step or an epoch of a table."""
        assert self.time is not None, "asked only where there are times"
        deployment = self.deployment(workers, hosts)
        # The input limit first, then the batch, both of one step.
        return self._at_batch(self._below_input(self.time, deployment), deployment, self.time)

    def _below_input(self, law: ScalingLaw[Any], deployment: Deployment) -> Interval:
        """Return the law's time; where an input limit was seen, the value is at least its time, and the lower end that
        of workers that read for themselves."""
        plain, seen = law.predict(deployment), self.seen_input_images_per_s
        if seen is None:
            return plain
        # Runs that read equally fast may share an input path, or each be held up by its own: hence both laws.
        capped = law.predict(replace(deployment, input_images_per_s=seen))
        return Interval(value=capped.value, low=plain.low, high=capped.high)

    def core_sharing(self, workers: int, hosts: int) -> CoreSharing | None:
        """Return whose cores so many processes would share; None where each has its own, or nobody knows.

        Processes on CPUs have a thread for each core that is free for them, so a single measured count has used them
        all, and more processes are more threads for nothing. Several counts show by themselves what more are worth.
        """
        times = self.times
        if times is None or times.gpu != "CPU" or self.is_carried_over or len(times.counts) != 1:
            return None
        cores = [run.machine.get("cores") for c in times.configurations for _, run in c.members]
        known = [each for each in cores if isinstance(each, int)]
        is_same_host = all(c.hosts == hosts for c in times.configurations)
        if not known or not is_same_host or workers == times.counts[0]:
            return None
        return CoreSharing(measured=times.counts[0], cores=max(known))

    def _on_cores(self, time_s: Interval, workers: int, hosts: int) -> Interval:
        """Return the time of an epoch where the processes share the cores of the measured ones: about as long as there,
        with room for what the law of devices of their own says."""
        shared = self.core_sharing(workers, hosts)
        if shared is None or self.time is None:
            return time_s
        steps, steps_there = self.steps(workers), self.steps(shared.measured)
        there = self.time.epoch_s(self._in_steps(shared.measured, hosts), steps=steps_there)
        # The last, smaller step of an epoch counts as one: the images computed, N x steps(N), differ by it.
        images = (steps * workers) / (steps_there * shared.measured) if steps and steps_there else 1.0
        value, doubt = there.value * images, math.exp(SHARED_CORES_HALF_WIDTH)
        low, high = min(time_s.low, there.low * images / doubt), max(time_s.high, there.high * images * doubt)
        return Interval(value=value, low=low, high=high)

    @property
    def seen_input_images_per_s(self) -> float | None:
        """Return the limit that was seen; None where a better one is known."""
        return None if self.times is None or self.input_limit is not None else self.times.seen_input_images_per_s

    def _at_batch(self, time_s: Interval, deployment: Deployment, law: ScalingLaw[Any]) -> Interval:
        """Return the time of as many images in steps of the batch asked for.

        Computation costs the same for each image; what is lost is lost in each step, and there are b0 / b as many.
        """
        measured, asked = self.observations.batch_per_worker, self.asked.batch_per_worker
        if measured is None or asked is None or measured == asked:
            return time_s
        # T(b) = T(b0) ((1 - lost) + lost b0 / b) for the same images; b0: measured, b: asked for.
        lost = law.share_lost(deployment)
        changed = time_s.scaled(1 - lost + lost * measured / asked)
        doubt = BATCH_DOUBT * abs(math.log2(asked / measured))
        # From 9 doublings on (1 - 9 x 0.1 = MIN_LOW) the lower end stays where it is: it must not reach 0.
        changed = changed.reaching(low=changed.low * max(1 - doubt, MIN_LOW), high=changed.high * (1 + doubt))
        # Once more after the change: a host reads no faster for another batch.
        return changed.at_least(law.input_s(deployment))

    def _carried_over(self, time_s: Interval, times: Times, hosts: int) -> Interval:
        """Return the time on the kind and in the precision asked for. Neither need make faster what the input path
        held up."""
        carried = carry_over(
            time_s,
            measured_on=times.gpu,
            target=self.gpu,
            precision=times.precision,
            target_precision=self.asked.precision,
        ).time_s
        # A step that waited for its images may be no faster on a faster GPU: the upper end keeps the measured time.
        if times.input_bound:
            carried = replace(carried, high=max(carried.high, time_s.high))
        # The input path stays when the GPU changes, so its time bounds the carried one from below: images of an epoch /
        # rate of a host / hosts.
        limit, images = self.input_limit, self.observations.images_per_epoch
        return carried.at_least(images / limit.images_per_s / hosts) if limit and images else carried

    @property
    def is_carried_over(self) -> bool:
        """Return whether kind or precision were not measured."""
        return self.times is not None and (kind_of(self.gpu) != self.times.gpu or self.changes_precision)

    @property
    def changes_precision(self) -> bool:
        if self.times is None or self.asked.precision is None:
            return False
        # By what a data sheet tells apart: amp, fp16 and bf16 have the same bytes and the same peak rate.
        return precision_of(self.asked.precision) != precision_of(self.times.precision)

    def steps(self, workers: int) -> float | None:
        """Return the updates in an epoch."""
        # Of the runs' batch, also where another is asked for: the time of their steps is what `_at_batch` has changed.
        # The last, smaller step of an epoch counts as one.
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
        # Evaluation, checkpoint and start-up stay those of the measured kind: data sheets carry over the steps alone.
        return TurnaroundParts(
            epoch_s=epoch_s,
            per_epoch_overhead_s=per_epoch_overhead(overheads, self.evaluating(workers, hosts)),
            fixed_overhead_s=fixed_overhead(overheads),
        )

    def evaluating(self, workers: int, hosts: int) -> int:
        """Return the processes that share an evaluation: those that share cores are no quicker at it than the measured
        ones were."""
        shared = self.core_sharing(workers, hosts)
        return workers if shared is None else shared.measured

    def at_batch(self, law: EpochsToStable | PlateauAccuracy | None, workers: int) -> Interval | None:
        # Epochs and accuracy depend on the workers only through the global batch: where that is fixed, all counts of
        # workers have the same answer.
        batch = self.global_batch(workers)
        return None if law is None or batch is None else law.predict(batch)

    def pinned(self) -> tuple[tuple[str, str, Pinned], ...]:
        """Return (law, parameter, what stands in for it) of what the runs could not tell."""
        named = (("time", self.time), ("epochs", self.epochs), ("accuracy", self.accuracy))
        return tuple((name, parameter, pin) for name, law in named if law for parameter, pin in law.pinned_.items())


def fit_laws(observations: Observations, *, measured_on: str | None, gpu: str, asked: Asked | None = None) -> Laws:
    """Fit all laws; `measured_on` is the kind of GPU whose times are learnt from, None where there are none."""
    times = observations.times.get(measured_on) if measured_on is not None else None
    return Laws(
        observations=observations,
        times=times,
        gpu=gpu,
        time=TIME_LAWS[times.unit](scaling=times.scaling).fit(times.observed) if times else None,
        epochs=_epochs_law(observations),
        # The same law, E(B) = e0 (1 + B / B_crit), with its own e0 and B_crit for each accuracy.
        to_target=EpochsToStable(noise_scale=observations.noise_scale).fit(observations.to_target)
        if observations.to_target
        else None,
        accuracy=PlateauAccuracy().fit(observations.accuracies) if observations.accuracies else None,
        asked=asked or Asked(),
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
