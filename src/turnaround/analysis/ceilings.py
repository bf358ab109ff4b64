"""What limits a training on this machine? From the rates of its parts, each measured alone.

A training can be no faster than its model alone. What it lacks is its input when the input alone is slower than the
model, the exchange of gradients when that alone is slower, and otherwise what the parts cost each other on one host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

GOOD_SHARE = 0.95

Limit = Literal["model", "input", "communication", "host"]


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The verdict."""

    share_of_ceiling: float
    """Training / model alone."""
    limit: Limit
    most_gain: float
    """How many times faster training would be if what limits it were gone; 1 where it is the model."""


def ceilings(images_per_s: Mapping[str, float]) -> Ceilings:
    """`images_per_s` by part, as training/bench.py names them."""
    training, model = images_per_s["training"], images_per_s["model"]
    share = training / model
    if share >= GOOD_SHARE:
        return Ceilings(share_of_ceiling=share, limit="model", most_gain=1.0)
    limit: Limit = "host"
    if images_per_s.get("input", float("inf")) < model:
        limit = "input"
    elif images_per_s.get("all_reduce", float("inf")) < model:
        limit = "communication"
    return Ceilings(share_of_ceiling=share, limit=limit, most_gain=model / training)
