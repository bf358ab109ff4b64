"""What was chosen for the user, with its reason as data: both go into the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Choice(Generic[T]):
    """A value, and why this one. Where a choice decides more than one thing, the value is a dataclass."""

    value: T
    reason: str


def recorded(choices: Mapping[str, Choice[Any]]) -> dict[str, dict[str, object]]:
    """Return the choices as machine.json and bench.json keep them."""
    return {name: {"value": choice.value, "reason": choice.reason} for name, choice in choices.items()}
