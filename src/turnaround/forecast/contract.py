"""What every estimator looks like: fitted values end in `_`, a prediction carries its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

Observation = TypeVar("Observation", contravariant=True)
Configuration = TypeVar("Configuration", contravariant=True)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A value that nobody has measured, with its 80 % interval."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        assert self.low <= self.value <= self.high, f"{self.value} outside {self.low}..{self.high}"


class Estimator(Protocol[Observation, Configuration]):
    """A law with parameters; what the data cannot identify is pinned, and `pinned_` says so."""

    pinned_: dict[str, str]

    def fit(self, observations: Sequence[Observation]) -> Self:
        """Learns the parameters."""

    def predict(self, configuration: Configuration) -> Forecast:
        """What the law says about a configuration that was not run."""
