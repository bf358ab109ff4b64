"""The arithmetic of values with intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from turnaround.forecast.interval import HalfWidths, Interval, draws, middle_80, one_more

UNSURE = Interval(value=10, low=8, high=13)


def test_exact_arithmetic_moves_value_and_ends_alike() -> None:
    assert UNSURE.scaled(2) == Interval(value=20, low=16, high=26)
    assert UNSURE.plus(1) == Interval(value=11, low=9, high=14)
    assert UNSURE.at_least(9) == Interval(value=10, low=9, high=13)
    assert UNSURE.clipped(9, 12) == Interval(value=10, low=9, high=12)
    assert UNSURE.reaching(low=7, high=11) == Interval(value=10, low=7, high=13)
    assert UNSURE.relative_width == 0.5


def test_a_rate_turns_the_ends_round() -> None:
    rate = UNSURE.into(520)
    assert (rate.low, rate.value, rate.high) == (40, 52, 65)


def test_half_widths_are_relative_and_leave_a_tenth() -> None:
    assert Interval.around(10, HalfWidths(less=0.2, more=0.3)) == Interval(value=10, low=8, high=13)
    assert Interval.around(10, HalfWidths(less=2.0, more=0.3)).low == pytest.approx(1)
    assert UNSURE.widened(2) == Interval(value=10, low=6, high=16)
    assert UNSURE.widened(100).low == pytest.approx(1)
    joined = HalfWidths(less=0.3, more=0.0).joined(0.4)
    assert (joined.less, joined.more) == pytest.approx((0.5, 0.4))


def test_independent_errors_join_on_a_logarithmic_scale() -> None:
    ratio = Interval(value=10, low=10 / 1.2, high=12).divided_by(Interval(value=2, low=2 / 1.2, high=2.4))
    assert ratio.value == 5
    assert math.log(ratio.high / ratio.value) == pytest.approx(math.sqrt(2) * math.log(1.2))
    assert math.log(ratio.value / ratio.low) == pytest.approx(math.sqrt(2) * math.log(1.2))


def test_draws_have_the_interval_they_come_from() -> None:
    first, second = draws([UNSURE, Interval(value=1.0, low=0.0, high=2.0)])
    back = middle_80(first, 10)
    assert (back.low, back.value, back.high) == pytest.approx((8, 10, 13), rel=0.01)
    assert second.min() == 0
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert UNSURE.share_below(8) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_four_of_five_further_values_lie_beside_few_repeats(count: int) -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(10.0, 1.0, (2000, count + 1))
    known = values[:, :count]
    half = np.array([one_more([(float(sd), count)]) for sd in known.std(axis=1, ddof=1)])
    assert np.mean(np.abs(values[:, count] - known.mean(axis=1)) <= half) == pytest.approx(0.8, abs=0.03)


def test_repeats_of_several_groups_are_pooled() -> None:
    assert one_more([]) == one_more([(0.3, 1)]) == 0.0
    assert one_more([(0.1, 2)] * 20) < one_more([(0.1, 2)])


def test_a_value_outside_its_ends_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="outside"):
        Interval(value=1, low=2, high=3)
