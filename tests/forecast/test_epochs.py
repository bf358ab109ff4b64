"""Epochs and plateau accuracy against the global batch."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnaround.errors import InputError
from turnaround.forecast.epochs import AccuracyObservation, EpochsObservation, EpochsToStable, PlateauAccuracy
from turnaround.forecast.remarks import BatchesClose, BatchFarFromRun, Pinned


def seen(batch: int, epochs: float, sd: float | None = None) -> EpochsObservation:
    return EpochsObservation(global_batch=batch, epochs=epochs, sd=sd)


LAB = [seen(2 * 32, 15), seen(4 * 32, 19.5), seen(8 * 32, 25)]


def test_the_labs_sixteen_v100() -> None:
    fitted = EpochsToStable().fit(LAB)
    sixteen = fitted.predict(512)
    assert sixteen.value == pytest.approx(38, abs=1)
    assert sixteen.low == pytest.approx(31, abs=1.5)
    assert sixteen.high == pytest.approx(45, abs=1.5)
    assert fitted.critical_batch_ / 32 == pytest.approx(7.5, abs=1)
    assert fitted.pinned_ == {}
    assert fitted.predict(32).value == pytest.approx(13.9, abs=0.3)


def test_known_parameters_come_back() -> None:
    rng = np.random.default_rng(2)
    batches = (64, 128, 256, 512, 1024, 2048)
    fitted = EpochsToStable().fit([seen(b, 10 * (1 + b / 700) * (1 + 0.01 * rng.standard_normal())) for b in batches])
    assert fitted.e0_ == pytest.approx(10, rel=0.05)
    assert fitted.critical_batch_ == pytest.approx(700, rel=0.1)
    assert fitted.predict(4096).value == pytest.approx(10 * (1 + 4096 / 700), rel=0.05)


@settings(max_examples=50, deadline=None)
@given(
    epochs=st.lists(st.floats(1, 300), min_size=1, max_size=5),
    noise_scale=st.one_of(st.none(), st.floats(1, 1e6)),
)
def test_a_larger_batch_never_takes_fewer_epochs(epochs: list[float], noise_scale: float | None) -> None:
    fitted = EpochsToStable(noise_scale=noise_scale).fit([seen(32 * 2**i, e) for i, e in enumerate(epochs)])
    forecasts = [fitted.predict(b) for b in (1, 32, 100, 512, 5000, 10**6)]
    assert all(0 < f.low <= f.value <= f.high for f in forecasts)
    assert all(b.value >= a.value * (1 - 1e-9) for a, b in pairwise(forecasts))


def test_a_batch_that_costs_nothing_has_no_critical_batch() -> None:
    fitted = EpochsToStable().fit([seen(32, 20), seen(64, 15), seen(128, 12)])
    assert fitted.critical_batch_ == math.inf
    assert fitted.predict(256).value == fitted.predict(32).value


def test_measured_errors_widen_and_weigh() -> None:
    plain = EpochsToStable().fit(LAB).predict(512)
    unsure = EpochsToStable().fit([seen(o.global_batch, o.epochs, sd=2) for o in LAB]).predict(512)
    assert (unsure.high - unsure.low) / unsure.value > (plain.high - plain.low) / plain.value
    outlier = [seen(64, 15), seen(128, 40), seen(256, 25)]
    doubted = [seen(64, 15), seen(128, 40, sd=20), seen(256, 25)]
    assert EpochsToStable().fit(doubted).predict(128).value == pytest.approx(18.3, abs=1)
    assert EpochsToStable().fit(outlier).predict(128).value > EpochsToStable().fit(doubted).predict(128).value + 1


def test_the_interval_grows_with_the_distance() -> None:
    fitted = EpochsToStable().fit(LAB)
    halves = [f.high / f.value - 1 for f in (fitted.predict(b) for b in (128, 64 // 2, 300, 512, 1024, 4096, 16_384))]
    assert halves == pytest.approx([0.13, 0.24, 0.13, 0.20, 0.33, 0.67, 1.34])
    assert fitted.cautions(4096) == ()
    assert fitted.cautions(16_384) == (BatchFarFromRun(batch=16_384, largest=256, tested_factor=16),)


def test_two_batches_are_not_surer_than_three() -> None:
    two, three = EpochsToStable().fit(LAB[1:]).predict(512), EpochsToStable().fit(LAB).predict(512)
    assert two.high / two.value >= three.high / three.value - 1e-9
    close = EpochsToStable().fit([seen(64, 15), seen(96, 16)])
    assert close.cautions(128) == (BatchesClose(smallest=64, largest=96),)


def test_one_batch_and_a_noise_scale() -> None:
    fitted = EpochsToStable(noise_scale=500).fit([seen(64, 15)])
    assert fitted.pinned_["critical_batch"] == Pinned(reason="noise scale", noise_scale=500, factor=2.5)
    far = fitted.predict(512)
    assert far.value == pytest.approx(15 * (1 + 512 / 500) / (1 + 64 / 500))
    assert far.low < 15 * (1 + 512 / 1250) / (1 + 64 / 1250)
    assert far.high > 15 * (1 + 512 / 200) / (1 + 64 / 200)


def test_one_batch_alone_is_very_wide_and_says_so() -> None:
    alone, with_noise = EpochsToStable().fit([seen(64, 15)]), EpochsToStable(noise_scale=500).fit([seen(64, 15)])
    assert alone.pinned_["critical_batch"] == Pinned(reason="typical critical batch")
    assert alone.predict(64).value == pytest.approx(15)
    wide, narrow = alone.predict(512), with_noise.predict(512)
    assert wide.high - wide.low > narrow.high - narrow.low
    assert wide.low < 15 < wide.high


def test_the_batch_of_a_single_run_is_a_small_one_or_a_large_one() -> None:
    """Upwards the critical batch is 16 times the one that was run, downwards twice."""
    alone = EpochsToStable().fit([seen(64, 15)])
    assert alone.predict(256).value == pytest.approx(15 * (1 + 4 / 16) / (1 + 1 / 16))
    assert alone.predict(32).value == pytest.approx(15 * (1 + 1.11 / 2) / (1 + 1.11))
    assert alone.critical_batch_ == pytest.approx(16 * 64)


def test_impossible_epochs_are_refused() -> None:
    with pytest.raises(InputError, match=r"No epochs to learn from.*became stable"):
        EpochsToStable().fit([])
    for batch, epochs in ((0, 5.0), (-1, 5.0), (32, 0.0), (32, -2.0), (32, math.nan)):
        with pytest.raises(InputError, match="of an observation must be above 0, not"):
            seen(batch, epochs)
    with pytest.raises(InputError, match="sd of an observation must be 0 or more, not -1"):
        seen(32, 5, sd=-1)
    with pytest.raises(InputError, match="noise_scale must be above 0"):
        EpochsToStable(noise_scale=0)
    with pytest.raises(InputError, match="The global batch must be above 0"):
        EpochsToStable().fit(LAB).predict(0)


# --- accuracy


def accuracy(batch: int, value: float, sd: float | None = None) -> AccuracyObservation:
    return AccuracyObservation(global_batch=batch, accuracy=value, sd=sd)


def test_accuracy_falls_a_little_with_every_doubling() -> None:
    runs = [accuracy(64, 0.6888), accuracy(128, 0.6760), accuracy(128, 0.6861), accuracy(256, 0.6719)]
    fitted = PlateauAccuracy().fit(runs)
    assert 0.005 < fitted.fall_ < 0.01
    sixteen = fitted.predict(512)
    assert sixteen.value == pytest.approx(0.665, abs=0.004)
    assert sixteen.high - sixteen.low > 0.03
    assert fitted.pinned_ == {}


def test_accuracy_from_one_batch_is_pinned_and_widens() -> None:
    fitted = PlateauAccuracy().fit([accuracy(64, 0.7)])
    assert fitted.pinned_ == {"fall": Pinned(reason="typical fall", fall=0.005)}
    near, far = fitted.predict(64), fitted.predict(64 * 32)
    assert near.value == pytest.approx(0.7)
    assert far.value == pytest.approx(0.675)
    assert far.high - far.low > 3 * (near.high - near.low)


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=4), batch=st.integers(1, 10**7))
def test_accuracy_stays_a_fraction_and_does_not_rise(values: list[float], batch: int) -> None:
    fitted = PlateauAccuracy().fit([accuracy(32 * 2**i, v) for i, v in enumerate(values)])
    now, twice = fitted.predict(batch), fitted.predict(2 * batch)
    assert 0 <= now.low <= now.value <= now.high <= 1
    assert twice.value <= now.value + 1e-12


def test_accuracy_is_never_surer_than_its_repeats() -> None:
    forecast = PlateauAccuracy().fit([accuracy(64, 0.7, sd=0.05)]).predict(64)
    assert forecast.high - forecast.value > 1.28 * 0.05


def test_impossible_accuracies_are_refused() -> None:
    with pytest.raises(InputError, match="No accuracies to learn from"):
        PlateauAccuracy().fit([])
    with pytest.raises(InputError, match=r"fraction from 0 to 1, not 68.9. Divide a percentage by 100"):
        accuracy(64, 68.9)
    with pytest.raises(InputError, match="The global batch must be above 0"):
        PlateauAccuracy().fit([accuracy(64, 0.7)]).predict(-1)


def test_accuracies_off_the_line_widen_the_interval() -> None:
    """A fall that grows with the batch is no line: the forecast is no surer than the line is good."""
    values = (0.792, 0.779, 0.742, 0.675)
    bent = PlateauAccuracy().fit([accuracy(32 * 2**i, v) for i, v in enumerate(values)])
    straight = PlateauAccuracy().fit([accuracy(32 * 2**i, 0.79 - 0.03 * i) for i in range(4)])
    widths = [law.predict(512).high - law.predict(512).low for law in (bent, straight)]
    assert widths[0] > 2 * widths[1]
