"""Time and cost to one goal."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from turnaround.analysis.goals import goals, time_to_target_s
from turnaround.analysis.workloads import survey
from turnaround.findings.labels import label_of


def test_the_labs_comparison(tmp_path: Path) -> None:
    jobs = {job.name: job for job in survey([import_table(LAB, tmp_path)]).workloads}
    stable, whole = goals(jobs["caltech256, frozen"])
    assert (stable.basis, whole.basis) == ("stable", "job")
    assert {label_of(one.configuration): one.value_s for one in stable.reached} == {
        "2 T4": 3135.0,
        "4 T4": 1539.0,
        "4 V100": 1600.0,
        "8 V100": 1100.0,
    }
    assert {(one.low_s, one.high_s) for one in (*stable.reached, *whole.reached)} == {(None, None)}
    assert stable.reached[-1].device_s(1100.0) == 8800.0
    assert [goal.basis for goal in goals(jobs["fruit, fine-tuned"])] == ["job"]


def test_the_interval_has_that_of_the_epochs_and_the_repeats(tmp_path: Path) -> None:
    for workers, pace in ((1, 2.0), (2, 3.0)):
        for seed in range(3):
            accuracy = rising(epochs=30, pace=pace, noise=0.004, seed=seed)
            plan = Plan(workers=workers, accuracy=accuracy, training={"seed": seed}, epoch_time_s=10.0 + seed)
            build(tmp_path / f"{workers}-{seed}", plan)
    (job,) = survey([tmp_path]).workloads
    target, stable, whole = goals(job)
    assert target.accuracy == job.target
    for one in (*target.reached, *stable.reached, *whole.reached):
        assert one.low_s is not None
        assert one.high_s is not None
        assert one.low_s <= one.value_s <= one.high_s
        assert not one.is_lower_bound
    first = stable.reached[0]
    assert (first.low_s, first.high_s) == (
        pytest.approx((first.configuration.stable.low or 0) * 10.0),
        pytest.approx((first.configuration.stable.high or 0) * 12.0),
    )
    assert [one.value_s for one in target.reached] == [
        time_to_target_s(configuration, job.target) for configuration in job.configurations
    ]


def test_what_still_rises_is_a_lower_bound_and_a_rehearsal_has_no_time(tmp_path: Path) -> None:
    build(tmp_path / "slow", Plan(workers=1, accuracy=rising(epochs=20, pace=15.0)))
    build(tmp_path / "rehearsed", Plan(workers=4, processes=1, accuracy=rising(epochs=20)))
    (job,) = survey([tmp_path]).workloads
    stable = next(goal for goal in goals(job) if goal.basis == "stable")
    assert [(label_of(one.configuration), one.is_lower_bound, one.high_s) for one in stable.reached] == [
        ("1 T4", True, None)
    ]
