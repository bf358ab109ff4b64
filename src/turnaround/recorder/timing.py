"""Clock of somebody else's loop. Enters: the moments at which it calls. Leaves: seconds by part.

Training ends with the last step of an epoch, and what follows until the epoch is told is evaluation, unless the loop
says otherwise with spans. One step in sixteen is taken apart; of a young training more, since a short one has few.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import psutil

from turnaround.record.schema import Span, TimePart

# A sampled step waits for the device at each part and loses overlap, so samples are rare; 16 of the first 64 steps
# are enough for a short training.
SPAN_EVERY_STEPS = 16
YOUNG_STEPS, SPAN_EVERY_YOUNG_STEPS = 64, 4
PARTS = ("wait", "copy", "compute", "reduce", "update")
PAUSES: tuple[TimePart, ...] = ("evaluation", "checkpoint")


def is_due(step: int) -> bool:
    """Return whether this step, counted from 0, is sampled: its parts are measured."""
    if step < YOUNG_STEPS:
        # In the middle of each group: the very first step, which compiles and fills buffers, is never the sample.
        return step % SPAN_EVERY_YOUNG_STEPS == SPAN_EVERY_YOUNG_STEPS // 2
    return step % SPAN_EVERY_STEPS == SPAN_EVERY_STEPS // 2


@dataclass(frozen=True, kw_only=True)
class EpochTimes:
    """Times and steps of one epoch."""

    training_s: float
    evaluation_s: float | None
    """None when nobody can tell it from training."""
    steps: int


@dataclass
class _OpenSpan:
    part: str
    began_s: float
    inner_s: float = 0.0
    """Time of the spans inside it that have ended."""


class Timing:
    """The clock of one process."""

    def __init__(self, *, synchronize: Callable[[], object] | None = None, has_company: bool = False) -> None:
        self.synchronize = synchronize
        self.steps = 0
        """Updates since the beginning."""
        self.epoch = 1
        """The one that is under way."""
        self.totals_s: dict[TimePart, float] = {}
        self.is_sampled = False
        self._began_s = time.perf_counter() - (0.0 if has_company else _age_s())
        self._has_begun = False
        self._begins()

    def epoch_begins(self) -> None:
        """Begin an epoch, before its first batch is fetched; without it, an epoch begins where the last one ended."""
        self._begins()

    @property
    def has_steps(self) -> bool:
        """True once a step of this epoch was done."""
        return self._last_step_s is not None

    def _begins(self) -> None:
        self._epoch_began_s = time.perf_counter()
        self._last_step_s: float | None = None
        self._first_of_epoch = self.steps
        self._pauses_s: dict[str, float] = {}
        self._pauses_within_s = 0.0
        self._step_begins()

    def _step_begins(self) -> None:
        self.is_sampled = is_due(self.steps)
        if self.is_sampled and self.synchronize is not None:
            self.synchronize()
        self._parts_s: dict[str, float] = {}
        self._open: list[_OpenSpan] = []
        # After the synchronize: what the device still had to do belongs to the step before.
        self._step_began_s = self._mark_s = time.perf_counter()

    def step(self, updates: int = 1) -> Span | None:
        """End a step, or several that the framework does at once; return its parts when they were measured."""
        span = self._span(updates) if self.is_sampled else None
        if not self._has_begun:
            self._first_step()
        self.steps += updates
        self._last_step_s = time.perf_counter()
        if self._pauses_s:
            # Only pauses before the last step lie inside the training time and are subtracted from it.
            self._pauses_within_s = sum(self._pauses_s.values())
        self._step_begins()
        return span

    def _first_step(self) -> None:
        self._has_begun = True
        self.totals_s["start_up"] = max(0.0, self._epoch_began_s - self._began_s)

    def mark(self, part: str) -> None:
        """Attribute the time since the last mark, or since the step began, to this part."""
        if self.is_sampled:
            if self.synchronize is not None:
                self.synchronize()
            now_s = time.perf_counter()
            self.add(part, now_s - self._mark_s)
            self._mark_s = now_s

    def add(self, part: str, seconds: float) -> None:
        """Add seconds to a part of the step that is under way, or to a pause in the epoch."""
        into = self._pauses_s if part in PAUSES else self._parts_s
        into[part] = into.get(part, 0.0) + seconds

    def _span(self, updates: int) -> Span | None:
        """Return the parts of the step; None when no part was named, since a whole step has no breakdown."""
        parts_s = self._parts_s
        if not parts_s:
            return None
        if self.synchronize is not None:
            self.synchronize()
        rest_s = time.perf_counter() - self._step_began_s - sum(parts_s.values())
        parts_s["compute"] = parts_s.get("compute", 0.0) + max(0.0, rest_s)  # what nobody has named
        shares = {f"{part}_s": parts_s.get(part, 0.0) / updates for part in PARTS}
        return Span(step=self.steps + updates, epoch=self.epoch, **shares)

    def epoch_ends(self, *, training_s: float | None, evaluation_s: float | None) -> EpochTimes:
        """End an epoch, after its evaluation; return its times as measured, or as the loop itself says."""
        now_s = time.perf_counter()
        if not self._has_begun:
            self._first_step()
        paused_s, until_s = self._pauses_within_s, self._last_step_s
        if until_s is None:
            paused_s, until_s = sum(self._pauses_s.values()), now_s
        training_s = until_s - self._epoch_began_s - paused_s if training_s is None else training_s
        if evaluation_s is None and "evaluation" in self._pauses_s:
            evaluation_s = self._pauses_s["evaluation"]
        elif evaluation_s is None and self._last_step_s is not None:
            evaluation_s = now_s - until_s - (sum(self._pauses_s.values()) - paused_s)
        times = EpochTimes(
            training_s=max(0.0, training_s), evaluation_s=evaluation_s, steps=self.steps - self._first_of_epoch
        )
        self._account(times)
        self._begins()
        return times

    def _account(self, times: EpochTimes) -> None:
        # The first epoch pays for compilation and cold caches: it must not enter the steady time.
        is_cold = "training_cold" not in self.totals_s
        found: dict[TimePart, float] = {
            "training_cold" if is_cold else "training_steady": times.training_s,
            "evaluation": times.evaluation_s or 0.0,
            "checkpoint": self._pauses_s.get("checkpoint", 0.0),
        }
        for part, seconds in found.items():
            self.totals_s[part] = self.totals_s.get(part, 0.0) + seconds

    def program_s(self) -> float:
        """Return the seconds since the program began; for a second training in one program, since that began."""
        return time.perf_counter() - self._began_s

    def time_s(self) -> dict[TimePart, float]:
        """Return the totals so far, as status.json has them."""
        parts = dict(self.totals_s)
        training = parts.get("training_cold", 0.0) + parts.get("training_steady", 0.0)
        pause = parts.get("evaluation", 0.0) + parts.get("checkpoint", 0.0)
        return {**parts, "training": training, "pause": pause, "program": self.program_s()}


class TimedPart:
    """`with rec.span("wait"):` What is inside belongs to the part, less what is inside a span within it."""

    __slots__ = ("_part", "_timing")

    def __init__(self, timing: Timing, part: str) -> None:
        self._timing, self._part = timing, part

    def __enter__(self) -> None:
        timing = self._timing
        if timing.is_sampled or self._part in PAUSES:
            if timing.synchronize is not None:
                timing.synchronize()
            timing._open.append(_OpenSpan(self._part, time.perf_counter()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timing = self._timing
        if not timing._open or timing._open[-1].part != self._part:  # not measured, or the step has ended within
            return
        if timing.synchronize is not None:
            timing.synchronize()
        now_s = time.perf_counter()
        mine = timing._open.pop()
        timing.add(self._part, now_s - mine.began_s - mine.inner_s)
        if timing._open:
            timing._open[-1].inner_s += now_s - mine.began_s


class NoPart:
    """The span of a recorder that has stepped aside: it measures nothing."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def _age_s() -> float:
    """Return the age of this process, since imports are start-up too; 0 in a notebook, which was open long before."""
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        return 0.0
    try:
        return max(0.0, time.time() - psutil.Process().create_time())
    except (psutil.Error, OSError):
        return 0.0
