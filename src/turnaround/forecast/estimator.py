"""Interface of the laws: fitted values end in `_`, a prediction carries its interval, doubts are values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Self, TypeVar

from turnaround.errors import InputError
from turnaround.forecast.interval import Interval
from turnaround.forecast.remarks import Caution, Exclusion, Pinned

Observation = TypeVar("Observation")

MAX_TIME_S = 1e9
"""30 years."""
Configuration = TypeVar("Configuration", contravariant=True)


class Estimator(ABC, Generic[Observation, Configuration]):
    """A law with parameters. What the data cannot identify is pinned, and `pinned_` says so.

    A law that believes every observation leaves `set_aside_` and `exclusions_` empty; one that is not checked by
    leaving out leaves `leave_one_out_` empty.
    """

    pinned_: dict[str, Pinned]
    """Parameters that the observations could not identify, and what stands in for them."""
    set_aside_: tuple[Observation, ...] = ()
    """Observations that contradict the others: nothing was learnt from them."""
    exclusions_: tuple[Exclusion, ...] = ()
    """The reason for each of them."""
    leave_one_out_: dict[int, float]
    """Relative error at each measured count, when the law is fitted to the others."""

    @abstractmethod
    def fit(self, observations: Sequence[Observation]) -> Self:
        """Learn the parameters; InputError where there is nothing to learn from."""

    @abstractmethod
    def predict(self, configuration: Configuration) -> Interval:
        """Return what the law says about a configuration that was not run."""

    @abstractmethod
    def cautions(self, configuration: Configuration) -> tuple[Caution, ...]:
        """Return what a reader must know about this one forecast."""


def check_positive(what: str, value: float) -> None:
    """Refuse what no measurement can be: 0, less, or not a number."""
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{what} must be above 0, not {value!r}. Leave this run out, or correct its record.")


def check_time(what: str, value: float) -> None:
    """Refuse what no time can be: 0, less, not a number, or longer than anybody has waited."""
    check_positive(what, value)
    if value > MAX_TIME_S:
        raise InputError(f"{what} must be at most {MAX_TIME_S:,.0f} s, not {value:g}. Correct its record: is it in s?")


def check_spread(what: str, value: float) -> None:
    """Refuse a standard deviation below 0."""
    if not (value >= 0 and math.isfinite(value)):
        raise InputError(f"{what} must be 0 or more, not {value!r}. Leave it out where it is not known.")
