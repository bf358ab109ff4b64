"""Scaling: measured points, the ideal, the law with its band, and forecasts that nobody takes for measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from reporting.page.figure_study import figure, job_in, study_job, traces
from turnaround.analysis.configurations import Workload
from turnaround.analysis.workloads import survey
from turnaround.forecast.sweep import forecasters_of
from turnaround.reporting.page.fig_common import Figure
from turnaround.reporting.page.fig_epochs import epochs_figure
from turnaround.reporting.page.fig_scaling import scaling_figures


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    jobs = survey([import_table(LAB, tmp_path_factory.mktemp("lab"))]).workloads
    return next(job for job in jobs if job.name == "caltech256, frozen")


@pytest.fixture(scope="module")
def figures(lab: Workload) -> list[Figure]:
    return scaling_figures(lab, forecasters_of(lab))


def test_measured_and_forecast_are_told_apart(figures: list[Figure]) -> None:
    shown = figure(figures, "epoch-time")
    measured, forecast = traces(shown, "measured"), traces(shown, "forecast")
    assert [(t["name"], t["x"], t["y"]) for t in measured] == [
        ("T4 measured", [2, 4], [209, 81]),
        ("V100 measured", [4, 8], [80, 44]),
    ]
    assert [(t["name"], t["x"]) for t in forecast] == [("T4 forecast", [8]), ("V100 forecast", [16])]
    assert {t["marker"]["symbol"] for t in measured} == {"circle"}
    assert {t["marker"]["symbol"] for t in forecast} == {"circle-open"}
    assert {t["line"]["dash"] for t in traces(shown, "law")} == {"dash"}
    assert "not measured" in shown.caption


def test_a_forecast_has_its_interval_and_the_law_its_band(figures: list[Figure], lab: Workload) -> None:
    shown = figure(figures, "epoch-time")
    forecast, band = traces(shown, "forecast")[1], traces(shown, "band")[1]
    expected = forecasters_of(lab)[1].predict(16).epoch_time_s
    assert expected is not None
    assert forecast["y"] == [pytest.approx(expected.value, rel=1e-4)]
    assert forecast["error_y"]["array"] == [pytest.approx(expected.high - expected.value, rel=1e-3)]
    half = len(band["x"]) // 2
    assert (band["x"][half - 1], band["x"][half]) == (16, 16)
    assert (band["y"][half - 1], band["y"][half]) == pytest.approx((expected.high, expected.low), rel=1e-4)


def test_the_ideal_begins_at_the_baseline_and_is_named_once(figures: list[Figure]) -> None:
    shown = figure(figures, "epoch-time")
    t4, v100 = traces(shown, "ideal")
    assert (v100["x"][0], v100["y"][0], v100["x"][-1], v100["y"][-1]) == (4, 80, 16, 20)
    assert (t4["x"][0], t4["y"][0], t4["x"][-1], t4["y"][-1]) == (2, 209, 8, 52.25)
    assert [t.get("showlegend", True) for t in (t4, v100)] == [True, False]
    speedup = traces(figure(figures, "speed-up"), "ideal")[1]
    assert (speedup["x"][-1], speedup["y"][-1]) == (16, 4)
    assert set(traces(figure(figures, "efficiency"), "ideal")[0]["y"]) == {1}


def test_speed_up_and_efficiency_name_their_baseline(figures: list[Figure]) -> None:
    speedup, efficiency = figure(figures, "speed-up"), figure(figures, "efficiency")
    assert "the baseline (2 T4 and 4 V100)" in speedup.caption
    assert traces(speedup, "measured")[1]["y"] == [1, pytest.approx(1.8182, rel=1e-4)]
    assert traces(efficiency, "measured")[0]["y"] == [1, pytest.approx(1.2901, rel=1e-4)]


def test_what_was_assumed_and_set_aside_is_said(figures: list[Figure]) -> None:
    caption = figure(figures, "epoch-time").caption
    assert "Not learnt from, since no law explains it with the others: 2 T4." in caption
    assert "Assumed: for 8 T4 one host" in caption
    assert "--" not in caption


def test_the_time_to_stable_in_one_picture(figures: list[Figure]) -> None:
    shown = figure(figures, "time-to-stable-by-workers")
    assert traces(shown, "measured")[1]["y"] == [pytest.approx(28.367, rel=1e-3), pytest.approx(19.45, rel=1e-3)]
    assert shown.layout["yaxis"]["title"]["text"] == "time to stable (min)"
    assert "forecast for 16 V100 about 17 min" in shown.alt


def test_without_forecasts_there_are_the_measured_points(lab: Workload) -> None:
    figures = scaling_figures(lab, ())
    assert [shown.id for shown in figures] == ["epoch-time", "speed-up", "efficiency"]
    roles = {trace["meta"]["role"] for shown in figures for trace in shown.data}
    assert roles == {"measured", "ideal"}
    assert "law" not in figures[0].caption


def test_repeats_have_their_spread(tmp_path: Path) -> None:
    job = study_job(tmp_path)
    shown = figure(scaling_figures(job, forecasters_of(job)), "epoch-time")
    (measured,) = traces(shown, "measured")
    assert measured["y"] == [408, 210, pytest.approx(117.3)]
    assert measured["error_y"]["array"] == [8, pytest.approx(8.4), pytest.approx(2.3)]
    assert "the median of up to 3 runs, with the lowest and the highest" in shown.caption


def test_a_configuration_has_no_speed_up_over_itself_with_other_epochs(tmp_path: Path) -> None:
    build(tmp_path / "one", Plan(workers=1, epoch_time_s=20))
    build(tmp_path / "short", Plan(workers=1, epoch_time_s=11, accuracy=(0.1, 0.2, 0.3)))
    build(tmp_path / "two", Plan(workers=2, epoch_time_s=11))
    figures = scaling_figures(job_in(tmp_path), ())
    for name in ("speed-up", "efficiency"):
        (measured,) = traces(figure(figures, name), "measured")
        assert measured["x"] == [1, 2]


def test_other_settings_are_a_group_of_their_own(tmp_path: Path) -> None:
    for workers in (1, 2):
        for compiled in (True, False):
            time_s = (10.0 if compiled else 15.0) / workers
            plan = Plan(workers=workers, epoch_time_s=time_s, training={"compile": compiled})
            build(tmp_path / f"{workers}{compiled}", plan)
    job = job_in(tmp_path)
    shown = figure(scaling_figures(job, forecasters_of(job)), "epoch-time")
    assert [trace["name"] for trace in traces(shown, "measured")] == [
        "T4, compilation no measured",
        "T4, compilation yes measured",
    ]
    assert len(traces(shown, "law")) == 1


def test_one_configuration_without_a_law_is_no_picture(tmp_path: Path) -> None:
    build(tmp_path / "r", Plan())
    assert scaling_figures(job_in(tmp_path), ()) == []


# --- epochs to stable


def test_the_labs_epochs_against_gpus(lab: Workload) -> None:
    shown = epochs_figure(lab, forecasters_of(lab))
    assert shown is not None
    (stated,) = traces(shown, "measured")
    assert (stated["x"], stated["y"], stated["marker"]["symbol"]) == ([2, 4, 4, 8], [15, 19, 20, 25], "square")
    assert "by eye" in shown.caption
    assert len(traces(shown, "law")) == 1  # T4 and V100 share it
    assert "forecast for 16 V100: about 39 epochs" in shown.alt
    (planned,) = traces(shown, "ideal")
    assert (planned["name"], planned["y"]) == ("the recipe's 30 epochs", [30, 30])


def test_rehearsed_and_unfinished_epochs_have_their_symbols(tmp_path: Path) -> None:
    build(tmp_path / "one", Plan(workers=1, accuracy=rising(epochs=20)))
    build(tmp_path / "two", Plan(workers=2, accuracy=rising(epochs=20, pace=15.0)))
    build(tmp_path / "four", Plan(workers=4, processes=1, accuracy=rising(epochs=20, pace=3.0)))
    shown = epochs_figure(job_in(tmp_path), ())
    assert shown is not None
    assert [(t["name"], t["marker"]["symbol"], t["x"], t["meta"]["role"]) for t in shown.data] == [
        ("measured", "circle", [1], "measured"),
        ("rehearsed", "diamond-open", [4], "rehearsal"),
        ("not yet stable: at least", "triangle-up", [2], "measured"),
    ]
    assert "error_y" in shown.data[0]
    assert "law" not in shown.caption


def test_epochs_that_nobody_knows_are_no_picture(tmp_path: Path) -> None:
    build(tmp_path / "one", Plan(workers=1, accuracy=rising(epochs=3)))
    build(tmp_path / "two", Plan(workers=2, accuracy=rising(epochs=3)))
    assert epochs_figure(job_in(tmp_path), ()) is None
