"""How long a job will wait in a cluster's queue, and when its result is there.

A cluster's own estimate is made from the time limits of the jobs ahead, which mostly end earlier, and knows nothing of
the jobs that come later. So it is taken as a first guess, whose error is learnt from jobs with both figures:

    log((wait + CYCLE_S) / (estimate + CYCLE_S))  is normal; mean and spread from the jobs, pooled with a prior

The interval is the middle 80 % of the next job (Student's t). Without an estimate the waits themselves stand in, with
their own spread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

import numpy as np

from turnaround.analysis.gpu_kinds import kind_of
from turnaround.analysis.workloads import Survey
from turnaround.forecast.interval import Interval, draws, middle_80
from turnaround.forecast.question import Prediction, QueueForecast
from turnaround.record.reader import Run

CYCLE_S = 60.0
"""Waits below this are "at once": Slurm's main loop starts jobs every 60 s unless told otherwise (sched_interval)."""
PRIOR_RATIO, PRIOR_SPREAD = 0.7, 0.9
"""Before any job: waits of 0.7 times the estimate, 0.15 to 3 times in 80 %. A judgement: jobs use about half of the
time they ask for (Mu'alem and Feitelson 2001), so that queues move sooner; jobs of higher priority come in between."""
PRIOR_JOBS = 4.0
"""The prior weighs as much as so many jobs."""
ALONE_SPREAD = 1.5
"""Spread of waits that no estimate explains: a factor of 4.5 either way. A judgement."""
SIMILAR = 2.0
"""Waits of so many times more or fewer GPUs are taken first, where there are MIN_SIMILAR of them."""
MIN_SIMILAR = 3
MAX_ASKED = 64
"""Numbers of workers that a cluster is asked about at most: each question makes its controller plan anew."""
MAX_ASKING_S = 60.0
"""No further question after so long: a busy controller takes seconds for each."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One job that has started: how long it was in the queue."""

    gpus: int
    wait_s: float
    gpu: str | None = None
    """The kind of GPU, None where it is not known."""
    estimated_s: float | None = None
    """The wait that the cluster expected just before the submission."""


@dataclass(frozen=True, kw_only=True)
class _Spread:
    """A normal quantity as its observations and a prior leave it: the next one follows Student's t."""

    mean: float
    scale: float
    freedom: float

    @classmethod
    def of(cls, values: Sequence[float], *, mean: float, spread: float, weight: float) -> _Spread:
        """Pool the values with a prior that weighs as much as `weight` of them (normal-inverse-gamma)."""
        count = len(values)
        own = math.fsum(values) / count if count else mean
        total, freedom = weight + count, weight + count
        squares = weight * spread**2 + math.fsum((value - own) ** 2 for value in values)
        # The distance of both means is scatter as well: a cluster unlike the prior is less sure, not only moved.
        squares += weight * count / total * (own - mean) ** 2
        # 1 + 1 / total: the next one scatters, and the mean is not known exactly either.
        scale = math.sqrt(squares / freedom * (1 + 1 / total))
        return cls(mean=(weight * mean + count * own) / total, scale=scale, freedom=freedom)

    def ends(self) -> tuple[float, float, float]:
        """Return the 10 %, 50 % and 90 % quantiles."""
        from scipy.special import stdtrit  # loading scipy takes longer than all that is computed here

        half = float(stdtrit(self.freedom, 0.9)) * self.scale
        return self.mean - half, self.mean, self.mean + half


class WaitLaw:
    """The wait of a job, from the cluster's estimate where there is one, else from the waits of earlier jobs."""

    def fit(self, waits: Iterable[Wait]) -> Self:
        """Learn the error of the cluster's estimates from the jobs that have one."""
        self.waits_ = tuple(waits)
        known = [_in_log(w.wait_s) - _in_log(w.estimated_s) for w in self.waits_ if w.estimated_s is not None]
        self.num_estimated_ = len(known)
        self._error = _Spread.of(known, mean=math.log(PRIOR_RATIO), spread=PRIOR_SPREAD, weight=PRIOR_JOBS)
        return self

    @property
    def ratio(self) -> Interval:
        """Real wait / estimated wait of the next job."""
        low, value, high = (math.exp(end) for end in self._error.ends())
        return Interval(low=low, value=value, high=high)

    def predict(self, *, gpus: int, gpu: str | None, estimated_s: float | None) -> Interval | None:
        """Return the seconds in the queue; None where neither an estimate nor an earlier wait is known."""
        if estimated_s is not None:
            about, error = _in_log(estimated_s), self._error
        else:
            similar = self.similar(gpus, gpu)
            if not similar:
                return None
            logs = [_in_log(wait.wait_s) for wait in similar]
            # The prior has the waits' own mean, and lends its spread with the weight of one job: nobody knows a usual
            # wait of all clusters.
            about, error = 0.0, _Spread.of(logs, mean=float(np.mean(logs)), spread=ALONE_SPREAD, weight=1.0)
        low, value, high = (max(0.0, math.exp(about + end) - CYCLE_S) for end in error.ends())
        return Interval(low=low, value=value, high=high)

    def similar(self, gpus: int, gpu: str | None) -> list[Wait]:
        """Return the waits to learn from: of this kind of GPU and about so many, else of this kind, else all."""
        # A job that does not say its kind may be of this one.
        kind = [wait for wait in self.waits_ if gpu is None or wait.gpu in (None, gpu)]
        near = [w for w in kind if w.gpus and gpus and 1 / SIMILAR <= w.gpus / gpus <= SIMILAR]
        return next((some for some in (near, kind) if len(some) >= MIN_SIMILAR), list(self.waits_))


def _in_log(wait_s: float) -> float:
    return math.log(wait_s + CYCLE_S)


def waits_in(survey: Survey) -> list[Wait]:
    """Return the waits of the jobs among these runs: from submission to the first start."""
    runs = (run for job in survey.workloads for c in job.configurations for _, run in c.members)
    return [wait for run in runs if (wait := _wait_of(run)) is not None]


def _wait_of(run: Run) -> Wait | None:
    status = run.status
    if status.job is None or status.submitted_at is None or status.started_at is None:
        return None
    try:
        wait_s = (
            datetime.fromisoformat(status.started_at) - datetime.fromisoformat(status.submitted_at)
        ).total_seconds()
    except (ValueError, TypeError):  # a record that others have written
        return None
    estimated_s = status.job.estimated_wait_s
    is_time = estimated_s is not None and 0 <= estimated_s < math.inf
    processes = run.machine.get("processes")
    # 0 GPUs: a job on processors is like no number of them.
    return Wait(
        gpus=processes if isinstance(processes, int) and status.job.gpu else 0,
        gpu=kind_of(status.job.gpu) if status.job.gpu else None,
        wait_s=max(0.0, wait_s),  # the clocks of two hosts
        estimated_s=estimated_s if is_time else None,
    )


def with_queue(prediction: Prediction, law: WaitLaw, *, estimated_s: float | None) -> Prediction:
    """Return the prediction with its time in the queue, and with the time from now until its result is there."""
    gpu = None if prediction.gpu == "CPU" else prediction.gpu
    wait_s = law.predict(gpus=prediction.workers, gpu=gpu, estimated_s=estimated_s)
    to_stable_s, job_s = _times(prediction)
    is_to_stable = to_stable_s is not None
    time_s = to_stable_s or job_s
    queue = QueueForecast(
        wait_s=wait_s,
        estimated_wait_s=estimated_s,
        ready_s=plus_wait(wait_s, time_s) if wait_s and time_s else None,
        is_to_stable=is_to_stable,
        ratio=law.ratio if estimated_s is not None else None,
        learned_from=law.num_estimated_ if estimated_s is not None else len(law.similar(prediction.workers, gpu)),
    )
    return replace(prediction, queue=queue)


def _times(prediction: Prediction) -> tuple[Interval | None, Interval | None]:
    """Return the times to stable and of the job: with interruptions, where they were asked about; as measured, where
    they were."""
    if prediction.interrupted is not None:
        return prediction.interrupted.time_to_stable_s, prediction.interrupted.job_time_s
    to_stable_s, job_s = (_around_measured(prediction, name) for name in ("time_to_stable_s", "job_time_s"))
    return to_stable_s, job_s


def _around_measured(prediction: Prediction, figure: str) -> Interval | None:
    """Return the forecast, moved to the measurement where there is one: beside it, it would contradict it."""
    forecast: Interval | None = getattr(prediction, figure)
    measured = prediction.measured.get(figure)
    if measured is None or forecast is None:
        return forecast if measured is None else Interval.exact(measured.value)
    return forecast.scaled(measured.value / forecast.value)  # the next job scatters as the forecast says


def plus_wait(wait_s: Interval, time_s: Interval) -> Interval:
    """Return the sum of two times whose errors have nothing to do with each other."""
    # By draws: both are skewed, so half-widths in quadrature would be those of another sum.
    first, second = draws([wait_s, time_s])
    return middle_80(first + second, wait_s.value + time_s.value)


@dataclass(frozen=True, kw_only=True)
class ReadyFirst:
    """The number of workers whose result is there first, the queue included, and the one that is fastest without it."""

    first: Prediction
    fastest: Prediction
    """The same as `first` where the queue changes nothing."""
    is_open: bool
    """The intervals overlap: it may be the other way round."""


def ready_first(predictions: Sequence[Prediction]) -> ReadyFirst | None:
    """Return who is there first; None where no queue is known."""
    known = [(p, p.queue.ready_s) for p in predictions if p.queue is not None and p.queue.ready_s is not None]
    goals = {p.queue.is_to_stable for p, _ in known if p.queue is not None}
    if not known or len(goals) > 1:  # an accuracy and the end of a job are not the same goal
        return None
    first, soonest = min(known, key=lambda pair: (pair[1].value, pair[0].workers))
    fastest, later = min(known, key=lambda pair: (pair[1].value - _wait(pair[0]), pair[0].workers))
    return ReadyFirst(first=first, fastest=fastest, is_open=first is not fastest and soonest.high > later.low)


def _wait(prediction: Prediction) -> float:
    return prediction.queue.wait_s.value if prediction.queue and prediction.queue.wait_s else 0.0
