"""What an answer says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from turnaround.forecast.interval import Interval
from turnaround.forecast.question import Prediction


def prediction(**more: Any) -> Prediction:
    known: dict[str, Any] = {"workers": 4, "processes": 4, "hosts": 1, "global_batch": 128, "epochs_planned": 30}
    return Prediction(job="j", gpu="T4", **(known | more))


@pytest.mark.parametrize(
    ("low", "value", "high", "likelihood"),
    [
        (10, 12, 14, "yes"),
        (20, 26, 34, "probably"),
        (14, 40, 130, "open"),
        (14, 28, 130, "open"),
        (29, 38, 47, "probably not"),
        (60, 70, 80, "no"),
    ],
)
def test_stable_by_the_end_follows_the_interval(low: float, value: float, high: float, likelihood: str) -> None:
    epochs = Interval(low=low, value=value, high=high)
    assert prediction(epochs_to_stable=epochs, reaches_stable=value <= 30).stable_by_end == likelihood


def test_what_is_not_known_is_none() -> None:
    nothing = prediction()
    assert nothing.stable_by_end is None
    assert nothing.gpu_hours is None
    assert nothing.training_to_target_s is None


def test_training_to_target_is_epochs_alone() -> None:
    found = prediction(epoch_time_s=Interval.exact(10.0), epochs_to_target=Interval(low=8, value=10, high=13))
    time_s = found.training_to_target_s
    assert time_s is not None
    assert (time_s.low, time_s.value, time_s.high) == pytest.approx((80, 100, 130), rel=0.01)
    assert prediction(job_time_s=Interval.exact(3600.0)).gpu_hours == 4
