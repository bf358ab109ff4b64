"""Where the time goes. Monotonic clocks only; the device is waited for on both sides of what is timed.

Three kinds of time: *training* (steps), *pause* (evaluation, checkpoint: the model does not learn), *program*
(everything from the start of the command). After a resume the totals go on from those of the checkpoint, and what was
done after it and is repeated is *lost*.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from turnaround.record.schema import Span, TimePart

SPAN_EVERY_STEPS = 16
"""One step in this many is taken apart; waiting for the device costs time, so not every step is."""


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
        # The one difference of two wall clocks, on one host and over a few seconds: from here on it is monotonic.
        self._begun_s = time.perf_counter() - max(0.0, time.time() - begun_at_s)
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


class Stopwatch:
    """Laps of work that several steps share."""

    def __init__(self, device: torch.device, *, is_running: bool) -> None:
        self.device, self.is_running = device, is_running
        self._laps_s: dict[str, float] = {}
        if is_running:
            synchronize(device)
            self._last_s = time.perf_counter()

    def lap(self, part: str) -> None:
        """What happened since the last lap was this part."""
        if self.is_running:
            synchronize(self.device)
            now = time.perf_counter()
            self._laps_s[part], self._last_s = now - self._last_s, now

    def shares(self, steps: int) -> dict[str, float]:
        """Of each of so many steps."""
        return {part: seconds / steps for part, seconds in self._laps_s.items()}


class StepTimer:
    """The parts of a sampled step: wait, copy, compute, reduce, update."""

    def __init__(self, device: torch.device, *, on_last_gradient: Callable[[], None] = lambda: None) -> None:
        self.device, self._on_last_gradient = device, on_last_gradient
        self.is_sampled = False
        self._parts_s: dict[str, float] = {}
        self._last_s = 0.0
        self._last_gradient_s: float | None = None

    @staticmethod
    def is_due(update: int) -> bool:
        """Whether this step is taken apart."""
        return update % SPAN_EVERY_STEPS == SPAN_EVERY_STEPS // 2

    def begin(self, update: int) -> None:
        """At the top of a step, before its batch is asked for."""
        self.is_sampled = self.is_due(update)
        if self.is_sampled:
            synchronize(self.device)
            self._parts_s, self._last_gradient_s = {}, None
            self._last_s = time.perf_counter()

    def mark(self, part: str) -> None:
        """What happened since the last mark was this part."""
        if not self.is_sampled:
            return
        synchronize(self.device)
        now = time.perf_counter()
        if part == "compute" and self._last_gradient_s is not None:
            self._add("reduce", now - self._last_gradient_s)
            self._add("compute", self._last_gradient_s - self._last_s)
        else:
            self._add(part, now - self._last_s)
        self._last_s = now

    def _add(self, part: str, seconds: float) -> None:
        self._parts_s[part] = self._parts_s.get(part, 0.0) + seconds

    def watch(self, updates: range) -> Stopwatch:
        """For work that several steps share; it measures only when one of them is taken apart."""
        return Stopwatch(self.device, is_running=any(map(self.is_due, updates)))

    def charge(self, update: int, parts_s: dict[str, float]) -> None:
        """A step's share of work that was done for several; it ends here, and the step's own begins."""
        if self.is_sampled and self.is_due(update):
            for part, seconds in parts_s.items():
                self._add(part, seconds)
            self._last_s = time.perf_counter()

    def last_gradient(self) -> None:
        """This process has its last gradient: from here on, what is left of the pass is waiting for the others.

        Only the stream of the computation is waited for; the messages already under way are what is measured.
        """
        self._on_last_gradient()
        if self.is_sampled:
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()
            self._last_gradient_s = time.perf_counter()

    def span(self, *, update: int, epoch: int) -> Span | None:
        """The sampled step's parts, or None when this step was not sampled."""
        if not self.is_sampled:
            return None
        parts = {f"{p}_s": self._parts_s.get(p, 0.0) for p in ("wait", "copy", "compute", "reduce", "update")}
        return Span(step=update + 1, epoch=epoch, **parts)
