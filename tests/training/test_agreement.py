"""What processes decide together: the same on all of them, at the same step, with few messages."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from turnaround.training import loop
from turnaround.training.loop import Agreement, Decision
from turnaround.workers.contract import Workers
from turnaround.workers.single import Single

CPU = torch.device("cpu")
GOOD = torch.zeros(3, dtype=torch.float64)


class Together(Single):
    """Process `rank` of several that are threads of this one: sums meet at a barrier."""

    def __init__(self, rank: int, size: int, meeting: Meeting) -> None:
        Workers.__init__(self, rank=rank, size=size, count=size, device=CPU)
        self.meeting, self.messages = meeting, 0

    def sum(self, tensor: Tensor) -> None:
        self.messages += 1
        tensor.copy_(self.meeting.summed(self.rank, tensor))


class Meeting:
    """Where the threads' sums meet."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size, timeout=30)
        self.said: dict[int, Tensor] = {}

    def summed(self, rank: int, tensor: Tensor) -> Tensor:
        self.said[rank] = tensor.clone()
        self.barrier.wait()
        total = torch.stack([self.said[r] for r in range(self.size)]).sum(dim=0)
        self.barrier.wait()
        return total


def decided(size: int, steps: int, step_s: list[float], **when: int) -> list[list[tuple[int, Decision]]]:
    """For each process what was decided after which step; `stop`, `save`, `nan` = rank * 1000 + step."""
    meeting = Meeting(size)
    found: list[list[tuple[int, Decision]]] = [[] for _ in range(size)]

    def run(rank: int) -> None:
        step = 0
        mine = {what: at % 1000 for what, at in when.items() if at // 1000 == rank}
        made = Agreement(Together(rank, size, meeting), stop_asked=lambda: step >= mine.get("stop", 10**9))
        for step in range(1, steps + 1):
            time.sleep(step_s[rank])
            totals = GOOD / 0 if step >= mine.get("nan", 10**9) else GOOD
            is_time = step >= mine.get("save", 10**9)
            one = made.after_step(totals, is_time=lambda answer=is_time: answer)  # type: ignore[misc]
            if one != loop.NOTHING:
                found[rank].append((step, one))
                return

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(("what", "field"), [("stop", "stops"), ("nan", "diverged")])
def test_what_one_process_knows_all_do_at_the_same_step(
    rank: int, what: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MESSAGE_EVERY_S", 0.05)
    first, *others = decided(3, 40, [0.01, 0.002, 0.005], **{what: rank * 1000 + 7})
    assert first
    assert all(other == first for other in others)
    ((step, decision),) = first
    assert 7 <= step <= 7 + 5 + 1  # 0.05 s are five steps of process 0
    assert getattr(decision, field)


def test_process_0_alone_says_when_it_is_time_to_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MESSAGE_EVERY_S", 0.02)
    assert [f and f[0][1].saves for f in decided(2, 30, [0.005, 0.005], save=5)] == [True, True]
    assert decided(2, 30, [0.005, 0.005], save=1005) == [[], []]  # the other's clock does not count


def still(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only the test moves."""
    now_s = [50.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    return now_s


def test_messages_are_about_a_second_apart_and_every_step_of_a_slow_training(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = still(monkeypatch)
    workers = Together(0, 1, Meeting(1))
    made = Agreement(workers, stop_asked=lambda: False)
    for _ in range(600):
        now_s[0] += 1e-6
        made.after_step(GOOD, is_time=lambda: False)
    assert workers.messages <= 600 // loop.MAX_STEPS_BETWEEN + 2  # steps of microseconds: as few as is allowed
    made.step_s = 3.0
    assert made._steps_between() == 1
    made.step_s = 0.1
    assert made._steps_between() == 10


def test_what_happens_between_steps_is_not_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = still(monkeypatch)
    made = Agreement(Single(count=1, device=CPU), stop_asked=lambda: False)
    now_s[0] += 0.1
    made.begin()
    now_s[0] += 0.02
    made.after_step(GOOD, is_time=lambda: False)
    assert made.step_s == pytest.approx(0.02)
