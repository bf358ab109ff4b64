"""Writes what happens in the loop into the run directory and on the progress display.

Process 0 writes the epochs, the status and the checkpoints; every process writes its own spans. A training that will
take long on a CPU is told so once, after its first steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self

from turnaround.data.batches import StepBatch
from turnaround.errors import PassingStorageError
from turnaround.recipe import SMALL_NETWORK, Recipe
from turnaround.record.layout import RunDirectory
from turnaround.record.places import redacted
from turnaround.record.recipe_changes import deciding_keys
from turnaround.record.schema import EpochRecord, Evaluation, ShareChange, Status, to_json, utc_now
from turnaround.record.writer import Lines, write_json
from turnaround.training.checkpoint import Manifest
from turnaround.training.clock import Clock
from turnaround.training.plan import EpochPlan
from turnaround.training.position import TrainingPosition
from turnaround.training.saving import BestWeights, Saver
from turnaround.training.sharing import change_sentence
from turnaround.training.step import Step
from turnaround.words import about

SLOW_S = 600.0
"""A training that takes longer is worth a word before it has taken it. A judgement: a coffee."""
MIN_STEPS, MIN_TIME_S = 4, 3.0
"""Measured after the first step, in which memory is allocated. A frozen backbone works two steps of 32 ahead."""


class Progress(Protocol):
    """Shows the progress to a person; the training side does not print."""

    def epoch_begins(self, *, epoch: int, epochs: int, steps: int) -> None: ...
    def step_done(self, *, images: int) -> None: ...
    def epoch_done(self, record: EpochRecord) -> None: ...
    def warn(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


class RunRecorder:
    """The `EpochRecorder` of one process."""

    def __init__(
        self,
        directory: RunDirectory,
        *,
        recipe: Recipe,
        plan: EpochPlan,
        clock: Clock,
        step: Step,
        status: Status,
        progress: Progress,
    ) -> None:
        self.directory, self.plan, self.clock, self.step = directory, plan, clock, step
        self.status, self.progress, self.workers = status, progress, plan.workers
        self.deciding_keys = deciding_keys(recipe.to_dict())
        self.is_first = self.workers.rank == 0
        self.outlook = Outlook(recipe, is_cpu=self.is_first and self.workers.device.type == "cpu")
        self.stops_on_full_disk = recipe.training.stop_on_full_disk
        self.saver = Saver(
            directory.checkpoint,
            best_folder=directory.best,
            on_full_disk=None if self.stops_on_full_disk else self._not_saved,
        )
        self._last_before_full: TrainingPosition | None = None
        self._unwritten: list[EpochRecord] = []
        """Epochs whose lines the disk has not taken yet."""
        self._open = ExitStack()

    def __enter__(self) -> Self:
        # Spans are many and of interest only together; an epoch's line must survive a crash of the machine.
        self.spans = self._open.enter_context(Lines(self.directory.spans(self.workers.rank), sync=False))
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
        """Write where the run stands now, with the clock's totals."""
        if self.saver.last is not None:  # what a resume could go on from, not what was computed
            changes["epochs_done"] = self.saver.last.epochs_done
            if self.saver.last != self._last_before_full:
                changes.setdefault("not_saved", None)
        changes |= self.plan.status_fields()
        self.status = replace(self.status, time_s=self.clock.totals_s(), **changes)
        if self.is_first:
            try:
                write_json(self.directory.status, to_json(self.status))
            except PassingStorageError:
                if self.stops_on_full_disk or self.status.state != "running":
                    raise  # otherwise the next one says it all again

    def epoch_begins(self, *, epoch: int, steps: int) -> None:
        self.progress.epoch_begins(epoch=epoch, epochs=self.plan.epochs, steps=steps)
        self.outlook.epoch_begins(epoch=epoch, epochs=self.plan.epochs, steps=steps)

    def step_done(self, batch: StepBatch) -> None:
        self.saver.check()  # a write that failed in its thread is raised here, at the next step
        self._write_spans()  # without waiting: a step whose events the GPU has not passed yet is written later
        if self.status.first_step_at is None:
            self.set_status(first_step_at=utc_now())
        self.progress.step_done(images=batch.global_size)
        if sentence := self.outlook.step_done(images=batch.global_size):
            self.progress.note(sentence)

    def _write_spans(self, *, waits: bool = False) -> None:
        for span in self.step.timer.spans(waits=waits):
            self.spans.write(to_json(span))

    def epoch_done(self, record: EpochRecord) -> None:
        self._write_spans(waits=True)
        # A resume cuts the lines back to its checkpoint, so no line may be older than what was saved before it.
        with self.clock.part("checkpoint"):
            self.saver.wait()
        if self.is_first:
            self._unwritten.append(record)
            self._write_epochs()
        self.progress.epoch_done(record)
        self.set_status()
        if self.is_first and self.plan.best is not None and self.plan.best.epoch == record.epoch:
            with self.clock.part("checkpoint"):
                self.saver.hold(BestWeights(best=self.plan.best, weights=self.step.state.evaluated_weights()))

    def shared_out(self, change: ShareChange) -> None:
        """Say and write down that the workers have other shares from here on."""
        self.progress.note(change_sentence(change))
        self.set_status(share_changes=[*self.status.share_changes, change])

    def _write_epochs(self, *, must_hold: bool = False) -> None:
        """Write the lines that wait for a disk with room, oldest first; `must_hold`: nothing follows to try again."""
        while self._unwritten:
            try:
                self.epochs.write(to_json(self._unwritten[0]))
            except PassingStorageError as error:
                if self.stops_on_full_disk or must_hold:
                    raise
                return self._not_saved(error)
            del self._unwritten[0]
        return None

    def save(
        self,
        position: TrainingPosition,
        *,
        totals: list[list[float]],
        epoch_time_s: float,
        energy_j: float | None,
        waits: bool,
    ) -> None:
        """Save a checkpoint. Training goes on when it is in host memory; with `waits`, when it is on the disk."""
        if self.is_first:
            self._write_epochs(must_hold=waits)
        # Without its lines no checkpoint: a resume would go on behind epochs that no record has.
        if self.is_first and not self._unwritten:
            manifest = Manifest(
                position=position,
                totals=totals,
                epoch_time_s=epoch_time_s,
                energy_j=energy_j,
                clock_s=self.clock.totals_s(),
                recipe=self.deciding_keys,
                plan=self.plan.state.to_json(),
                shares=list(self.workers.shares),
            )
            self.saver.begin(self.step.state.snapshot(manifest))
            self.status = replace(self.status, saves=(self.status.saves or 0) + 1)
        if waits:  # process 0 alone has something to wait for; the barrier makes the others wait with it
            self.saver.wait(must_hold=True)
            self.workers.barrier()  # nobody goes on, or ends, before it is there
        self.set_status()

    def _not_saved(self, error: PassingStorageError) -> None:
        last = self.saver.last
        kept = f"the last one is {last.name}" if last else "there is none yet of this start"
        self._last_before_full = last
        if self.status.not_saved is None:  # else it was said already
            self.progress.warn(f"{error} Training goes on without this checkpoint ({kept}) and tries again.")
        self.set_status(not_saved=redacted(str(error)))

    def finish(self, evaluation: Evaluation) -> None:
        """Write the last two files of a run that came to its end."""
        if self.is_first:
            self._write_epochs(must_hold=True)
            write_json(self.directory.evaluation, to_json(evaluation))
        self.set_status(state="finished", ended_at=utc_now())


# --- how long it will take


class Outlook:
    """Measures the first steps of a start and says once how long all of it will take, with what would be quicker.

    Only on a CPU: there a step is over when its call returns, and there an hour is lost most easily.
    """

    def __init__(self, recipe: Recipe, *, is_cpu: bool, now_s: Callable[[], float] = time.monotonic) -> None:
        self.recipe, self.now_s = recipe, now_s
        # A time limit is an answer already.
        self._is_over = not is_cpu or recipe.training.time_limit_s is not None
        self._steps_left: int | None = None
        self._began_at_s: float | None = None
        self._steps = self._images = 0

    def epoch_begins(self, *, epoch: int, epochs: int, steps: int) -> None:
        """Note how many steps there are from the first epoch of this start on."""
        if self._steps_left is not None:
            self._is_over = True  # the first epoch was over before there was anything to say
        self._steps_left = steps * (1 if keeps_features(self.recipe) else epochs - epoch + 1)

    def step_done(self, *, images: int) -> str | None:
        """Return the sentence when it is due; None for every other step."""
        if self._is_over or self._steps_left is None:
            return None
        if self._began_at_s is None:
            self._began_at_s = self.now_s()
            return None
        self._steps += 1
        self._images += images
        measured_s = self.now_s() - self._began_at_s
        if self._steps < MIN_STEPS or measured_s < MIN_TIME_S:
            return None
        self._is_over = True
        expected_s = self._steps_left * measured_s / self._steps
        return self._sentence(expected_s, images_per_s=self._images / measured_s) if expected_s > SLOW_S else None

    def _sentence(self, expected_s: float, *, images_per_s: float) -> str:
        what = "The first epoch, in which the features are computed," if keeps_features(self.recipe) else "All of it"
        return (
            f"{what} will take about {about(expected_s)}, at {images_per_s:.3g} images/s without a GPU, and evaluation "
            f"comes on top. Quicker: {', or '.join(quicker(self.recipe))}. A Ctrl-C keeps what was learnt; turnaround "
            "resume goes on."
        )


def keeps_features(recipe: Recipe) -> bool:
    """Tell whether the backbone sees every image once only: after the first epoch the rest takes moments."""
    return not recipe.model.fine_tune and not any(
        value for name, value in vars(recipe.augment.filled(is_frozen=True)).items() if name != "preset"
    )


def quicker(recipe: Recipe) -> list[str]:
    """Return what to type for a quicker training, what gains most first."""
    ways, augment = [], recipe.augment
    if recipe.model.fine_tune and recipe.model.weights != "none" and not augment.is_mixed:
        ways.append("--set model.fine_tune=false --set augment.preset=none (only the last layer learns)")
    if recipe.model.fine_tune and recipe.model.weights == "none" and recipe.model.name != SMALL_NETWORK:
        ways.append(f"--model {SMALL_NETWORK} (300,000 weights)")
    if recipe.size_px >= 128:
        ways.append(f"--size {recipe.size_px // 2} (a quarter of the arithmetic)")
    return [*ways, "--time-limit 10min (as many epochs as fit)"]
