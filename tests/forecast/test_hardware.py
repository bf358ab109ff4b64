"""Times carried over to another kind of GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnaround.errors import InputError
from turnaround.forecast.hardware import carry_over
from turnaround.forecast.interval import Interval

STEP = Interval(value=0.2, low=0.19, high=0.21)
EXACT = Interval(value=0.2, low=0.2, high=0.2)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path))
    return tmp_path


def test_the_rule_from_t4_to_v100() -> None:
    carried = carry_over(EXACT, measured_on="Tesla T4", target="v100")
    bandwidths = 900 / 320
    ratio = carried.speed_ratio
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx(
        (0.9 * bandwidths, 0.7 * bandwidths, 1.15 * bandwidths)
    )
    assert ratio.low < 2.82 < ratio.high  # what was measured
    time_s = carried.time_s
    assert (time_s.value, time_s.low, time_s.high) == pytest.approx(
        (0.2 / ratio.value, 0.2 / ratio.high, 0.2 / ratio.low)
    )
    assert (carried.source.name, carried.destination.name) == ("T4", "V100")


def test_the_times_own_interval_is_added() -> None:
    exact = carry_over(EXACT, measured_on="T4", target="V100").time_s
    unsure = carry_over(STEP, measured_on="T4", target="V100").time_s
    assert unsure.value == exact.value
    assert unsure.low < exact.low
    assert unsure.high > exact.high


def test_tf32_may_help_more_than_bandwidth() -> None:
    fp32 = carry_over(EXACT, measured_on="V100", target="A100", precision="fp32").speed_ratio
    amp = carry_over(EXACT, measured_on="V100", target="A100", precision="amp").speed_ratio
    both_have_it = carry_over(EXACT, measured_on="A100", target="H100", precision="fp32").speed_ratio
    assert fp32.value == amp.value
    assert fp32.high / amp.high == pytest.approx(1.45 / 1.15)
    assert fp32.low == amp.low
    assert both_have_it.high / both_have_it.value == pytest.approx(1.15 / 0.9)


def test_the_same_kind_is_a_measurement() -> None:
    carried = carry_over(STEP, measured_on="Tesla V100-SXM2-16GB", target="V100")
    assert carried.time_s == STEP
    assert carried.speed_ratio == Interval.exact(1.0)
    assert carried.source == carried.destination


def test_an_unknown_kind_says_how_to_add_it(own_folder: Path) -> None:
    with pytest.raises(InputError) as caught:
        carry_over(STEP, measured_on="V100", target="NVIDIA RTX 9999")
    message = str(caught.value)
    assert "No data sheet for the GPU 'RTX 9999'" in message
    assert "T4, L4, P100, V100" in message
    assert f'{own_folder / "gpus.toml"}: ["RTX 9999"]' in message
    (own_folder / "gpus.toml").write_text('["RTX 9999"]\nbandwidth_gb_s = 9000\n')
    assert carry_over(STEP, measured_on="V100", target="NVIDIA RTX 9999").speed_ratio.value == pytest.approx(9)


def test_times_of_processors_are_carried_nowhere() -> None:
    with pytest.raises(InputError, match=r"computed on processors.*Leave --gpu out.*train one epoch on a GPU"):
        carry_over(EXACT, measured_on="CPU", target="V100")
