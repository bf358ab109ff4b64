"""Workers are shared out by measured speed, and the training stays the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forking import ForkingLauncher
from running import EXACT, largest_difference, request, traced, train, weights
from turnaround.errors import InterruptedRunError
from turnaround.launch import lifecycle
from turnaround.record.reader import Run
from turnaround.record.schema import ShareChange, Span
from turnaround.training.clock import StepTimer
from turnaround.training.sharing import MIN_SPANS, Sharing, change_sentence
from turnaround.workers.shares import Shares
from turnaround.workers.single import Single

CPU = torch.device("cpu")


class OneOfTwo(Single):
    """Process 0 of two, whose other process says what it is told to say."""

    def __init__(self, *, count: int, shares: Shares, other: float) -> None:
        super().__init__(count=count, device=CPU)
        self.size, self.other, self.asked = 2, other, 0
        self.share_out(shares)

    def gather(self, value: str) -> list[str]:
        self.asked += 1
        return [value, json.dumps(self.other)]


def span(step: int, compute_s: float, *, reduce_s: float = 0.0) -> Span:
    return Span(step=step, epoch=1, wait_s=0.25, copy_s=0.25, compute_s=compute_s, reduce_s=reduce_s, update_s=9.0)


def measured(sharing: Sharing, seconds: list[float]) -> None:
    for step, compute_s in enumerate(seconds):
        sharing.note(span(step, compute_s - 0.5, reduce_s=7.0))


def test_the_slower_process_gets_fewer_workers() -> None:
    workers, told = OneOfTwo(count=16, shares=(8, 8), other=2.0), list[Shares]()
    sharing = Sharing(workers, StepTimer(CPU), share_out=told.append)
    measured(sharing, [8.0, 8.0, 800.0])  # a second for each of eight workers; one step was held up
    change = sharing.after_epoch(3)
    assert change is not None
    assert change.after_epoch == 3
    assert change.before == [8, 8]
    assert change.seconds_per_worker == [1.0, 2.0]
    assert told == [tuple(change.shares)] == [(11, 5)]
    assert change.predicted_gain == pytest.approx(1 - 11 / 16)
    assert change_sentence(change) == (
        "After epoch 3 the workers are shared out by speed: process 0 hosts 11 workers instead of 8, process 1 hosts "
        "5 workers instead of 8; the computing part of a step should be 31 % shorter."
    )


def test_a_process_that_becomes_slow_gives_workers_back() -> None:
    workers = OneOfTwo(count=16, shares=(11, 5), other=1.0)
    sharing = Sharing(workers, StepTimer(CPU), share_out=workers.share_out)
    measured(sharing, [11.0] * 3)
    assert sharing.after_epoch(1) is not None
    assert workers.shares == (8, 8)
    assert workers.hosted == range(8)


def test_small_differences_change_nothing() -> None:
    workers, told = OneOfTwo(count=16, shares=(8, 8), other=1.2), list[Shares]()
    sharing = Sharing(workers, StepTimer(CPU), share_out=told.append)
    measured(sharing, [8.0] * 3)
    assert sharing.after_epoch(1) is None
    assert told == []


def test_short_epochs_wait_for_more_steps_but_everybody_is_asked() -> None:
    """The question is a collective: a process that has measured nothing must ask it too."""
    workers, told = OneOfTwo(count=4, shares=(2, 2), other=9.0), list[Shares]()
    sharing = Sharing(workers, StepTimer(CPU), share_out=told.append)
    assert sharing.after_epoch(1) is None
    measured(sharing, [2.0] * (MIN_SPANS - 1))
    assert sharing.after_epoch(2) is None
    assert workers.asked == 2
    measured(sharing, [2.0])
    assert sharing.after_epoch(3) is not None
    assert told == [(3, 1)]
    assert sharing.after_epoch(4) is None  # what was measured with other shares is over


def test_another_process_that_has_measured_too_little() -> None:
    workers = OneOfTwo(count=4, shares=(2, 2), other=0.0)
    sharing = Sharing(workers, StepTimer(CPU), share_out=workers.share_out)
    measured(sharing, [2.0] * MIN_SPANS)
    assert sharing.after_epoch(1) is None


def test_one_step_in_four_is_taken_apart_and_heard_of() -> None:
    timer = StepTimer(CPU)
    assert [step for step in range(32) if timer.is_due(step)] == [10, 26]
    sharing = Sharing(OneOfTwo(count=4, shares=(2, 2), other=1.0), timer, share_out=lambda shares: None)
    due = [step for step in range(32) if timer.is_due(step)]
    assert due == [2, 6, 10, 14, 18, 22, 26, 30]
    assert not any(step % 8 == 0 for step in due)  # the gradient noise is measured there
    assert timer.on_span == sharing.note


def test_the_same_training_whoever_hosts_the_workers(
    fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal shares for an epoch, then three workers and one; stopped in the second epoch, it goes on as it stood."""
    settings = (*EXACT, "data.size_px=32", "training.optimizer=sgd", "training.learning_rate=0.005")
    settings += ("training.scaling=none", "training.warmup_epochs=0", "training.epochs=3")
    alone = train(fruit_folder, tmp_path / "alone", *settings, launcher=forking)
    assert [epoch.steps for epoch in alone.epochs] == [6, 6, 6]
    traced(monkeypatch, seconds="1.0,3.0")
    # The end of the second epoch decides at the latest, and it is not the last one.
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=sigterm,step=8")
    out = tmp_path / "auto"
    with pytest.raises(InterruptedRunError):
        train(fruit_folder, out, *settings, processes=2, launcher=forking, share="auto")
    change = ShareChange(after_epoch=1, before=[2, 2], shares=[3, 1], seconds_per_worker=[1.0, 3.0], predicted_gain=0.5)
    stopped = Run.load(out)
    assert stopped.status.share_changes == [change]
    assert stopped.recipe["launch"]["share"] == stopped.machine["share"] == "auto"
    assert [rank["workers"] for rank in stopped.machine["ranks"]] == [[0, 1], [2, 3]]

    run = lifecycle.resume(replace(request(out, launcher=forking), processes=None))
    assert [epoch.shares for epoch in run.epochs] == [None, [3, 1], [3, 1]]
    assert [rank["workers"] for rank in run.machine["ranks"]] == [[0, 1, 2], [3]]
    assert run.status.share_changes == [change]
    assert largest_difference(weights(alone), weights(run)) < 1e-12
    assert [epoch.val_accuracy for epoch in run.epochs] == [epoch.val_accuracy for epoch in alone.epochs]
