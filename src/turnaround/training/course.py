"""The learning rate of a training that gets other epochs than it began with: a time limit, or more of them afterwards.

    laid over     what is left of the schedule, over fewer or more steps: the rate goes on from where it is to its end
    warmed anew   a new cosine over the added steps, from a stated rate: where the rate has already fallen to nothing

Pieces are kept in the checkpoint, in order, so a resume has the rate of a run that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnaround.training.schedule import Schedule

FALLEN_SHARE = 0.1
"""Of the peak: where no step that is left has more, stretching the rest would train at next to nothing."""
WARMED_SHARE = 0.3
"""Of the peak, for a new cosine. Less than all of it, which would undo much of what was learnt; it falls to 0 again."""
WARMUP_SHARE = 0.1
"""Of the added steps, over which the rate rises to that, one epoch at most: the optimizer's moments are stale."""
LOOKS = 64
"""Steps at which the rest of a schedule is looked at."""


@dataclass(frozen=True, kw_only=True)
class SchedulePiece:
    """From a step on, the learning rate takes another course than before."""

    at_step: int
    """The first step of it, counted from 0 over the whole run."""
    end_step: int
    """The step at which it reaches its end."""
    before_end_step: int
    """The step at which the course before it would have."""
    rate: float | None = None
    """The highest rate of a new cosine; None: the course before, laid over these steps."""
    warmup_steps: int = 0
    """Steps over which a new cosine rises to it."""


def rate_at(step: int, schedule: Schedule, pieces: Sequence[SchedulePiece]) -> float:
    """Return the learning rate of a step, counted from 0 over the whole run."""
    at: float = step
    for piece in reversed(pieces):  # the last word first: it speaks of steps in terms of the course before it
        if at < piece.at_step:
            continue
        done, length = at - piece.at_step, max(1, piece.end_step - piece.at_step)
        if piece.rate is not None:
            cosine = Schedule(kind="cosine", peak=piece.rate, total_steps=length, warmup_steps=piece.warmup_steps)
            return cosine.learning_rate(done)
        at = piece.at_step + done * (piece.before_end_step - piece.at_step) / length
    return schedule.learning_rate(at)


def laid_over(at_step: int, end_step: int, schedule: Schedule, pieces: Sequence[SchedulePiece]) -> SchedulePiece:
    """Lay what is left of the course over the steps until `end_step`."""
    return SchedulePiece(at_step=at_step, end_step=end_step, before_end_step=course_end(schedule, pieces))


def extended(
    at_step: int, end_step: int, schedule: Schedule, pieces: Sequence[SchedulePiece], *, steps_per_epoch: int
) -> SchedulePiece | None:
    """Go on to `end_step`: lay the rest over it, warm anew where it has fallen, or None where the rate just stays."""
    before_end = course_end(schedule, pieces)
    left = max(0, before_end - at_step)
    looks = {at_step + left * i // LOOKS for i in range(LOOKS)} if left else {at_step}
    if max(rate_at(step, schedule, pieces) for step in looks) >= FALLEN_SHARE * schedule.peak:
        return laid_over(at_step, end_step, schedule, pieces) if left else None
    return SchedulePiece(
        at_step=at_step,
        end_step=end_step,
        before_end_step=before_end,
        rate=WARMED_SHARE * schedule.peak,
        warmup_steps=min(steps_per_epoch, round(WARMUP_SHARE * (end_step - at_step))),
    )


def course_end(schedule: Schedule, pieces: Sequence[SchedulePiece]) -> int:
    """Return the step at which the present course reaches its end."""
    return pieces[-1].end_step if pieces else schedule.total_steps
