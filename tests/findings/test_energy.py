"""Energy in words: how it was measured, what it costs at the user's rates, and why it is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import Plan, build
from turnaround.analysis.energy import EnergyRates, RunEnergy, Unknown
from turnaround.analysis.workloads import survey
from turnaround.findings.energy import energy_text, rated_lines


def test_the_energy_says_how_it_was_measured_and_what_is_in_it() -> None:
    used = RunEnergy(wh=1350.0, source="counter", num_gpus=4, gpu_time_s=4 * 3600.0)
    assert energy_text(used) == "1.35 kWh of 4 GPUs, 338 W each, by their energy counters"
    shared = RunEnergy(wh=0.41, source="watts", num_gpus=1, gpu_time_s=10.0, num_shared=1, resets=2)
    text = energy_text(shared, EnergyRates(electricity=0.3, grid=0.35))
    assert "0.410 Wh of 1 GPU, 148 W each, from their power, sampled once a second" in text
    assert "0.00012 for electricity at 0.3 per kWh; 0.143 g CO2e at 0.35 kg per kWh" in text
    assert text.endswith("theirs is in it; a counter began again 2 times, what came just before is not counted")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("no GPU", "ran on processors"),
        ("no telemetry", "no samples"),
        ("GPUs not told", "which of the GPUs"),
        ("GPU not sampled", "not sampled"),
        ("neither counter nor power", "neither the energy nor the power"),
    ],
)
def test_what_is_not_known_says_why(reason: Unknown, words: str) -> None:
    text = energy_text(RunEnergy(unknown=reason))
    assert text.startswith("not known: ")
    assert words in text


def test_a_configuration_has_price_and_emissions_only_at_rates_that_are_given(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan(workers=2, watts=200.0))
    build(tmp_path / "b", Plan(workers=4))
    build(tmp_path / "c", Plan(workers=8, processes=1, watts=200.0))
    job = survey([tmp_path]).workloads[0]
    assert rated_lines(job, EnergyRates()) == []
    known, unknown = rated_lines(job, EnergyRates(grid=0.5))
    assert known == "2 T4: 23.4 Wh a run, 11.7 g CO2e at 0.5 kg per kWh."
    assert unknown == "4 T4: energy not known, the record has no samples of the GPUs."
