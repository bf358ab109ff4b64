"""The parts of a sampled step: wait, copy, compute, reduce, update.

On a CUDA device the marks are events on its own timeline, read when it has passed them: a step that is taken apart is
not slower than any other. So the wait for a batch is the time the GPU had nothing to do, not the time the host took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch

from turnaround.record.schema import Span
from turnaround.training.clock import synchronize

SPAN_EVERY_STEPS = 16
"""One step in this many is taken apart."""
PARTS = ("wait", "copy", "compute", "reduce", "update")
Instant = float | torch.cuda.Event


@dataclass(frozen=True, kw_only=True)
class Lap:
    """From one mark to the next; of work that several steps share, `share` of it."""

    part: str
    start: Instant
    stop: Instant
    share: float = 1.0

    def seconds(self) -> float:
        if isinstance(self.stop, float):
            return self.share * (self.stop - cast(float, self.start))
        milliseconds: float = cast(torch.cuda.Event, self.start).elapsed_time(self.stop)
        return self.share * milliseconds / 1000


@dataclass(kw_only=True)
class _Sampled:
    """A step that is taken apart."""

    update: int
    epoch: int
    last: Instant
    laps: list[Lap] = field(default_factory=list)
    last_gradient: Instant | None = None

    def lap(self, part: str, until: Instant) -> None:
        self.laps.append(Lap(part=part, start=self.last, stop=until))
        self.last = until

    def is_over(self) -> bool:
        return isinstance(self.last, float) or bool(self.last.query())  # type: ignore[no-untyped-call]

    def span(self) -> Span:
        parts_s = dict.fromkeys(PARTS, 0.0)
        for lap in self.laps:
            parts_s[lap.part] += lap.seconds()
        return Span(step=self.update + 1, epoch=self.epoch, **{f"{part}_s": value for part, value in parts_s.items()})


class Stopwatch:
    """Laps of work that several steps share."""

    def __init__(self, now: Callable[[], Instant], *, is_running: bool) -> None:
        self._now, self.is_running = now, is_running
        self._laps: list[tuple[str, Instant, Instant]] = []
        self._last = now() if is_running else 0.0

    def lap(self, part: str) -> None:
        """What happened since the last lap was this part."""
        if self.is_running:
            until = self._now()
            self._laps.append((part, self._last, until))
            self._last = until

    def shares(self, steps: int) -> list[Lap]:
        """Of each of so many steps."""
        return [Lap(part=part, start=start, stop=stop, share=1 / steps) for part, start, stop in self._laps]


class StepTimer:
    """Marks the parts of one step in sixteen."""

    def __init__(self, device: torch.device, *, on_last_gradient: Callable[[], None] = lambda: None) -> None:
        self.device, self._on_last_gradient = device, on_last_gradient
        self._current: _Sampled | None = None
        self._ended: list[_Sampled] = []

    @staticmethod
    def is_due(update: int) -> bool:
        """Whether this step is taken apart."""
        return update % SPAN_EVERY_STEPS == SPAN_EVERY_STEPS // 2

    def begin(self, update: int, *, epoch: int) -> None:
        """At the top of a step, before its batch is asked for."""
        self._current = _Sampled(update=update, epoch=epoch, last=self._now()) if self.is_due(update) else None

    def mark(self, part: str) -> None:
        """What happened since the last mark was this part; `update` is the last one of a step."""
        current = self._current
        if current is None:
            return
        if part == "compute" and current.last_gradient is not None:
            current.lap("compute", current.last_gradient)
            part = "reduce"
        current.lap(part, self._now())
        if part == "update":
            self._ended.append(current)
            self._current = None

    def last_gradient(self) -> None:
        """This process has its last gradient: from here on, what is left of the pass is waiting for the others."""
        self._on_last_gradient()
        if self._current is not None:
            self._current.last_gradient = self._now()

    def watch(self, updates: range) -> Stopwatch:
        """For work that several steps share; it measures only when one of them is taken apart."""
        return Stopwatch(self._now, is_running=any(map(self.is_due, updates)))

    def charge(self, update: int, laps: list[Lap]) -> None:
        """A step's share of work that was done for several; it ends here, and the step's own begins."""
        if self._current is not None and self.is_due(update):
            self._current.laps += laps
            self._current.last = self._now()

    def spans(self, *, waits: bool = False) -> list[Span]:
        """Of the steps that are over since the last call; with `waits`, of all that have ended on the host."""
        if waits and self._ended:
            synchronize(self.device)
        over = [sampled for sampled in self._ended if sampled.is_over()]
        self._ended = [sampled for sampled in self._ended if sampled not in over] if over else self._ended
        return [sampled.span() for sampled in over]

    def _now(self) -> Instant:
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            return event
        synchronize(self.device)
        return time.perf_counter()
