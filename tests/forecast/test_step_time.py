"""Step times and epoch times: known laws are recovered, doubts are named, intervals are honest."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnaround.errors import InputError
from turnaround.forecast.epoch_time import EpochTime, EpochTimeObservation
from turnaround.forecast.remarks import Exclusion, FarFromMeasured, FirstHosts, Pinned
from turnaround.forecast.step_time import StepObservation, StepTime
from turnaround.forecast.time_law import Deployment


def seen(processes: int, time_s: float, *, hosts: int = 1, batch: int = 32, **more: Any) -> StepObservation:
    return StepObservation(processes=processes, hosts=hosts, time_s=time_s, images_per_step=batch * processes, **more)


def law(n: int, c0: float, c1: float, c2: float) -> float:
    return c0 + c1 * (n - 1) / n + c2 * math.log2(n)


def on(processes: int, hosts: int = 1, **more: Any) -> Deployment:
    return Deployment(processes=processes, hosts=hosts, **more)


# --- the law


def test_known_parameters_come_back() -> None:
    true = (0.2, 0.03, 0.008)
    rng = np.random.default_rng(1)
    runs = [
        seen(n, law(n, *true) * (1 + 0.002 * rng.standard_normal()), spread=0.002)
        for n in (1, 2, 4, 8, 16)
        for _ in "abc"
    ]
    fitted = StepTime().fit(runs)
    assert fitted.coefficients_ == pytest.approx(true, rel=0.25)
    assert fitted.predict(on(32)).value == pytest.approx(law(32, *true), rel=0.01)
    assert fitted.pinned_ == {}
    assert set(fitted.leave_one_out_) == {1, 2, 4, 8, 16}
    assert max(map(abs, fitted.leave_one_out_.values())) < 0.05


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.floats(0.01, 10), min_size=1, max_size=5),
    scaling=st.sampled_from(["weak", "strong"]),
    hosts=st.integers(1, 4),
)
def test_time_is_positive_and_at_a_fixed_batch_per_process_never_falls(
    times: list[float], scaling: Any, hosts: int
) -> None:
    runs = [
        StepObservation(processes=2**i, time_s=t, images_per_step=64 * (2**i if scaling == "weak" else 1))
        for i, t in enumerate(times)
    ]
    fitted = StepTime(scaling=scaling).fit(runs)
    forecasts = [fitted.predict(on(n, min(hosts, n))) for n in (1, 2, 3, 5, 8, 13, 40, 500)]
    assert all(0 < f.low <= f.value <= f.high for f in forecasts)
    if scaling == "weak":
        assert all(b.value >= a.value * (1 - 1e-9) for a, b in pairwise(forecasts))


def test_a_fixed_global_batch_is_divided_down_to_a_floor() -> None:
    times = {n: 0.8 / n + 0.02 + 0.001 * math.log2(n) for n in (1, 2, 4, 8)}
    runs = [StepObservation(processes=n, time_s=t, images_per_step=256) for n, t in times.items()]
    fitted = StepTime(scaling="strong").fit(runs)
    assert fitted.predict(on(16)).value == pytest.approx(0.8 / 16 + 0.024, rel=0.15)
    assert fitted.predict(on(500)).value > 0.02


# --- what the data cannot say


def test_one_count_is_pinned_and_wide() -> None:
    fitted = StepTime().fit([seen(1, 0.1)])
    one = Pinned(reason="one count", counts=(1,))
    assert fitted.pinned_ == {"c1": one, "c2": one}
    eight = fitted.predict(on(8))
    assert 0.1 < eight.value < 0.115
    assert eight.high / eight.value > 1.15
    assert fitted.predict(on(1)).value == pytest.approx(0.1, rel=1e-6)


def test_two_counts_cannot_tell_the_two_costs_apart() -> None:
    fitted = StepTime().fit([seen(1, 0.1), seen(4, 0.11)])
    assert fitted.pinned_ == {"c1": Pinned(reason="two counts", counts=(1, 4))}
    assert fitted.leave_one_out_ == {}
    # from nothing more that is lost to all of the slope that was seen, and some
    assert 0.11 < fitted.predict(on(8)).value < 0.11 * 1.1**0.5 * 1.01


def test_farther_is_wider_and_beyond_eight_times_it_is_said() -> None:
    fitted = StepTime().fit([seen(1, 0.1), seen(2, 0.103), seen(4, 0.106)])
    widths = [(f.high - f.low) / f.value for f in (fitted.predict(on(n)) for n in (3, 8, 16, 32, 64, 128))]
    assert widths == sorted(widths)
    assert widths[1] < widths[-1] / 2
    assert fitted.cautions(on(32)) == ()
    assert fitted.cautions(on(64)) == (FarFromMeasured(processes=64, factor=16, counts=(1, 2, 4), tested_factor=8),)


def test_downwards_the_interval_leans_the_other_way() -> None:
    fitted = StepTime().fit([seen(8, 0.11)])
    up, down = fitted.predict(on(16)), fitted.predict(on(1))
    assert up.high - up.value > up.value - up.low
    assert down.value - down.low > down.high - down.value


@pytest.mark.parametrize("spread", [0.1, 0.3])
def test_never_narrower_than_the_repeats(spread: float) -> None:
    quiet = StepTime().fit([seen(1, 0.1), seen(4, 0.11)]).predict(on(8))
    loud = StepTime().fit([seen(1, 0.1, spread=spread, repeats=3), seen(4, 0.11)]).predict(on(8))
    assert loud.high - loud.low > quiet.high - quiet.low
    assert loud.high / loud.value - 1 > 1.28 * spread
    assert 1 - loud.low / loud.value > 1.28 * spread


def test_repeats_given_one_by_one_count_as_well() -> None:
    times = (0.08, 0.1, 0.12)
    forecast = StepTime().fit([seen(4, t) for t in times]).predict(on(4))
    assert forecast.low < min(times) * 1.05
    assert forecast.high > max(times) * 0.95


# --- what cannot be right


def test_more_than_linear_is_set_aside_and_named() -> None:
    fitted = StepTime().fit([seen(2, 0.548), seen(4, 0.423), seen(8, 0.44)])
    assert [o.processes for o in fitted.set_aside_] == [2]
    assert fitted.exclusions_ == (
        Exclusion(
            processes=2,
            time_s=0.548,
            against_processes=4,
            against_time_s=0.423,
            efficiency=pytest.approx(1.296, abs=0.001),
            unit="step",
        ),
    )
    assert fitted.predict(on(8)).value == pytest.approx(0.44, rel=0.03)


def test_of_three_the_one_that_contradicts_both_goes() -> None:
    fitted = StepTime().fit([seen(1, 0.1), seen(2, 0.2), seen(4, 0.105), seen(8, 0.108)])
    assert [o.processes for o in fitted.set_aside_] == [2]


def test_a_fast_one_within_its_repeats_is_kept() -> None:
    assert StepTime().fit([seen(1, 0.108), seen(4, 0.1)]).set_aside_
    assert not StepTime().fit([seen(1, 0.108, spread=0.05, repeats=2), seen(4, 0.1)]).set_aside_


def test_at_a_fixed_global_batch_more_than_linear_is_more_than_n_times() -> None:
    runs = [StepObservation(processes=n, time_s=t, images_per_step=64) for n, t in ((1, 1.0), (2, 0.4))]
    assert [o.processes for o in StepTime(scaling="strong").fit(runs).set_aside_] == [1]
    assert [o.processes for o in StepTime(scaling="strong").fit(runs[:1]).set_aside_] == []


# --- input and hosts


def test_the_input_limit_caps_but_is_not_fitted() -> None:
    fitted = StepTime().fit([seen(1, 0.1), seen(4, 0.11)])
    assert fitted.predict(on(8, input_images_per_s=1e6)) == fitted.predict(on(8))
    capped = fitted.predict(on(8, input_images_per_s=306))
    assert capped.value == capped.low == capped.high == pytest.approx(8 * 32 / 306)
    two_hosts = fitted.predict(on(8, hosts=2, input_images_per_s=306))
    assert two_hosts.low == pytest.approx(4 * 32 / 306)


def test_a_first_second_host_is_bounded_from_both_sides() -> None:
    fitted = StepTime().fit([seen(1, 0.1), seen(4, 0.11)])
    one, two = fitted.predict(on(8)), fitted.predict(on(8, hosts=2, gradient_bytes=1e8))
    ring_s = 2 * (1 / 2) * 1e8 / 1.25e9
    assert two.low < one.value < two.value < one.value + ring_s
    assert two.high >= one.value + ring_s * 1.25 / 0.3  # nobody has told the network: it may be a slow one
    faster = fitted.predict(on(8, hosts=2, gradient_bytes=1e8, inter_host_bytes_per_s=25e9))
    assert faster.value < two.value
    assert faster.high < one.high * 1.1
    assert fitted.cautions(on(8, hosts=2, gradient_bytes=1e8)) == (
        FirstHosts(hosts=2, extra_s=pytest.approx(1 / 3), bytes_per_s=0.3e9),
    )
    assert fitted.cautions(on(8, hosts=2, gradient_bytes=1e8, inter_host_bytes_per_s=25e9)) == (
        FirstHosts(hosts=2, extra_s=pytest.approx(0.004), bytes_per_s=25e9, is_network_known=True),
    )


def test_without_the_gradients_size_it_is_a_guess_that_says_so() -> None:
    fitted = StepTime().fit([seen(1, 0.1), seen(4, 0.11)])
    one, two = fitted.predict(on(8)), fitted.predict(on(8, hosts=2))
    assert two.value == pytest.approx(one.value, rel=0.02)
    assert two.high > 2 * one.value
    told = fitted.predict(on(8, hosts=2, inter_host_bytes_per_s=12.5e9))
    assert (told.low, told.value) == (two.low, two.value)
    assert told.high < 1.2 * one.value
    assert fitted.predict(on(8, hosts=2, inter_host_bytes_per_s=0.1e9)) == two
    assert fitted.cautions(on(8, hosts=2)) == (FirstHosts(hosts=2, extra_s=None, bytes_per_s=0.3e9),)


def test_one_host_to_two_is_a_boundary_and_no_trend() -> None:
    """4 and 8 T4 on one host lost a lot; 64 on eight hosts do not go on losing it with every doubling."""
    fitted = EpochTime().fit([epoch(4, 1000.5), epoch(8, 900.5)])
    sixty_four = fitted.predict(on(64, hosts=8))
    assert 900.5 / 8 < sixty_four.value < 2 * 900.5 / 8
    assert sixty_four.low < 900.5 / 8
    assert sixty_four.high < 7 * 900.5 / 8


def test_of_several_hosts_that_were_measured_the_last_ones_tell() -> None:
    """The step to the second host cost 40 %; from there on hardly anything is lost."""
    runs = [seen(4, 0.1), seen(8, 0.1), seen(16, 0.14, hosts=2)]
    after_one = StepTime().fit(runs).predict(on(32, hosts=4))
    assert after_one.value == pytest.approx(0.142, abs=0.002)
    after_two = StepTime().fit([*runs, seen(32, 0.15, hosts=4)]).predict(on(64, hosts=8))
    assert 0.155 < after_two.value < 0.165


def test_flat_is_narrow_and_steep_or_rough_is_wide() -> None:
    def width(*times: float) -> float:
        runs = [seen(2**k, t) for k, t in enumerate(times)]
        return StepTime().fit(runs).predict(on(2 ** len(times))).relative_width

    flat, steep, rough = width(0.1, 0.1005, 0.101), width(0.1, 0.12, 0.144), width(0.1, 0.14, 0.1401)
    assert flat < 0.06
    assert steep > 5 * flat
    assert rough > 5 * flat


def test_hosts_that_were_measured_are_part_of_the_law() -> None:
    fitted = StepTime().fit([seen(1, 0.1), seen(4, 0.11), seen(8, 0.15, hosts=2)])
    assert fitted.cautions(on(16, hosts=4)) == ()
    assert fitted.predict(on(16, hosts=4, gradient_bytes=1e9)) == fitted.predict(on(16, hosts=4))


# --- bad input


@pytest.mark.parametrize(
    ("what", "value"),
    [("processes", 0), ("hosts", 0), ("time_s", 0.0), ("time_s", -1.0), ("time_s", math.nan),
     ("time_s", math.inf), ("images_per_step", 0), ("repeats", 0)],
)  # fmt: skip
def test_an_impossible_observation_is_refused(what: str, value: float) -> None:
    good: dict[str, Any] = {"processes": 2, "time_s": 0.1, "images_per_step": 64}
    with pytest.raises(InputError, match=rf"{what} of a step observation must be above 0, not .*Leave this run out"):
        StepObservation(**(good | {what: value}))


def test_more_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"spread of a step observation must be 0 or more, not -0.1"):
        seen(1, 0.1, spread=-0.1)
    with pytest.raises(InputError, match=r"No step times to learn from.*Give at least one"):
        StepTime().fit([])
    with pytest.raises(InputError, match=r"differ in images per process: from 32 to 64.*leave out"):
        StepTime().fit([seen(1, 0.1), seen(2, 0.1, batch=64)])
    with pytest.raises(InputError, match="differ in images per step"):
        StepTime(scaling="strong").fit([seen(1, 0.1), seen(2, 0.1)])
    with pytest.raises(InputError, match=r"8 hosts for 4 processes.*fewer hosts"):
        on(4, hosts=8)
    with pytest.raises(InputError, match="processes of a configuration must be above 0"):
        on(0)
    with pytest.raises(InputError, match="input_images_per_s of a configuration must be above 0"):
        on(4, input_images_per_s=0)


# --- whole epochs


def epoch(processes: int, time_s: float, images: int | None = 24_485, **more: Any) -> EpochTimeObservation:
    return EpochTimeObservation(
        processes=processes, time_s=time_s, batch_per_process=32, images_per_epoch=images, **more
    )


@pytest.mark.parametrize("images", [24_485, None])
def test_the_labs_sixteen_v100(images: int | None) -> None:
    """80 s on 4 and 44 s on 8: with no overhead about 24 s on 16, with steps that lose nothing 26 s; at best 22 s."""
    fitted = EpochTime().fit([epoch(4, 80, images), epoch(8, 44, images)])
    sixteen = fitted.predict(on(16))
    assert 23.5 < sixteen.value < 24.5
    assert 20.5 < sixteen.low < 22
    assert 26 < sixteen.high < 30
    assert fitted.overhead_s_ == 0
    assert fitted.pinned_ == {
        "overhead": Pinned(reason="no overhead"),
        "c1": Pinned(reason="two counts", counts=(4, 8)),
    }


def test_the_labs_two_t4_are_set_aside() -> None:
    fitted = EpochTime().fit([epoch(2, 209), epoch(4, 81)])
    assert [o.processes for o in fitted.set_aside_] == [2]
    [excluded] = fitted.exclusions_
    assert (excluded.processes, excluded.against_processes, excluded.unit) == (2, 4, "epoch")
    assert excluded.efficiency == pytest.approx(209 / 81 / 2)
    assert set(fitted.pinned_) == {"overhead", "c1", "c2"}
    assert fitted.overhead_s_ == pytest.approx(0, abs=1e-9)
    assert fitted.predict(on(8)).value == pytest.approx(81 / 2, rel=0.05)


def test_whole_seconds_are_not_taken_for_exact() -> None:
    """20, 11 and 5 s on 1, 2 and 4: 110 % of linear, but 5 may be 5.4."""
    assert EpochTime().fit([epoch(1, 20), epoch(2, 11), epoch(4, 5)]).set_aside_ == ()
    assert EpochTime().fit([epoch(1, 20.02), epoch(2, 11.02), epoch(4, 5.02)]).set_aside_ != ()


def test_an_overhead_comes_back() -> None:
    times = {n: 10.1 + 0.3 * law(n, 1, 0.02, 0.02) * math.ceil(24_485 / (32 * n)) for n in (1, 2, 4, 8, 16)}
    fitted = EpochTime().fit([epoch(n, t) for n, t in times.items()])
    assert fitted.overhead_s_ == pytest.approx(10.1, rel=0.05)
    assert fitted.predict(on(32)).value == pytest.approx(10.1 + 24 * 0.3 * law(32, 1, 0.02, 0.02), rel=0.02)
    assert fitted.pinned_ == {}
    assert len(fitted.leave_one_out_) == 5


def test_an_overhead_that_cannot_be_identified_is_a_loss_that_goes_on() -> None:
    """10 s of evaluation in each epoch: three counts do not show it in the value, and nearly in the upper end."""
    times = {n: 10.1 + 0.3 * law(n, 1, 0.02, 0.02) * math.ceil(24_485 / (32 * n)) for n in (1, 2, 4, 8, 16)}
    few = EpochTime().fit([epoch(n, times[n]) for n in (1, 2, 4)])
    assert few.overhead_s_ == 0
    assert few.predict(on(16)).low < few.predict(on(16)).value < 0.9 * times[16]
    assert few.predict(on(16)).high > 0.95 * times[16]
    assert few.predict(on(8)).high > times[8]
    several_hosts = [epoch(n, times[n], hosts=2 if n == 8 else 1) for n in (1, 2, 4, 8)]
    assert EpochTime().fit(several_hosts).overhead_s_ == 0
    assert EpochTime().fit([epoch(n, times[n]) for n in (1, 2, 4, 8)]).overhead_s_ == pytest.approx(10.1, rel=0.1)


def test_a_table_of_epochs_is_forecast_as_its_steps_are() -> None:
    """Three counts without an overhead: one family of laws, one value."""
    times = {n: law(n, 0.2, 0.02, 0.01) for n in (1, 2, 4)}
    steps = StepTime().fit([seen(n, t) for n, t in times.items()]).predict(on(16))
    epochs = EpochTime().fit([epoch(n, 1000.3 * t / n, None) for n, t in times.items()]).predict(on(16))
    assert epochs.value == pytest.approx(steps.value * 1000.3 / 16, rel=1e-6)
    assert epochs.low == pytest.approx(steps.low * 1000.3 / 16, rel=0.01)


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_the_last_efficiency_may_stay(scaling: Any) -> None:
    """A series that lost a third at once, and may lose nothing more."""
    share = {"weak": lambda n: 1.0, "strong": lambda n: 1 / n}[scaling]
    runs = [
        StepObservation(processes=n, time_s=t * share(n), images_per_step=64 * (n if scaling == "weak" else 1))
        for n, t in ((1, 0.1), (2, 0.12), (4, 0.15))
    ]
    sixteen = StepTime(scaling=scaling).fit(runs).predict(on(16))
    assert sixteen.low <= 0.15 * share(16) * (1 + 1e-9)
    assert sixteen.value > 0.15 * share(16)


def test_epochs_know_input_and_hosts_too() -> None:
    fitted = EpochTime().fit([epoch(4, 80.5), epoch(8, 44.5), epoch(2, 155.5)])
    assert fitted.pinned_ == {"overhead": Pinned(reason="no overhead")}
    assert fitted.predict(on(16, input_images_per_s=306)).low == pytest.approx(24_485 / 306)
    two = fitted.predict(on(16, hosts=2, gradient_bytes=1e9))
    assert two.high > fitted.predict(on(16)).high + 48 * 0.8
    assert isinstance(fitted.cautions(on(16, hosts=2))[0], FirstHosts)


def test_bad_epoch_times_are_refused() -> None:
    with pytest.raises(InputError, match="No epoch times to learn from"):
        EpochTime().fit([])
    with pytest.raises(InputError, match=r"differ in images_per_epoch: 100, 200.*leave out"):
        EpochTime().fit([epoch(1, 3, 100), epoch(2, 2, 200)])
    with pytest.raises(InputError, match="time_s of an epoch observation must be above 0, not 0"):
        epoch(1, 0)
    with pytest.raises(InputError, match="images_per_epoch of an epoch observation must be above 0"):
        epoch(1, 1, 0)
