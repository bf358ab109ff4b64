"""Decisions of all processes together, at the same step: to stop, to save, that the loss is no longer a number.

Signals, clocks and losses differ between processes, and one that acts alone leaves the others waiting for ever. So each
says what it knows in one small sum, about once a second: every few steps of a fast training, every step of a slow one.
Process 0 says in the same message when the next one is due, so nobody measures on its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from turnaround.workers.contract import Workers

EVERY_S = 1.0
"""A signal is acted upon within about this time; a message a second costs nothing that can be measured."""
MAX_STEPS = 256
"""Steps between two messages at most, where a step takes less than 4 ms: should they become slow, the next message must
not be far."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A decision that is the same on every process."""

    stops: bool = False
    """Somebody was asked to stop."""
    saves: bool = False
    """Process 0 says that it is time."""
    diverged: bool = False
    """The sums of some process are no longer numbers."""


NOTHING = Decision()


class Agreement:
    """One message about once a second; the host waits for the device only then."""

    def __init__(self, workers: Workers, *, stop_asked: Callable[[], bool]) -> None:
        self.workers, self.stop_asked = workers, stop_asked
        self.step_s = 0.0
        """Duration of a step lately, by this process's clock."""
        self._steps_left = 1  # the first step decides, and sets the pace
        self.begin()

    def begin(self) -> None:
        """Start to time steps: what happened before them is not their time."""
        self._begun_s, self._steps_done = time.monotonic(), 0

    def after_step(self, totals: Tensor, *, is_time: Callable[[], bool]) -> Decision:
        """Decide when a message is due, which is after the same step on every process."""
        self._steps_done += 1
        self._steps_left -= 1
        return self.now(totals, is_time=is_time) if self._steps_left <= 0 else NOTHING

    def now(self, totals: Tensor, *, is_time: Callable[[], bool]) -> Decision:
        """Decide with a message; `totals` stay on their device."""
        if self._steps_done:
            self.step_s = (time.monotonic() - self._begun_s) / self._steps_done
        is_first = self.workers.rank == 0
        # Process 0 alone says when to save and when to speak again: two clocks would disagree.
        mine = [float(self.stop_asked()), float(is_first and is_time()), float(self._steps_between() * is_first)]
        # (4,): not finite, stop, save, steps until the next message. One sum carries all: the flags are counts of the
        # processes that raised them, and the two values of process 0 are added to zeros.
        message = torch.cat([(~torch.isfinite(totals).all()).to(totals).view(1), totals.new_tensor(mine)])
        self.workers.sum(message)
        bad, stop, save, self._steps_left = map(int, message.tolist())  # here the host waits for the device
        self.begin()
        return Decision(stops=stop > 0, saves=save > 0, diverged=bad > 0)

    def _steps_between(self) -> int:
        """Return the steps between two messages, at the present speed."""
        return max(1, min(MAX_STEPS, int(EVERY_S / self.step_s))) if self.step_s > 0 else 1
