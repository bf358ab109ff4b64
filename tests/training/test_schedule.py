"""The learning rate of every update, and what changes when workers are added, each with its reason."""

from __future__ import annotations

import math

import pytest

from turnaround.optimizers import ADAM_BETAS, OPTIMIZERS
from turnaround.recipe import SCHEDULES, TrainingRecipe
from turnaround.training.schedule import Schedule, choose_scaling, make_schedule


def rates(kind: str, *, total: int = 30, warmup: int = 0, peak: float = 1.0) -> list[float]:
    made = Schedule(kind=kind, peak=peak, total_steps=total, warmup_steps=warmup)
    return [made.learning_rate(update) for update in range(total)]


def test_constant_stays() -> None:
    assert rates("constant") == [1.0] * 30


def test_cosine_falls_from_the_peak_to_almost_nothing() -> None:
    found = rates("cosine", total=100)
    assert found[0] == 1.0
    assert found[50] == pytest.approx(0.5)
    assert found[25] == pytest.approx(0.5 * (1 + math.sqrt(0.5)))
    assert 0 < found[-1] < 0.001
    assert found == sorted(found, reverse=True)
    after = Schedule(kind="cosine", peak=1.0, total_steps=100, warmup_steps=0)
    assert after.learning_rate(100) == pytest.approx(0, abs=1e-15)
    assert after.learning_rate(1000) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("thirds", range(1, 40))
def test_steps_fall_at_exactly_one_and_two_thirds(thirds: int) -> None:
    found = rates("step", total=3 * thirds)
    assert found == pytest.approx([1.0] * thirds + [0.1] * thirds + [0.01] * thirds)


@pytest.mark.parametrize("kind", [kind for kind in SCHEDULES if kind != "one_cycle"])
def test_warm_up_rises_in_equal_steps_to_the_peak_and_no_jump_follows(kind: str) -> None:
    found = rates(kind, total=30, warmup=10, peak=2.0)
    assert found[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert found[10] == 2.0
    assert max(found) == 2.0


@pytest.mark.parametrize("kind", [kind for kind in SCHEDULES if kind != "one_cycle"])
def test_warm_up_over_the_whole_training(kind: str) -> None:
    found = rates(kind, total=10, warmup=10)
    assert found == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert all(math.isfinite(r) for r in rates(kind, total=1))


def test_one_cycle_rises_over_a_quarter_of_the_training_whatever_the_warm_up() -> None:
    recipe = TrainingRecipe(epochs=4, warmup_epochs=9, learning_rate=1.0, schedule="one_cycle")
    made = make_schedule(recipe, steps_per_epoch=25, scaled=choose_scaling(recipe, workers=1).value)
    found = [made.learning_rate(step) for step in range(100)]
    assert found[0] == pytest.approx(1 / 25)
    assert found[25] == max(found) == 1.0
    assert found[:26] == sorted(found[:26])
    assert found[25:] == sorted(found[25:], reverse=True)
    assert found[-1] < 0.001


def test_muons_momentum_keeps_its_memory_in_images() -> None:
    def momentum(optimizer: str, workers: int) -> float | None:
        return choose_scaling(TrainingRecipe(optimizer=optimizer), workers=workers).value.momentum

    assert momentum("muon", 1) is None
    assert [momentum("muon", workers) for workers in (2, 4, 64)] == pytest.approx([0.9, 0.8, 0.6])
    assert momentum("sgd", 64) is None


def test_epochs_become_steps_once() -> None:
    recipe = TrainingRecipe(epochs=8, warmup_epochs=1.5, learning_rate=0.1, schedule="step", scaling="linear")
    made = make_schedule(recipe, steps_per_epoch=7, scaled=choose_scaling(recipe, workers=4).value)
    assert made == Schedule(kind="step", peak=pytest.approx(0.4), total_steps=56, warmup_steps=10)


@pytest.mark.parametrize(
    ("optimizer", "asked", "factor"),
    [
        ("sgd", "auto", 4.0),
        ("lars", "auto", 4.0),
        ("adam", "auto", 2.0),
        ("adamw", "auto", 2.0),
        ("lamb", "auto", 2.0),
        ("muon", "auto", 2.0),
        ("adadelta", "auto", 1.0),
        *((optimizer, "none", 1.0) for optimizer in OPTIMIZERS),
        *((optimizer, "linear", 4.0) for optimizer in OPTIMIZERS),
        *((optimizer, "sqrt", 2.0) for optimizer in OPTIMIZERS),
    ],
)
def test_the_learning_rate_of_four_workers(optimizer: str, asked: str, factor: float) -> None:
    found = choose_scaling(TrainingRecipe(optimizer=optimizer, scaling=asked), workers=4)
    assert found.value.factor == factor
    assert "4 workers" in found.reason
    assert f"x {factor:.3g}" in found.reason
    assert (
        f"{OPTIMIZERS[optimizer].auto_scaling} for {optimizer}" if asked == "auto" else f"scaling = {asked}"
    ) in found.reason


@pytest.mark.parametrize("asked", ["none", "linear", "sqrt", "auto"])
def test_one_worker_and_a_fixed_global_batch_change_nothing(asked: str) -> None:
    recipe = TrainingRecipe(scaling=asked, warmup_epochs=1)
    alone = choose_scaling(recipe, workers=1)
    assert "One worker" in alone.reason
    fixed = choose_scaling(TrainingRecipe(scaling=asked, batch_total=64, warmup_epochs=1), workers=4)
    assert "fixed at 64" in fixed.reason
    for found in (alone.value, fixed.value):
        assert (found.factor, found.warmup_epochs, found.betas, found.norm_power) == (1.0, 1, ADAM_BETAS, 1)
        assert found.norm_momentum(0.1) == pytest.approx(0.1)


@pytest.mark.parametrize("asked", ["none", "linear", "sqrt"])
def test_an_explicit_rule_changes_the_learning_rate_alone(asked: str) -> None:
    found = choose_scaling(TrainingRecipe(scaling=asked, warmup_epochs=1), workers=8)
    scaled = found.value
    assert (scaled.warmup_epochs, scaled.betas, scaled.norm_power) == (1, ADAM_BETAS, 1)
    assert "nothing else is adjusted" in found.reason


def test_auto_keeps_the_memory_in_images() -> None:
    found = choose_scaling(TrainingRecipe(optimizer="adamw", epochs=30, warmup_epochs=1), workers=4).value
    assert found.betas == pytest.approx((0.6, 0.996))
    assert found.warmup_epochs == 2
    assert found.norm_momentum(0.1) == pytest.approx(1 - 0.9**4)  # four updates of one worker


@pytest.mark.parametrize("workers", [2, 8, 64, 4096])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_auto_stays_in_range_for_any_number_of_workers(optimizer: str, workers: int) -> None:
    recipe = TrainingRecipe(optimizer=optimizer, epochs=10, warmup_epochs=1)
    found = choose_scaling(recipe, workers=workers).value
    assert 0.5 <= found.betas[0] <= 0.9 <= found.betas[1] <= 0.999
    assert 1 <= found.warmup_epochs <= 2
    assert 0 < found.norm_momentum(0.1) <= 1
    longer = TrainingRecipe(optimizer=optimizer, epochs=10, warmup_epochs=5)
    assert choose_scaling(longer, workers=workers).value.warmup_epochs == 5  # never shorter than asked for
