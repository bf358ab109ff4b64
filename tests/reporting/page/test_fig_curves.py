"""Curves: what is drawn, how it is told apart, and what the caption says."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import Plan, build, rising
from reporting.page.figure_study import job_in, study_job, traces
from turnaround.analysis.configurations import Workload
from turnaround.reporting.page.fig_common import Figure
from turnaround.reporting.page.fig_curves import curve_figure


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return study_job(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def accuracy(job: Workload) -> Figure:
    found = curve_figure(job, "accuracy")
    assert found is not None
    return found


def test_training_and_validation_differ_in_more_than_colour(accuracy: Figure) -> None:
    assert {str(trace["line"]["dash"]) for trace in traces(accuracy, "validation")} == {"solid"}
    assert {str(trace["line"]["dash"]) for trace in traces(accuracy, "train")} == {"dot", "dashdot"}
    assert "Solid: validation images; dotted: training images." in accuracy.caption
    in_legend = [trace["name"] for trace in accuracy.data if trace.get("showlegend", True)]
    assert in_legend == ["1 T4", "2 T4", "4 T4", "8 workers rehearsed on 1 T4"]


def test_repeats_are_a_median_and_a_band(accuracy: Figure, job: Workload) -> None:
    first, *_ = (trace for trace in traces(accuracy, "validation") if trace["meta"]["series"] == 0)
    band, *_ = (trace for trace in traces(accuracy, "band") if trace["meta"]["series"] == 0)
    each = [run.curve.val_accuracy[4] for run in job.configurations[0].summaries]
    assert first["y"][4] == pytest.approx(sum(each) / 2, abs=1e-4)
    assert (band["y"][4], band["y"][-5]) == pytest.approx((max(each), min(each)), abs=1e-4)
    assert (band["x"][4], band["x"][-5], len(band["x"])) == (5, 5, 60)
    assert "(up to 2 runs)" in accuracy.caption
    assert not [trace for trace in traces(accuracy, "band") if trace["meta"]["series"] == 3]  # one run has no band


def test_the_stable_epoch_is_marked_with_its_interval(accuracy: Figure, job: Workload) -> None:
    marks = traces(accuracy, "stable")
    stable = job.configurations[0].stable
    assert stable.epoch is not None
    assert stable.low is not None
    assert marks[0]["x"] == [stable.epoch]
    assert marks[0]["error_x"]["arrayminus"] == [pytest.approx(stable.epoch - stable.low, rel=1e-3)]
    assert [mark["marker"]["symbol"] for mark in marks] == [
        "diamond" if c.stable.status == "stable" else "diamond-open" for c in job.configurations
    ]
    assert "80 % interval" in accuracy.caption


def test_the_widest_gap_is_shaded_and_the_others_are_named(accuracy: Figure) -> None:
    (area,) = traces(accuracy, "overfit")
    assert "which overfits since epoch" in accuracy.caption
    assert "(so do" in accuracy.caption
    assert min(area["x"]) > 3
    assert area["fill"] == "toself"


def test_a_run_under_way_is_drawn_for_itself(accuracy: Figure, job: Workload) -> None:
    (going,) = traces(accuracy, "running")
    assert (going["hovertext"], len(going["x"]), going["legendgroup"]) == ("going, running", 8, "1")
    assert "Thin: still running." in accuracy.caption
    assert "Thin" not in (curve_figure(job, "loss") or accuracy).caption.replace("Thin: still running.", "")


def test_the_words_for_those_who_do_not_see_it(accuracy: Figure, job: Workload) -> None:
    assert accuracy.alt.startswith("Validation accuracy by epoch: 1 T4 ends at ")
    assert "after epoch 30, stable at epoch" in accuracy.alt


def test_not_yet_stable_is_open(tmp_path: Path) -> None:
    build(tmp_path / "r", Plan(accuracy=rising(epochs=20, pace=15.0)))
    shown = curve_figure(job_in(tmp_path), "accuracy")
    assert shown is not None
    (mark,) = traces(shown, "stable")
    assert mark["marker"]["symbol"] == "diamond-open"
    assert "not yet stable, at least epoch" in str(mark["hovertext"])


@pytest.mark.parametrize("accuracy", [(), (0.5,), (float("nan"),) * 4])
def test_no_curve_no_picture(tmp_path: Path, accuracy: tuple[float, ...]) -> None:
    unknown = [float("nan")] * len(accuracy)
    build(tmp_path / "r", Plan(accuracy=accuracy, val_loss=unknown, train_accuracy=unknown))
    assert curve_figure(job_in(tmp_path), "accuracy") is None
    assert curve_figure(job_in(tmp_path), "loss") is None


def test_training_images_alone_are_said_to_be_so(tmp_path: Path) -> None:
    unknown = [float("nan")] * 3
    build(tmp_path / "r", Plan(accuracy=unknown, train_accuracy=[0.1, 0.2, 0.3]))
    shown = curve_figure(job_in(tmp_path), "accuracy")
    assert shown is not None
    assert [(trace["name"], trace["showlegend"]) for trace in shown.data] == [("training", True)]
    assert shown.alt == "Accuracy by epoch, of training images only."
    assert shown.caption == "Dotted: training images; validation images are not known."


def test_gaps_and_infinite_losses_are_left_out(tmp_path: Path) -> None:
    losses = [1.0, float("inf"), 0.5, float("nan"), 0.4]
    build(tmp_path / "r", Plan(accuracy=rising(epochs=5), val_loss=losses))
    shown = curve_figure(job_in(tmp_path), "loss")
    assert shown is not None
    (line,) = traces(shown, "validation")
    assert (line["x"], line["y"]) == ([1, 3, 5], [1, 0.5, 0.4])
