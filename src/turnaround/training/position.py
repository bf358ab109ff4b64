"""The position says where a training stands. Steps are turned into epochs, and back, nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from turnaround.record.layout import CheckpointName


@dataclass(frozen=True, kw_only=True)
class TrainingPosition:
    """The progress of a training: whole epochs, steps of the epoch in progress, and steps over the whole run.

    All three count what is done. So `global_step` is also the number of the next step, counted from 0, by which its
    learning rate, its dropout and its measurements are decided: the same for a run that was never interrupted.
    """

    epochs_done: int = 0
    step_in_epoch: int = 0
    """0 at the beginning of an epoch, never as many as an epoch has."""
    global_step: int = 0

    @property
    def epoch(self) -> int:
        """The epoch that the next step belongs to, counted from 1."""
        return self.epochs_done + 1

    @property
    def last_epoch(self) -> int:
        """The epoch that the last step belonged to, counted from 1."""
        return self.epochs_done + (self.step_in_epoch > 0)

    @property
    def name(self) -> str:
        """The folder of a checkpoint that was saved here."""
        return str(CheckpointName(self.epochs_done, self.step_in_epoch))

    def after_step(self, *, steps_per_epoch: int) -> TrainingPosition:
        """Return the position after the next step; after the last one of an epoch, the beginning of the following."""
        is_last = self.step_in_epoch + 1 == steps_per_epoch
        return TrainingPosition(
            epochs_done=self.epochs_done + is_last,
            step_in_epoch=0 if is_last else self.step_in_epoch + 1,
            global_step=self.global_step + 1,
        )
