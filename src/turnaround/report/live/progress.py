"""Where a run stands now: how far, how fast, how long still, what holds it back, what is going wrong.

Cheap, once a second for every run: it rests on the pulse of the processes, the status, and the last epochs. The whole
analysis is the page's, and comes less often.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from turnaround.analysis.bottleneck import Bottleneck, bottleneck, gpu_busy
from turnaround.analysis.compare import value_at
from turnaround.errors import RunDirectoryError
from turnaround.record.heartbeat import WAITS, ProcessHeartbeat
from turnaround.record.schema import EpochRecord
from turnaround.report.live.follow import UNDER_WAY, FollowedRun
from turnaround.words import about, duration

State = Literal["preparing", "queued", "running", "finished", "failed", "diverged", "interrupted", "unreadable"]

SILENT_S = 60.0
SILENT_AT_FIRST_S = 900.0
"""The first step may compile for minutes."""
LAST_EPOCHS = 5
LAST_SPANS = 100
LAST_SAMPLES = 30
PACES = 15
BOTTLENECK_EVERY_S = 5.0
STARVING = 0.5
RISING = 1.5
"""A training loss so many times its lowest has left the way down."""
GIB = 2**30
LITTLE_SPACE_GIB = 5.0
HARDLY_ANY_SPACE_GIB = 1.0
FILLING_OVER_S = 60.0
MAX_CAUSE_LETTERS = 2000


@dataclass(frozen=True, kw_only=True)
class Warn:
    """Something that goes wrong while one could still act."""

    kind: Literal["loss", "starving", "disk", "unsaved", "silent", "gone"]
    text: str
    is_problem: bool = False
    """Whether the run is lost, or nearly; otherwise it only loses time."""


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """One run, now. None is "not known"."""

    id: str
    name: str
    state: State
    cause: str | None = None
    doing: str | None = None
    epoch: int = 0
    """The one that it is in; of a run that has ended, the last one."""
    epochs: int | None = None
    share: float | None = None
    """Of the whole training, 0 to 1."""
    images_per_s: float | None = None
    left_s: float | None = None
    val_accuracy: float | None = None
    held_back: Bottleneck | None = None
    warnings: tuple[Warn, ...] = ()

    @property
    def is_under_way(self) -> bool:
        return self.state in ("preparing", *UNDER_WAY)


class Pace:
    """How fast steps follow one another, by our own clock; evaluations do not count."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=PACES)
        self._last: tuple[float, int, float] | None = None

    def saw(self, process: ProcessHeartbeat) -> None:
        """A look at process 0; its own clock says when it wrote."""
        now = (process.program_s, process.step, 0.0)
        if self._last is None or process.program_s < self._last[0] or process.step < self._last[1]:
            self._rates.clear()
        elif process.program_s > self._last[0]:
            rate = (process.step - self._last[1]) / (process.program_s - self._last[0])
            if rate > 0 and process.doing in ("computes", WAITS):
                self._rates.append(rate)
        self._last = now

    @property
    def steps_per_s(self) -> float | None:
        return median(self._rates) if self._rates else None


class RunWatch:
    """One run over time: what a single look cannot tell."""

    def __init__(self, run: FollowedRun, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.run, self.now_s = run, now_s
        self.pace = Pace()
        self._beats: dict[int, int] = {}
        self._moved_s = now_s()
        self._free: deque[tuple[float, int]] = deque(maxlen=120)
        self._held_back: Bottleneck | None = None
        self._judged: tuple[float, object] = (-math.inf, None)

    def look(self) -> RunProgress:
        """After the run itself was looked at."""
        run, state = self.run, self._state()
        snapshot = run.snapshot
        recipe, epochs = _or_none(lambda: snapshot.recipe), _or_none(lambda: snapshot.epochs) or []
        processes = run.processes() if state == "running" else []
        self._follow(processes)
        planned = _count(recipe, "training", "epochs")
        last = epochs[-1] if epochs else None
        step = processes[0].step if processes else 0
        steps = _steps_per_epoch(recipe, last)
        share = _share(state, step, steps, planned, last)
        left_s = self._left_s(share, planned, steps, epochs) if state == "running" else None
        return RunProgress(
            id=run.id,
            name=run.label,
            state=state,
            cause=(self._cause(state) or "")[:MAX_CAUSE_LETTERS] or None,
            doing=_doing(processes) if state == "running" else None,
            epoch=_epoch(state, step, steps, planned, last),
            epochs=planned,
            share=share,
            images_per_s=self._images_per_s(recipe, last) if state == "running" else None,
            left_s=left_s,
            val_accuracy=next((e.val_accuracy for e in reversed(epochs) if not math.isnan(e.val_accuracy)), None),
            held_back=self._bottleneck() if state == "running" else None,
            warnings=tuple(self._warnings(state, processes, epochs, left_s)),
        )

    def _state(self) -> State:
        run = self.run
        if run.small["recipe"].content is None and run.state is None:
            return "preparing"
        if run.cause_of_end is not None:
            return "interrupted"
        try:
            state: State = run.snapshot.status.state
        except RunDirectoryError:
            return "unreadable"
        return "running" if state == "queued" and run.pulses else state

    def _cause(self, state: State) -> str | None:
        if state == "preparing":
            return "reads and decodes its images"
        if state == "unreadable":
            content = self.run.small["status"].content
            return str(content) if isinstance(content, RunDirectoryError) else "its status cannot be read"
        status = _or_none(lambda: self.run.snapshot.status)
        if state == "queued" and status is not None and status.job is not None:
            reason = f", {status.job.reason}" if status.job.reason else ""
            return f"job {status.job.job_id} of the cluster: {status.job.state}{reason}"
        return status.cause if status is not None and state not in ("running", "finished") else None

    def _follow(self, processes: list[ProcessHeartbeat]) -> None:
        now_s = self.now_s()
        beats = {process.rank: process.beats for process in processes}
        if beats != self._beats:
            self._beats, self._moved_s = beats, now_s
        if processes:
            self.pace.saw(processes[0])
        if self.run.free_bytes is not None:
            self._free.append((now_s, self.run.free_bytes))

    def _images_per_s(self, recipe: dict[str, Any] | None, last: EpochRecord | None) -> float | None:
        per_step = last.images / last.steps if last and last.images and last.steps else _global_batch(recipe)
        if self.pace.steps_per_s is not None and per_step:
            return self.pace.steps_per_s * per_step
        return last.images_per_s if last and last.images_per_s > 0 else None

    def _left_s(
        self, share: float | None, planned: int | None, steps: int | None, epochs: list[EpochRecord]
    ) -> float | None:
        if share is None or not planned:
            return None
        took_s = [e.epoch_time_s + (e.evaluation_time_s or 0.0) for e in epochs[-LAST_EPOCHS:] if e.epoch_time_s > 0]
        if took_s:
            return (1.0 - share) * planned * median(took_s)
        if self.pace.steps_per_s and steps:
            return (1.0 - share) * planned * steps / self.pace.steps_per_s
        return None

    def _bottleneck(self) -> Bottleneck | None:
        """By its last steps; the verdict is looked for anew every few seconds, when there are new ones."""
        snapshot, now_s = self.run.snapshot, self.now_s()
        if self._judged[1] is not snapshot and now_s - self._judged[0] >= BOTTLENECK_EVERY_S:
            self._judged = (now_s, snapshot)
            found = _or_none(lambda: bottleneck(self.run.recent(spans=LAST_SPANS, samples=LAST_SAMPLES)))
            self._held_back = found if found is not None and found.kind != "unknown" else None
        return self._held_back

    def _warnings(
        self, state: State, processes: list[ProcessHeartbeat], epochs: list[EpochRecord], left_s: float | None
    ) -> Iterator[Warn]:
        if state in ("running", "queued", "preparing"):
            yield from disk_warnings(list(self._free), left_s)
        if state == "running":
            yield from loss_warnings(epochs)
            yield from self._unsaved()
            yield from self._starving(processes)
            yield from self._silence(processes)

    def _unsaved(self) -> Iterator[Warn]:
        status = _or_none(lambda: self.run.snapshot.status)
        if status is not None and status.not_saved:
            yield Warn(kind="unsaved", text=f"{status.not_saved} The training goes on.", is_problem=True)

    def _starving(self, processes: list[ProcessHeartbeat]) -> Iterator[Warn]:
        if not processes or processes[0].beats <= 1:
            return
        busy = _or_none(lambda: gpu_busy(self.run.recent(spans=1, samples=LAST_SAMPLES)))
        if busy is not None and busy < STARVING:
            text = f"The GPUs were busy {100 * busy:.0f} % of the last {LAST_SAMPLES} s: they wait for something."
            yield Warn(kind="starving", text=text)

    def _silence(self, processes: list[ProcessHeartbeat]) -> Iterator[Warn]:
        gone = [process for process in processes if process.is_gone]
        if gone:
            yield Warn(kind="gone", text=f"{gone[0].name} has ended, and others go on.", is_problem=True)
        patience_s = SILENT_S if max(self._beats.values(), default=0) > 1 else SILENT_AT_FIRST_S
        silent_s = self.now_s() - self._moved_s
        if processes and silent_s >= patience_s:
            yield Warn(kind="silent", text=f"Nothing has moved for {duration(silent_s)}.", is_problem=True)


def loss_warnings(epochs: list[EpochRecord]) -> Iterator[Warn]:
    """A loss that is no number, or that rises far above where it has been."""
    if not epochs:
        return
    last = epochs[-1]
    if math.isnan(last.train_loss) or math.isnan(last.val_loss):
        which = "training" if math.isnan(last.train_loss) else "validation"
        yield Warn(kind="loss", text=f"The {which} loss of epoch {last.epoch} is no number.", is_problem=True)
        return
    before = [e.train_loss for e in epochs[:-1] if not math.isnan(e.train_loss)]
    if before and last.train_loss > RISING * min(before) and last.train_loss >= before[-1]:
        text = (
            f"The training loss rises: {last.train_loss:.3g} after epoch {last.epoch}, {min(before):.3g} at its lowest."
        )
        yield Warn(kind="loss", text=f"{text} The run may be diverging.")


def disk_warnings(free: list[tuple[float, int]], left_s: float | None) -> Iterator[Warn]:
    """Of the run's file system: little space, or so fast a loss of it that the run will not see its end."""
    if not free:
        return
    (begun_s, first), (now_s, last) = free[0], free[-1]
    free_gib, lost_per_s = last / GIB, (first - last) / (now_s - begun_s) if now_s > begun_s else 0.0
    if free_gib < HARDLY_ANY_SPACE_GIB:
        yield Warn(kind="disk", text=f"The disk is nearly full: {free_gib:.2f} GiB are free.", is_problem=True)
    elif lost_per_s > 0 and now_s - begun_s >= FILLING_OVER_S and last / lost_per_s < (left_s or 0.0):
        text = f"The disk fills up: {free_gib:.1f} GiB are free, for {about(last / lost_per_s)} at this pace."
        yield Warn(kind="disk", text=text, is_problem=True)
    elif free_gib < LITTLE_SPACE_GIB:
        yield Warn(kind="disk", text=f"The disk has little space: {free_gib:.1f} GiB are free.")


def _or_none(read: Callable[[], Any]) -> Any:
    """A record of others: what cannot be read, or is of an unlikely kind, is not known."""
    try:
        return read()
    except (RunDirectoryError, ValueError, TypeError, KeyError, ArithmeticError, AttributeError, IndexError):
        return None


def _count(recipe: dict[str, Any] | None, *keys: str) -> int | None:
    value = value_at(recipe, *keys) if recipe is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9 else None


def _global_batch(recipe: dict[str, Any] | None) -> int | None:
    total, each = _count(recipe, "training", "batch_total"), _count(recipe, "training", "batch_per_worker")
    return total or (each * (_count(recipe, "workers", "count") or 1) if each else None)


def _steps_per_epoch(recipe: dict[str, Any] | None, last: EpochRecord | None) -> int | None:
    if last is not None and last.steps and last.steps > 0:
        return last.steps
    images, batch = _count(recipe, "images", "num_train"), _global_batch(recipe)
    return math.ceil(images / batch) if images and batch else None


def _share(state: State, step: int, steps: int | None, planned: int | None, last: EpochRecord | None) -> float | None:
    if state == "finished":
        return 1.0
    if not planned:
        return None
    by_epochs = (last.epoch if last else 0) / planned
    by_steps = step / (steps * planned) if steps else 0.0
    return min(1.0, max(by_epochs, by_steps))


def _epoch(state: State, step: int, steps: int | None, planned: int | None, last: EpochRecord | None) -> int:
    done = last.epoch if last else 0
    if state != "running":
        return done
    by_steps = math.ceil(step / steps) if steps and step else done
    return min(max(done, by_steps), planned or max(done, by_steps))


def _doing(processes: list[ProcessHeartbeat]) -> str | None:
    """What process 0 does; waiting for the others is training too."""
    if not processes:
        return None
    doing = processes[0].doing
    return {"computes": "trains", WAITS: "trains", "starts": "starts", "saves": "saves"}.get(doing, doing[:40])
