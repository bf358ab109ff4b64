"""Rates of interruptions as people write them, and the checkpoint interval that costs least."""

from __future__ import annotations

import math

import pytest

from turnaround.errors import InputError
from turnaround.interruptions import MIN_EVERY_S, CheckpointInterval, best_interval_s, rate_per_h


@pytest.mark.parametrize(
    ("text", "per_h"),
    [("0.5/h", 0.5), ("12/day", 0.5), ("3 / d", 0.125), ("1/20min", 3.0), (".5/hour", 0.5), ("7/2weeks", 7 / 336)],
)
def test_rates_with_their_unit(text: str, per_h: float) -> None:
    assert rate_per_h(text, flag="--interruptions") == pytest.approx(per_h)
    assert rate_per_h("0/h", flag="--interruptions") == 0


@pytest.mark.parametrize("text", ["0.5", "often", "-1/h", "1/0h", "1/fortnight", "2/s", "1e3/h", "", "nan/h", "inf/h"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(InputError, match=r"--interruptions takes a rate with its unit.*0\.5/h, 3/day") as caught:
        rate_per_h(text, flag="--interruptions")
    assert f"Received: {text!r}" in str(caught.value)


@pytest.mark.parametrize(("pause_s", "per_h"), [(0.05, 0.1), (2.0, 0.5), (30.0, 4.0), (5.0, 60.0)])
def test_no_other_interval_costs_less(pause_s: float, per_h: float) -> None:
    def cost(every_s: float) -> float:
        """Time for a second of work: that of the head of the module, up to a factor that does not depend on it."""
        return math.expm1(per_h / 3600 * (every_s + pause_s)) / every_s

    best_s = best_interval_s(pause_s=pause_s, per_h=per_h)
    assert all(cost(best_s) <= cost(best_s * factor) for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2))
    # Young's rule is its limit for rare interruptions.
    assert best_s == pytest.approx(
        math.sqrt(2 * pause_s * 3600 / per_h), rel=0.5 * math.sqrt(pause_s * per_h / 3600) + 0.01
    )


def test_ends_of_the_range() -> None:
    assert best_interval_s(pause_s=1.0, per_h=0.0) == math.inf
    assert best_interval_s(pause_s=0.0, per_h=1.0) == MIN_EVERY_S  # a checkpoint that costs nothing
    assert CheckpointInterval("auto", None).every_s == 60
