"""Both laws together: sums, simulated intervals, the best number of GPUs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnaround.analysis.prices import Price
from turnaround.forecast.interval import Interval
from turnaround.forecast.observations import Overheads
from turnaround.forecast.turnaround import (
    TurnaroundParts,
    fixed_overhead,
    job_time,
    per_epoch_overhead,
    price_interval,
)


def parts(epoch_s: Interval, after_s: float = 0.0, once_s: float = 0.0) -> TurnaroundParts:
    return TurnaroundParts(
        epoch_s=epoch_s, per_epoch_overhead_s=Interval.exact(after_s), fixed_overhead_s=Interval.exact(once_s)
    )


def test_exact_parts_give_an_exact_time() -> None:
    assert job_time(parts(Interval.exact(10.0), 2.0, 60.0), Interval.exact(30.0)) == pytest.approx(
        Interval.exact(30 * 12 + 60.0)
    )


def test_one_uncertain_part_keeps_its_interval() -> None:
    time_s = job_time(parts(Interval(value=10, low=8, high=13)), Interval.exact(30.0))
    assert (time_s.low, time_s.value, time_s.high) == pytest.approx((240, 300, 390), rel=0.005)


def test_errors_of_both_laws_join_in_quadrature() -> None:
    time_s = job_time(parts(Interval(value=10, low=10 / 1.2, high=12)), Interval(value=30, low=30 / 1.2, high=36))
    assert math.log(time_s.high / time_s.value) == pytest.approx(math.sqrt(2) * math.log(1.2), rel=0.05)
    assert time_s.high < 1.44 * 300


def test_the_same_question_has_the_same_answer() -> None:
    unsure = parts(Interval(value=10, low=7, high=14), 1.0, 5.0)
    assert job_time(unsure, Interval(value=9, low=4, high=30)) == job_time(unsure, Interval(value=9, low=4, high=30))


spreads = st.tuples(st.floats(0.1, 100), st.floats(0.2, 1), st.floats(1, 4))


@settings(max_examples=40, deadline=None)
@given(epoch=spreads, epochs=spreads)
def test_never_narrower_than_either_law(epoch: tuple[float, float, float], epochs: tuple[float, float, float]) -> None:
    each = [Interval(value=v, low=v * low, high=v * high) for v, low, high in (epoch, epochs)]
    time_s = job_time(parts(each[0]), each[1])
    for one in each:
        assert time_s.low / time_s.value <= one.low / one.value + 1e-9
        assert time_s.high / time_s.value >= one.high / one.value - 1e-9


def test_share_below_is_a_probability() -> None:
    unsure = Interval(value=38, low=31, high=45)
    assert unsure.share_below(38) == pytest.approx(0.5, abs=0.01)
    assert unsure.share_below(31) == pytest.approx(0.1, abs=0.01)
    assert unsure.share_below(45) == pytest.approx(0.9, abs=0.01)
    assert Interval(value=1.0, low=0.0, high=2.0).share_below(0.0) == pytest.approx(0.1, abs=0.01)


def test_cost_is_all_gpus_for_the_time() -> None:
    paid = price_interval(Interval(value=3600, low=1800, high=7200), Price(per_hour=2.5), workers=16)
    assert paid is not None
    assert price_interval(None, Price(per_hour=2.5), workers=16) is None
    assert (paid.low, paid.value, paid.high) == (20, 40, 80)


def test_an_evaluation_is_shared_and_a_checkpoint_is_not() -> None:
    measured = [
        Overheads(processes=1, evaluation_s=16.0, checkpoint_s=1.0),
        Overheads(processes=4, evaluation_s=4.4, checkpoint_s=1.0),
    ]
    assert per_epoch_overhead(measured, 4) == Interval.exact(5.4)
    sixteen = per_epoch_overhead(measured, 16)
    assert (sixteen.low, sixteen.value, sixteen.high) == pytest.approx((2.1, 2.1, 3.2))
    one = per_epoch_overhead(measured[1:], 1)
    assert one.low < one.value == pytest.approx(18.6)
    assert per_epoch_overhead([], 3) == Interval.exact(0.0)


def test_what_happens_once_is_the_median_and_its_extremes() -> None:
    three = [Overheads(processes=n, fixed_s=t) for n, t in ((1, 60.0), (2, 100.0), (4, 105.0), (8, None))]
    assert fixed_overhead(three) == Interval(value=100, low=60, high=120)
    assert fixed_overhead([Overheads(processes=1)]) == Interval.exact(0.0)


def test_starts_that_scatter_from_run_to_run_are_a_wider_interval() -> None:
    alike = Overheads(processes=1, fixed_s=10.0, fixed_runs_s=(9.9, 10.0, 10.1))
    assert fixed_overhead([alike]) == Interval(value=10.0, low=8.0, high=12.0)
    apart = Overheads(processes=1, fixed_s=10.0, fixed_runs_s=(5.0, 7.0, 10.0, 16.0, 20.0))
    found = fixed_overhead([apart])
    assert (found.value, found.low, found.high) == pytest.approx(
        (10.0, 4.87, 20.5), rel=0.01
    )  # one more beside the five
    other = Overheads(processes=4, fixed_s=20.0, fixed_runs_s=(20.0,))
    assert fixed_overhead([apart, other]).high > found.high
