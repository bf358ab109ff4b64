"""The progress of a run, in words: position, speed, time left, bottleneck, warnings.

Cheap, once a second for every run: it rests on the heartbeats of the processes, the status, and the last epochs; the
numbers are those of analysis/progress.py. The whole analysis is the page's, and comes less often.
"""

from __future__ import annotations

import math
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from turnaround.analysis.bottleneck import Bottleneck, bottleneck, gpu_busy
from turnaround.analysis.progress import (
    Concern,
    Pace,
    Position,
    Trouble,
    disk_concerns,
    idle_concerns,
    loss_concerns,
    stall_concerns,
)
from turnaround.errors import RunDirectoryError
from turnaround.record.follow import UNDER_WAY, FollowedRun
from turnaround.record.heartbeat import WAITS, ProcessHeartbeat
from turnaround.record.schema import EpochRecord
from turnaround.words import about, duration, percent

Kind = Literal["loss", "starving", "disk", "unsaved", "silent", "gone"]
State = Literal["preparing", "queued", "running", "finished", "failed", "diverged", "interrupted", "unreadable"]

LAST_SPANS = 100
LAST_SAMPLES = 30
"""Samples of the telemetry that count, one a second: what a GPU does now, not what it did an hour ago."""
BOTTLENECK_EVERY_S = 5.0
"""Shortest time between two verdicts: one reads LAST_SPANS spans, too much once a second for a hundred runs."""
MAX_CAUSE_LETTERS = 2000  # the cause comes from a record of others


@dataclass(frozen=True, kw_only=True)
class Warn:
    """Something that goes wrong while one could still act."""

    kind: Kind
    text: str
    is_problem: bool = False
    """True where the run is lost, or nearly; otherwise it only loses time."""


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """One run, now. None is "not known"."""

    id: str
    name: str
    state: State
    cause: str | None = None
    doing: str | None = None
    epoch: int = 0
    """The current epoch; of a run that has ended, the last one."""
    epochs: int | None = None
    share: float | None = None
    """Fraction of the whole training that is done, 0 to 1."""
    images_per_s: float | None = None
    left_s: float | None = None
    val_accuracy: float | None = None
    held_back: Bottleneck | None = None
    warnings: tuple[Warn, ...] = ()
    resume: str | None = None
    """The command that goes on with a run that was interrupted."""

    @property
    def is_under_way(self) -> bool:
        return self.state in ("preparing", *UNDER_WAY)


_KINDS: dict[Trouble, Kind] = {
    "loss is no number": "loss",
    "loss rises": "loss",
    "GPUs idle": "starving",
    "disk full": "disk",
    "disk fills up": "disk",
    "disk has little space": "disk",
    "not saved": "unsaved",
    "process gone": "gone",
    "no heartbeat": "silent",
}


def warning(concern: Concern) -> Warn:
    """Put a concern into words."""
    f, subject = concern.figures, concern.subject
    match concern.trouble:
        case "loss is no number":
            text = f"The {subject} loss of epoch {f['epoch']:.0f} is no number."
        case "loss rises":
            text = (
                f"The training loss rises: {f['loss']:.3g} after epoch {f['epoch']:.0f}, {f['lowest']:.3g} at its "
                "lowest. The run may be diverging."
            )
        case "GPUs idle":
            text = f"The GPUs were busy {percent(f['busy'])} of the last {LAST_SAMPLES} s: they wait for something."
        case "disk full":
            text = f"The disk is nearly full: {f['free_gib']:.2f} GiB are free."
        case "disk fills up":
            free_gib, full_in = f["free_gib"], about(f["full_in_s"])
            text = f"The disk fills up: {free_gib:.1f} GiB are free, for {full_in} at this pace."
        case "disk has little space":
            text = f"The disk has little space: {f['free_gib']:.1f} GiB are free."
        case "not saved":
            text = f"{subject} The training goes on."
        case "process gone":
            text = f"{subject} has ended, and others go on."
        case "no heartbeat":
            text = f"Nothing has moved for {duration(f['silent_s'])}."
    return Warn(kind=_KINDS[concern.trouble], text=text, is_problem=concern.is_problem)


class RunWatch:
    """One run over time: keeps what a single look cannot tell, such as pace, silence and the disk's filling."""

    def __init__(self, run: FollowedRun, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.run, self.now_s = run, now_s
        self.pace = Pace()
        self._beats: dict[int, int] = {}
        self._moved_s = now_s()
        self._free: deque[tuple[float, int]] = deque(maxlen=120)  # (time, free bytes): two minutes of one look a second
        self._held_back: Bottleneck | None = None
        self._judged: tuple[float, object] = (-math.inf, None)

    def look(self) -> RunProgress:
        """Return the progress; the caller has read on in the run before."""
        run, state = self.run, self._state()
        snapshot = run.snapshot
        recipe, epochs = _or_none(lambda: snapshot.recipe), _or_none(lambda: snapshot.epochs) or []
        processes = run.processes() if state == "running" else []
        self._follow(processes)
        last = epochs[-1] if epochs else None
        planned = _or_none(lambda: snapshot.status.epochs_planned)
        # All processes take the same steps, so process 0 speaks for all.
        at = Position.of(processes[0].step if processes else 0, recipe, last, epochs_planned=planned)
        left_s = at.left_s(epochs, self.pace.steps_per_s) if state == "running" else None
        return RunProgress(
            id=run.id,
            name=run.label,
            state=state,
            cause=(self._cause(state) or "")[:MAX_CAUSE_LETTERS] or None,
            resume=shlex.join(["turnaround", "resume", str(run.directory.path)]) if state == "interrupted" else None,
            doing=_doing(processes) if state == "running" else None,
            epoch=at.epoch if state == "running" else at.epochs_done,
            epochs=at.epochs_planned,
            share=1.0 if state == "finished" else at.share,
            images_per_s=at.images_per_s(self.pace.steps_per_s, last) if state == "running" else None,
            left_s=left_s,
            val_accuracy=next((e.val_accuracy for e in reversed(epochs) if not math.isnan(e.val_accuracy)), None),
            held_back=self._bottleneck() if state == "running" else None,
            warnings=tuple(map(warning, self._concerns(state, processes, epochs, left_s))),
        )

    def _state(self) -> State:
        run = self.run
        if not run.has_recipe and run.state is None:
            return "preparing"
        if run.cause_of_end is not None:
            return "interrupted"
        try:
            state: State = run.snapshot.status.state
        except RunDirectoryError:
            return "unreadable"
        # A queued job that beats has started, whatever its status still says.
        return "running" if state == "queued" and run.heartbeats else state

    def _cause(self, state: State) -> str | None:
        if state == "preparing":
            return "reads and decodes its images"
        if state == "unreadable":
            return str(self.run.status_error or "its status cannot be read")
        status = _or_none(lambda: self.run.snapshot.status)
        if state == "queued" and status is not None and status.job is not None:
            reason = f", {status.job.reason}" if status.job.reason else ""
            return f"job {status.job.job_id} of the cluster: {status.job.state}{reason}"
        return status.cause if status is not None and state not in ("running", "finished") else None

    def _follow(self, processes: list[ProcessHeartbeat]) -> None:
        now_s = self.now_s()
        beats = {process.rank: process.beats for process in processes}
        # Beats, not steps: a process that saves or waits beats as well, and is not silent.
        if beats != self._beats:
            self._beats, self._moved_s = beats, now_s
        if processes:
            self.pace.saw(processes[0])
        if self.run.free_bytes is not None:
            self._free.append((now_s, self.run.free_bytes))

    def _bottleneck(self) -> Bottleneck | None:
        """Return the bottleneck of the last steps; judged again every few seconds, when there are new ones."""
        snapshot, now_s = self.run.snapshot, self.now_s()
        # A snapshot is replaced when a file has grown: the same object holds nothing new to judge.
        if self._judged[1] is not snapshot and now_s - self._judged[0] >= BOTTLENECK_EVERY_S:
            self._judged = (now_s, snapshot)
            found = _or_none(lambda: bottleneck(self.run.recent(spans=LAST_SPANS, samples=LAST_SAMPLES)))
            self._held_back = found if found is not None and found.kind != "unknown" else None
        return self._held_back

    def _concerns(
        self, state: State, processes: list[ProcessHeartbeat], epochs: list[EpochRecord], left_s: float | None
    ) -> Iterator[Concern]:
        if state in ("running", "queued", "preparing"):
            yield from disk_concerns(list(self._free), left_s)
        if state == "running":
            yield from loss_concerns(epochs)
            status = _or_none(lambda: self.run.snapshot.status)
            if status is not None and status.not_saved:
                yield Concern(trouble="not saved", subject=status.not_saved, is_problem=True)
            busy = _or_none(lambda: gpu_busy(self.run.recent(spans=1, samples=LAST_SAMPLES)))
            yield from idle_concerns(processes, busy)
            yield from stall_concerns(processes, self.now_s() - self._moved_s)


def _or_none(read: Callable[[], Any]) -> Any:
    """Return None for what cannot be read, or is of an unlikely kind: the record may be that of others."""
    try:
        return read()
    except (RunDirectoryError, ValueError, TypeError, KeyError, ArithmeticError, AttributeError, IndexError):
        return None


def _doing(processes: list[ProcessHeartbeat]) -> str | None:
    """Return the activity of process 0; waiting for the others is training too."""
    if not processes:
        return None
    doing = processes[0].doing
    return {"computes": "trains", WAITS: "trains", "starts": "starts", "saves": "saves"}.get(doing, doing[:40])
