"""Energy where people read: the table, the end of a run, the page, the forecast; and the flags with their refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.build import Plan, build
from console import Console, Done


@pytest.fixture
def turnaround(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.chdir(tmp_path)
    for workers, epoch_s in ((1, 40.0), (2, 21.0), (4, 11.0)):
        build(tmp_path / f"runs/w{workers}", Plan(workers=workers, epoch_time_s=epoch_s, watts=200.0))
    return Console(monkeypatch, capsys)


def test_the_table_has_it_and_rates_add_price_and_emissions(turnaround: Callable[..., Done]) -> None:
    done = turnaround("report", "runs")
    assert " energy " in done.out.replace("\n", " ")
    assert "51.3 Wh" in done.out
    assert "per kWh" not in done.out
    done = turnaround("report", "runs", "--electricity", "0.3", "--grid", "0.35")
    assert "4 T4: 51.3 Wh a run, 0.015 for electricity at 0.3 per kWh, 18.0 g CO2e at 0.35 kg per kWh." in done.out
    cases = json.loads(turnaround("report", "runs", "--json").out)["jobs"][0]["cases"]
    assert [round(case["energy_wh"]["value"], 1) for case in cases] == [45.1, 47.9, 51.3]
    assert all(case["energy_epoch_wh"] and case["energy_to_stable_wh"] for case in cases)


def test_the_page_has_it(turnaround: Callable[..., Done], tmp_path: Path) -> None:
    turnaround("report", "runs", "--electricity", "0.3", "--out", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "0.015 for electricity at 0.3 per kWh" in page
    assert "51.3 Wh of 4 GPUs, 200 W each, by their energy counters" in page
    assert "--electricity 0.3" in page


def test_a_forecast_has_it_with_an_interval(turnaround: Callable[..., Done]) -> None:
    done = turnaround("predict", "runs", "--workers", "8", "--electricity", "0.3", "--grid", "0.35")
    assert "energy of the GPUs" in done.out
    assert "electricity, 0.3 per kWh" in done.out
    assert "emissions, 0.35 kg CO2e per kWh" in done.out
    told = json.loads(turnaround("predict", "runs", "--workers", "8", "--json").out)
    assert told["energy_wh"]["low"] < told["energy_wh"]["value"] < told["energy_wh"]["high"]
    assert told["emissions_kg"] is None


@pytest.mark.parametrize("verb", [("report", "runs"), ("predict", "runs", "--workers", "8")])
def test_rates_that_cannot_be_are_refused(turnaround: Callable[..., Done], verb: tuple[str, ...]) -> None:
    done = turnaround(*verb, "--grid", "-1")
    assert done.code == 2
    assert "--grid must be 0 or more (kg of CO2e for one kWh), received -1" in done.err.replace("\n", " ")
