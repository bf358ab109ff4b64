"""Times carried over to another kind of GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnaround.errors import InputError
from turnaround.forecast.hardware import carry_over, sheet_of, speed_ratio
from turnaround.forecast.interval import Interval

STEP = Interval(value=0.2, low=0.19, high=0.21)
EXACT = Interval(value=0.2, low=0.2, high=0.2)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path))
    return tmp_path


def ratio_of(source: str, destination: str, precision: str, target_precision: str | None = None) -> Interval:
    return speed_ratio(sheet_of(source), sheet_of(destination), precision=precision, target_precision=target_precision)


def test_the_rule_from_t4_to_v100() -> None:
    carried = carry_over(EXACT, measured_on="Tesla T4", target="v100")
    ratio = carried.speed_ratio
    assert ratio.value == pytest.approx((1 / 320 + 0.0034 / 65) / (1 / 900 + 0.0034 / 125))
    assert ratio.low < 2.82 < ratio.high  # what was measured
    assert ratio.value / ratio.low == pytest.approx(ratio.high / ratio.value)
    time_s = carried.time_s
    assert (time_s.value, time_s.low, time_s.high) == pytest.approx(
        (0.2 / ratio.value, 0.2 / ratio.high, 0.2 / ratio.low)
    )
    assert (carried.source.name, carried.destination.name) == ("T4", "V100")


@pytest.mark.parametrize("kinds", [("T4", "V100"), ("K80", "A100"), ("RTX 2080 Ti", "H200"), ("V100", "V100")])
@pytest.mark.parametrize("precisions", [("amp", "amp"), ("fp32", "amp"), ("fp32", "tf32"), ("fp32", "fp32")])
def test_there_and_back_gives_1(kinds: tuple[str, str], precisions: tuple[str, str]) -> None:
    there = ratio_of(*kinds, *precisions)
    back = ratio_of(kinds[1], kinds[0], precisions[1], precisions[0])
    assert there.value * back.value == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)


def test_half_precision_moves_half_the_bytes_and_arithmetic_counts_where_it_is_slow() -> None:
    assert 2.0 < ratio_of("V100", "V100", "fp32", "amp").value < 2.5
    assert ratio_of("V100", "V100", "fp32", "float32") == Interval.exact(1.0)
    # A100 has TF32, which torch takes for fp32; V100 has not.
    assert ratio_of("V100", "A100", "fp32").value > ratio_of("V100", "A100", "amp").value
    assert ratio_of("A100", "A100", "fp32", "tf32").value == 1
    with pytest.raises(InputError, match=r"--precision must be amp, fp16, bf16, tf32 or fp32. Received: 'fp7'"):
        ratio_of("V100", "A100", "fp7")


@pytest.mark.parametrize("kind", ["K80", "RTX 2080 Ti", "RTX 6000", "L4", "A10", "L40S", "H200", "B200"])
def test_the_kinds_that_people_ask_for_have_a_data_sheet(kind: str) -> None:
    sheet = sheet_of(kind)
    assert sheet.name == kind
    assert sheet.fp32_tflops
    assert "NVIDIA" in sheet.source


def test_the_times_own_interval_is_added() -> None:
    exact = carry_over(EXACT, measured_on="T4", target="V100").time_s
    unsure = carry_over(STEP, measured_on="T4", target="V100").time_s
    assert unsure.value == exact.value
    assert unsure.low < exact.low
    assert unsure.high > exact.high


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
    assert "T4, L4, K80, P100, V100" in message
    assert f'{own_folder / "gpus.toml"}: ["RTX 9999"]' in message
    (own_folder / "gpus.toml").write_text('["RTX 9999"]\nbandwidth_gb_s = 9000\n')
    assert carry_over(STEP, measured_on="V100", target="NVIDIA RTX 9999").speed_ratio.value == pytest.approx(10)


def test_times_of_processors_are_carried_nowhere() -> None:
    with pytest.raises(InputError, match=r"computed on processors.*Leave --gpu out.*train one epoch on a GPU"):
        carry_over(EXACT, measured_on="CPU", target="V100")
