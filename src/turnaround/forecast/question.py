"""The question and its answer, as values."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from turnaround.analysis.configurations import Spread
from turnaround.errors import InputError
from turnaround.forecast.contract import Forecast

FIGURES = (
    "images_per_s",
    "epoch_time_s",
    "epochs_to_stable",
    "time_to_stable_s",
    "job_time_s",
    "cost",
    "val_accuracy",
)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What somebody wants to know. Checked when it is made."""

    workers: int
    gpu: str | None = None
    """None: the kind that was measured."""
    hosts: int | None = None
    price: float | None = None
    """For one GPU for one hour."""
    job: str | None = None
    """A job's name, or a part of it."""
    target: float | None = None
    """A validation accuracy, 0 to 1."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"--workers must be 1 or more, received {self.workers}.")
        if self.hosts is not None and self.hosts < 1:
            raise InputError(f"--hosts must be 1 or more, received {self.hosts}.")
        if self.hosts is not None and self.hosts > self.workers:
            raise InputError(
                f"--hosts {self.hosts} is more than --workers {self.workers}: a host needs at least one worker. "
                "Ask for fewer hosts or more workers."
            )
        if self.price is not None and not (self.price > 0 and math.isfinite(self.price)):
            raise InputError(f"--price must be above 0 (for one GPU for one hour), received {self.price:g}.")
        if self.target is not None and not 0 < self.target < 1:
            raise InputError(f"--target is an accuracy between 0 and 1, received {self.target:g}: 0.9 is 90 %.")


@dataclass(frozen=True, kw_only=True)
class NextRun:
    """The single run that would make the forecast surest, and what it costs."""

    workers: int
    is_rehearsal: bool
    why: str
    time_s: Forecast | None
    """Its own job time, on one GPU for a rehearsal; None where nobody can tell."""
    gpu_hours: float | None
    cost: float | None
    width_before: float | None
    """Of the interval of the time to stable (else of the job time, else of the epochs), relative to its value; None
    where there is no such forecast yet."""
    width_after: float | None


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
    images_per_s: Forecast | None = None
    epoch_time_s: Forecast | None = None
    epochs_to_stable: Forecast | None = None
    time_to_stable_s: Forecast | None = None
    job_time_s: Forecast | None = None
    cost: Forecast | None = None
    """Of the job, all epochs of the recipe."""
    val_accuracy: Forecast | None = None
    reaches_stable: bool | None = None
    """Within the epochs of the recipe; None where the one or the other is not known."""
    epochs_to_target: Forecast | None = None
    time_to_target_s: Forecast | None = None
    reaches_target: bool | None = None
    """Whether the accuracy that is forecast is the one asked for; None without one."""
    kind: str = "forecast"
    """"measured" where runs of this very configuration are among those learnt from; "estimate from data sheets" where
    another kind of GPU was measured."""
    measured: dict[str, Spread] = field(default_factory=dict)
    """What those runs measured, by the names of the figures."""
    basis: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    pinned: dict[str, str] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    leave_one_out: dict[int, float] = field(default_factory=dict)
    """Relative error of the time at each measured count when it is left out; with four or more counts."""
    next_run: NextRun | None = None

    def best_known(self, figure: str) -> float | None:
        """What runs of this configuration measured, else what the laws say."""
        known = self.measured.get(figure) or getattr(self, figure)
        return None if known is None else float(known.value)

    def as_json(self) -> dict[str, Any]:
        """What `predict --json` prints."""
        return asdict(self)
