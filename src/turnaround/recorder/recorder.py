"""The object beside somebody else's loop.

    with turnaround.Recorder("runs/lab10", workers=4, batch_per_worker=32, epochs=30, num_train=23_000) as rec:
        for epoch in range(30):
            for images, labels in rec.steps(loader):
                ...
            rec.epoch(train_loss=..., val_loss=..., val_accuracy=..., learning_rate=...)

Nothing here raises: what goes wrong with the record is said once, as a RecorderWarning, and the training goes on.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from turnaround.errors import TurnaroundError, one_of
from turnaround.record.schema import Span, Status, to_json, utc_now
from turnaround.recorder.background_writer import MAX_CAUSE, BackgroundWriter, outcome
from turnaround.recorder.facts import Facts, TrainingFacts, checked, place_of, whole
from turnaround.recorder.measures import Measures, Reader, record_of
from turnaround.recorder.timing import PARTS, PAUSES, NoPart, TimedPart, Timing
from turnaround.workers.environment import RUN_DIR_VARIABLE

Batch = TypeVar("Batch")
DEFAULT_PATH = "runs/recorded"

_NO_PART = NoPart()
_started_in_this_program = 0
"""The age of the process is start-up of the first one alone: a second training begins with its recorder."""


class RecorderWarning(UserWarning):
    """Something about the record, never about the training."""


class Recorder:
    """Records a training that turnaround does not run. Only what this process must write is written.

    `path` is the run directory to make: of one that is taken, the next free name beside it. TURNAROUND_RUN_DIR, which
    `turnaround study --command` sets, goes before it. `workers` are the data-parallel replicas (without it, the
    processes of this start), `batch_per_worker` the images of a step of each; `Facts` has everything else.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        workers: int | None = None,
        batch_per_worker: int | None = None,
        **facts: Unpack[Facts],
    ) -> None:
        self._asked = os.environ.get(RUN_DIR_VARIABLE) or path or DEFAULT_PATH
        self._given: dict[str, Any] = {"workers": workers, "batch_per_worker": batch_per_worker, **facts}
        self._pid = os.getpid()
        self._writer: BackgroundWriter | None = None
        self._state = "new"
        # `start` puts those of the training in their place.
        self._timing, self._reader = Timing(has_company=True), Reader()
        self._planned, self._status = 0, Status(state="running")
        self._said: set[str] = set()
        self._parts: dict[str, TimedPart] = {}
        self._is_diverging = False

    @property
    def path(self) -> Path | None:
        """The run directory; None before the start, on other processes than the first, and when there is none."""
        writer = self._writer
        return writer.directory.path if writer is not None and writer.directory is not None else None

    @property
    def is_recording(self) -> bool:
        return self._state == "open" and self._pid == os.getpid()

    @property
    def is_sampling(self) -> bool:
        """True while the step that is under way is sampled."""
        return self._writer is not None and self._timing.is_sampled

    # --- beginning and end

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def start(self) -> None:
        """Begin to record; the first call of any other method does it too."""
        if self._state != "new":
            return
        self._state, self._pid = "open", os.getpid()  # it may have been made in another process than it is used in
        try:
            self._start()
        except Exception as error:
            self.step_aside(error)

    def _start(self) -> None:
        global _started_in_this_program
        training, synchronize = self._training()
        self._timing = Timing(synchronize=synchronize, has_company=_started_in_this_program > 0)
        _started_in_this_program += 1
        self._reader = Reader(global_batch=training.global_batch, num_train=training.facts.get("num_train"))
        # With the program, not with us: imports and the reading of data are start-up of this training.
        began = datetime.now(UTC) - timedelta(seconds=self._timing.program_s())
        self._planned = training.facts.get("epochs", 0)
        self._status = Status(state="running", started_at=began.isoformat(timespec="milliseconds"))
        asked = Path(self._asked)
        self._writer = BackgroundWriter(training, asked, failed=self.step_aside)
        self._writer.start(self._status)
        # A program that forgets to close must not leave a record that says "running" for ever.
        atexit.register(self._at_exit)
        if self.path is not None and self.path != asked:
            self._say(f"{asked} is taken: this run is recorded in {self.path}.")

    def _training(self) -> tuple[TrainingFacts, Callable[[], object] | None]:
        given = dict(self._given)
        place = place_of(given.get("rank"), given.get("size"))
        counts = {name: self._count(name, given.pop(name)) for name in ("workers", "batch_per_worker")}
        facts, extra, remarks = checked(given)
        for remark in remarks:
            self._say(remark)
        synchronize = self._safe(facts.pop("synchronize", None))
        workers = counts["workers"] or place.size
        if facts.get("processes", workers) > workers or facts.get("processes") == 0:
            self._say(f"{facts.pop('processes')} processes cannot host {workers} workers: one each is assumed.")
        training = TrainingFacts(
            name=Path(self._asked).name or "run",
            place=place,
            workers=workers,
            batch_per_worker=counts["batch_per_worker"],
            facts=facts,
            extra=extra,
        )
        return training, synchronize

    def _safe(self, synchronize: Callable[[], object] | None) -> Callable[[], object] | None:
        """Wrap the user's own function so that its failure ends the record and not the training."""
        if synchronize is None:
            return None

        def wait() -> None:
            try:
                if self._state == "open":
                    synchronize()
            except Exception as error:
                self.step_aside(error)

        return wait

    def _count(self, name: str, value: Any) -> int | None:
        if value is None:
            return None
        try:
            return whole(value, least=1)
        except (TypeError, ValueError, OverflowError):
            self._say(f"{name}={str(value)[:60]!r} is no whole number from 1 and is left out.")
            return None

    def close(self, error: BaseException | None = None) -> None:
        """End the record: finished, or with an error failed. Closing twice is fine."""
        # A fork has a copy of us, and must not close what the process that it came from still writes.
        if self._state != "open" or self._pid != os.getpid():
            self._state = self._state if self._state == "aside" else "ended"
            return
        # Before the writer is told: a failure in its thread sets "aside", which must not be overwritten below.
        self._state = "ending"
        atexit.unregister(self._at_exit)
        try:
            if self._writer is not None:
                self._writer.end(self._final_status(error))
        except Exception as problem:
            self.step_aside(problem)
        if self._state == "ending":  # else the last lines could not be written
            self._state = "ended"

    def _final_status(self, error: BaseException | None) -> Status:
        state, cause = outcome(error)
        if state == "finished" and self._is_diverging:
            state, cause = "diverged", "The loss of the last epoch is no number."
        if state == "finished" and not self._status.epochs_done and self._writer is not None and self._writer.is_first:
            self._say("Recorder.epoch was never called, so the record has no curve.")
        return replace(self._status, state=state, cause=cause, ended_at=utc_now(), time_s=self._timing.time_s())

    def _at_exit(self) -> None:
        """Close a record that is still open at exit: after an error that nobody caught, or a forgotten close."""
        # The interpreter keeps an exception that nobody caught here, and runs atexit afterwards.
        error: BaseException | None = getattr(sys, "last_value", None)
        if error is None and self._state == "open" and self._status.epochs_done < self._planned:
            error = KeyboardInterrupt(f"The program ended after {self._status.epochs_done} of {self._planned} epochs.")
        self.close(error)

    # --- while it trains

    def epoch(self, **measures: Unpack[Measures]) -> None:
        """Record an epoch, after its evaluation. Its times are measured here, unless given."""
        writer = self._writer
        if (writer is None or self._state != "open" or self._pid != os.getpid()) and not self._is_ready():
            return
        try:
            self._epoch(measures)
        except Exception as error:
            self.step_aside(error)

    def _epoch(self, measures: Measures) -> None:
        writer, timing = self._writer, self._timing
        assert writer is not None
        # Only process 0 writes epochs, and to read a measure may wait for the device that it lies on.
        numbers, extra = self._reader.read(measures) if writer.is_first else ({}, {})
        times = timing.epoch_ends(training_s=numbers.get("epoch_time_s"), evaluation_s=numbers.get("evaluation_time_s"))
        epoch = max(1, numbers.get("epoch", timing.epoch))
        timing.epoch = epoch + 1
        if not writer.is_first:
            return
        for remark in self._reader.remarks:
            self._say(remark)
        self._reader.remarks.clear()
        record = record_of(
            numbers,
            epoch=epoch,
            steps=times.steps,
            images=numbers.get("images", self._reader.images(times.steps)),
            epoch_time_s=times.training_s,
            evaluation_time_s=times.evaluation_s,
        )
        self._is_diverging = "train_loss" in numbers and not math.isfinite(record.train_loss)
        self._status = replace(
            self._status,
            epochs_done=epoch,
            first_step_at=self._status.first_step_at or utc_now(),
            time_s=timing.time_s(),
        )
        # The line before the status: epochs_done must never count an epoch that has no line.
        self._put({**to_json(record), **({"extra": extra} if extra else {})})
        self._put(self._status)

    def _put(self, what: Span | Status | dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.put(what)

    def epoch_begins(self) -> None:
        """Begin an epoch, before its first batch, where something lies between it and the end of the last one."""
        if self._is_ready():
            self._timing.epoch_begins()

    def step(self, updates: int = 1) -> None:
        """Count an update, or several that were done at once."""
        writer = self._writer
        # `_is_ready` without its call where all is well: this is in the way of every step.
        if (writer is None or self._state != "open" or self._pid != os.getpid()) and not self._is_ready():
            return
        try:
            span = self._timing.step(updates)
            if span is not None:
                self._put(span)
            if self._status.first_step_at is None:
                self._status = replace(self._status, first_step_at=utc_now(), time_s=self._timing.time_s())
                self._put(self._status)
        except Exception as error:
            self.step_aside(error)

    def steps(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of an epoch and count a step after each: waiting for a batch is told from computing."""
        if self._is_ready() and not self._timing.has_steps:
            self._timing.epoch_begins()
        for batch in batches:
            self.mark("wait")
            yield batch
            self.step()

    def span(self, part: str) -> TimedPart | NoPart:
        """`with rec.span("wait"):` wait, copy, compute, reduce, update of a step; evaluation, checkpoint of an epoch.

        What of a step is in no span counts as compute. Steps are sampled: most spans cost next to nothing.
        """
        # One object for each part, however often it is entered: spans stand in every step, most are not measured.
        found = self._parts.get(part)
        if found is not None and self._state == "open" and self._pid == os.getpid():
            return found
        if not self._is_ready() or not self._knows(part):
            return _NO_PART
        return self._parts.setdefault(part, TimedPart(self._timing, part))

    def mark(self, part: str) -> None:
        """Attribute the time since the last mark, or since the step began, to this part; for callbacks."""
        if self._writer is None and not self._is_ready():
            return
        try:
            if self._timing.is_sampled and self._is_ready() and self._knows(part):
                self._timing.mark(part)
        except Exception as error:
            self.step_aside(error)

    def add(self, part: str, seconds: float) -> None:
        """Add seconds of a part that were measured elsewhere: `rec.add("evaluation", 3.2)`."""
        try:
            if self._is_ready() and self._knows(part):
                self._timing.add(part, float(seconds))
        except (TypeError, ValueError) as error:
            self.step_aside(error)

    def _knows(self, part: str) -> bool:
        if part in PARTS or part in PAUSES:
            return True
        self._say(one_of("part of a step", part, (*PARTS, *PAUSES)))
        return False

    # --- never in the way

    def _is_ready(self) -> bool:
        if self._state == "new":
            self.start()
        if self._pid != os.getpid():  # a process that was forked from ours, such as one that loads images
            return False
        if self._state == "ended":
            self._say("It was called after its end; nothing more is recorded.")
        return self._state == "open" and self._writer is not None

    def step_aside(self, error: Exception) -> None:
        """Stop recording. What is there stays, and says why it ends."""
        if self._state == "aside":
            return
        # The state first: the writer thread and the training may fail at the same time, and one report is enough.
        was_open, self._state = self._state in ("open", "ending"), "aside"
        reason = str(error) if isinstance(error, TurnaroundError) else f"{type(error).__name__}: {error}"
        # Errors of ours may advise a flag, and a recorder has none.
        reason = reason.replace(" with --out", "").strip().rstrip(".")
        self._say(f"{reason}. The training goes on without a record.")
        atexit.unregister(self._at_exit)
        with suppress(Exception):
            if was_open and self._writer is not None:
                cause = f"The recorder stepped aside, the training went on: {reason}"[:MAX_CAUSE]
                self._writer.give_up(replace(self._status, state="interrupted", cause=cause, ended_at=utc_now()))

    def _say(self, message: str) -> None:
        """Warn of each thing once. Where warnings are errors they would stop the training: then it goes to stderr."""
        if message in self._said:
            return
        self._said.add(message)
        text = f"turnaround.Recorder: {message}"
        try:
            warnings.warn(text, RecorderWarning, stacklevel=4)
        except Exception:
            with suppress(Exception):
                print(text, file=sys.stderr)
