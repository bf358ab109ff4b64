"""Which accuracies are repeats of one another, and how far they differ by chance."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from turnaround.analysis.pools import groups_of
from turnaround.analysis.workloads import survey
from turnaround.findings.labels import pool_label


def test_the_gpu_and_the_processes_do_not_matter_for_the_result(tmp_path: Path) -> None:
    build(tmp_path / "t4", Plan(workers=4))
    build(tmp_path / "v100", Plan(workers=4, gpu="Tesla V100"))
    build(tmp_path / "rehearsed", Plan(workers=4, processes=1))
    build(tmp_path / "two", Plan(workers=2))
    (group,) = groups_of(survey([tmp_path]).workloads[0])
    assert [(pool.workers, len(pool.accuracies)) for pool in group.pools] == [(2, 1), (4, 3)]
    assert pool_label(group.pools[1]) == "4 workers (3 runs)"


def test_other_learning_rates_are_another_group(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan(workers=1))
    build(tmp_path / "b", Plan(workers=1, training={"learning_rate": 0.4}))
    assert len(groups_of(survey([tmp_path]).workloads[0])) == 2


def test_noise_from_repeats_has_few_degrees_of_freedom(tmp_path: Path) -> None:
    caltech, fruit = survey([import_table(LAB, tmp_path)]).workloads
    (group,) = groups_of(caltech)
    assert group.noise is not None
    assert (group.noise.sd, group.noise.degrees) == (pytest.approx((0.6861 - 0.6760) / 2**0.5), 1)
    two, _, eight = group.pools
    assert group.noise.limit(two, eight) == pytest.approx(6.314 * 2**0.5 * group.noise.sd, rel=1e-3)
    assert groups_of(fruit)[0].noise is None


def test_noise_from_counting_images_where_there_is_no_curve(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan(accuracy=(0.2, 0.5), num_validation=100))
    (group,) = groups_of(survey([tmp_path]).workloads[0])
    assert group.noise is not None
    assert (group.noise.sd, group.noise.degrees) == (pytest.approx(0.05), None)


def test_noise_of_a_curve_is_no_less_than_counting(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan(accuracy=rising(0.8, noise=0.0), num_validation=400))
    (group,) = groups_of(survey([tmp_path]).workloads[0])
    assert group.noise is not None
    assert group.noise.sd == pytest.approx(0.02, abs=1e-3)
