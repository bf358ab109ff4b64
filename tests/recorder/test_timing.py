"""Where the time of a loop goes, by its own calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from turnaround.recorder import timing as module
from turnaround.recorder.timing import TimedPart, Timing, is_due


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """A clock that moves only when it is told to."""
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    yield advance
    monkeypatch.undo()
    assert time.perf_counter() != now[0]


def test_training_ends_with_the_last_step(sleep: Callable[[float], None]) -> None:
    clock = Timing(has_company=True)
    sleep(2.0)  # start-up
    clock.epoch_begins()
    for _ in range(4):
        sleep(0.5)
        clock.step()
    sleep(1.0)
    times = clock.epoch_ends(training_s=None, evaluation_s=None)
    assert (times.training_s, times.evaluation_s, times.steps) == (2.0, 1.0, 4)
    sleep(3.0)
    clock.step()
    assert clock.epoch_ends(training_s=None, evaluation_s=None).training_s == 3.0
    expected = {"start_up": 2.0, "training_cold": 2.0, "training_steady": 3.0, "evaluation": 1.0, "checkpoint": 0.0}
    assert clock.time_s() == {**expected, "training": 5.0, "pause": 1.0, "program": 8.0}


def test_pauses_within_an_epoch_are_no_training(sleep: Callable[[float], None]) -> None:
    clock = Timing(has_company=True)
    sleep(1.0)
    clock.step()
    with TimedPart(clock, "evaluation"):
        sleep(5.0)
    sleep(1.0)
    clock.step()
    with TimedPart(clock, "checkpoint"):
        sleep(7.0)
    times = clock.epoch_ends(training_s=None, evaluation_s=None)
    assert (times.training_s, times.evaluation_s) == (2.0, 5.0)
    assert clock.totals_s["checkpoint"] == 7.0


def test_without_steps_an_epoch_is_all_training_but_what_is_said(sleep: Callable[[float], None]) -> None:
    clock = Timing(has_company=True)
    sleep(4.0)
    with TimedPart(clock, "evaluation"):
        sleep(1.0)
    times = clock.epoch_ends(training_s=None, evaluation_s=None)
    assert (times.training_s, times.evaluation_s, times.steps) == (4.0, 1.0, 0)
    sleep(4.0)
    assert clock.epoch_ends(training_s=None, evaluation_s=None).evaluation_s is None
    sleep(9.0)
    times = clock.epoch_ends(training_s=3.0, evaluation_s=2.0)  # the loop knows better
    assert (times.training_s, times.evaluation_s) == (3.0, 2.0)


def due(clock: Timing) -> None:
    """To the beginning of a step that is taken apart."""
    while not clock.is_sampled:
        clock.step()


def test_the_parts_of_a_step(sleep: Callable[[float], None]) -> None:
    clock = Timing()
    due(clock)
    sleep(1.0)
    clock.mark("wait")
    sleep(2.0)
    with TimedPart(clock, "update"):
        sleep(4.0)
        with TimedPart(clock, "reduce"):
            sleep(8.0)
    sleep(16.0)
    span = clock.step()
    assert span is not None
    assert (span.wait_s, span.copy_s, span.compute_s, span.reduce_s, span.update_s) == (1.0, 0.0, 18.0, 8.0, 4.0)
    assert (span.step, span.epoch) == (3, 1)


def test_several_updates_at_once_share_their_time(sleep: Callable[[float], None]) -> None:
    clock = Timing()
    due(clock)
    clock.mark("wait")
    sleep(4.0)
    span = clock.step(updates=4)
    assert span is not None
    assert (span.compute_s, span.step, clock.steps) == (1.0, 6, 6)


def test_a_step_that_nobody_took_apart_says_nothing() -> None:
    clock = Timing()
    assert [clock.step() for _ in range(100)] == [None] * 100


def test_a_span_around_the_end_of_a_step_and_one_inside_a_pause(sleep: Callable[[float], None]) -> None:
    clock = Timing(has_company=True)
    due(clock)
    with TimedPart(clock, "wait"):
        clock.step()
    with TimedPart(clock, "evaluation"):
        sleep(1.0)
        with TimedPart(clock, "wait"):
            sleep(1.0)
    assert clock.epoch_ends(training_s=None, evaluation_s=None).evaluation_s in (1.0, 2.0)


def test_the_device_is_waited_for_only_around_sampled_steps() -> None:
    waited: list[int] = []
    clock = Timing(synchronize=lambda: waited.append(clock.steps) if hasattr(module, "time") else None)
    for _ in range(200):
        clock.mark("wait")
        clock.step()
    assert set(waited) <= {step for step in range(201) if is_due(step)}
    assert len(set(waited)) == sum(is_due(step) for step in range(201))


def test_how_many_steps_are_taken_apart() -> None:
    assert sum(map(is_due, range(64))) == 16
    assert sum(map(is_due, range(64, 64 + 1600))) == 100


def test_a_program_is_as_old_as_its_process() -> None:
    assert Timing().program_s() > Timing(has_company=True).program_s()
