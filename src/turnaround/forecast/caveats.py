"""What a reader must mind in one forecast: kinds with their figures (remarks.py), in the order in which they are told.

Enters: a job and its laws. Leaves: the warnings for one number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.gpu_kinds import kind_of
from turnaround.analysis.speed import superlinear_pairs
from turnaround.analysis.times_in_doubt import epochs_longer_than_job, impossible_speed, ran_together
from turnaround.forecast.doubts import doubts_of
from turnaround.forecast.laws import InputLimit, Laws
from turnaround.forecast.observations import Times
from turnaround.forecast.remarks import (
    CoresInUse,
    FasterGpuNoFaster,
    ImpossibleTimes,
    InputLimitReached,
    JobTooShort,
    Missing,
    MoreProcessesThanCores,
    NoStableEpoch,
    NotMeasuredGpu,
    OneCountTimed,
    RepeatsApart,
    SharedHosts,
    TargetNotSeen,
    TooFast,
    Warning_,
)
from turnaround.forecast.time_law import ScalingLaw

APART = 1.5
"""Longest over shortest epoch of the same configuration from which one of the runs was another work, or disturbed."""
AT_THE_LIMIT = 0.95
"""Share of the input's limit from which it decides; the last step of an epoch is smaller, so it is never all of it."""


@dataclass(frozen=True, kw_only=True)
class Caveats:
    """The warnings of a job's forecasts."""

    job: Workload
    laws: Laws
    target: float | None = None

    def of(self, workers: int, hosts: int) -> Iterator[Warning_]:
        """Yield them for one configuration."""
        laws, seen = self.laws, self.laws.observations
        yield from seen.set_aside
        yield from self._time_warnings(workers, hosts)
        batch = laws.global_batch(workers)
        if batch is None:
            yield Missing(what="batch")
        elif laws.epochs is None:
            yield NoStableEpoch(at_least=max((o.epochs for o in seen.not_yet), default=None))
        else:
            yield from laws.epochs.cautions(batch)
        if self.target is not None and laws.to_target is None:
            yield TargetNotSeen(target=self.target)
        if laws.accuracy is None and batch is not None:
            yield Missing(what="accuracy")

    def _time_warnings(self, workers: int, hosts: int) -> Iterator[Warning_]:
        law, times = self.laws.time, self.laws.times
        if law is None or times is None:
            yield Missing(what="times")
            return
        yield from law.exclusions_
        yield from doubts_of(law.points_)
        yield from repeats_apart(times.configurations)
        yield from self._not_comparable(law, times)
        yield from law.cautions(self.laws.deployment(workers, hosts))
        yield from self._input_warnings(workers, hosts, times)
        if all(o.fixed_s is None for o in times.overheads):
            yield Missing(what="fixed overhead")
        if self.laws.observations.images_per_epoch is None:
            yield Missing(what="images")
        cores = [run.machine.get("cores") for configuration in times.configurations for _, run in configuration.members]
        most = max((c for c in cores if isinstance(c, int)), default=None)
        if times.gpu == "CPU" and most is not None and workers > most * hosts:
            yield MoreProcessesThanCores(cores=most)
        shared = self.laws.core_sharing(workers, hosts)
        if shared is not None:
            yield CoresInUse(cores=shared.cores, measured=shared.measured, workers=workers)
        elif len(times.counts) == 1:
            yield OneCountTimed(workers=times.counts[0])
        if self.laws.is_carried_over:
            is_other_kind = kind_of(self.laws.gpu) != times.gpu
            precision = self.laws.asked.precision if self.laws.changes_precision else None
            yield NotMeasuredGpu(gpu=self.laws.gpu if is_other_kind else None, precision=precision)

    def _not_comparable(self, law: ScalingLaw[Any], times: Times) -> Iterator[Warning_]:
        """Yield what the findings of a report doubt in the times that were learnt from."""
        speeds = [impossible_speed(run) for configuration in times.configurations for run in configuration.summaries]
        if found := tuple(speed for speed in speeds if speed is not None):
            yield ImpossibleTimes(found=found)
        # What was set aside harms no forecast: only what the law has learnt from is doubted.
        aside = {observation.processes for observation in law.set_aside_}
        learnt = [configuration for configuration in times.configurations if configuration.workers not in aside]
        for smaller, speedup, larger in superlinear_pairs(self.job):
            if any(one is smaller for one in learnt) and any(one is larger for one in learnt):
                yield TooFast(smaller=smaller, larger=larger, speedup=speedup.speedup.value)
        for configuration in times.configurations:
            for run in configuration.finished:
                if (epochs_s := epochs_longer_than_job(run)) is not None:
                    yield JobTooShort(
                        configuration=configuration, run=run.name, epochs_s=epochs_s, job_s=run.job_time_s or 0.0
                    )
        if pairs := ran_together([member for configuration in learnt for member in configuration.members]):
            yield SharedHosts(pairs=tuple(pairs))

    def _input_warnings(self, workers: int, hosts: int, times: Times) -> Iterator[Warning_]:
        bound = times.input_bound
        if isinstance(bound, FasterGpuNoFaster):
            bound = replace(bound, is_capped=self.laws.input_limit is not None)
        if bound is not None:
            yield bound
        limit, rate = self.laws.input_limit, self.laws.images_per_s(workers, hosts)
        if self.laws.seen_input_images_per_s is not None:
            limit = InputLimit(images_per_s=self.laws.seen_input_images_per_s, source="seen")
        if limit is None:
            return
        if limit.beaten is not None:
            yield limit.beaten
        elif rate is not None and rate.value >= AT_THE_LIMIT * hosts * limit.images_per_s:
            yield InputLimitReached(images_per_s=limit.images_per_s, source=limit.source)


def repeats_apart(configurations: Sequence[ConfigurationRuns]) -> Iterator[RepeatsApart]:
    """Yield the configurations whose repeats differ by more than noise ever does."""
    for configuration in configurations:
        time_s = configuration.epoch_time_s
        if time_s is not None and time_s.high > APART * time_s.low:
            yield RepeatsApart(configuration=configuration, least_s=time_s.low, most_s=time_s.high)
