"""The figures of a proposal: definitions of scaling, intervals of single runs, and the request."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from turnaround.analysis.prices import Price
from turnaround.analysis.workloads import survey
from turnaround.errors import InputError
from turnaround.forecast.proposal import Proposal, make_proposal, median_interval
from turnaround.forecast.question import Question


def scaled(folder: Path, **options: object) -> Path:
    for workers, epoch_s in ((1, 40.0), (2, 21.0), (4, 11.0)):
        build(folder / f"w{workers}", Plan(workers=workers, epoch_time_s=epoch_s, watts=200.0, **options))  # type: ignore[arg-type]
    build(folder / "r16", Plan(workers=16, processes=1, accuracy=rising(0.75)))
    return folder


def proposal(folder: Path, workers: int | None = None, trainings: int = 1, **question: object) -> Proposal:
    asked = Question(workers=workers or 1, **question)  # type: ignore[arg-type]
    return make_proposal(survey([folder]), asked, workers=workers, trainings=trainings)


def test_strong_and_weak_scaling_of_measured_runs_and_forecasts(tmp_path: Path) -> None:
    made = proposal(scaled(tmp_path), workers=8)
    measured = {point.workers: point for point in made.points if point.kind == "measured"}
    assert [round(point.speedup.value, 3) for point in measured.values()] == [1.0, 1.905, 3.636]
    assert measured[4].efficiency.value == pytest.approx(40 / 11 / 4)
    # The same images on each worker in a step: 312, 156 and 78 steps an epoch.
    weak = measured[4].weak_efficiency
    assert weak is not None
    assert weak.value == pytest.approx((40 / 312) / (11 / 78))
    assert [point.workers for point in made.points if point.kind == "forecast"] == [8, 16]
    ahead = made.points[-1]
    assert ahead.efficiency.low < ahead.efficiency.value < ahead.efficiency.high


def test_accuracies_say_which_are_rehearsed(tmp_path: Path) -> None:
    made = proposal(scaled(tmp_path))
    kinds = {point.workers: point.kind for point in made.accuracies}
    assert kinds == {1: "measured", 2: "measured", 4: "measured", 16: "rehearsed"}
    one = made.accuracies[0].accuracy
    assert one.low < one.value < one.high  # by the number of validation images


def test_the_request_is_measured_where_it_was_run_else_forecast(tmp_path: Path) -> None:
    seen = proposal(scaled(tmp_path), workers=4, trainings=10).request
    assert seen.is_measured
    job_s = 11.0 * 20 + 0.5 * 20 + 1.0
    assert seen.gpu_hours.value == pytest.approx(10 * 4 * job_s / 3600)
    assert seen.energy_wh is not None
    assert seen.energy_wh.value == pytest.approx(10 * 4 * 200 * job_s / 3600)
    paid, hourly = seen.cost(Price(per_hour=2.0)), seen.cost(Price(per_hour=2.0, billing_s=3600.0))
    assert paid is not None
    assert paid.value == pytest.approx(2 * seen.gpu_hours.value)
    assert hourly is not None
    assert hourly.value == 10 * 4 * 2.0  # each training is a job of minutes, which pays its begun hour
    ahead = proposal(tmp_path, workers=8).request
    assert not ahead.is_measured
    assert ahead.gpu_hours.low < ahead.gpu_hours.value < ahead.gpu_hours.high


def test_without_a_number_the_fewest_workers_that_are_enough_are_asked_for(tmp_path: Path) -> None:
    for workers in (1, 2, 4):  # nothing is gained
        build(tmp_path / f"w{workers}", Plan(workers=workers, epoch_time_s=20.0))
    assert proposal(tmp_path).request.prediction.workers == 1


def test_intervals_of_repeats_of_single_runs_and_of_tables(tmp_path: Path) -> None:
    for number, epoch_s in enumerate((10.0, 12.0, 11.0)):
        build(tmp_path / f"own/{number}", Plan(workers=1, epoch_time_s=epoch_s))
    point = proposal(tmp_path / "own").points[0]
    assert (point.runs, point.epoch_time_s.low, point.epoch_time_s.value, point.epoch_time_s.high) == (3, 10, 11, 12)
    told = proposal(import_table(LAB, tmp_path / "lab"), job="caltech", gpu="V100").points
    assert all(p.epoch_time_s.low == p.epoch_time_s.high for p in told if p.kind == "measured")


def test_the_median_lies_between_two_of_the_values_whatever_their_distribution() -> None:
    assert median_interval([1.0, 2.0, 3.0]) is None
    assert median_interval([1.0, 2.0, 3.0, 4.0]) == (1.0, 4.0)
    # P(Binomial(10, 1/2) < 3) = 0.055, < 4 = 0.172: the third smallest and largest hold it with 89 %.
    assert median_interval(list(range(1, 11))) == (3, 8)
    low, high = median_interval([float(n) for n in range(5000)]) or (0.0, 0.0)
    assert 2400 < low < 2500 < high < 2600


def test_what_cannot_be_proposed_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--trainings must be 1 or more, received 0"):
        proposal(scaled(tmp_path / "a"), trainings=0)
    build(tmp_path / "b/r", Plan(workers=4, processes=1))
    with pytest.raises(InputError, match=r"no run of .* has times on T4: a rehearsal has accuracies alone"):
        proposal(tmp_path / "b")
    with pytest.raises(InputError, match=r"no run of .* has times on A100: there are times on T4"):
        proposal(tmp_path / "a", gpu="A100")
