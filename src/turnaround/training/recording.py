"""What happens in the loop -> the run directory and the progress display.

Process 0 writes the epochs, the status and the checkpoints; every process writes its own spans.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self

from turnaround.data.batches import StepBatch
from turnaround.errors import DiskFullError
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import EpochRecord, Evaluation, Status, to_json, utc_now
from turnaround.record.writer import Lines, write_json
from turnaround.training import checkpoint
from turnaround.training.clock import Clock
from turnaround.training.loop import SoFar
from turnaround.training.saving import Saver
from turnaround.training.step import Step


class Progress(Protocol):
    """Who shows it to a person; the training side does not print."""

    def epoch_begins(self, *, epoch: int, epochs: int, steps: int) -> None: ...
    def step_done(self, *, images: int) -> None: ...
    def epoch_done(self, record: EpochRecord) -> None: ...
    def warn(self, text: str) -> None: ...


class RunRecorder:
    """The loop's recorder on one process."""

    def __init__(
        self,
        directory: RunDirectory,
        *,
        clock: Clock,
        step: Step,
        status: Status,
        progress: Progress,
        recipe: dict[str, Any],
    ) -> None:
        """`recipe` is what a checkpoint keeps of it."""
        self.directory, self.clock, self.step, self.progress = directory, clock, step, progress
        self.status, self.recipe = status, recipe
        self.is_first = step.parts.workers.rank == 0
        self.stops_on_full_disk = step.parts.recipe.stop_on_full_disk
        self.saver = Saver(directory.checkpoint, on_full_disk=None if self.stops_on_full_disk else self._not_saved)
        self._last_before_full: checkpoint.Position | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        rank = self.step.parts.workers.rank
        self.spans = self._open.enter_context(Lines(self.directory.spans(rank), sync=False))
        if self.is_first:
            self.epochs = self._open.enter_context(Lines(self.directory.epochs, sync=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.saver.wait()
        except Exception:
            if error is None:  # else the first error is the one to tell
                raise
        finally:
            self._open.close()

    def set_status(self, **changes: Any) -> None:
        """Where the run stands now, with the clock's totals."""
        if self.saver.last is not None:
            changes["epochs_done"] = self.saver.last.epoch
            if self.saver.last != self._last_before_full:
                changes.setdefault("not_saved", None)
        self.status = replace(self.status, time_s=self.clock.totals_s(), **changes)
        if self.is_first:
            try:
                write_json(self.directory.status, to_json(self.status))
            except DiskFullError:
                if self.stops_on_full_disk or self.status.state != "running":
                    raise  # otherwise the next one says it all again

    def epoch_begins(self, *, epoch: int, steps: int) -> None:
        self.progress.epoch_begins(epoch=epoch, epochs=self.step.parts.recipe.epochs, steps=steps)

    def step_done(self, batch: StepBatch) -> None:
        self.saver.check()
        self._write_spans()
        if self.status.first_step_at is None:
            self.set_status(first_step_at=utc_now())
        self.progress.step_done(images=batch.global_size)

    def _write_spans(self, *, waits: bool = False) -> None:
        for span in self.step.timer.spans(waits=waits):
            self.spans.write(to_json(span))

    def epoch_done(self, record: EpochRecord) -> None:
        self._write_spans(waits=True)
        with self.clock.part("checkpoint"):  # no epoch is ended before what was saved in it is on the disk
            self.saver.wait()
        if self.is_first:
            self.epochs.write(to_json(record))
        self.progress.epoch_done(record)
        self.set_status()

    def save(self, progress: SoFar, *, update: int, waits: bool) -> None:
        """Training goes on when the state is in host memory; with `waits`, when it is on the disk."""
        step = self.step
        if self.is_first:
            position = checkpoint.Position(
                **vars(progress),
                update=update,
                clock_s=self.clock.totals_s(),
                scaler=step.scaler.state_dict(),
                noise=step.noise.window(update=update),
                recipe=self.recipe,
            )
            taken = checkpoint.snapshot(
                module=step.parts.network.module, optimizer=step.parts.optimizer, position=position
            )
            self.saver.begin(taken)
        if waits:
            self.saver.wait(must_hold=True)
            step.parts.workers.barrier()
        self.set_status()

    def _not_saved(self, error: DiskFullError) -> None:
        last = self.saver.last
        kept = f"the last one is {last.name}" if last else "there is none yet of this start"
        self._last_before_full = last
        if self.status.not_saved is None:  # else it was said already
            self.progress.warn(f"{error} Training goes on without this checkpoint ({kept}) and tries again.")
        self.set_status(not_saved=str(error))

    def finish(self, evaluation: Evaluation) -> None:
        """The last two files of a run that came to its end."""
        if self.is_first:
            write_json(self.directory.evaluation, to_json(evaluation))
        self.set_status(state="finished", ended_at=utc_now())
