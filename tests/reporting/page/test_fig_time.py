"""Time and cost as bars."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from reporting.page.figure_study import figure, job_in, study_job, traces
from turnaround.analysis.configurations import Workload
from turnaround.analysis.prices import Price, PriceTable
from turnaround.analysis.workloads import survey
from turnaround.forecast.sweep import forecasters_of
from turnaround.reporting.page.fig_scaling import scaling_figures
from turnaround.reporting.page.fig_time import cost_unit, time_figures
from turnaround.reporting.page.tables import forecasts


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Workload]:
    return {job.name: job for job in survey([import_table(LAB, tmp_path_factory.mktemp("lab"))]).workloads}


def test_the_labs_comparison(lab: dict[str, Workload]) -> None:
    time, cost = time_figures(lab["caltech256, frozen"], price=None)
    assert [(trace["name"], trace["x"]) for trace in time.data] == [
        ("2 T4", [54.983]),
        ("4 T4", [28.383]),
        ("4 V100", [28.367]),
        ("8 V100", [19.45]),
    ]
    assert time.layout["xaxis"]["title"]["text"] == "time (min)"
    assert "as stated by others, by eye" in time.caption
    assert not [trace for trace in time.data if "error_x" in trace]
    assert time.alt.startswith("Shortest is 8 V100 with 19 min 27 s")
    assert [trace["x"][0] for trace in cost.data] == pytest.approx([1.8328, 1.8922, 1.8911, 2.5933], rel=1e-4)
    assert cost.layout["xaxis"]["title"]["text"] == "cost (GPU-hours)"
    assert "An hour of T4 and of V100 does not cost the same." in cost.caption


def test_the_time_to_stable_is_one_figure_everywhere(tmp_path: Path) -> None:
    """In the bars, against the workers, and in the forecast's table: with start-up and evaluations."""
    job = study_job(tmp_path)
    (forecaster,) = forecasters_of(job)
    bars = figure(time_figures(job, price=None), "time-to-stable")
    assert bars.title == "Time to a stable validation accuracy"
    assert "with start-up and evaluations" in bars.caption
    times_min = [trace["x"][0] for trace in bars.data]
    by_workers = figure(scaling_figures(job, [forecaster]), "time-to-stable-by-workers")
    points = [y for trace in traces(by_workers, "measured") for y in trace["y"]]
    assert points == pytest.approx(times_min, rel=1e-3)
    predictions = [forecaster.predict(workers) for workers in (1, 2, 4)]
    table = forecasts(predictions)
    place = table.headings.index("time to stable")
    assert [row[place].key / 60 for row in table.rows] == pytest.approx(times_min, rel=1e-3)
    assert all(row[place].text.endswith(" measured") for row in table.rows)
    assert [prediction.best_known("time_to_stable_s") for prediction in predictions] == pytest.approx(
        [60 * time_min for time_min in times_min], rel=1e-3
    )


def test_a_price_makes_money_of_it(lab: dict[str, Workload]) -> None:
    *_, cost = time_figures(lab["caltech256, frozen"], price=2.0)
    assert cost.data[-1]["x"] == [pytest.approx(5.1867, rel=1e-4)]
    assert cost.layout["xaxis"]["title"]["text"] == "cost (money, at 2 for a GPU-hour)"


def test_without_epochs_to_stable_it_is_the_whole_job(lab: dict[str, Workload]) -> None:
    time, cost = time_figures(lab["fruit, fine-tuned"], price=None)
    assert (time.id, time.title, cost.title) == ("job-time", "Time of the whole job", "Cost of the whole job")
    assert [trace["x"] for trace in time.data] == [[11.033], [5.3167], [3.4167]]


def test_small_costs_are_seconds() -> None:
    assert (cost_unit([20.0, None], "process").name, cost_unit([4000.0], "GPU").name) == (
        "process-seconds",
        "GPU-hours",
    )


def test_intervals_and_the_common_target(tmp_path: Path) -> None:
    figures = time_figures(study_job(tmp_path), price=None)
    assert [shown.id for shown in figures] == ["time-to-target", "time-to-stable", "cost"]
    target = figure(figures, "time-to-target")
    assert [trace["name"] for trace in target.data] == ["1 T4", "2 T4", "4 T4"]  # no rehearsal
    assert all("error_x" in trace for trace in target.data)
    assert "80 % interval of the epochs" in target.caption
    assert "(up to 3 runs)" in target.caption
    assert target.title.endswith("% validation accuracy")
    assert figure(figures, "cost").title == target.title.replace("Time to", "Cost of")


def test_what_is_not_yet_stable_is_hatched_and_not_the_shortest(tmp_path: Path) -> None:
    build(tmp_path / "slow", Plan(workers=4, accuracy=rising(epochs=20, pace=15.0), epoch_time_s=1.0))
    build(tmp_path / "sure", Plan(workers=1, accuracy=rising(epochs=20), epoch_time_s=9.0))
    stable = figure(time_figures(job_in(tmp_path), price=None), "time-to-stable")
    assert [trace["marker"]["pattern"]["shape"] for trace in stable.data] == ["", "/"]
    assert stable.data[1]["marker"]["pattern"]["fillmode"] == "overlay"  # else the page's pattern hides the bar
    assert stable.data[1]["hovertext"].startswith("at least ")
    assert "Hatched: not yet stable" in stable.caption
    assert stable.alt.startswith("Shortest is 1 T4")
    assert "4 T4 at least" in stable.alt


def test_one_configuration_is_no_comparison(tmp_path: Path) -> None:
    build(tmp_path / "r", Plan())
    assert time_figures(job_in(tmp_path), price=None) == []


def test_a_table_of_prices_makes_money_of_every_kind(lab: dict[str, Workload]) -> None:
    job = lab["caltech256, frozen"]
    table = PriceTable(prices={"T4": Price(per_hour=0.4), "V100": Price(per_hour=2.5)}, currency="EUR")
    *_, cost = time_figures(job, price=table)
    *_, hours = time_figures(job, price=None)
    assert cost.layout["xaxis"]["title"]["text"] == "cost (EUR)"
    assert "Your prices for one hour: T4 0.4, V100 2.5 EUR." in cost.caption
    assert cost.data != hours.data
    *_, unpriced = time_figures(job, price=PriceTable(prices={"T4": Price(per_hour=0.4)}))
    assert unpriced.data == hours.data  # money and hours are not compared
