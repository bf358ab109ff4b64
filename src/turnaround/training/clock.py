"""Timing: the parts of a run (`Clock`), of its start-up (`StartUp`), and of a sampled step (`StepTimer`).

Parts of a run: monotonic clocks only, and the device is waited for on both sides of what is timed. Three kinds of time:
*training* (steps), *pause* (evaluation, checkpoint: the model does not learn), *program* (everything from the start of
the command). After a resume the totals go on from those of the checkpoint, and what was done after it and is repeated
is *lost*.

Parts of the start-up, from the command to the first step (`start_up_s` in machine.json), follow each other on process
0, by the clock of the host. What a GPU does meanwhile without anybody waiting for it shows in the part that waits: an
upload of pixels often in the warm-up.

Parts of a step: wait, copy, compute, reduce, update. On a CUDA device the marks are events on its own timeline, read
when it has passed them: a step that is taken apart is not slower than any other. So the wait for a batch is the time
the GPU had nothing to do, not the time the host took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import torch

from turnaround.record.schema import Span, TimePart
from turnaround.training.position import TrainingPosition

SPAN_EVERY_STEPS = 16
"""One step in this many is taken apart: enough for a verdict after an epoch, and few lines on the disk."""
SPAN_AT_STEP = 10
"""Which of them: not the first, which loads and compiles, and none of those whose gradient noise is measured (every
eighth, noise.py), which take more passes than an ordinary one. Two after such a step: caches are warm again."""
STEP_PARTS = ("wait", "copy", "compute", "reduce", "update")
Instant = float | torch.cuda.Event


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    # A launch returns before the GPU has run it: without this wait the host's clock times the queueing alone.
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def with_lost(saved_s: dict[TimePart, float], *, until_s: float) -> dict[TimePart, float]:
    """Return a checkpoint's totals, and as `lost` what the program did after it, until it ended."""
    # `until_s` is the program's time when it ended, `program` the same at the save: the difference was not kept.
    program_s = saved_s.get("program", 0.0)
    # At least 0: a process that is killed between a checkpoint and the status after it leaves an older status.
    lost_s = max(0.0, until_s - program_s)
    return {**saved_s, "lost": saved_s.get("lost", 0.0) + lost_s, "program": program_s + lost_s} if lost_s else saved_s


class StartUp:
    """Seconds of every part of the start-up so far, in their order."""

    def __init__(self, begun_at_s: float | None = None) -> None:
        """Begin with the command, by this host's monotonic clock."""
        self._last_s = time.monotonic() if begun_at_s is None else begun_at_s
        self.parts_s: dict[str, float] = {}

    def ended(self, part: str, at_s: float | None = None) -> None:
        """Note that a part is over, now or at a moment that is known; one that ended before the last took no time."""
        at_s = max(self._last_s, time.monotonic() if at_s is None else at_s)
        self.parts_s[part] = self.parts_s.get(part, 0.0) + at_s - self._last_s
        self._last_s = at_s


@dataclass
class _OpenPart:
    name: TimePart
    begun_s: float
    inner_s: float = 0.0
    """Time of the parts inside it that have ended."""


class Clock:
    """Seconds by part of the run, over all its segments."""

    def __init__(self, device: torch.device, *, begun_at_s: float, earlier_s: dict[TimePart, float]) -> None:
        self.device = device
        self.parts_s: dict[TimePart, float] = dict(earlier_s)
        self._earlier_program_s = self.parts_s.pop("program", 0.0)  # goes on by itself, not part by part
        # Both by this host's monotonic clock, which all its processes share: setting the date changes nothing. A moment
        # that lies ahead is of another boot of this host: the program begins now, then.
        self._begun_s = time.perf_counter() - max(0.0, time.monotonic() - begun_at_s)
        self._open: list[_OpenPart] = []
        self.last_s = 0.0

    @contextmanager
    def part(self, name: TimePart) -> Iterator[None]:
        """Add the time inside to a part, without that of parts within it; `last_s` has it afterwards."""
        # A part is an epoch, an evaluation or a save: the host waits here a few times an epoch, not at every step.
        synchronize(self.device)  # work that was queued before belongs to the part before
        mine = _OpenPart(name, time.perf_counter())
        self._open.append(mine)
        try:
            yield
        finally:
            synchronize(self.device)
            self._open.pop()
            whole_s = time.perf_counter() - mine.begun_s
            if self._open:
                # The whole of it, with what lay deeper: so every second is counted for one part only.
                self._open[-1].inner_s += whole_s
            self.last_s = whole_s - mine.inner_s
            self.add(name, self.last_s)

    def open_s(self) -> dict[TimePart, float]:
        """Return the time so far of the parts that have begun and not ended."""
        found: dict[TimePart, float] = {}
        until_s = time.perf_counter()
        # From the innermost outwards: an outer part counts only until the one inside it began.
        for part in reversed(self._open):
            found[part.name] = found.get(part.name, 0.0) + until_s - part.begun_s - part.inner_s
            until_s = part.begun_s
        return found

    def add(self, name: TimePart, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self.parts_s[name] = self.parts_s.get(name, 0.0) + seconds

    def program_s(self) -> float:
        """Return the seconds since the user's command began, imports included."""
        return time.perf_counter() - self._begun_s

    def total_program_s(self) -> float:
        """Return `program_s` with the earlier segments."""
        return self._earlier_program_s + self.program_s()

    def totals_s(self) -> dict[TimePart, float]:
        """Return the seconds of every part, and of the three kinds."""
        parts = dict(self.parts_s)
        for name, seconds in self.open_s().items():
            parts[name] = parts.get(name, 0.0) + seconds
        # A resume's `parts` have these sums of the segments before as well: they are made anew, not added to.
        training = parts.get("training_cold", 0.0) + parts.get("training_steady", 0.0)
        pause = parts.get("evaluation", 0.0) + parts.get("checkpoint", 0.0)
        return {
            **parts,
            "training": training,
            "pause": pause,
            "program": self.total_program_s(),
        }


@dataclass(frozen=True, kw_only=True)
class Lap:
    """The time from one mark to the next, or a share of it where several steps share the work."""

    part: str
    start: Instant
    stop: Instant
    share: float = 1.0

    def seconds(self) -> float:
        if isinstance(self.stop, float):
            return self.share * (self.stop - cast(float, self.start))
        # To about half a microsecond (CUDA's documentation of cudaEventElapsedTime).
        milliseconds: float = cast(torch.cuda.Event, self.start).elapsed_time(self.stop)
        return self.share * milliseconds / 1000


@dataclass(kw_only=True)
class _Sampled:
    """A step that is taken apart."""

    position: TrainingPosition
    last: Instant
    laps: list[Lap] = field(default_factory=list)
    last_gradient: Instant | None = None

    def lap(self, part: str, until: Instant) -> None:
        self.laps.append(Lap(part=part, start=self.last, stop=until))
        self.last = until

    def is_over(self) -> bool:
        # The update waits for all gradients: once the event after it is passed, those of the other marks are, too.
        return isinstance(self.last, float) or bool(self.last.query())  # type: ignore[no-untyped-call]

    def span(self) -> Span:
        parts_s = dict.fromkeys(STEP_PARTS, 0.0)
        for lap in self.laps:
            # Added: with a frozen backbone a step has a share of its group's `copy` and a `copy` of its own.
            parts_s[lap.part] += lap.seconds()
        times_s = {f"{part}_s": value for part, value in parts_s.items()}
        return Span(step=self.position.global_step + 1, epoch=self.position.epoch, **times_s)


class Stopwatch:
    """Laps of work that several steps share."""

    def __init__(self, now: Callable[[], Instant], *, is_running: bool) -> None:
        self._now, self.is_running = now, is_running
        self._laps: list[tuple[str, Instant, Instant]] = []
        self._last = now() if is_running else 0.0

    def lap(self, part: str) -> None:
        """Note that what happened since the last lap was this part."""
        if self.is_running:
            until = self._now()
            self._laps.append((part, self._last, until))
            self._last = until

    def shares(self, steps: int) -> list[Lap]:
        """Return the laps of one of so many steps."""
        return [Lap(part=part, start=start, stop=stop, share=1 / steps) for part, start, stop in self._laps]


class StepTimer:
    """Marks the parts of one step in sixteen, or of more where shares are measured (sharing.py)."""

    def __init__(self, device: torch.device, *, on_last_gradient: Callable[[], None] = lambda: None) -> None:
        self.device, self._on_last_gradient = device, on_last_gradient
        self.every_steps = SPAN_EVERY_STEPS
        self.on_span: Callable[[Span], None] = lambda _span: None
        """Hears of every span when it is known."""
        self._current: _Sampled | None = None
        self._ended: list[_Sampled] = []

    def is_due(self, global_step: int) -> bool:
        """Tell whether this step is taken apart: by its number, so all processes and every resume agree."""
        # 10 of 16, or 10 % 4 = 2 of 4 (sharing.py): 2, 6, 10, ... are no multiples of 8 (noise.py) either.
        return global_step % self.every_steps == SPAN_AT_STEP % self.every_steps

    def begin(self, position: TrainingPosition) -> None:
        """Start the next step, before its batch is asked for."""
        is_due = self.is_due(position.global_step)
        self._current = _Sampled(position=position, last=self._now()) if is_due else None

    def mark(self, part: str) -> None:
        """Note that what happened since the last mark was this part; `update` is the last one of a step."""
        current = self._current
        if current is None:
            return
        # Gradients are averaged while others are still computed: only what is left after the last one is waiting.
        if part == "compute" and current.last_gradient is not None:
            current.lap("compute", current.last_gradient)
            part = "reduce"
        current.lap(part, self._now())
        if part == "update":
            self._ended.append(current)
            self._current = None

    def last_gradient(self) -> None:
        """Note the last gradient of this process: what is left of the pass from here on is waiting for the others."""
        # At every step, sampled or not: the heartbeat tells by it that this process waits for the others.
        self._on_last_gradient()
        if self._current is not None:
            self._current.last_gradient = self._now()

    def watch(self, global_steps: range) -> Stopwatch:
        """Return a stopwatch for work that several steps share; it runs only when one of them is taken apart."""
        return Stopwatch(self._now, is_running=any(map(self.is_due, global_steps)))

    def charge(self, global_step: int, laps: list[Lap]) -> None:
        """Give a step its share of work that was done for several; it ends here, and the step's own begins."""
        if self._current is not None and self.is_due(global_step):
            # The step has begun before its features were there: that time is in the laps already.
            self._current.laps += laps
            self._current.last = self._now()

    def spans(self, *, waits: bool = False) -> list[Span]:
        """Return the spans of steps that are over since the last call; with `waits`, of all that the host has ended."""
        # Asked for at the end of an epoch (recording.py), whose totals the host has waited for already.
        if waits and self._ended:
            synchronize(self.device)
        over = [sampled for sampled in self._ended if sampled.is_over()]
        self._ended = [sampled for sampled in self._ended if sampled not in over] if over else self._ended
        spans = [sampled.span() for sampled in over]
        for span in spans:
            self.on_span(span)
        return spans

    def _now(self) -> Instant:
        if self.device.type == "cuda":
            # Recorded without waiting; `elapsed_time` is asked only when `is_over` has seen the last one passed.
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            return event
        # Nothing to wait for on a CPU; Apple's GPU is waited for, at the marks of sampled steps only.
        synchronize(self.device)
        return time.perf_counter()
