"""Step time against processes and hosts: the law of scaling.py, for runs whose steps were timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from turnaround.errors import InputError
from turnaround.forecast.interval import Interval
from turnaround.forecast.remarks import Pinned, Unit
from turnaround.forecast.time_law import ScalingLaw, TimeObservation


@dataclass(frozen=True, kw_only=True)
class StepObservation(TimeObservation):
    """The median step time of one run, or of several runs of one configuration."""

    images_per_step: int
    """Images of the whole step: the global batch."""

    unit: ClassVar[Unit] = "step"

    def _further_numbers(self) -> tuple[str, ...]:
        return ("images_per_step",)

    def predicted(self, processes: int, time_s: float, *, global_batch: int) -> Self:
        return replace(super().predicted(processes, time_s, global_batch=global_batch), images_per_step=global_batch)


class StepTime(ScalingLaw[StepObservation]):
    """Estimator of the step time in seconds, at a fixed batch per process ("weak") or a fixed global batch."""

    unit = "step"

    def steps(self, processes: int) -> float:
        return 1.0

    def images(self, processes: int) -> float:
        # `images_` are those of one process at a fixed batch per process, of the whole step at a fixed global batch.
        return self.images_ * processes if self.scaling == "weak" else self.images_

    def epoch_s(self, time_s: Interval, *, steps: float | None) -> Interval:
        # The number of steps is known exactly, so it multiplies value and ends alike.
        return time_s.scaled(steps or 1.0)

    def _check_same_work(self, observations: Sequence[StepObservation]) -> None:
        """Note the images per process (weak) or per step (strong), which the law takes as fixed."""
        per = {"weak": "process", "strong": "step"}[self.scaling]
        # The law has no term for the size of a batch: a step of other images is other computation, c0.
        images = sorted(o.images_per_step / (o.processes if self.scaling == "weak" else 1) for o in observations)
        if images[-1] > 1.01 * images[0]:
            raise InputError(
                f"The runs differ in images per {per}: from {images[0]:g} to {images[-1]:g}. One law needs the same in "
                f"all of them: leave out those that differ, or ask for the other kind of scaling."
            )
        self.images_ = images[-1]

    def _pinned(self, counts: Sequence[int]) -> dict[str, Pinned]:
        if len(counts) == 1:
            one = Pinned(reason="one count", counts=tuple(counts))
            return {"c1": one, "c2": one}  # the prior alone
        # Two times fix c0 and what the second costs more; how that divides into c1 and c2 is the prior's.
        return {"c1": Pinned(reason="two counts", counts=tuple(counts))} if len(counts) == 2 else {}
