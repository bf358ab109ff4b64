"""The training loop.

for each epoch that is left:
    for each step:
        wait for the batch        its images are this process's slices of the global batch
        update                    forward, backward, agree, move the weights
        note the parts of it      one step in sixteen
    evaluate                      validation: every image once; and a fixed sample of the training images
    stop if the loss is no number
    write the epoch's line
    save                          when it is time, or at the end, or when asked to stop
    stop if asked to, together
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from turnaround.data.batches import StepBatch
from turnaround.errors import DivergedError, InterruptedRunError
from turnaround.record.schema import EpochRecord
from turnaround.training.clock import Clock
from turnaround.training.evaluate import Counts, evaluate
from turnaround.training.feed import Feed
from turnaround.training.schedule import Schedule
from turnaround.training.step import Step


class Recorder(Protocol):
    """Who writes down what happens; process 0's writes files, the others' only their spans."""

    def epoch_begins(self, *, epoch: int, steps: int) -> None: ...
    def step_done(self, batch: StepBatch, *, update: int, epoch: int) -> None: ...
    def epoch_done(self, record: EpochRecord) -> None: ...
    def save(self, *, epoch: int, update: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Everything the loop touches; made once in run.py."""

    step: Step
    feed: Feed
    schedule: Schedule
    clock: Clock
    recorder: Recorder
    steps_per_epoch: int
    segment: int
    stop_asked: Callable[[], bool]

    @property
    def num_classes(self) -> int:
        return len(self.feed.batches.pixels.classes)

    def run(self, *, first_epoch: int) -> None:
        """From `first_epoch` (counted from 1) to the recipe's last."""
        last_epoch = self.step.parts.recipe.epochs
        last_save_s = time.monotonic()
        self.step.parts.network.train_mode()
        for epoch in range(first_epoch, last_epoch + 1):
            record = self._epoch(epoch, is_first=epoch == first_epoch)
            self._stop_if_diverged(record)
            self.recorder.epoch_done(record)
            stopping = self._all_agree_to_stop()
            due = time.monotonic() - last_save_s >= self.step.parts.recipe.checkpoint_every_s
            if self._any(due) or stopping or epoch == last_epoch:
                with self.clock.part("checkpoint"):
                    self.recorder.save(epoch=epoch, update=epoch * self.steps_per_epoch)
                    self.step.parts.workers.barrier()
                last_save_s = time.monotonic()
            if stopping and epoch < last_epoch:
                raise InterruptedRunError(
                    f"Stopped after epoch {epoch} of {last_epoch}; everything up to there is saved."
                )

    def _epoch(self, epoch: int, *, is_first: bool) -> EpochRecord:
        timer = self.step.timer
        self.recorder.epoch_begins(epoch=epoch, steps=self.steps_per_epoch)
        first, last = (epoch - 1) * self.steps_per_epoch, epoch * self.steps_per_epoch - 1
        with self.clock.part("training_cold" if is_first else "training_steady"):
            batches = self.feed.steps(epoch=epoch, first_update=first)
            for update in range(first, last + 1):
                timer.begin(update)
                batch = next(batches)
                timer.mark("wait")
                self.step(batch, epoch=epoch, update=update, learning_rate=self.schedule.learning_rate(update))
                self.recorder.step_done(batch, update=update, epoch=epoch)
            loss_sum, right, images = self.step.take_totals().tolist()
        epoch_time_s = self.clock.last_s
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

    def _evaluate(self) -> tuple[Counts, Counts]:
        """On the validation images, and on the fixed sample of training images."""
        validation = evaluate(self.step.parts, self.feed.validation(), num_classes=self.num_classes)
        return validation, evaluate(self.step.parts, self.feed.train_sample(), num_classes=self.num_classes)

    def _stop_if_diverged(self, record: EpochRecord) -> None:
        """The figures are the same on every process, so every process stops here together."""
        if not (math.isfinite(record.train_loss) and math.isfinite(record.val_loss)):
            raise DivergedError(
                f"The loss is no longer a number in epoch {record.epoch} (learning rate {record.learning_rate:g}). "
                "Checkpoints saved before are kept, but resuming would diverge again: start a new run with a lower "
                "training.learning_rate or a longer training.warmup_epochs (--set)."
            )

    def _all_agree_to_stop(self) -> bool:
        return self._any(self.stop_asked())

    def _any(self, mine: bool) -> bool:
        """Whether it is so on any process: clocks and signals differ, but all must do the same."""
        flag = torch.tensor([float(mine)], device=self.step.parts.workers.device)
        self.step.parts.workers.sum(flag)
        return bool(flag.item() > 0)
