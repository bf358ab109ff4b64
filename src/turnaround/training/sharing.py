"""Shares by measured speed (`--share auto`): a process that is faster hosts more workers, from an epoch's end on.

Enters: the spans of sampled steps. Leaves: other shares, the same on every process, where a step would be shorter by
more than a tenth (workers/shares.py). What a process takes up to its last gradient is its own; what follows it waits
for the others. Shares change nothing that is learnt, so this may go by clocks; a checkpoint keeps them, so that a
resume adds up in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median

from turnaround.record.schema import ShareChange, Span
from turnaround.training.assembly import Assembly, TrainingCore
from turnaround.training.checkpoint import Manifest
from turnaround.training.clock import StepTimer
from turnaround.words import counted, percent
from turnaround.workers.contract import Workers
from turnaround.workers.shares import AUTO, Shares, better_shares

SPAN_EVERY_STEPS = 4
"""One step in four is taken apart, where one in sixteen is otherwise: short epochs must have some."""
MIN_SPANS = 3
"""A median that one outlier does not decide; with fewer, the steps of the next epoch are waited for."""


class Sharing:
    """Measures the steps of this process, and shares the workers out anew where that is worth it."""

    def __init__(self, workers: Workers, timer: StepTimer, *, share_out: Callable[[Shares], None]) -> None:
        """`share_out` makes everything in this process follow other shares."""
        self.workers, self.share_out = workers, share_out
        self._step_s: list[float] = []  # of sampled steps since the last decision, up to the last gradient
        timer.every_steps, timer.on_span = SPAN_EVERY_STEPS, self.note

    def note(self, span: Span) -> None:
        """Take a sampled step into account. Input counts as well as computation: the others wait for either."""
        # Not `reduce`, which is waiting for the others, nor `update`, which is the same whatever a process hosts.
        self._step_s.append(span.wait_s + span.copy_s + span.compute_s)

    def after_epoch(self, epoch: int) -> ShareChange | None:
        """Decide together, after the same epoch on every process; return what has changed."""
        seconds = self._seconds_per_worker()
        if seconds is None:
            return None
        # Whatever is decided now, the next decision is about steps with the shares that hold from here on.
        self._step_s.clear()
        before = self.workers.shares
        # The same numbers on every process, and the same arithmetic: no second message is needed.
        proposal = better_shares(before, seconds)
        if proposal is None:
            return None
        self.share_out(proposal.shares)
        return ShareChange(
            after_epoch=epoch,
            before=list(before),
            shares=list(proposal.shares),
            seconds_per_worker=seconds,
            predicted_gain=proposal.gain,
        )

    def _seconds_per_worker(self) -> list[float] | None:
        """Return the seconds of every process for one of its workers; None where one has measured too little."""
        enough = len(self._step_s) >= MIN_SPANS
        # As if all of a step grew with the workers. What does not is in the figure as well, so after a change it is
        # measured anew (workers/shares.py). 0 stands for too little measured, and is said all the same: `gather` is a
        # collective.
        mine = median(self._step_s) / len(self.workers.hosted) if enough else 0.0
        # As text, which gives a number back to the bit.
        everyone = [float(json.loads(text)) for text in self.workers.gather(json.dumps(mine))]
        return everyone if min(everyone) > 0 else None


def sharing_by_speed(assembly: Assembly) -> Sharing | None:
    """Return what shares the workers of a training out by speed; None where no worker can be moved."""
    workers = assembly.core.workers
    # As many workers as processes: each has the one that it must keep.
    if workers.size == 1 or workers.count == workers.size:
        return None
    return Sharing(workers, assembly.core.step.timer, share_out=assembly.share_out)


def go_on_with_shares(start: Manifest, core: TrainingCore, *, share: str) -> None:
    """Share the workers out as in the checkpoint, where shares go by speed; on other processes they begin equal."""
    if share == AUTO and (len(start.shares), sum(start.shares)) == (core.workers.size, core.workers.count):
        core.share_out(tuple(start.shares))


def change_sentence(change: ShareChange) -> str:
    """Say who hosts how many workers from here on, and why."""
    moved = [
        f"process {rank} hosts {counted(now, 'worker')} instead of {before}"
        for rank, (before, now) in enumerate(zip(change.before, change.shares, strict=True))
        if now != before
    ]
    return (
        f"After epoch {change.after_epoch} the workers are shared out by speed: {', '.join(moved)}; the computing part "
        f"of a step should be {percent(change.predicted_gain)} shorter."
    )
