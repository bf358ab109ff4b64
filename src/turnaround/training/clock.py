"""Where the time goes. Monotonic clocks only; the device is waited for on both sides of what is timed.

Three kinds of time: *training* (steps), *pause* (evaluation, checkpoint: the model does not learn), *program*
(everything from the start of the command). After a resume the totals go on from those of the checkpoint, and what was
done after it and is repeated is *lost*.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from turnaround.record.schema import TimePart


def synchronize(device: torch.device) -> None:
    """Waits until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def with_lost(saved_s: dict[TimePart, float], *, until_s: float) -> dict[TimePart, float]:
    """A checkpoint's totals, and as `lost` what the program did after it, until it ended."""
    program_s = saved_s.get("program", 0.0)
    lost_s = max(0.0, until_s - program_s)
    return {**saved_s, "lost": saved_s.get("lost", 0.0) + lost_s, "program": program_s + lost_s} if lost_s else saved_s


@dataclass
class _OpenPart:
    name: TimePart
    begun_s: float
    inner_s: float = 0.0
    """Of the parts inside it that have ended."""


class Clock:
    """Seconds by part of the run, over all its segments."""

    def __init__(self, device: torch.device, *, begun_at_s: float, earlier_s: dict[TimePart, float]) -> None:
        self.device = device
        self.parts_s: dict[TimePart, float] = dict(earlier_s)
        self._earlier_program_s = self.parts_s.pop("program", 0.0)
        # Both by this host's monotonic clock, which all its processes share: setting the date changes nothing.
        self._begun_s = time.perf_counter() - max(0.0, time.monotonic() - begun_at_s)
        self._open: list[_OpenPart] = []
        self.last_s = 0.0

    @contextmanager
    def part(self, name: TimePart) -> Iterator[None]:
        """Adds the time inside to a part, without that of parts within it; `last_s` tells it afterwards."""
        synchronize(self.device)
        mine = _OpenPart(name, time.perf_counter())
        self._open.append(mine)
        try:
            yield
        finally:
            synchronize(self.device)
            self._open.pop()
            whole_s = time.perf_counter() - mine.begun_s
            if self._open:
                self._open[-1].inner_s += whole_s
            self.last_s = whole_s - mine.inner_s
            self.add(name, self.last_s)

    def open_s(self) -> dict[TimePart, float]:
        """The parts that have begun and not ended, so far."""
        found: dict[TimePart, float] = {}
        until_s = time.perf_counter()
        for part in reversed(self._open):
            found[part.name] = found.get(part.name, 0.0) + until_s - part.begun_s - part.inner_s
            until_s = part.begun_s
        return found

    def add(self, name: TimePart, seconds: float) -> None:
        """Adds seconds that were measured elsewhere."""
        self.parts_s[name] = self.parts_s.get(name, 0.0) + seconds

    def program_s(self) -> float:
        """Since the user's command began, imports included."""
        return time.perf_counter() - self._begun_s

    def total_program_s(self) -> float:
        """The same with the earlier segments."""
        return self._earlier_program_s + self.program_s()

    def totals_s(self) -> dict[TimePart, float]:
        """Every part, and the three kinds."""
        parts = dict(self.parts_s)
        for name, seconds in self.open_s().items():
            parts[name] = parts.get(name, 0.0) + seconds
        training = parts.get("training_cold", 0.0) + parts.get("training_steady", 0.0)
        pause = parts.get("evaluation", 0.0) + parts.get("checkpoint", 0.0)
        return {
            **parts,
            "training": training,
            "pause": pause,
            "program": self.total_program_s(),
        }
