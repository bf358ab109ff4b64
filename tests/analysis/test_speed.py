"""Speed-up and efficiency against a named baseline."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table
from turnaround.analysis.speed import speedups
from turnaround.analysis.workloads import survey
from turnaround.findings.labels import label_of


def test_the_labs_figures_by_one_definition(tmp_path: Path) -> None:
    caltech, fruit = survey([import_table(LAB, tmp_path)]).workloads
    found = {label_of(configuration): speedup for configuration, speedup in speedups(caltech).items()}
    assert list(found) == ["2 T4", "4 T4", "4 V100", "8 V100"]
    assert [label_of(speedup.baseline) for speedup in found.values()] == ["2 T4", "2 T4", "4 V100", "4 V100"]
    assert [round(speedup.speedup.value, 2) for speedup in found.values()] == [1.0, 2.58, 1.0, 1.82]
    assert [round(speedup.efficiency.value, 2) for speedup in found.values()] == [1.0, 1.29, 1.0, 0.91]
    assert [speedup.is_superlinear for speedup in found.values()] == [False, True, False, False]
    # 20, 11 and 5 s are whole seconds: 11 -> 5 may be 10.5 -> 5.5, which is less than twice as fast.
    assert [round(s.efficiency.value, 2) for s in speedups(fruit).values()] == [1.0, 0.91, 1.0]
    assert not any(speedup.is_superlinear for speedup in speedups(fruit).values())


def test_repeats_give_the_extremes(tmp_path: Path) -> None:
    for number, time_s in enumerate((20.0, 22.0, 18.0)):
        build(tmp_path / f"one-{number}", Plan(workers=1, epoch_time_s=time_s))
    for number, time_s in enumerate((10.0, 11.0, 12.0)):
        build(tmp_path / f"two-{number}", Plan(workers=2, epoch_time_s=time_s))
    (job,) = survey([tmp_path]).workloads
    one, two = speedups(job).values()
    assert (one.speedup.value, one.speedup.low, one.speedup.high, one.speedup.sd) == (1.0, 1.0, 1.0, 0.0)
    assert two.speedup.value == pytest.approx(20 / 11)
    assert (two.speedup.low, two.speedup.high) == pytest.approx((18 / 12, 22 / 10))
    assert two.speedup.sd == pytest.approx(20 / 11 * (0.1**2 + (1 / 11) ** 2) ** 0.5)
    assert two.efficiency.value == pytest.approx(10 / 11)


def test_rehearsals_and_other_settings_are_no_part_of_it(tmp_path: Path) -> None:
    build(tmp_path / "one", Plan(workers=1, epoch_time_s=20))
    build(tmp_path / "rehearsed", Plan(workers=8, processes=1, epoch_time_s=21))
    build(tmp_path / "compiled", Plan(workers=2, epoch_time_s=5, training={"compile": True}))
    build(tmp_path / "plain", Plan(workers=2, epoch_time_s=11, training={"compile": False}))
    (job,) = survey([tmp_path]).workloads
    found = {label_of(configuration): label_of(speedup.baseline) for configuration, speedup in speedups(job).items()}
    assert "8 workers rehearsed on 1 T4" not in found
    assert found["2 T4, compilation yes"] == "2 T4, compilation yes"


def test_more_epochs_are_no_hindrance_for_times(tmp_path: Path) -> None:
    build(tmp_path / "one", Plan(workers=1, epoch_time_s=20))
    build(tmp_path / "short", Plan(workers=2, epoch_time_s=11, accuracy=(0.1, 0.2, 0.3)))
    (job,) = survey([tmp_path]).workloads
    baselines = {speedup.baseline.workers for speedup in speedups(job).values()}
    assert baselines == {1}


def test_a_configuration_is_not_faster_than_itself(tmp_path: Path) -> None:
    """Of other epochs, but of the same hardware and batch: the ratio of their times is noise."""
    build(tmp_path / "one", Plan(workers=1, epoch_time_s=20))
    build(tmp_path / "short", Plan(workers=1, epoch_time_s=11, accuracy=(0.1, 0.2, 0.3)))
    (job,) = survey([tmp_path]).workloads
    assert len(job.configurations) == 2
    (only,) = speedups(job).values()
    assert only.speedup.value == 1.0
    build(tmp_path / "two", Plan(workers=2, epoch_time_s=11))
    (job,) = survey([tmp_path]).workloads
    assert sorted(configuration.workers for configuration in speedups(job)) == [1, 2]
