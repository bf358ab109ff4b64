"""The question and its answer, as values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from turnaround.analysis.configurations import Spread
from turnaround.analysis.energy import EnergyRates
from turnaround.analysis.prices import Price
from turnaround.errors import InputError
from turnaround.forecast.hardware import precision_of
from turnaround.forecast.interval import Interval
from turnaround.forecast.remarks import Remarks
from turnaround.forecast.turnaround import gpu_hours, training_time
from turnaround.interruptions import MAX_PER_H

FIGURES = (
    "images_per_s",
    "epoch_time_s",
    "epochs_to_stable",
    "time_to_stable_s",
    "job_time_s",
    "cost",
    "energy_wh",
    "cost_to_stable",
    "val_accuracy",
)


NextRunReason = Literal["no times", "no stable epoch", "narrower"]
"""The run gives the first times, or the first stable epoch, or makes the interval narrower."""
PredictionKind = Literal["forecast", "measured", "estimate from data sheets"]
"""measured: runs of this very configuration are among those learnt from; estimate from data sheets: another kind of GPU
was measured."""
Likelihood = Literal["yes", "probably", "open", "probably not", "no"]
OPEN = (0.3, 0.7)
"""Chances between which neither is probable: the interval is wide and has room for both."""
SURELY, SURELY_NOT = 0.9, 0.02
"""Chances beyond which "probably" is left out. Not symmetric: a plain "no" keeps somebody from a run that might do."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about a configuration. Checked when it is made."""

    workers: int
    gpu: str | None = None
    """None: the kind that was measured."""
    hosts: int | None = None
    gpus_per_host: int | None = None
    """None: as in the runs."""
    cluster: str | None = None
    """The cluster that tells them, in words; None: the user does."""
    price: float | None = None
    """Price of one GPU for one hour."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """The user's prices by kind of GPU: for whichever kind answers, where no `price` is given."""
    job: str | None = None
    """A job's name, or a part of it."""
    target: float | None = None
    """A validation accuracy, 0 to 1."""
    batch_per_worker: int | None = None
    """None: that of the runs."""
    precision: str | None = None
    """None: that of the runs."""
    input_limit: float | None = None
    """Images per second that the input path of one host can give at most."""
    network: float | None = None
    """GB/s that an all-reduce gets between hosts; None: not known."""
    interruptions_per_h: float | None = None
    """How often one host is taken away; None: never, as far as anybody has said."""
    electricity: float | None = None
    """Price of one kWh."""
    grid: float | None = None
    """Kilograms of CO2 equivalents emitted for one kWh."""

    @property
    def rates(self) -> EnergyRates:
        """What was said of the electricity."""
        return EnergyRates(electricity=self.electricity, grid=self.grid)

    def price_of(self, gpu: str) -> Price | None:
        """Return what an hour of this kind costs; None where nobody has said."""
        return self.prices.get(gpu) if self.price is None else Price(per_hour=self.price)

    def __post_init__(self) -> None:
        EnergyRates(electricity=self.electricity, grid=self.grid)  # refuses what is no rate
        if self.workers < 1:
            raise InputError(f"--workers must be 1 or more, received {self.workers}.")
        if self.hosts is not None and self.hosts < 1:
            raise InputError(f"--hosts must be 1 or more, received {self.hosts}.")
        if self.gpus_per_host is not None and self.gpus_per_host < 1:
            raise InputError(f"--gpus-per-host must be 1 or more, received {self.gpus_per_host}.")
        if self.hosts is not None and self.hosts > self.workers:
            raise InputError(
                f"--hosts {self.hosts} is more than --workers {self.workers}: a host needs at least one worker. "
                "Ask for fewer hosts or more workers."
            )
        if self.price is not None and not (self.price > 0 and math.isfinite(self.price)):
            raise InputError(f"--price must be above 0 (for one GPU for one hour), received {self.price:g}.")
        if self.batch_per_worker is not None and self.batch_per_worker < 1:
            raise InputError(f"--batch-per-worker must be 1 or more, received {self.batch_per_worker}.")
        for flag, value, unit in (
            ("--input-limit", self.input_limit, "images per second on one host"),
            ("--network", self.network, "GB/s between hosts"),
        ):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"{flag} must be above 0 ({unit}), received {value:g}.")
        rate = self.interruptions_per_h
        if rate is not None and not 0 <= rate <= MAX_PER_H:
            raise InputError(f"Interruptions an hour must be from 0 to {MAX_PER_H:g}, received {rate:g}.")
        if self.precision is not None:
            precision_of(self.precision)  # raises for one that nobody knows
        if self.target is not None and not 0 < self.target < 1:
            raise InputError(f"--target is an accuracy between 0 and 1, received {self.target:g}: 0.9 is 90 %.")


@dataclass(frozen=True, kw_only=True)
class NextRun:
    """The single run that would make the forecast surest, and what it costs."""

    workers: int
    is_rehearsal: bool
    reason: NextRunReason
    time_s: Interval | None
    """Its own job time, on one GPU for a rehearsal; None where nobody can tell."""
    gpu_hours: float | None
    cost: float | None
    width_before: float | None
    """Relative width of the interval of the time to stable (else of the job time, else of the epochs); None
    where there is no such forecast yet."""
    width_after: float | None


@dataclass(frozen=True, kw_only=True)
class Against:
    """The largest configuration that was run, as measured where it was: what the one asked for is chosen instead of."""

    workers: int
    time_s: float
    saved_s: float
    """Less time than there; negative where it takes longer."""
    is_to_stable: bool
    """The times are those to a stable accuracy; else those of the job."""
    is_measured: bool = False
    """Its time was measured; else it is that of the laws."""


@dataclass(frozen=True, kw_only=True)
class QueueForecast:
    """The wait for a cluster's GPUs, and the time from now until the result is there."""

    wait_s: Interval | None = None
    """None where neither the cluster nor earlier jobs tell."""
    estimated_wait_s: float | None = None
    """What the cluster itself expects; None where it does not tell."""
    ready_s: Interval | None = None
    """From now to a stable accuracy, or to the end of the job: queue, start-up, epochs."""
    is_to_stable: bool = False
    """`ready_s` ends with a stable accuracy; else with the job."""
    ratio: Interval | None = None
    """Real wait / estimated wait, as earlier jobs and a prior tell; None without an estimate."""
    learned_from: int = 0
    """Earlier jobs that the error of the estimate, or without one the wait itself, was learnt from."""
    refused: str | None = None
    """Why the cluster would never start such a job, in its words."""


@dataclass(frozen=True, kw_only=True)
class InterruptionCosts:
    """What an interruption and the defence against it cost, as the runs tell."""

    start_s: Interval
    """From the start of the program to its first step, and what the first epoch takes more than others."""
    pause_s: Interval
    """Training waits so long for one checkpoint."""
    wait_s: Interval
    """For another machine; 0 where no run has waited for one."""
    is_pause_measured: bool = False
    is_wait_measured: bool = False
    lost_s: float | None = None
    """Work that was done again after each interruption of the runs; None where there was none."""
    interruptions_seen: int = 0


@dataclass(frozen=True, kw_only=True)
class InterruptedForecast:
    """The same job on machines that are taken away. Times are None where it would hardly ever get anywhere."""

    per_h: float
    """Interruptions of the job an hour: those of all its hosts."""
    checkpoint_every_s: float | None
    """Seconds of work between checkpoints that cost the least; None without interruptions."""
    interruptions: float | None
    """Mean number of them during the job."""
    job_time_s: Interval | None
    time_to_stable_s: Interval | None
    usual_job_time_s: Interval | None
    """Saving every 60 s instead."""
    paid_job_s: Interval | None
    """Time on machines: waits for them are not paid."""
    paid_to_stable_s: Interval | None
    cost: Interval | None
    """Cost of the job, at the spot price where one is known, else at the price."""
    cost_to_stable: Interval | None
    currency: str | None
    """Currency of both costs; None where the user has named none."""
    is_spot: bool
    costs: InterruptionCosts


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer. A figure that nothing is known about is None."""

    job: str
    workers: int
    gpu: str
    processes: int
    hosts: int
    global_batch: int | None
    epochs_planned: int | None
    images_per_s: Interval | None = None
    epoch_time_s: Interval | None = None
    epochs_to_stable: Interval | None = None
    time_to_stable_s: Interval | None = None
    job_time_s: Interval | None = None
    cost: Interval | None = None
    """Price of the job, all epochs of the recipe."""
    cost_to_stable: Interval | None = None
    currency: str | None = None
    """Currency of both costs; None where the user has named none."""
    energy_wh: Interval | None = None
    """Energy of the GPUs for the job; None where no run on this kind of GPU has measured its power."""
    energy_to_stable_wh: Interval | None = None
    electricity_cost: Interval | None = None
    """Price of the energy of the job, at the rate that was given."""
    emissions_kg: Interval | None = None
    """Kilograms of CO2 equivalents of the energy of the job, at the rate that was given."""
    val_accuracy: Interval | None = None
    reaches_stable: bool | None = None
    """True where it is stable within the epochs of the recipe; None where the one or the other is not known."""
    epochs_to_target: Interval | None = None
    time_to_target_s: Interval | None = None
    reaches_target: bool | None = None
    """True where the forecast accuracy is at least the one asked for; None without one."""
    kind: PredictionKind = "forecast"
    measured: dict[str, Spread] = field(default_factory=dict)
    """Measurements of runs of this very configuration, by the names of the figures."""
    remarks: Remarks = field(default_factory=Remarks)
    """Basis of the figures, assumptions and warnings."""
    leave_one_out: dict[int, float] = field(default_factory=dict)
    """Relative error of the time at each measured count when it is left out; with four or more counts."""
    against: Against | None = None
    queue: QueueForecast | None = None
    """None where no cluster was asked."""
    interrupted: InterruptedForecast | None = None
    """None where no rate of interruptions was given."""
    next_run: NextRun | None = None

    def best_known(self, figure: str) -> float | None:
        """Return the measurement of this configuration, else the forecast of the laws."""
        known = self.measured.get(figure) or getattr(self, figure)
        return None if known is None else float(known.value)

    @property
    def gpu_hours(self) -> float | None:
        """Hours of the job, all GPUs together."""
        job_s = self.best_known("job_time_s")
        return None if job_s is None else gpu_hours(job_s, self.workers)

    @property
    def training_to_target_s(self) -> Interval | None:
        """The time of the epochs to the target alone, as measured runs are compared: without what comes before and
        between."""
        if self.epoch_time_s is None or self.epochs_to_target is None:
            return None
        return training_time(self.epoch_time_s, self.epochs_to_target)

    @property
    def times_as_many(self) -> float | None:
        """Return the workers asked for / the most that were run; None where fewer are asked for."""
        return None if self.against is None else self.workers / self.against.workers

    @property
    def stable_by_end(self) -> Likelihood | None:
        """Return the likelihood of a stable accuracy within the epochs of the recipe; None where one is not known."""
        if self.epochs_to_stable is None or self.epochs_planned is None or self.reaches_stable is None:
            return None
        chance = self.epochs_to_stable.share_below(self.epochs_planned)
        if OPEN[0] < chance < OPEN[1]:
            return "open"
        if self.reaches_stable:
            return "yes" if chance > SURELY else "probably"
        return "no" if chance < SURELY_NOT else "probably not"
