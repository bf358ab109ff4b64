"""The noise scale of problems where it is known."""

from __future__ import annotations

import math

import pytest
import torch

from turnaround.training.noise import NoiseMeter, ratio_of_means, squared_length


def measure(*, true_scale: float, small_size: int, big_size: int, steps: int, seed: int) -> NoiseMeter:
    """Gradients of images are G + noise, with |G|^2 = 1 and a noise of variance `true_scale` in all."""
    generator = torch.Generator().manual_seed(seed)
    dimensions = 400
    true = torch.zeros(dimensions, dtype=torch.float64)
    true[0] = 1.0
    meter = NoiseMeter(window_steps=10**9)
    for step in range(steps):
        spread = math.sqrt(true_scale / dimensions)
        first = true + torch.randn(dimensions, generator=generator, dtype=torch.float64) * spread / small_size**0.5
        rest_size = big_size - small_size
        rest = true + torch.randn(dimensions, generator=generator, dtype=torch.float64) * spread / rest_size**0.5
        whole = (first * small_size + rest * rest_size) / big_size
        meter.observe(
            global_step=step,
            small=squared_length([first]),
            big=squared_length([whole]),
            small_size=small_size,
            big_size=big_size,
        )
    return meter


@pytest.mark.parametrize("true_scale", [50.0, 500.0])
@pytest.mark.parametrize(("small_size", "big_size"), [(16, 32), (128, 256), (32, 256)])
def test_a_known_noise_scale_is_found(true_scale: float, small_size: int, big_size: int) -> None:
    found = measure(true_scale=true_scale, small_size=small_size, big_size=big_size, steps=600, seed=1).estimate(
        global_step=600
    )
    assert (found.low or 0.0) < (found.value or 0.0) < (found.high or 0.0)
    assert found.value == pytest.approx(true_scale, rel=0.25)
    assert found.reason == ""


def test_the_interval_covers_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(60):
        found = measure(true_scale=200.0, small_size=32, big_size=64, steps=200, seed=seed).estimate(global_step=200)
        covered += (found.low or 0.0) <= 200.0 <= (found.high or math.inf)
    assert 44 <= covered <= 60  # 90 % nominal; 78-97 % is what a jackknife of ten blocks gives


def test_only_the_window_counts() -> None:
    meter = NoiseMeter(window_steps=100, every_steps=1)
    for step in range(200):
        scale = 10.0 if step < 100 else 1000.0
        meter.observe(
            global_step=step,
            small=torch.tensor(1.0 + scale / 32),
            big=torch.tensor(1.0 + scale / 64),
            small_size=32,
            big_size=64,
        )
        if step == 99:
            early = meter.estimate(global_step=step)
    late = meter.estimate(global_step=199)
    assert early.value == pytest.approx(10.0, rel=0.01)
    assert late.value == pytest.approx(1000.0, rel=0.01)


def test_too_little_is_no_estimate() -> None:
    few, same = ratio_of_means([(1.0, 1.0)] * 3), ratio_of_means([(-1.0, 1.0)] * 8)
    assert (few.value, few.low, few.high, few.reason) == (None, None, None, "3 of at least 4 measurements")
    assert (same.value, same.low, same.reason) == (
        None,
        None,
        "over 8 measurements the parts of a step do not differ as images do",
    )
    assert ratio_of_means([(1.0, -1.0)] * 8).low is None  # nothing scatters, and no signal is left
    reason = NoiseMeter(window_steps=100, every_steps=64).estimate(global_step=5).reason
    assert reason == "0 of at least 4 measurements: one step in 64 is measured"


def test_what_drowns_has_a_lower_bound() -> None:
    """A noise scale of 20,000 images cannot be seen in 24 steps of 64, but that it is large can."""
    held, told, drowned = 0, [], 0
    for seed in range(40):
        found = measure(true_scale=20_000.0, small_size=32, big_size=64, steps=24, seed=seed).estimate(global_step=24)
        if found.high is None:
            assert "cannot tell the mean gradient from none" in found.reason
            drowned += 1
        else:  # an upper end that is within an order of magnitude, or none: never "0 to 20 million images"
            assert found.value is not None
            assert found.high <= 10 * found.value
        assert found.low is not None
        told.append(found.low)
        held += found.low <= 20_000.0
    assert 10 < drowned < 40  # both happen
    assert held >= 34  # 95 % nominal, one-sided
    assert sorted(told)[20] > 200.0  # several times the batch: it says something


def test_a_mean_of_ratios_would_be_wrong() -> None:
    """One measurement with a tiny signal must not decide."""
    found = ratio_of_means([(100.0, 1.0)] * 20 + [(100.0, 1e-9)])
    assert found.value == pytest.approx(105.0)


def test_measurements_that_are_no_numbers_are_left_out() -> None:
    meter = NoiseMeter(window_steps=100)
    for step in range(8):
        value = torch.tensor(math.inf if step == 3 else 2.0)
        meter.observe(global_step=step, small=value, big=torch.tensor(1.5), small_size=32, big_size=64)
    found = meter.estimate(global_step=8)
    assert found.value == pytest.approx(0.5 / (1 / 64) / (1.0), rel=1e-6)
