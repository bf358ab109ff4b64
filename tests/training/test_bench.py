"""What `turnaround bench` measures beside its rates."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from turnaround.training import bench
from turnaround.training.bench import TrainingPower


def power_of(monkeypatch: pytest.MonkeyPatch, joules: Iterator[float | None]) -> float | None:
    """Two rounds of 2 s with a second of something else before each."""
    now_s = iter([1.0, 3.0, 4.0, 6.0])
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: next(now_s)))
    power = TrainingPower(lambda: next(joules))
    for _ in range(2):
        with power.counted():
            pass
    return power.watts


def test_watts_are_those_of_the_rounds_of_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert power_of(monkeypatch, iter([100.0, 900.0, 5000.0, 5800.0])) == 400.0


@pytest.mark.parametrize("joules", [[None, None, None, None], [100.0, 900.0, None, 5800.0], [7.0, 7.0, 7.0, 7.0]])
def test_a_counter_that_does_not_answer_or_stands_still_tells_no_power(
    joules: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert power_of(monkeypatch, iter(joules)) is None


def test_without_a_counter_there_is_no_power() -> None:
    power = TrainingPower()
    with power.counted():
        pass
    assert power.watts is None
