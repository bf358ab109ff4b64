"""Where the time goes: parts that add up, and totals that survive a resume."""

from __future__ import annotations

import pytest
import torch

from turnaround.training import clock as module
from turnaround.training.clock import Clock

CPU = torch.device("cpu")
NAP_S = 2.0


class HostClock:
    """Of the host, moved by a test: on a busy machine a short nap may take any time."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> HostClock:
    made = HostClock()
    monkeypatch.setattr(module, "time", made)
    return made


def clock(host: HostClock, **keys: object) -> Clock:
    return Clock(CPU, **{"begun_at_s": host.now_s, "earlier_s": {}, **keys})  # type: ignore[arg-type]


def test_parts_add_up_and_make_the_three_kinds(host: HostClock) -> None:
    made = clock(host)
    for part in ("training_cold", "training_steady", "training_steady", "evaluation", "checkpoint"):
        with made.part(part):  # type: ignore[arg-type]
            host.sleep(NAP_S)
    host.sleep(0.5)
    made.add("start_up", 1.5)
    made.add("start_up", 0.5)
    found = made.totals_s()
    assert found["start_up"] == 2.0
    assert (found["training_cold"], found["training_steady"]) == (NAP_S, 2 * NAP_S)
    assert found["training"] == found["training_cold"] + found["training_steady"]
    assert found["pause"] == found["evaluation"] + found["checkpoint"] == 2 * NAP_S
    assert found["program"] == 5 * NAP_S + 0.5


def test_a_part_that_fails_is_counted_too(host: HostClock) -> None:
    made = clock(host)

    def fails() -> None:
        with made.part("evaluation"):
            host.sleep(NAP_S)
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fails()
    assert made.totals_s()["evaluation"] == made.last_s == NAP_S


def test_the_program_began_with_the_users_command(host: HostClock) -> None:
    assert clock(host, begun_at_s=host.now_s - 10).program_s() == 10
    assert clock(host, begun_at_s=host.now_s + 100).program_s() == 0  # of another boot of this host


def test_totals_survive_a_resume(host: HostClock) -> None:
    first = clock(host, begun_at_s=host.now_s - 5)
    first.add("training_cold", 2.0)
    first.add("evaluation", 1.0)
    first.add("decode", 0.5)
    second = clock(host, begun_at_s=host.now_s - 3, earlier_s=first.totals_s())
    second.add("training_cold", 1.0)
    second.add("training_steady", 4.0)
    found = second.totals_s()
    assert found["training_cold"] == 3.0
    assert found["training"] == 7.0  # the earlier sum is not counted twice
    assert found["pause"] == 1.0
    assert found["decode"] == 0.5
    assert found["program"] == 8


def test_a_resume_does_not_change_the_earlier_totals(host: HostClock) -> None:
    earlier = {"training_cold": 2.0, "program": 5.0}
    made = clock(host, earlier_s=earlier)
    made.add("training_cold", 1.0)
    assert earlier == {"training_cold": 2.0, "program": 5.0}
