"""Over-fitting verdicts: each kind once, then how often they are wrong on simulated curves."""

from __future__ import annotations

import numpy as np
import pytest

from turnaround.analysis.curves import Array, Curve
from turnaround.analysis.overfit import overfitting

NAN = float("nan")
NUM_VALIDATION = 2500


def growth(size: int, top: float = 0.9, time: float = 0.1) -> Array:
    return top - 0.5 * np.exp(-np.arange(1, size + 1) / (time * size))


def fall(size: int, drop: float) -> Array:
    """Grows, then loses `drop` between the middle and the last epoch."""
    e = np.arange(1, size + 1) / size
    return growth(size) - drop * np.maximum(0, (e - 0.5) / 0.5)


def curve(val: Array, train: Array | None = None, val_loss: Array | None = None) -> Curve:
    unknown = np.full(len(val), NAN)
    return Curve(
        epochs=tuple(range(1, len(val) + 1)),
        val_accuracy=tuple(val),
        train_accuracy=tuple(unknown if train is None else train),
        val_loss=tuple(unknown if val_loss is None else val_loss),
        train_loss=tuple(unknown),
    )


def measured(mean: Array, noise: float, rng: np.random.Generator, num_validation: int = NUM_VALIDATION) -> Array:
    share = np.clip(mean + noise * rng.standard_normal(len(mean)), 0, 1)
    return rng.binomial(num_validation, share) / num_validation


def share_harmful(mean: Array, noise: float, *, count: int = 100, num_validation: int = NUM_VALIDATION) -> float:
    rng = np.random.default_rng(2024)
    curves = [curve(measured(mean, noise, rng, num_validation)) for _ in range(count)]
    found = [overfitting(one, num_validation=num_validation, seed=i) for i, one in enumerate(curves)]
    return float(np.mean([one.kind == "harmful" for one in found]))


# --- how often it is wrong


# Six hundred curves a shape: of a hundred, a true 3.5 % shows more than 5 % every sixth time.
@pytest.mark.parametrize("name", ["flat", "growing"])
def test_curves_that_do_not_fall_raise_few_false_alarms(name: str) -> None:
    means = {size: np.full(size, 0.9) if name == "flat" else growth(size, time=0.15) for size in (10, 20, 30)}
    shares = [share_harmful(mean, noise) for mean in means.values() for noise in (0.003, 0.006)]
    assert np.mean(shares) <= 0.05


def test_a_large_fall_is_found() -> None:
    assert share_harmful(fall(30, 0.038), 0.003) >= 0.82  # 90 % over many seeds
    assert share_harmful(fall(30, 0.038), 0.003, num_validation=10_000) >= 0.97


def test_a_small_fall_is_mostly_found() -> None:
    assert share_harmful(fall(30, 0.019), 0.003, num_validation=10_000) >= 0.65  # 80 % over many seeds


# --- each verdict


def test_harmful_says_how_far_and_since_when() -> None:
    found = overfitting(curve(fall(30, 0.06), train=growth(30) + 0.05), num_validation=NUM_VALIDATION)
    assert found.kind == "harmful"
    assert found.drop == pytest.approx(0.06, abs=0.01)
    assert found.since_epoch is not None
    assert 13 <= found.since_epoch <= 17
    assert found.p is not None
    assert found.p < 0.02


def test_a_rising_loss_alone_is_over_confidence() -> None:
    loss = np.concatenate([np.linspace(2.0, 0.5, 15), np.linspace(0.5, 0.8, 15)])
    found = overfitting(curve(growth(30), growth(30) + 0.08, loss), num_validation=NUM_VALIDATION)
    assert found.kind == "over-confident"
    means = np.convolve(loss, np.ones(3) / 3, mode="valid")
    assert found.loss_rise_percent == pytest.approx(100 * (means[-1] / means.min() - 1))


def test_a_gap_without_a_fall_is_memorising() -> None:
    found = overfitting(curve(growth(30), growth(30) + 0.08, np.full(30, 0.4)), num_validation=NUM_VALIDATION)
    assert (found.kind, found.loss_rise_percent) == ("memorising", pytest.approx(0))
    assert found.gap == pytest.approx(0.08)
    assert found.gap_se is not None
    assert 0.005 < found.gap_se < 0.012


def test_a_small_gap_on_a_plateau_is_none() -> None:
    found = overfitting(curve(growth(30), growth(30) + 0.01, np.full(30, 0.4)), num_validation=NUM_VALIDATION)
    assert (found.kind, found.drop, found.p, found.since_epoch) == ("none", 0, 1, None)


def test_a_gap_within_its_error_is_none() -> None:
    found = overfitting(curve(growth(30), growth(30) + 0.04, np.full(30, 0.4)), num_validation=100)
    assert found.kind == "none"


def test_training_accuracy_that_still_rises_is_underfitting() -> None:
    rising = np.linspace(0.3, 0.7, 30)
    found = overfitting(curve(rising, rising + 0.002, np.full(30, 1.0)), num_validation=NUM_VALIDATION)
    assert found.kind == "underfitting"


# --- what is missing is None


def test_nothing_is_unknown() -> None:
    found = overfitting(Curve(), num_validation=None)
    assert found.kind == "unknown"
    assert {found.drop, found.since_epoch, found.p, found.loss_rise_percent, found.gap, found.gap_se} == {None}


def test_a_short_curve_is_unknown_and_has_its_gap() -> None:
    found = overfitting(curve(growth(5), growth(5) + 0.2), num_validation=NUM_VALIDATION)
    assert (found.kind, found.drop, found.p) == ("unknown", None, None)
    assert found.gap == pytest.approx(0.2)


def test_without_training_accuracy_only_a_fall_or_the_loss_can_be_told() -> None:
    found = overfitting(curve(growth(30)), num_validation=NUM_VALIDATION)
    assert (found.kind, found.drop, found.gap, found.gap_se) == ("unknown", 0, None, None)
    assert overfitting(curve(fall(30, 0.06)), num_validation=NUM_VALIDATION).kind == "harmful"


def test_without_losses_the_accuracies_are_judged() -> None:
    found = overfitting(curve(growth(30), growth(30) + 0.08), num_validation=NUM_VALIDATION)
    assert (found.kind, found.loss_rise_percent) == ("memorising", None)


def test_without_the_size_of_the_set_the_error_comes_from_the_noise() -> None:
    val = growth(30) + 0.004 * np.random.default_rng(0).standard_normal(30)
    found = overfitting(curve(val, val + 0.08, np.full(30, 0.4)), num_validation=None)
    assert found.kind == "memorising"
    assert found.gap_se == pytest.approx(0.004 * np.sqrt(2), rel=0.4)


def test_the_gap_is_taken_next_to_the_stable_epoch_where_both_are_known() -> None:
    val, train = growth(30), growth(30) + np.linspace(0, 0.29, 30)
    whole = overfitting(curve(val, train), num_validation=NUM_VALIDATION).gap
    train[[10, 11, 12]] = NAN
    assert whole == pytest.approx(0.11, abs=0.011)
    assert overfitting(curve(val, train), num_validation=NUM_VALIDATION).gap == pytest.approx(whole, abs=0.031)


def test_repeated_and_missing_epochs_and_odd_values_are_no_obstacle() -> None:
    val = fall(30, 0.06)
    odd = Curve(
        epochs=(*range(1, 16), *range(14, 20), *range(22, 31)),
        val_accuracy=(*val[:15], *val[13:19], *val[21:]),
    )
    assert overfitting(odd, num_validation=NUM_VALIDATION).kind == "harmful"
    assert overfitting(curve(100 * growth(30), 100 * growth(30), -growth(30)), num_validation=100).kind != "unknown"


def test_the_same_seed_gives_the_same_answer() -> None:
    one = curve(measured(fall(30, 0.02), 0.006, np.random.default_rng(1)))
    assert overfitting(one, num_validation=None, seed=3) == overfitting(one, num_validation=None, seed=3)
