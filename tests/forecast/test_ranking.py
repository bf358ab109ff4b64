"""The best of a range: by time, by money with its billing unit, with interruptions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from turnaround.analysis.configurations import Spread
from turnaround.analysis.prices import Price
from turnaround.forecast.interval import Interval
from turnaround.forecast.question import InterruptedForecast, InterruptionCosts, Prediction
from turnaround.forecast.ranking import are_hopeless, best_of_range, ranked_cost, within_noise
from turnaround.forecast.remarks import MoreProcessesThanCores, Remarks
from turnaround.forecast.turnaround import price_interval

NOTHING = Interval.exact(0.0)


def prediction(workers: int, time_s: float | None, *, price: Price | None = None, spread: float = 0.0) -> Prediction:
    time = None if time_s is None else Interval(value=time_s, low=time_s * (1 - spread), high=time_s * (1 + spread))
    return Prediction(
        job="fruit",
        workers=workers,
        gpu="V100",
        processes=workers,
        hosts=1,
        global_batch=None,
        epochs_planned=30,
        job_time_s=time,
        cost=price_interval(time, price, workers=workers),
    )


def with_interruptions(p: Prediction, time_s: float | None, cost: float | None = None) -> Prediction:
    time, paid = (None if each is None else Interval.exact(each) for each in (time_s, cost))
    found = InterruptedForecast(
        per_h=1.0,
        checkpoint_every_s=60.0,
        interruptions=1.0,
        job_time_s=time,
        time_to_stable_s=None,
        usual_job_time_s=None,
        paid_job_s=time,
        paid_to_stable_s=None,
        cost=paid,
        cost_to_stable=None,
        currency=None,
        is_spot=False,
        costs=InterruptionCosts(start_s=NOTHING, pause_s=NOTHING, wait_s=NOTHING),
    )
    return replace(p, interrupted=found)


def range_of(times_s: dict[int, float], price: Price | None = None) -> list[Prediction]:
    return [prediction(workers, time_s, price=price) for workers, time_s in times_s.items()]


def test_the_best_number_of_gpus() -> None:
    best = best_of_range(range_of({n: 10 + 288 / n for n in (1, 2, 4, 8, 16, 32)} | {64: 20.0}))
    assert best is not None
    assert (best.fastest, best.cheapest, best.enough, best.by) == (32, 1, 32, "job time")
    flat = best_of_range(range_of({1: 100.0, 2: 52.0, 4: 50.0, 8: 49.9}))
    assert flat is not None
    assert (flat.fastest, flat.cheapest, flat.enough, flat.near_fastest) == (8, 1, 2, 2)
    assert best_of_range([]) is None
    assert best_of_range([prediction(1, 100.0), prediction(2, None)]) is None


def test_a_begun_billing_unit_decides_what_is_cheapest() -> None:
    times = {1: 5400.0, 2: 3000.0, 3: 3500.0}
    by_time, hourly = best_of_range(range_of(times)), Price(per_hour=1.0, billing_s=3600.0)
    assert by_time is not None
    assert (by_time.cheapest, by_time.is_priced) == (1, False)
    # 2 begun hours of one GPU and one of two cost the same: the faster one is taken.
    predictions = range_of(times, hourly)
    best = best_of_range(predictions)
    assert best is not None
    assert (best.cheapest, best.is_priced, ranked_cost(predictions[1], best)) == (2, True, 2.0)


def test_interrupted_times_and_costs_are_what_is_ranked() -> None:
    plain = range_of({1: 400.0, 2: 200.0, 4: 100.0}, Price(per_hour=1.0))
    told = [with_interruptions(p, t, c) for p, t, c in zip(plain, (500.0, 300.0, None), (1.0, 0.5, None), strict=True)]
    best = best_of_range(told)
    assert best is not None
    assert (best.fastest, best.cheapest, best.hopeless, best.is_interrupted) == (2, 2, (4,), True)
    undisturbed = best_of_range(told, undisturbed=True)
    assert undisturbed is not None
    assert (undisturbed.fastest, undisturbed.hopeless) == (4, ())
    never = [with_interruptions(p, None) for p in plain]
    assert best_of_range(never) is None
    assert are_hopeless(never)
    assert not are_hopeless(told)
    assert not are_hopeless(plain)


def test_nothing_is_within_the_noise_of_what_was_measured() -> None:
    predictions = [prediction(1, 200.0, spread=0.1), prediction(2, 110.0, spread=0.2), prediction(4, 100.0, spread=0.2)]
    best = best_of_range(predictions)
    assert best is not None
    found = within_noise(predictions, best)
    assert (found.fastest, found.cheapest) == ((2,), (2,))
    measured = [
        replace(p, measured={"job_time_s": Spread.of([p.best_known("job_time_s") or 0.0])}) for p in predictions
    ]
    assert within_noise(measured, best).fastest == ()


def test_processes_that_share_cores_are_no_choice() -> None:
    crowded = Remarks(warnings=(MoreProcessesThanCores(cores=2),))
    best = best_of_range([prediction(2, 100.0), replace(prediction(4, 50.0), remarks=crowded)])
    assert best is not None
    assert best.fastest == 2


@settings(max_examples=50, deadline=None)
@given(times=st.dictionaries(st.integers(1, 100), st.floats(0.1, 1e4), min_size=1, max_size=8))
def test_enough_is_never_more_than_the_fastest_needs(times: dict[int, float]) -> None:
    best = best_of_range(range_of(times))
    assert best is not None
    assert best.enough <= best.fastest
    assert times[best.enough] * 0.95 <= times[best.fastest] + 1e-9
    assert np.isclose(min(times.values()), times[best.fastest])
