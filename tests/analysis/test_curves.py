"""Fits of learning curves, against slow but obvious ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from turnaround.analysis.curves import (
    Array,
    Curve,
    cached_by_curve,
    growth_fit,
    monotone_fit,
    moving_means,
    num_blocks,
    robust_growth_fit,
    simulated,
    unimodal_fit,
)
from turnaround.analysis.stable import fit_curve, stable_epoch

NAN = float("nan")


def slow_monotone(values: Array) -> Array:
    """Isotonic regression by its min-max formula."""
    size = len(values)
    return np.array(
        [max(min(values[j : k + 1].mean() for k in range(i, size)) for j in range(i + 1)) for i in range(size)]
    )


def slow_unimodal_error(values: Array) -> float:
    errors = []
    for rising in range(len(values) + 1):
        left, right = values[:rising], values[rising:]
        fitted = [*slow_monotone(left), *slow_monotone(right[::-1])[::-1]]
        errors.append(float(np.sum((values - fitted) ** 2)))
    return min(errors)


def noisy(count: int, size: int) -> Array:
    epochs = np.arange(1, size + 1)
    return 0.9 - 0.5 * np.exp(-epochs / 3) + 0.05 * np.random.default_rng(size).standard_normal((count, size))


@pytest.mark.parametrize("size", [1, 2, 7, 15])
def test_the_monotone_fit_is_the_nearest_increasing_curve(size: int) -> None:
    curves = noisy(20, size)
    for fitted, values in zip(monotone_fit(curves), curves, strict=True):
        np.testing.assert_allclose(fitted, slow_monotone(values), atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 7, 12])
def test_the_unimodal_fit_tries_every_peak(size: int) -> None:
    curves = noisy(20, size)
    for fitted, values in zip(unimodal_fit(curves), curves, strict=True):
        assert np.sum((values - fitted) ** 2) == pytest.approx(slow_unimodal_error(values), abs=1e-12)
        signs = np.sign(np.round(np.diff(fitted), 12))
        assert list(signs[signs != 0]) == sorted(signs[signs != 0], reverse=True)  # up, then down


def test_ties_and_large_constants_cost_no_digits() -> None:
    curve = np.array([[3.0, 3.0, 1.0, 1.0, 5.0]])
    np.testing.assert_allclose(monotone_fit(curve), [[2, 2, 2, 2, 5]])
    np.testing.assert_allclose(unimodal_fit(curve + 1e6) - 1e6, unimodal_fit(curve), atol=1e-8)


def test_blocks_are_counted() -> None:
    assert list(num_blocks(np.array([[1.0, 1.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0]]))) == [3, 1]


@pytest.mark.parametrize("b", [0.5, 0.8, 1.0, 1.7, 2.0])
@pytest.mark.parametrize("t", [0.5, 4.0, 11.3, 60.0])
def test_the_growth_fit_finds_an_exact_curve(t: float, b: float) -> None:
    epochs = tuple(range(1, 31))
    exact = 0.9 - 0.4 * np.exp(-(((np.arange(1, 31) - 0.5) / t) ** b))
    assert np.abs(growth_fit(epochs, exact[None])[0] - exact).max() < 1e-3  # a tenth of a point


def test_the_growth_fit_is_as_good_as_a_general_optimizer() -> None:
    from scipy.optimize import least_squares

    x = np.arange(1, 31) - 0.5
    curves = noisy(6, 30)
    for values, fitted in zip(curves, growth_fit(tuple(range(1, 31)), curves), strict=True):
        best = min(
            2
            * least_squares(
                lambda p, values=values: p[0] - p[1] * np.exp(-((x / p[2]) ** p[3])) - values,
                [0.9, 0.5, t, 1.0],
                bounds=([-9, 0, 0.25, 0.5], [9, 999, 90, 2.0]),
            ).cost
            for t in (1.0, 5.0, 20.0)
        )
        assert np.sum((values - fitted) ** 2) <= 1.01 * best


def test_a_falling_curve_is_fitted_by_a_constant() -> None:
    falling = np.linspace(0.9, 0.5, 20)[None]
    np.testing.assert_allclose(growth_fit(tuple(range(1, 21)), falling), np.full((1, 20), 0.7))


def test_epochs_that_are_missing_do_not_bend_the_growth_fit() -> None:
    epochs = (1, 2, 3, 5, 8, 9, 14, 15, 21, 22, 30)
    exact = 0.9 - 0.4 * np.exp(-((np.asarray(epochs) - 0.5) / 4))
    np.testing.assert_allclose(growth_fit(epochs, exact[None])[0], exact, atol=2e-4)


def test_the_robust_fit_shrugs_off_an_outlier() -> None:
    epochs = tuple(range(1, 31))
    exact = 0.9 - 0.4 * np.exp(-(np.arange(1, 31) - 0.5) / 4)
    spoilt = exact.copy()
    spoilt[20] -= 0.3
    plain = np.abs(growth_fit(epochs, spoilt[None])[0] - exact)[25]
    robust = np.abs(robust_growth_fit(epochs, spoilt, 0.005) - exact)[25]
    assert robust < plain / 3


def test_moving_means() -> None:
    np.testing.assert_allclose(moving_means(np.array([[1.0, 2.0, 6.0, 1.0]]), 3), [[3, 3]])


def test_simulated_curves_have_the_noise_and_the_seed() -> None:
    curves = simulated(np.linspace(0, 1, 50), 0.02, 200, seed=3)
    assert curves.std(axis=0).mean() == pytest.approx(0.02, rel=0.05)
    np.testing.assert_array_equal(curves, simulated(np.linspace(0, 1, 50), 0.02, 200, seed=3))


def test_a_curve_is_filled_up_to_its_last_epoch() -> None:
    curve = Curve(epochs=(2, 4, 4), val_accuracy=(0.2, 0.4, 0.5), val_loss=(2.0, 1.0, NAN))
    filled = curve.filled()
    assert filled.epochs == (1, 2, 3, 4)
    assert filled.val_accuracy == pytest.approx((NAN, 0.2, NAN, 0.5), nan_ok=True)  # of a repeated epoch the newest
    assert filled.val_loss == pytest.approx((NAN, 2.0, NAN, NAN), nan_ok=True)
    assert all(map(math.isnan, filled.train_accuracy))
    assert len(filled.train_accuracy) == 4
    assert Curve().filled() == Curve()


# --- a judgement is made once for each curve and each set of details

RISING = [0.1, 0.3, math.nan, 0.5, 0.55, 0.57, 0.58, 0.58, 0.59, 0.58, 0.59, 0.59]


def test_a_curve_is_judged_once_whatever_holds_it() -> None:
    asked: list[tuple[int, int]] = []

    @cached_by_curve
    def judge(curve: Sequence[float], *, seed: int) -> float:
        asked.append((len(curve), seed))
        return float(np.nansum(curve)) + seed

    assert judge(RISING, seed=0) == judge(np.array(RISING), seed=0) == judge(tuple(RISING), seed=0)
    assert judge(RISING, seed=1) == judge(RISING, seed=0) + 1
    assert judge(RISING[:4], seed=0) < judge(RISING, seed=0)
    assert asked == [(12, 0), (12, 1), (4, 0)]


def test_a_curve_that_grows_is_judged_anew() -> None:
    short = stable_epoch(RISING[:8], num_validation=500)
    assert stable_epoch(RISING[:8], num_validation=500) is short
    assert stable_epoch(RISING, num_validation=500) is not short
    assert stable_epoch(RISING[:8], num_validation=5000) is not short
    assert fit_curve(RISING, num_images=500, band=0.01) is fit_curve(list(RISING), num_images=500, band=0.01)
