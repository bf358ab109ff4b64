"""Where the time goes: parts that add up, and totals that survive a resume."""

from __future__ import annotations

import time

import pytest
import torch

from turnaround.training.clock import Clock

CPU = torch.device("cpu")
NAP_S = 0.02


def clock(**keys: object) -> Clock:
    return Clock(CPU, **{"begun_at_s": time.monotonic(), "earlier_s": {}, **keys})  # type: ignore[arg-type]


def test_parts_add_up_and_make_the_three_kinds() -> None:
    made = clock()
    for part in ("training_cold", "training_steady", "training_steady", "evaluation", "checkpoint"):
        with made.part(part):
            time.sleep(NAP_S)
    made.add("start_up", 1.5)
    made.add("start_up", 0.5)
    found = made.totals_s()
    assert found["start_up"] == 2.0
    assert found["training_steady"] > 1.5 * found["training_cold"] > 0
    assert found["training"] == found["training_cold"] + found["training_steady"]
    assert found["pause"] == found["evaluation"] + found["checkpoint"]
    assert found["training"] + found["pause"] <= found["program"] < found["training"] + found["pause"] + 0.5


def test_a_part_that_fails_is_counted_too() -> None:
    made = clock()

    def fails() -> None:
        with made.part("evaluation"):
            time.sleep(NAP_S)
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fails()
    assert made.totals_s()["evaluation"] == made.last_s >= NAP_S


def test_the_program_began_with_the_users_command() -> None:
    assert 10 <= clock(begun_at_s=time.monotonic() - 10).program_s() < 11
    assert 0 <= clock(begun_at_s=time.monotonic() + 100).program_s() < 1  # of another boot of this host


def test_totals_survive_a_resume() -> None:
    first = clock(begun_at_s=time.monotonic() - 5)
    first.add("training_cold", 2.0)
    first.add("evaluation", 1.0)
    first.add("decode", 0.5)
    second = clock(begun_at_s=time.monotonic() - 3, earlier_s=first.totals_s())
    second.add("training_cold", 1.0)
    second.add("training_steady", 4.0)
    found = second.totals_s()
    assert found["training_cold"] == 3.0
    assert found["training"] == 7.0  # the earlier sum is not counted twice
    assert found["pause"] == 1.0
    assert found["decode"] == 0.5
    assert 8 <= found["program"] < 8.5


def test_a_resume_does_not_change_the_earlier_totals() -> None:
    earlier = {"training_cold": 2.0, "program": 5.0}
    made = clock(earlier_s=earlier)
    made.add("training_cold", 1.0)
    assert earlier == {"training_cold": 2.0, "program": 5.0}
