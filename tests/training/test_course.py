"""The learning rate where the epochs change on the way: continuous where it goes on, stated where it starts anew."""

from __future__ import annotations

import pytest

from turnaround.training.course import WARMED_SHARE, SchedulePiece, course_end, extended, laid_over, rate_at
from turnaround.training.schedule import Schedule

PEAK = 0.2


def schedule(kind: str, *, steps: int = 100, warmup_steps: int = 10) -> Schedule:
    return Schedule(kind=kind, peak=PEAK, total_steps=steps, warmup_steps=warmup_steps)


@pytest.mark.parametrize("kind", ["cosine", "one_cycle", "step", "constant"])
@pytest.mark.parametrize("end", [60, 400])
def test_what_is_left_is_laid_over_fewer_or_more_steps(kind: str, end: int) -> None:
    before = schedule(kind)
    pieces = [laid_over(40, end, before, [])]
    assert [rate_at(step, before, pieces) for step in range(41)] == [before.learning_rate(step) for step in range(41)]
    for share in (0.25, 0.5, 0.75):  # as far on the way to the end as before
        there = 40 + share * (100 - 40)
        assert rate_at(round(40 + share * (end - 40)), before, pieces) == pytest.approx(before.learning_rate(there))
    assert rate_at(end, before, pieces) == pytest.approx(before.learning_rate(100))
    assert course_end(before, pieces) == end


def test_within_the_warm_up_the_rest_of_it_is_shortened_too() -> None:
    before = schedule("cosine", warmup_steps=50)
    pieces = [laid_over(10, 40, before, [])]
    rates = [rate_at(step, before, pieces) for step in range(40)]
    assert max(rates) > 0.95 * PEAK
    assert rates[-1] < 0.02 * PEAK


def test_a_piece_speaks_of_the_course_before_it() -> None:
    before = schedule("cosine")
    twice = [laid_over(40, 80, before, [])]
    twice.append(laid_over(60, 200, before, twice))
    # Half of the way from 60 to 200 is step 70 of the course before, which is step 85 of the first.
    assert rate_at(130, before, twice) == pytest.approx(before.learning_rate(85))
    assert rate_at(200, before, twice) == pytest.approx(0.0)


def test_a_fallen_rate_is_warmed_anew_and_a_high_one_goes_on() -> None:
    before = schedule("cosine")
    anew = extended(100, 200, before, [], steps_per_epoch=5)
    assert anew is not None
    assert (anew.rate, anew.warmup_steps) == (WARMED_SHARE * PEAK, 5)
    rates = [rate_at(step, before, [anew]) for step in range(100, 200)]
    assert rates[4] == max(rates) == pytest.approx(WARMED_SHARE * PEAK)
    assert rates[:4] == sorted(rates[:4])
    assert rates[-1] < 0.001 * PEAK
    late = extended(95, 200, before, [], steps_per_epoch=5)  # a tail of next to nothing is not stretched
    assert late is not None
    assert late.rate is not None
    early = extended(50, 200, before, [], steps_per_epoch=5)
    assert early == SchedulePiece(at_step=50, end_step=200, before_end_step=100)
    assert extended(100, 200, schedule("constant"), [], steps_per_epoch=5) is None
    rising = extended(2, 200, schedule("one_cycle", warmup_steps=25), [], steps_per_epoch=5)
    assert rising is not None
    assert rising.rate is None  # its peak is still to come


def test_a_second_extension_follows_the_first() -> None:
    before = schedule("cosine")
    first = extended(100, 200, before, [], steps_per_epoch=5)
    assert first is not None
    second = extended(200, 260, before, [first], steps_per_epoch=5)
    assert second is not None
    assert (second.before_end_step, second.rate) == (200, WARMED_SHARE * PEAK)
    assert rate_at(150, before, [first, second]) == rate_at(150, before, [first])
