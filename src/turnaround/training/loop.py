"""The training loop.

for each epoch that is planned and left:
    for each step that is left of it:
        wait for the batch        its images are this process's slices of the global batch
        update                    forward, backward, agree, move the weights
        record the parts of it    one step in sixteen
        decide together           about once a second: stop, save, or is the loss no number?
        save                      when it is time, or when asked to stop
        stop if asked to, together
    evaluate                      validation: every image once; and a fixed sample of the training images
    stop if the loss is no number
    plan                          is it the best epoch so far, and how many follow?
    write the epoch's line        and hold the weights of the best
    share the workers out         anew, if that was left to us and one process holds up the others
    decide, save and stop as after a step; save at the end
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from turnaround.data.batches import StepBatch
from turnaround.errors import DivergedError, InterruptedRunError
from turnaround.model.network import Network
from turnaround.record.heartbeat import Heartbeat
from turnaround.record.schema import EpochRecord, ShareChange, TimePart
from turnaround.training.checkpoint import Manifest, is_finite
from turnaround.training.clock import Clock
from turnaround.training.energy import EpochEnergy
from turnaround.training.evaluate import Evaluator
from turnaround.training.faults import FaultTarget, strike
from turnaround.training.feed import Feed
from turnaround.training.plan import EpochPlan
from turnaround.training.position import TrainingPosition
from turnaround.training.saving import CheckpointSchedule
from turnaround.training.sharing import Sharing
from turnaround.training.step import Step
from turnaround.workers.contract import Workers

MESSAGE_EVERY_S = 1.0
"""A signal is acted upon within about this time; a message a second costs nothing that can be measured."""
MAX_STEPS_BETWEEN = 256
"""Steps between two messages at most, where a step takes less than 4 ms: should they become slow, the next message must
not be far."""


class EpochRecorder(Protocol):
    """Writes down what happens; process 0's writes files, the others' only their spans."""

    def epoch_begins(self, *, epoch: int, steps: int) -> None: ...
    def step_done(self, batch: StepBatch) -> None: ...
    def epoch_done(self, record: EpochRecord) -> None: ...
    def shared_out(self, change: ShareChange) -> None: ...
    def save(
        self,
        position: TrainingPosition,
        *,
        totals: list[list[float]],
        epoch_time_s: float,
        energy_j: float | None,
        waits: bool,
    ) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Everything the loop touches; made once in run.py."""

    network: Network
    workers: Workers
    step: Step
    feed: Feed
    evaluator: Evaluator
    clock: Clock
    energy: EpochEnergy
    recorder: EpochRecorder
    agreement: Agreement
    checkpoints: CheckpointSchedule
    heartbeat: Heartbeat
    plan: EpochPlan
    steps_per_epoch: int
    segment: int
    sharing: Sharing | None = None
    """None: the workers stay where they are."""

    def run(self, start: Manifest) -> None:
        """Train from where a checkpoint stands to the last epoch of the plan, which may come before the recipe's."""
        self.network.train_mode()
        # A checkpoint within an epoch has the sums and the training time of that epoch's first steps: its line counts
        # all of its images, as if the run had never stopped.
        self.step.totals.restore(start.totals)
        position, earlier_s = start.position, start.epoch_time_s
        self.energy.begin(start)
        # The first epoch of a start is kept apart: caches fill, memory is allocated, clocks rise.
        part: TimePart = "training_cold"
        while position.epochs_done < self.plan.epochs:
            self.recorder.epoch_begins(epoch=position.epoch, steps=self.steps_per_epoch)
            with self.clock.part(part):
                position = self._train_epoch(position, part, earlier_s=earlier_s)
                # The host waits here for the epoch's last step and, in the all-reduce, for the slowest process: both
                # are training time, so it is inside the part.
                totals = self.step.totals.take().tolist()  # losses, number right, number of images
            record = self._evaluated(position, totals, epoch_time_s=earlier_s + self.clock.last_s)
            self._stop_if_diverged(record, position)  # before the line: no NaN in the record
            self.plan.after_epoch(record)
            self.recorder.epoch_done(record)
            self._share_out(position)  # before the save, which keeps the shares
            self._after_epoch(position)
            part, earlier_s = "training_steady", 0.0

    def _train_epoch(self, position: TrainingPosition, part: TimePart, *, earlier_s: float) -> TrainingPosition:
        """Take the steps that are left of the epoch in progress; return its end, the beginning of the next."""
        epoch, timer, target = position.epoch, self.step.timer, FaultTarget(module=self.network.module)
        batches = self.feed.steps(position)
        self.agreement.begin()  # the evaluation before it is not the time of a step
        while position.epoch == epoch:
            # A step is numbered from 1 wherever people see it, from 0 wherever something is computed from it.
            number = position.global_step
            self.heartbeat.beat("computes", number + 1)
            strike("step", step=number + 1, target=target)
            timer.begin(position)  # before the batch is asked for: waiting for it is a part of the step
            batch = next(batches)
            timer.mark("wait")
            self.step(batch, position, learning_rate=self.plan.learning_rate(number))
            self.recorder.step_done(batch)
            position = position.after_step(steps_per_epoch=self.steps_per_epoch)
            if position.epoch == epoch:  # the end of an epoch has its own decision
                # A callable: the clock is read only if this step saves.
                self._between_steps(position, training_s=lambda: earlier_s + self.clock.open_s()[part])
        return position

    def _between_steps(self, position: TrainingPosition, *, training_s: Callable[[], float]) -> None:
        """Do what is decided together after a step, when others of its epoch follow."""
        step, left = position.step_in_epoch, self.steps_per_epoch - position.step_in_epoch
        decision = self.agreement.after_step(
            self.step.totals.sums,
            is_time=lambda: self.checkpoints.within_epoch(rest_s=left * self.agreement.step_s),
        )
        if decision.diverged:  # before a save: nothing of this state may become the newest checkpoint
            where = f"epoch {position.epoch}, at step {step} of {self.steps_per_epoch} or shortly before"
            raise self._diverged(where, position)
        if decision.saves or decision.stops or self.checkpoints.after_step(position):
            # All three conditions are the same on every process, as the collective in `by_process` requires.
            totals = self.step.totals.by_process()
            self._save(position, totals=totals, epoch_time_s=training_s(), waits=decision.stops)
            self.agreement.begin()  # the time of a save is not that of a step
        if decision.stops:
            raise InterruptedRunError(
                f"Stopped after step {step} of {self.steps_per_epoch} in epoch {position.epoch} of "
                f"{self.plan.epochs}; everything up to there is saved."
            )

    def _share_out(self, position: TrainingPosition) -> None:
        """Share the workers out anew where the speed of the processes asks for it, and another epoch follows."""
        if self.sharing is None or position.epochs_done >= self.plan.epochs:
            return
        change = self.sharing.after_epoch(position.epochs_done)
        if change is not None:
            self.recorder.shared_out(change)

    def _after_epoch(self, position: TrainingPosition) -> None:
        """Do what is decided together after an epoch; the last one is always saved."""
        decision = self.agreement.now(self.step.totals.sums, is_time=self.checkpoints.after_epoch)
        is_last = position.epochs_done >= self.plan.epochs
        if decision.saves or decision.stops or is_last or self.checkpoints.after_step(position):
            # Between epochs there are no sums to keep. The process may end after this save, and with it the thread that
            # writes: so it waits for the disk.
            self._save(position, totals=[], epoch_time_s=0.0, waits=decision.stops or is_last)
        if decision.stops and not is_last:  # a training that is complete has nothing to interrupt
            raise InterruptedRunError(
                f"Stopped after epoch {position.epochs_done} of {self.plan.epochs}; everything up to there is saved."
            )

    def _save(self, position: TrainingPosition, *, totals: list[list[float]], epoch_time_s: float, waits: bool) -> None:
        """Save, but refuse to save weights that are not finite: the last good checkpoint must stay the newest."""
        self.heartbeat.beat("saves")
        with self.clock.part("checkpoint"):
            if not is_finite(self.network.module):  # the same weights on every process, so all stop here
                raise self._diverged(f"epoch {position.last_epoch}", position)
            # Between epochs nothing is open; within one it is a collective, as this save is.
            energy_j = self.energy.so_far_j() if position.step_in_epoch else 0.0
            self.recorder.save(position, totals=totals, epoch_time_s=epoch_time_s, energy_j=energy_j, waits=waits)
        self.checkpoints.saved(pause_s=self.clock.last_s)

    def _evaluated(self, position: TrainingPosition, totals: list[float], *, epoch_time_s: float) -> EpochRecord:
        """Evaluate the epoch that has just ended, and return its line."""
        noise = self.step.meter.estimate(global_step=position.global_step)
        with self.clock.part("evaluation"):
            strike("evaluation")
            validation, train_sample = self.evaluator.validation(), self.evaluator.train_sample()
        (loss_sum, right, images), shares = totals, self.workers.shares
        return EpochRecord(
            epoch=position.epochs_done,
            steps=self.steps_per_epoch,
            images=int(images),
            train_loss=loss_sum / images,
            train_accuracy=right / images,
            train_eval_loss=train_sample.loss,
            train_eval_accuracy=train_sample.top1,
            val_loss=validation.loss,
            val_accuracy=validation.top1,
            # Of five classes or fewer, the right one is always among the first five.
            val_top5_accuracy=validation.top5 if self.evaluator.num_classes > 5 else None,
            learning_rate=self.plan.learning_rate(position.global_step - 1),  # of the epoch's last step
            epoch_time_s=epoch_time_s,
            evaluation_time_s=self.clock.last_s,
            images_per_s=images / epoch_time_s,
            energy_wh=self.energy.end_epoch_wh(),
            noise_scale=noise.value,
            noise_scale_low=noise.low,
            noise_scale_high=noise.high,
            noise_scale_reason=noise.reason or None,
            segment=self.segment,
            shares=None if len(set(shares)) == 1 else list(shares),
        )

    def _stop_if_diverged(self, record: EpochRecord, position: TrainingPosition) -> None:
        """Stop on figures that are no numbers: they are the same on every process, so all stop here together."""
        if not (math.isfinite(record.train_loss) and math.isfinite(record.val_loss)):
            raise self._diverged(f"epoch {record.epoch}", position)

    def _diverged(self, where: str, position: TrainingPosition) -> DivergedError:
        rate = self.plan.learning_rate(position.global_step - 1)  # of the last step
        return DivergedError(
            f"The loss is no longer a number in {where} (learning rate {rate:g}). "
            "Checkpoints saved before are kept, but resuming would diverge again: start a new run with a lower "
            "training.learning_rate or a longer training.warmup_epochs (--set)."
        )


# --- decisions of all processes together, at the same step


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A decision that is the same on every process."""

    stops: bool = False
    """Somebody was asked to stop."""
    saves: bool = False
    """Process 0 says that it is time."""
    diverged: bool = False
    """The sums of some process are no longer numbers."""


NOTHING = Decision()


class Agreement:
    """Decides together with all processes, by one message about once a second; the host waits for the device only then.

    Signals, clocks and losses differ between processes, and one that acts alone leaves the others waiting for ever. So
    each says what it knows in one small sum, about once a second: every few steps of a fast training, every step of a
    slow one. Process 0 says in the same message when the next one is due, so nobody measures on its own.
    """

    def __init__(self, workers: Workers, *, stop_asked: Callable[[], bool]) -> None:
        self.workers, self.stop_asked = workers, stop_asked
        self.step_s = 0.0
        """Duration of a step lately, by this process's clock."""
        self._steps_left = 1  # the first step decides, and sets the pace
        self.begin()

    def begin(self) -> None:
        """Start to time steps: what happened before them is not their time."""
        self._begun_s, self._steps_done = time.monotonic(), 0

    def after_step(self, totals: Tensor, *, is_time: Callable[[], bool]) -> Decision:
        """Decide when a message is due, which is after the same step on every process."""
        self._steps_done += 1
        self._steps_left -= 1
        return self.now(totals, is_time=is_time) if self._steps_left <= 0 else NOTHING

    def now(self, totals: Tensor, *, is_time: Callable[[], bool]) -> Decision:
        """Decide with a message; `totals` stay on their device."""
        if self._steps_done:
            self.step_s = (time.monotonic() - self._begun_s) / self._steps_done
        is_first = self.workers.rank == 0
        # Process 0 alone says when to save and when to speak again: two clocks would disagree.
        mine = [float(self.stop_asked()), float(is_first and is_time()), float(self._steps_between() * is_first)]
        # (4,): not finite, stop, save, steps until the next message. One sum carries all: the flags are counts of the
        # processes that raised them, and the two values of process 0 are added to zeros.
        message = torch.cat([(~torch.isfinite(totals).all()).to(totals).view(1), totals.new_tensor(mine)])
        self.workers.sum(message)
        bad, stop, save, self._steps_left = map(int, message.tolist())  # here the host waits for the device
        self.begin()
        return Decision(stops=stop > 0, saves=save > 0, diverged=bad > 0)

    def _steps_between(self) -> int:
        """Return the steps between two messages, at the present speed."""
        return max(1, min(MAX_STEPS_BETWEEN, int(MESSAGE_EVERY_S / self.step_s))) if self.step_s > 0 else 1
