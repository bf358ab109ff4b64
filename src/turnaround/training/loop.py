"""The training loop.

for each epoch that is left:
    for each step that is left of it:
        wait for the batch        its images are this process's slices of the global batch
        update                    forward, backward, agree, move the weights
        note the parts of it      one step in sixteen
        decide together           about once a second: stop, save, or is the loss no number?
        save                      when it is time, or when asked to stop
        stop if asked to, together
    evaluate                      validation: every image once; and a fixed sample of the training images
    stop if the loss is no number
    write the epoch's line
    decide, save and stop as after a step; save at the end
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from turnaround.data.batches import EvaluationBatch, StepBatch
from turnaround.errors import DivergedError, InterruptedRunError
from turnaround.record.heartbeat import Heartbeat
from turnaround.record.schema import EpochRecord, TimePart
from turnaround.training.agreement import Agreement
from turnaround.training.checkpoint import Position
from turnaround.training.clock import Clock
from turnaround.training.evaluate import Counts, evaluate
from turnaround.training.faults import strike
from turnaround.training.feed import Feed
from turnaround.training.saving import CheckpointSchedule
from turnaround.training.schedule import Schedule
from turnaround.training.step import Step


@dataclass(frozen=True, kw_only=True)
class SoFar:
    """How far a training is, as a checkpoint keeps it: whole epochs, and what there is of the next one."""

    epoch: int
    step: int = 0
    totals: list[list[float]] = field(default_factory=list)
    epoch_time_s: float = 0.0


class EpochRecorder(Protocol):
    """Who writes down what happens; process 0's writes files, the others' only their spans."""

    def epoch_begins(self, *, epoch: int, steps: int) -> None: ...
    def step_done(self, batch: StepBatch) -> None: ...
    def epoch_done(self, record: EpochRecord) -> None: ...
    def save(self, progress: SoFar, *, update: int, waits: bool) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Everything the loop touches; made once in run.py."""

    step: Step
    feed: Feed
    schedule: Schedule
    clock: Clock
    recorder: EpochRecorder
    agreement: Agreement
    due: CheckpointSchedule
    heartbeat: Heartbeat
    steps_per_epoch: int
    segment: int

    @property
    def num_classes(self) -> int:
        return len(self.feed.batches.pixels.classes)

    def run(self, *, start: Position) -> None:
        """From where a checkpoint stands to the recipe's last epoch."""
        last_epoch = self.step.parts.recipe.epochs
        self.step.parts.network.train_mode()
        self.step.restore_totals(start.totals)
        for epoch in range(start.epoch + 1, last_epoch + 1):
            record = self._epoch(epoch, start)
            self._stop_if_diverged(record)
            self.recorder.epoch_done(record)
            decided = self.agreement.now(self.step.totals, is_time=self.due.after_epoch)
            update, is_last = epoch * self.steps_per_epoch - 1, epoch == last_epoch
            if decided.saves or decided.stops or is_last or self.due.after_update(update):
                self._save(SoFar(epoch=epoch), waits=decided.stops or is_last)
            if decided.stops and not is_last:
                raise InterruptedRunError(
                    f"Stopped after epoch {epoch} of {last_epoch}; everything up to there is saved."
                )

    def _epoch(self, epoch: int, start: Position) -> EpochRecord:
        is_first = epoch == start.epoch + 1
        part: TimePart = "training_cold" if is_first else "training_steady"
        before_s = start.epoch_time_s if is_first else 0.0
        self.recorder.epoch_begins(epoch=epoch, steps=self.steps_per_epoch)
        last = epoch * self.steps_per_epoch - 1
        with self.clock.part(part):
            for step in self._steps(epoch, first_step=start.step if is_first else 0):
                self._between_steps(epoch, step, training_s=lambda: before_s + self.clock.open_s()[part])
            loss_sum, right, images = self.step.take_totals().tolist()
        epoch_time_s = before_s + self.clock.last_s
        noise = self.step.noise.estimate(update=last + 1)
        with self.clock.part("evaluation"):
            validation, train_sample = self._evaluate()
        return EpochRecord(
            epoch=epoch,
            steps=self.steps_per_epoch,
            images=int(images),
            train_loss=loss_sum / images,
            train_accuracy=right / images,
            train_eval_loss=train_sample.loss,
            train_eval_accuracy=train_sample.top1,
            val_loss=validation.loss,
            val_accuracy=validation.top1,
            val_top5_accuracy=validation.top5 if self.num_classes > 5 else None,
            learning_rate=self.schedule.learning_rate(last),
            epoch_time_s=epoch_time_s,
            evaluation_time_s=self.clock.last_s,
            images_per_s=images / epoch_time_s,
            noise_scale=noise.value if noise else None,
            noise_scale_low=noise.low if noise else None,
            noise_scale_high=noise.high if noise else None,
            segment=self.segment,
        )

    def _steps(self, epoch: int, *, first_step: int) -> Iterator[int]:
        """Takes the steps of an epoch that are left; after each, the number of those behind us."""
        timer, first = self.step.timer, (epoch - 1) * self.steps_per_epoch
        batches = self.feed.steps(epoch=epoch, first_update=first, first_step=first_step)
        self.agreement.begin()
        for update in range(first + first_step, first + self.steps_per_epoch):
            self.heartbeat.beat("computes", update + 1)
            strike("step", step=update + 1, target=self.step.fault_target)
            timer.begin(update, epoch=epoch)
            batch = next(batches)
            timer.mark("wait")
            self.step(batch, epoch=epoch, update=update, learning_rate=self.schedule.learning_rate(update))
            self.recorder.step_done(batch)
            yield update - first + 1

    def _between_steps(self, epoch: int, step: int, *, training_s: Callable[[], float]) -> None:
        """After `step` steps of an epoch, when others follow: what is decided together, and done."""
        if step == self.steps_per_epoch:
            return  # the end of an epoch has its own decision
        rest = self.steps_per_epoch - step
        decided = self.agreement.after_step(
            self.step.totals, is_time=lambda: self.due.within_epoch(rest_s=rest * self.agreement.step_s)
        )
        update = (epoch - 1) * self.steps_per_epoch + step - 1
        if decided.diverged:
            raise self._diverged(f"epoch {epoch}, at step {step} of {self.steps_per_epoch} or shortly before", update)
        if decided.saves or decided.stops or self.due.after_update(update):
            so_far = SoFar(epoch=epoch - 1, step=step, totals=self.step.totals_by_process(), epoch_time_s=training_s())
            self._save(so_far, waits=decided.stops)
            self.agreement.begin()
        if decided.stops:
            raise InterruptedRunError(
                f"Stopped after step {step} of {self.steps_per_epoch} in epoch {epoch} of "
                f"{self.step.parts.recipe.epochs}; everything up to there is saved."
            )

    def _save(self, so_far: SoFar, *, waits: bool) -> None:
        """Never a state that is no longer one: the last good checkpoint must stay the newest."""
        update = so_far.epoch * self.steps_per_epoch + so_far.step
        self.heartbeat.beat("saves")
        with self.clock.part("checkpoint"):
            if not self.step.is_finite():  # the same weights on every process, so all stop here
                raise self._diverged(f"epoch {-(-update // self.steps_per_epoch)}", update - 1)
            self.recorder.save(so_far, update=update, waits=waits)
        self.due.saved()

    def _evaluate(self) -> tuple[Counts, Counts]:
        """On the validation images, and on the fixed sample of training images."""
        strike("evaluation")
        validation = evaluate(self.step.parts, self.noted(self.feed.validation()), num_classes=self.num_classes)
        sample = self.noted(self.feed.train_sample())
        return validation, evaluate(self.step.parts, sample, num_classes=self.num_classes)

    def noted(self, batches: Iterator[EvaluationBatch]) -> Iterator[EvaluationBatch]:
        """The same batches; each is a sign of life."""
        for batch in batches:
            self.heartbeat.beat("evaluates")
            yield batch
        self.heartbeat.waits()

    def _stop_if_diverged(self, record: EpochRecord) -> None:
        """The figures are the same on every process, so every process stops here together."""
        if not (math.isfinite(record.train_loss) and math.isfinite(record.val_loss)):
            raise self._diverged(f"epoch {record.epoch}", record.epoch * self.steps_per_epoch - 1)

    def _diverged(self, where: str, update: int) -> DivergedError:
        return DivergedError(
            f"The loss is no longer a number in {where} (learning rate {self.schedule.learning_rate(update):g}). "
            "Checkpoints saved before are kept, but resuming would diverge again: start a new run with a lower "
            "training.learning_rate or a longer training.warmup_epochs (--set)."
        )
