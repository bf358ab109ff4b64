"""The laws over a range of workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import Plan, build, rising
from turnaround.analysis.configurations import Workload
from turnaround.analysis.workloads import survey
from turnaround.findings.labels import label_of
from turnaround.forecast.predict import fit_forecaster
from turnaround.forecast.question import Question
from turnaround.forecast.sweep import (
    baseline_of,
    forecasters_of,
    same_epochs_law,
    set_aside,
    sweep,
)
from turnaround.forecast.turnaround import measured_time_to_stable


def lab_job(lab: Path) -> Workload:
    return next(job for job in survey([lab]).workloads if job.name == "caltech256, frozen")


def test_one_forecaster_for_each_kind_of_gpu(lab: Path) -> None:
    found = forecasters_of(lab_job(lab), price=2.0)
    assert [(one.laws.gpu, one.question.price) for one in found] == [("T4", 2.0), ("V100", 2.0)]


def test_from_the_fewest_that_were_run_to_twice_the_most(lab: Path) -> None:
    t4, v100 = forecasters_of(lab_job(lab))
    assert [point.workers for point in sweep(v100)] == [4, 6, 8, 12, 16]
    assert [point.workers for point in sweep(v100) if point.is_measured] == [4, 8]
    assert [point.workers for point in sweep(v100) if point.is_shown_apart] == [16]
    assert [point.workers for point in sweep(t4)] == [2, 3, 4, 6, 8]
    forecaster = fit_forecaster(survey([lab]), Question(workers=32, gpu="V100", job="caltech"))
    assert sweep(forecaster)[-1].workers == 32


def test_speed_up_is_against_the_measured_baseline(lab: Path) -> None:
    v100 = forecasters_of(lab_job(lab))[1]
    baseline = baseline_of(v100)
    assert baseline is not None
    assert label_of(baseline) == "4 V100"
    last = sweep(v100)[-1]
    time_s = last.prediction.epoch_time_s
    assert time_s is not None
    assert last.speedup is not None
    assert last.efficiency is not None
    assert last.speedup.value == pytest.approx(80 / time_s.value)
    assert (last.speedup.low, last.speedup.high) == pytest.approx((80 / time_s.high, 80 / time_s.low))
    assert last.efficiency.value == pytest.approx(last.speedup.value / 4)


def test_a_kind_that_nobody_timed_has_no_speed_up(lab: Path) -> None:
    forecaster = fit_forecaster(survey([lab]), Question(workers=16, gpu="A100", job="caltech"))
    assert baseline_of(forecaster) is None
    assert {(point.speedup, point.efficiency, point.is_measured) for point in sweep(forecaster)} == {
        (None, None, False)
    }
    assert all(point.prediction.epoch_time_s is not None for point in sweep(forecaster))


def test_what_the_law_does_not_explain_is_named(lab: Path) -> None:
    t4, v100 = forecasters_of(lab_job(lab))
    assert [label_of(configuration) for configuration in set_aside(t4)] == ["2 T4"]
    assert set_aside(v100) == ()


def test_kinds_share_the_law_of_epochs(lab: Path) -> None:
    t4, v100 = forecasters_of(lab_job(lab))
    assert same_epochs_law(sweep(t4), sweep(v100))
    assert v100.laws.observations.epochs_planned == 30


def test_a_measured_time_to_stable_has_start_up_in_it(lab: Path) -> None:
    job = lab_job(lab)
    v100 = forecasters_of(job)[1]
    eight = next(configuration for configuration in job.configurations if label_of(configuration) == "8 V100")
    assert v100.laws.times is not None
    found = measured_time_to_stable(v100.laws.times, eight)
    assert found is not None
    assert found.low == found.value == found.high == pytest.approx(25 * 44 + (1387 - 30 * 44))
    two_t4 = next(configuration for configuration in job.configurations if label_of(configuration) == "2 T4")
    assert measured_time_to_stable(v100.laws.times, two_t4) is None  # not among the times of this law


def test_its_interval_is_that_of_the_epochs(tmp_path: Path) -> None:
    for workers, time_s in ((1, 20.0), (2, 11.0)):
        build(tmp_path / f"r{workers}", Plan(workers=workers, accuracy=rising(epochs=30), epoch_time_s=time_s))
    (job,) = survey([tmp_path]).workloads
    (forecaster,) = forecasters_of(job)
    assert forecaster.question.target == job.target
    stable = job.configurations[0].stable
    assert forecaster.laws.times is not None
    found = measured_time_to_stable(forecaster.laws.times, job.configurations[0])
    assert found is not None
    assert stable.epoch is not None
    assert stable.low is not None
    assert found.value - found.low == pytest.approx((stable.epoch - stable.low) * 20.5)


def test_rehearsals_alone_give_epochs_and_no_times(tmp_path: Path) -> None:
    for workers in (2, 8):
        accuracy = rising(epochs=30, pace=1.0 + workers / 2)
        build(tmp_path / f"r{workers}", Plan(workers=workers, processes=1, accuracy=accuracy))
    (job,) = survey([tmp_path]).workloads
    (forecaster,) = forecasters_of(job)
    found = sweep(forecaster)
    assert [point.workers for point in found] == [2, 3, 4, 6, 8, 12, 16]
    assert {point.prediction.epoch_time_s for point in found} == {None}
    assert all(point.prediction.epochs_to_stable is not None for point in found)
    assert set_aside(forecaster) == ()


def test_runs_that_say_nothing_have_no_forecaster(tmp_path: Path) -> None:
    build(tmp_path / "r", Plan(workers=4, processes=1, accuracy=(), state="running"))
    (job,) = survey([tmp_path]).workloads
    assert forecasters_of(job) == ()
