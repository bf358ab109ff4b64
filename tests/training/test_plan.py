"""Which epoch is the best, and when a training ends before its last epoch: the plan, told of epochs by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from turnaround.analysis.stable import is_stable, stable_epoch
from turnaround.recipe import TrainingRecipe
from turnaround.record.schema import BestEpoch, EpochRecord
from turnaround.training.checkpoint import Manifest
from turnaround.training.plan import (
    WARMED_SHARE,
    EpochPlan,
    IsStable,
    PlanState,
    SchedulePiece,
    course_end,
    extended,
    laid_over,
    rate_at,
)
from turnaround.training.position import TrainingPosition
from turnaround.training.schedule import Schedule
from turnaround.workers.single import Single

STEPS = 5
PEAK = 0.2


def record(epoch: int, accuracy: float, loss: float = 1.0) -> EpochRecord:
    figures = {"train_loss": 1.0, "train_accuracy": 0.5, "epoch_time_s": 1.0, "images_per_s": 1.0, "learning_rate": 0.1}
    return EpochRecord(epoch=epoch, val_accuracy=accuracy, val_loss=loss, **figures)


class Ticking:
    """A clock that a test sets."""

    now_s = 0.0

    def total_program_s(self) -> float:
        return self.now_s


def schedule_over(epochs: int, kind: str = "cosine") -> Schedule:
    return Schedule(kind=kind, peak=0.1, total_steps=STEPS * epochs, warmup_steps=STEPS)


def plan(
    *,
    saved: dict[str, object] | None = None,
    epochs_done: int = 0,
    rule: IsStable | None = None,
    clock: Ticking | None = None,
    kind: str = "cosine",
    **keys: object,
) -> EpochPlan:
    position = TrainingPosition(epochs_done=epochs_done, global_step=STEPS * epochs_done)
    return EpochPlan(
        TrainingRecipe(**{"epochs": 9, **keys}),  # type: ignore[arg-type]
        Single(count=1, device=torch.device("cpu")),
        start=Manifest(position=position, plan=saved or {}),
        make_schedule=lambda epochs: schedule_over(epochs, kind),
        steps_per_epoch=STEPS,
        clock=clock or Ticking(),  # type: ignore[arg-type]
        is_stable=rule,
    )


def run_through(made: EpochPlan, *accuracies: float) -> EpochPlan:
    for accuracy in accuracies:
        if len(made.state.val_accuracy) < made.epochs:
            made.after_epoch(record(len(made.state.val_accuracy) + 1, accuracy))
    return made


def test_the_best_is_the_highest_then_of_lower_loss_then_the_earlier() -> None:
    made = plan()
    for epoch, (accuracy, loss) in enumerate([(0.5, 1.0), (0.7, 1.0), (0.7, 0.9), (0.7, 0.9), (0.6, 0.1)], start=1):
        made.after_epoch(record(epoch, accuracy, loss))
    assert made.best == BestEpoch(epoch=3, val_accuracy=0.7, val_loss=0.9)
    assert "val_accuracy" in made.best.measure


def test_patience_ends_it_and_says_so() -> None:
    made = run_through(plan(patience=3), 0.5, 0.6, 0.6, 0.55, 0.6, 0.9)
    assert made.epochs == 5
    assert made.state.stopped_early == "Stopped early after epoch 5 of 9: no better for 3 epochs."
    assert made.best is not None
    assert made.best.epoch == 2


def test_a_lower_loss_alone_is_better_but_no_reason_to_go_on() -> None:
    made = plan(patience=2)
    for epoch in (1, 2, 3):
        made.after_epoch(record(epoch, 0.5, 1 / epoch))
    assert (made.epochs, made.best) == (3, BestEpoch(epoch=3, val_accuracy=0.5, val_loss=1 / 3))


def test_without_patience_or_with_enough_of_it_all_epochs_are_trained() -> None:
    for made in (plan(), plan(patience=8)):
        assert run_through(made, *[0.5] * 9).epochs == 9
        assert made.state.stopped_early is None  # the last epoch is no early one


def test_a_plan_goes_on_from_what_a_checkpoint_keeps() -> None:
    before = run_through(plan(patience=3), 0.5, 0.6, 0.6)
    saved = json.loads(json.dumps(before.state.to_json()))
    after = plan(saved=saved, patience=3)
    assert after.state == before.state
    assert run_through(after, 0.6, 0.6).epochs == 5


def test_stable_is_the_rule_of_the_reports() -> None:
    rng = np.random.default_rng(0)
    curve = list(0.9 - 0.6 * np.exp(-np.arange(30) / 3) + rng.normal(0, 0.004, 30))
    made = plan(epochs=30, rule=lambda known: is_stable(known, num_validation=2000))
    run_through(made, *curve)
    ended = made.epochs
    assert 8 <= ended < 30
    assert made.state.stopped_early == f"Stopped early after epoch {ended} of 30: the validation accuracy is stable."
    for epochs in range(1, 31):
        says = stable_epoch(curve[:epochs], num_validation=2000).status == "stable"
        assert says == is_stable(curve[:epochs], num_validation=2000)
        assert not (says and epochs < ended)


def test_a_curve_that_rises_is_not_stable() -> None:
    made = plan(epochs=30, rule=lambda known: is_stable(known, num_validation=2000))
    assert run_through(made, *np.linspace(0.1, 0.9, 30)).epochs == 30


# --- a time limit


def timed(made: EpochPlan, clock: Ticking, *took_s: float) -> EpochPlan:
    """Epochs that take so long, one after the other, until the plan ends."""
    for seconds in took_s:
        if len(made.state.val_accuracy) < made.epochs:
            clock.now_s += seconds
            epoch = len(made.state.val_accuracy) + 1
            made.after_epoch(replace(record(epoch, 0.5), epoch_time_s=seconds, evaluation_time_s=0.0))
    return made


def test_as_many_epochs_as_fit_by_the_first_that_is_warm() -> None:
    clock = Ticking()
    clock.now_s = 10.0  # start-up counts
    made = timed(plan(epochs=30, time_limit_s=100.0, clock=clock), clock, 8.0)
    assert (made.epochs, made.state.is_timed) == (30, False)  # the first epoch is cold
    timed(made, clock, 4.0)
    # 100 s less 3 %, less 22 s that are gone: 75 s, for 18 epochs of 4 s after the second
    assert made.epochs == 20
    assert made.state.stopped_early == "20 of 30 epochs fit into the time limit of 100 s, decided after epoch 2."
    timed(made, clock, *[4.0] * 30)
    assert len(made.state.val_accuracy) == 20
    assert clock.now_s == pytest.approx(94.0)


def test_the_rate_goes_on_from_where_it_is_and_reaches_its_end() -> None:
    clock, whole = Ticking(), schedule_over(30)
    made = timed(plan(epochs=30, time_limit_s=40.0, clock=clock), clock, 4.0, 4.0)
    assert made.epochs < 30
    at, end = 2 * STEPS, made.epochs * STEPS
    assert [made.learning_rate(step) for step in range(at + 1)] == [whole.learning_rate(step) for step in range(at + 1)]
    rates = [made.learning_rate(step) for step in range(at, end)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.02 * whole.peak
    assert made.learning_rate(end) == pytest.approx(0.0)


def test_what_becomes_slower_gets_fewer_epochs_never_more() -> None:
    clock = Ticking()
    made = timed(plan(epochs=30, time_limit_s=100.0, clock=clock), clock, 4.0, 4.0)
    first = made.epochs
    timed(made, clock, 10.0)
    fewer = made.epochs
    assert fewer < first
    timed(made, clock, *[1.0] * 3)
    assert made.epochs == fewer
    timed(made, clock, *[10.0] * 30)
    assert clock.now_s <= 100.0


@pytest.mark.parametrize(("limit_s", "epochs"), [(5.0, 1), (19.0, 2), (1e6, 30)])
def test_an_epoch_is_the_least_and_all_of_them_the_most(limit_s: float, epochs: int) -> None:
    clock = Ticking()
    made = timed(plan(epochs=30, time_limit_s=limit_s, clock=clock), clock, *[8.0] * 30)
    assert (made.epochs, len(made.state.val_accuracy)) == (epochs, epochs)
    assert (made.state.stopped_early is None) == (epochs == 30)


def test_what_was_decided_holds_for_a_resume() -> None:
    clock = Ticking()
    before = timed(plan(epochs=30, time_limit_s=100.0, clock=clock), clock, 4.0, 4.0)
    saved = json.loads(json.dumps(before.state.to_json()))
    after = plan(saved=saved, epochs_done=2, epochs=30, time_limit_s=100.0, clock=clock)
    assert after.state == before.state
    steps = range(before.epochs * STEPS)
    assert [after.learning_rate(step) for step in steps] == [before.learning_rate(step) for step in steps]
    timed(after, clock, 9.0)  # the first epoch after a start is cold: it changes nothing
    assert after.epochs == before.epochs


# --- more epochs afterwards


def finished(**keys: object) -> dict[str, object]:
    return json.loads(json.dumps(run_through(plan(**keys), *[0.5] * 9).state.to_json()))


def test_more_epochs_warm_a_rate_anew_that_has_fallen_to_nothing() -> None:
    made = plan(saved=finished(), epochs_done=9, epochs=20)
    assert made.epochs == 20
    assert made.note is not None
    assert made.note.startswith("20 epochs instead of 9: the learning rate had fallen to ")
    assert "a new cosine starts from 0.03 (30 % of the peak of 0.1)" in made.note
    rates = [made.learning_rate(step) for step in range(9 * STEPS, 20 * STEPS)]
    assert max(rates) == pytest.approx(0.03)
    assert rates.index(max(rates)) <= STEPS
    assert rates[-1] < 0.001
    before = schedule_over(9)
    assert [made.learning_rate(s) for s in range(9 * STEPS)] == [before.learning_rate(s) for s in range(9 * STEPS)]
    assert run_through(made, *[0.5] * 20).epochs == 20


def test_more_epochs_of_an_interrupted_run_stretch_what_is_left() -> None:
    saved = run_through(plan(), 0.5, 0.6, 0.7).state.to_json()
    made = plan(saved=saved, epochs_done=3, epochs=20)
    rates = [made.learning_rate(step) for step in range(3 * STEPS, 20 * STEPS)]
    assert rates[0] == schedule_over(9).learning_rate(3 * STEPS)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.001
    goes_on = f"the learning rate goes on from {rates[0]:.3g} and reaches its end with the last of them."
    assert made.note == f"20 epochs instead of 9: {goes_on}"


def test_a_constant_rate_stays() -> None:
    made = plan(saved=finished(kind="constant"), epochs_done=9, epochs=20, kind="constant")
    assert {made.learning_rate(step) for step in range(STEPS, 20 * STEPS)} == {0.1}
    assert made.note == "20 epochs instead of 9: the learning rate stays at 0.1."


def test_patience_counts_anew_when_more_epochs_are_asked_for() -> None:
    stopped = run_through(plan(patience=2, epochs=9), 0.5, 0.5, 0.5)
    assert stopped.epochs == 3
    made = plan(saved=stopped.state.to_json(), epochs_done=3, epochs=20, patience=2)
    assert (made.epochs, made.state.stopped_early) == (20, None)
    made.after_epoch(record(4, 0.4))
    assert made.epochs == 20
    made.after_epoch(record(5, 0.4))
    assert made.epochs == 5
    assert made.best is not None
    assert made.best.epoch == 1


def test_the_checkpoint_of_an_earlier_version_knows_the_epochs_asked_for() -> None:
    old = Manifest(position=TrainingPosition(epochs_done=9, global_step=9 * STEPS), recipe={"training.epochs": 9})
    state = PlanState.of(old, epochs_requested=20)
    assert (state.epochs_requested, state.began, state.epochs) == (9, 9, 9)


# --- the pieces of the learning rate: continuous where it goes on, stated where it starts anew


def schedule(kind: str, *, steps: int = 100, warmup_steps: int = 10) -> Schedule:
    return Schedule(kind=kind, peak=PEAK, total_steps=steps, warmup_steps=warmup_steps)


@pytest.mark.parametrize("kind", ["cosine", "one_cycle", "step", "constant"])
@pytest.mark.parametrize("end", [60, 400])
def test_what_is_left_is_laid_over_fewer_or_more_steps(kind: str, end: int) -> None:
    before = schedule(kind)
    pieces = [laid_over(40, end, before, [])]
    assert [rate_at(step, before, pieces) for step in range(41)] == [before.learning_rate(step) for step in range(41)]
    for share in (0.25, 0.5, 0.75):  # as far on the way to the end as before
        there = 40 + share * (100 - 40)
        assert rate_at(round(40 + share * (end - 40)), before, pieces) == pytest.approx(before.learning_rate(there))
    assert rate_at(end, before, pieces) == pytest.approx(before.learning_rate(100))
    assert course_end(before, pieces) == end


def test_within_the_warm_up_the_rest_of_it_is_shortened_too() -> None:
    before = schedule("cosine", warmup_steps=50)
    pieces = [laid_over(10, 40, before, [])]
    rates = [rate_at(step, before, pieces) for step in range(40)]
    assert max(rates) > 0.95 * PEAK
    assert rates[-1] < 0.02 * PEAK


def test_a_piece_speaks_of_the_course_before_it() -> None:
    before = schedule("cosine")
    twice = [laid_over(40, 80, before, [])]
    twice.append(laid_over(60, 200, before, twice))
    # Half of the way from 60 to 200 is step 70 of the course before, which is step 85 of the first.
    assert rate_at(130, before, twice) == pytest.approx(before.learning_rate(85))
    assert rate_at(200, before, twice) == pytest.approx(0.0)


def test_a_fallen_rate_is_warmed_anew_and_a_high_one_goes_on() -> None:
    before = schedule("cosine")
    anew = extended(100, 200, before, [], steps_per_epoch=5)
    assert anew is not None
    assert (anew.rate, anew.warmup_steps) == (WARMED_SHARE * PEAK, 5)
    rates = [rate_at(step, before, [anew]) for step in range(100, 200)]
    assert rates[4] == max(rates) == pytest.approx(WARMED_SHARE * PEAK)
    assert rates[:4] == sorted(rates[:4])
    assert rates[-1] < 0.001 * PEAK
    late = extended(95, 200, before, [], steps_per_epoch=5)  # a tail of next to nothing is not stretched
    assert late is not None
    assert late.rate is not None
    early = extended(50, 200, before, [], steps_per_epoch=5)
    assert early == SchedulePiece(at_step=50, end_step=200, before_end_step=100)
    assert extended(100, 200, schedule("constant"), [], steps_per_epoch=5) is None
    rising = extended(2, 200, schedule("one_cycle", warmup_steps=25), [], steps_per_epoch=5)
    assert rising is not None
    assert rising.rate is None  # its peak is still to come


def test_a_second_extension_follows_the_first() -> None:
    before = schedule("cosine")
    first = extended(100, 200, before, [], steps_per_epoch=5)
    assert first is not None
    second = extended(200, 260, before, [first], steps_per_epoch=5)
    assert second is not None
    assert (second.before_end_step, second.rate) == (200, WARMED_SHARE * PEAK)
    assert rate_at(150, before, [first, second]) == rate_at(150, before, [first])
