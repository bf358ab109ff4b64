"""Repeats as one band, and long curves in fewer points."""

from __future__ import annotations

from pathlib import Path

from analysis.build import Plan, build, built, rising
from turnaround.analysis.configurations import Spread
from turnaround.analysis.repeats import curve_band, drawn_runs, epoch_band, evenly, means_of_groups
from turnaround.analysis.summary import summarise
from turnaround.analysis.workloads import survey


def test_a_band_spans_the_repeats_that_know_an_epoch(tmp_path: Path) -> None:
    runs = [
        summarise(built(tmp_path / "a", accuracy=[0.1, 0.5, 0.6])),
        summarise(built(tmp_path / "b", accuracy=[0.3, float("nan")])),
    ]
    band = curve_band(runs, "val_accuracy")
    assert band is not None
    assert (band.epochs, band.runs) == ((1, 2, 3), 2)
    assert (band.spreads[0].low, band.spreads[0].value, band.spreads[0].high) == (0.1, 0.2, 0.3)
    assert band.spreads[1:] == (Spread.of([0.5]), Spread.of([0.6]))


def test_there_is_no_band_without_values(tmp_path: Path) -> None:
    run = built(tmp_path / "a", accuracy=[float("nan")] * 3)
    assert curve_band([summarise(run)], "val_accuracy") is None
    assert curve_band([], "val_loss") is None
    assert epoch_band([run], "noise_scale") is None


def test_a_band_of_other_numbers_of_the_epochs(tmp_path: Path) -> None:
    band = epoch_band([built(tmp_path / "a", accuracy=rising(epochs=500))], "learning_rate", most=10)
    assert band is not None
    assert (len(band.epochs), band.epochs[0], band.epochs[-1]) == (10, 1, 500)
    assert {spread.value for spread in band.spreads} == {0.05}


def test_evenly_keeps_the_ends() -> None:
    assert evenly(range(3), 5) == [0, 1, 2]
    assert evenly(range(101), 5) == [0, 25, 50, 75, 100]


def test_groups_are_means_of_what_is_known() -> None:
    assert means_of_groups([1.0, 3.0, None, 5.0, None, None, 7.0], 4) == [2.0, 5.0, None, 7.0]
    assert means_of_groups([1.0, 2.0], 4) == [1.0, 2.0]
    assert means_of_groups([], 4) == []


def test_where_all_have_diverged_their_curves_are_drawn(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan(state="diverged", accuracy=[0.3, 0.2, 0.1]))
    (job,) = survey([tmp_path]).workloads
    assert [summary.state for summary, _ in drawn_runs(job.configurations[0])] == ["diverged"]
    build(tmp_path / "b", Plan(accuracy=rising(epochs=3), training={"seed": 1}))
    (job,) = survey([tmp_path]).workloads
    assert [summary.state for summary, _ in drawn_runs(job.configurations[0])] == ["finished"]
