"""The stable epoch: simulated curves whose truth is known, and everything that a curve can lack."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest

from turnaround.analysis.curves import Array
from turnaround.analysis.stable import (
    EpochEstimate,
    epochs_to_target,
    is_stable,
    stable_epoch,
    stable_over_repeats,
)

NAN = float("nan")
NUM_VALIDATION = 2500
NUM_CURVES = 50


def shape(name: str, size: int) -> Array:
    """Noise-free curves; epochs scale with the length, so that each has its plateau in the run."""
    e = np.arange(1, size + 1) / size
    growth = 0.9 - 0.5 * np.exp(-e / 0.15)
    shapes = {
        "exponential": growth,
        "power": 0.9 - 0.5 * (1 + 6 * e) ** -2.5,
        "overfit": growth - 0.04 * np.maximum(0, (e - 0.6) / 0.4),
        "cosine": 0.9 - 0.2 * (1 + np.cos(np.pi * np.minimum(e / 0.8, 1))),
        "lr-step": np.where(e <= 0.6, 0.82 - 0.4 * np.exp(-e / 0.1), 0.88 - 0.02 * np.exp(-(e - 0.6) * size)),
    }
    return shapes[name]


def measured(mean: Array, noise: float, rng: np.random.Generator) -> Array:
    """One run: training noise, then the accuracy counted on the validation set."""
    share = np.clip(mean + noise * rng.standard_normal(len(mean)), 0, 1)
    return rng.binomial(NUM_VALIDATION, share) / NUM_VALIDATION


@functools.cache
def trial(name: str, size: int) -> tuple[float, float, float]:
    """Standard deviation of the error, share within 2 epochs, and coverage of the 80 % interval."""
    mean, rng = shape(name, size), np.random.default_rng(size)
    truth = 1 + int(np.argmax(mean >= mean.max() - 0.01))
    errors, covered = [], []
    for noise in (0.003, 0.006):
        for seed in range(NUM_CURVES):
            found = stable_epoch(measured(mean, noise, rng), num_validation=NUM_VALIDATION, seed=seed)
            if found.status == "too noisy":
                continue
            assert found.epoch is not None
            assert found.low is not None
            errors.append(found.epoch - truth)
            covered.append(found.low <= truth <= (found.high or math.inf))
    assert len(errors) >= 0.97 * 2 * NUM_CURVES
    return float(np.std(errors)), float(np.mean(np.abs(errors) <= 2)), float(np.mean(covered))


# The share that a hundred curves show scatters by four points around the true one.
@pytest.mark.parametrize(
    ("size", "sd", "within", "coverage"), [(10, 1.5, 0.90, 0.78), (20, 2.6, 0.78, 0.74), (30, 2.4, 0.70, 0.68)]
)
@pytest.mark.parametrize("name", ["exponential", "power", "overfit", "cosine", "lr-step"])
def test_the_estimate_is_as_good_as_promised(name: str, size: int, sd: float, within: float, coverage: float) -> None:
    found_sd, found_within, found_coverage = trial(name, size)
    assert found_sd <= sd
    assert found_within >= within
    assert found_coverage >= coverage


@pytest.mark.parametrize("size", [20, 30])
def test_the_interval_is_not_wider_than_it_need_be(size: int) -> None:
    rng = np.random.default_rng(1)
    curves = [measured(shape("exponential", size), 0.006, rng) for _ in range(30)]
    found = [stable_epoch(curve, num_validation=NUM_VALIDATION) for curve in curves]
    widths = [one.high - one.low for one in found if one.high is not None and one.low is not None]
    assert 1 < np.mean(widths) < 4.8


def share_stable(mean: Array, noise: float, count: int = 150) -> float:
    rng = np.random.default_rng(11)
    return float(np.mean([is_stable(measured(mean, noise, rng), num_validation=NUM_VALIDATION) for _ in range(count)]))


@pytest.mark.parametrize("size", [10, 20, 30])
def test_a_flat_curve_is_stable(size: int) -> None:
    assert share_stable(np.full(size, 0.85), 0.005) >= 0.88


@pytest.mark.parametrize(("size", "gain"), [(10, 0.03), (20, 0.025), (30, 0.025)])
def test_a_curve_that_gains_points_in_its_last_third_is_not_stable(size: int, gain: float) -> None:
    last_third = math.ceil(size / 3)
    rising = 0.9 + gain * (np.arange(1, size + 1) - size) / (last_third - 1)
    assert share_stable(rising, 0.003) <= 0.15


# --- what must hold for any curve


@pytest.mark.parametrize("num_validation", [NUM_VALIDATION, None])
@pytest.mark.parametrize("size", [20, 30, 100])
def test_an_exact_exponential_gives_the_true_epoch(size: int, num_validation: int | None) -> None:
    mean = shape("exponential", size)
    found = stable_epoch(mean, num_validation=num_validation)
    assert (found.status, found.method) == ("stable", "smooth")
    assert found.epoch == 1 + np.argmax(mean >= mean.max() - 0.01)
    assert found.level == pytest.approx(mean.max(), abs=1e-3)


@pytest.mark.parametrize("name", ["exponential", "lr-step"])
def test_a_constant_does_not_move_the_epoch(name: str) -> None:
    curve = measured(shape(name, 30), 0.004, np.random.default_rng(0))
    here, there = (stable_epoch(curve + shift, num_validation=None) for shift in (0.0, 0.05))
    assert (here.epoch, here.low, here.high, here.method) == (there.epoch, there.low, there.high, there.method)
    assert here.level is not None
    assert there.level == pytest.approx(here.level + 0.05)


def test_a_learning_rate_step_is_not_taken_for_growth() -> None:
    found = stable_epoch(shape("lr-step", 30), num_validation=NUM_VALIDATION)
    assert (found.method, found.epoch) == ("isotonic", 19)


def test_the_same_seed_gives_the_same_interval() -> None:
    curve = measured(shape("exponential", 30), 0.006, np.random.default_rng(0))
    found = [stable_epoch(curve, num_validation=NUM_VALIDATION, seed=7) for _ in range(2)]
    assert found[0] == found[1]


def test_a_band_thinner_than_the_noise_is_widened() -> None:
    curve = measured(shape("exponential", 30), 0.012, np.random.default_rng(0))
    found = stable_epoch(curve, num_validation=NUM_VALIDATION, band=0.001)
    assert found.status == "stable"
    assert 0.006 < found.band < 0.02


# --- curves of other people


def judged(mean: Array, noise: float | Array = 0.003, seed: int = 0, num_validation: int = 50_000) -> EpochEstimate:
    curve = mean + noise * np.random.default_rng(seed).standard_normal(len(mean))
    return stable_epoch(curve, num_validation=num_validation)


EPOCHS = np.arange(1, 91)
STEPPED = np.select([EPOCHS <= 30, EPOCHS <= 60], [0.55 - 0.3 * np.exp(-EPOCHS / 5), 0.68 + 0 * EPOCHS], 0.74)
ROUGH_START = np.where(EPOCHS <= 60, 0.02, 0.002)
"""ImageNet's usual schedule: a step at 30 and at 60 of 90; its learning rate makes the first two thirds rough."""


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_the_last_third_alone_makes_the_band(seed: int) -> None:
    found = judged(STEPPED, ROUGH_START, seed)
    assert (found.status, found.epoch) == ("stable", 61)
    assert found.band == 0.01
    assert found.noise is not None
    assert found.noise > 0.01


@pytest.mark.parametrize("seed", range(5))
def test_a_step_that_has_just_come_is_not_yet_a_plateau(seed: int) -> None:
    assert judged(np.where(EPOCHS[:30] < 28, 0.80, 0.86), seed=seed).status == "not yet stable"
    assert judged(np.where(EPOCHS[:30] < 30, 0.80, 0.86), seed=seed).status == "not yet stable"


@pytest.mark.parametrize("seed", range(5))
def test_a_curve_that_falls_at_the_end_has_left_its_plateau(seed: int) -> None:
    risen = 0.86 - 0.3 * np.exp(-EPOCHS[:30] / 3)
    for fallen in (np.where(EPOCHS[:30] < 27, risen, 0.80), np.where(EPOCHS[:30] < 30, risen, 0.5)):
        found = judged(fallen, seed=seed)
        assert (found.status, found.high) == ("not yet stable", None)
        assert found.level is not None
        assert found.level == pytest.approx(0.86, abs=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_a_curve_that_rises_slowly_after_a_rough_start_is_not_stable(seed: int) -> None:
    rising = 0.5 + 0.1 * np.log(EPOCHS[:30])
    assert judged(rising, np.where(EPOCHS[:30] <= 10, 0.05, 0.003), seed).status == "not yet stable"


def test_a_band_over_two_points_gives_no_verdict() -> None:
    curve = np.where(EPOCHS[:30] % 2 == 0, 0.8, 0.7)
    found = stable_epoch(curve, num_validation=50_000)
    assert (found.status, found.epoch, found.low, found.high) == ("too noisy", None, None, None)
    assert found.band > 0.02
    assert not is_stable(curve, num_validation=50_000)
    assert stable_epoch(curve, num_validation=50_000, band=0.2).status == "stable"
    # Few images make every accuracy uncertain, but the same images are counted in every epoch.
    assert stable_epoch([0.7] * 12, num_validation=50).band == 0.02


@pytest.mark.parametrize("name", ["exponential", "power", "overfit", "cosine", "lr-step"])
def test_the_level_is_never_above_the_best_seen(name: str) -> None:
    for seed in range(20):
        curve = measured(shape(name, 12), 0.004, np.random.default_rng(seed))
        found = stable_epoch(curve, num_validation=NUM_VALIDATION)
        assert found.level is not None
        assert found.level <= curve.max()


def test_a_curve_that_is_cut_off_is_a_lower_bound() -> None:
    found = stable_epoch(shape("exponential", 60)[:15], num_validation=NUM_VALIDATION)
    assert (found.status, found.high) == ("not yet stable", None)
    assert found.epoch is not None
    assert 12 <= found.epoch <= 15


def test_epochs_without_a_value_are_left_out_and_keep_their_number() -> None:
    mean = shape("exponential", 30)
    curve = [NAN if epoch in (1, 7, 8, 25) else value for epoch, value in enumerate(mean, start=1)]
    whole, gaps = (stable_epoch(values, num_validation=NUM_VALIDATION) for values in (mean, curve))
    assert gaps.status == "stable"
    assert gaps.epoch == whole.epoch
    sparse = [value if epoch % 3 == 0 else math.inf for epoch, value in enumerate(mean, start=1)]
    found = stable_epoch(sparse, num_validation=NUM_VALIDATION)
    assert found.epoch == 18  # a multiple of 3


@pytest.mark.parametrize(
    ("values", "status", "level"),
    [
        ([], "unknown", None),
        ([NAN, NAN], "unknown", None),
        ([0.5], "too short", 0.5),
        ([0.5, 0.6, NAN, 0.7, 0.7, 0.7], "too short", 0.7),
    ],
)
def test_too_little_gives_no_verdict(values: list[float], status: str, level: float | None) -> None:
    for found in (stable_epoch(values, num_validation=100), epochs_to_target(values, 0.5, num_validation=100)):
        assert (found.status, found.level, found.method) == (status, level, "none")
        assert (found.epoch, found.low, found.high, found.noise) == (None, None, None, None)


@pytest.mark.parametrize("size", [6, 10, 11, 50])
@pytest.mark.parametrize("value", [0.0, 0.7, 1.0, -3.0, 95.0])
def test_a_constant_curve_is_stable_from_the_first_epoch(size: int, value: float) -> None:
    found = stable_epoch([value] * size, num_validation=100)
    assert (found.status, found.epoch) == ("stable", 1)
    assert found.level == pytest.approx(value)


def test_up_to_ten_epochs_are_isotonic() -> None:
    assert stable_epoch(shape("exponential", 10), num_validation=NUM_VALIDATION).method == "isotonic"
    assert stable_epoch(shape("exponential", 11), num_validation=NUM_VALIDATION).method == "smooth"


def test_noise_that_nothing_tells_is_not_invented() -> None:
    found = stable_epoch([0.1, 0.3, 0.5, 0.6, 0.65, 0.66, 0.661], num_validation=None)
    assert (found.noise, found.low, found.high) == (None, None, None)
    assert found.epoch is not None


# --- a target


def test_epochs_to_a_target() -> None:
    mean = shape("exponential", 30)
    curve = measured(mean, 0.004, np.random.default_rng(3))
    found = epochs_to_target(curve, 0.85, num_validation=NUM_VALIDATION)
    truth = 1 + int(np.argmax(mean >= 0.85))
    assert found.status == "reached"
    assert found.epoch == pytest.approx(truth, abs=1)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.epoch <= found.high


def test_a_target_that_is_not_reached() -> None:
    found = epochs_to_target(shape("exponential", 30), 0.97, num_validation=NUM_VALIDATION)
    assert (found.status, found.epoch, found.low, found.high) == ("not reached", None, None, None)
    assert found.level == pytest.approx(0.9, abs=0.002)


def test_a_target_that_is_only_just_reached_has_no_upper_end() -> None:
    mean = shape("exponential", 30)
    found = epochs_to_target(mean, float(mean[-2]), num_validation=NUM_VALIDATION)
    assert found.low is not None
    assert found.high is None


# --- repeats


def one(epoch: float | None, status: str = "stable", width: float | None = 2.0, level: float = 0.9) -> EpochEstimate:
    known = epoch is not None and width is not None
    return EpochEstimate(
        status=status,  # type: ignore[arg-type]
        epoch=epoch,
        low=epoch - width if known else None,
        high=epoch + width if known and status in ("stable", "reached") else None,
        level=level,
        band=0.01,
        noise=0.005,
        method="smooth",
    )


def test_three_repeats_have_the_median_and_a_t_interval() -> None:
    found = stable_over_repeats([one(14, level=0.8), one(19, level=0.9), one(15, level=0.7)])
    assert (found.status, found.epoch, found.repeats, found.level) == ("stable", 15, 3, 0.8)
    half = 1.8856 * math.sqrt((7 + 1 / 12) / 3)
    assert found.low == pytest.approx(16 - half, abs=1e-3)
    assert found.high == pytest.approx(16 + half, abs=1e-3)


def test_equal_repeats_are_not_exact() -> None:
    found = stable_over_repeats([one(14)] * 4)
    assert found.low is not None
    assert found.low < 14


def test_two_repeats_join_their_intervals_and_their_distance() -> None:
    alike, apart = stable_over_repeats([one(14), one(14)]), stable_over_repeats([one(10), one(18)])
    assert (alike.epoch, alike.low) == (14, pytest.approx(14 - math.sqrt(2)))
    assert (apart.epoch, apart.repeats) == (14, 2)
    assert apart.high == pytest.approx(14 + math.hypot(math.sqrt(2), 1.2816 * 4), abs=1e-3)
    assert stable_over_repeats([one(14, width=None), one(15)]).low is None


def test_one_repeat_is_itself() -> None:
    assert stable_over_repeats([one(14)]) == one(14)
    assert stable_over_repeats([one(None, "too short"), one(14)]) == one(14)


def test_half_that_are_not_yet_stable_make_it_a_lower_bound() -> None:
    late = one(25, "not yet stable")
    found = stable_over_repeats([one(15), one(16), late, late])
    assert (found.status, found.epoch, found.high) == ("not yet stable", 20.5, None)
    few = stable_over_repeats([one(15), one(16), late])
    assert (few.status, few.epoch, few.high) == ("stable", 16, None)
    assert few.low is not None


def test_targets_that_some_do_not_reach() -> None:
    reached, never = one(10, "reached"), one(None, "not reached")
    most = stable_over_repeats([reached, replace(reached, epoch=12.0), never])
    assert (most.status, most.epoch, most.high) == ("reached", 12, None)
    half = stable_over_repeats([reached, never])
    assert (half.status, half.epoch, half.low, half.high) == ("not reached", None, None, None)


def test_runs_that_say_nothing_are_left_out_of_the_count() -> None:
    found = stable_over_repeats([one(14), one(15), one(None, "unknown"), one(None, "too short")])
    assert (found.status, found.repeats) == ("stable", 2)
    assert stable_over_repeats([one(None, "unknown"), one(None, "too short")]).status == "too short"
    nothing = stable_over_repeats([])
    assert (nothing.status, nothing.repeats) == ("unknown", 0)


def test_stated_values_of_three_runs_have_an_interval() -> None:
    stated = [replace(one(epoch, width=None), method="stated", noise=None) for epoch in (14.0, 15.0, 19.0)]
    found = stable_over_repeats(stated)
    assert (found.method, found.epoch, found.noise) == ("stated", 15, None)
    assert found.high is not None
    assert found.high > 16
