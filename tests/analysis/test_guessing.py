"""Every accuracy beside that of always answering the largest class, with the interval that its images allow."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.build import Plan, build, rising
from turnaround.analysis.goals import time_ranking
from turnaround.analysis.guessing import against_guessing, wilson_interval
from turnaround.analysis.summary import summarise
from turnaround.analysis.workloads import survey
from turnaround.findings.labels import label_of
from turnaround.record.reader import Run
from turnaround.record.schema import ClassResult, Evaluation


def evaluation(top1: float, **counts: int) -> Evaluation:
    return Evaluation(
        epoch=1,
        num_images=sum(counts.values()),
        top1=top1,
        top5=None,
        loss=1.0,
        classes=list(counts),
        per_class=[ClassResult(name=name, num_images=n, accuracy=None) for name, n in counts.items()],
        confusion=[],
    )


@pytest.mark.parametrize(
    ("top1", "counts", "is_better"),
    [
        (0.542, {"ants": 70, "bees": 83}, False),
        (0.60, {"ants": 70, "bees": 83}, False),  # the interval begins at 52.2 %
        (0.65, {"ants": 70, "bees": 83}, True),
        (0.10, {f"c{i}": 1000 for i in range(10)}, False),
        (0.11, {f"c{i}": 1000 for i in range(10)}, True),
        (1.0, {"a": 1, "b": 1}, False),  # two images tell nothing
        (0.0, {"a": 5, "b": 5}, False),
    ],
)
def test_the_interval_must_lie_above_guessing(top1: float, counts: dict[str, int], is_better: bool) -> None:
    found = against_guessing(evaluation(top1, **counts))
    assert found is not None
    assert found.guessing == max(counts.values()) / sum(counts.values())
    assert found.is_better is is_better
    assert 0.0 <= found.low <= found.accuracy <= found.high <= 1.0


def test_without_counts_or_with_one_class_nothing_is_said() -> None:
    assert against_guessing(replace(evaluation(0.5, a=3, b=3), per_class=[])) is None
    assert against_guessing(evaluation(1.0, a=3, b=0)) is None
    assert against_guessing(evaluation(math.nan, a=3, b=3)) is None


def test_the_interval_holds_what_it_promises() -> None:
    """Of intervals around what 40 images show, 95 % hold the true share, near the ends too."""
    dice = np.random.default_rng(0)
    for share in (0.5, 0.9, 0.97):
        seen = dice.binomial(40, share, size=4000) / 40
        inside = [low <= share <= high for low, high in (wilson_interval(one, 40) for one in seen)]
        assert 0.92 < float(np.mean(inside)) <= 1.0


def test_it_is_in_the_summary(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan(per_class={"ants": 70, "bees": 83}, top1=0.9))
    summary = summarise(Run.load(tmp_path / "a"))
    assert (summary.guessing_accuracy, summary.is_better_than_guessing) == (83 / 153, True)
    build(tmp_path / "b", Plan())
    assert summarise(Run.load(tmp_path / "b")).is_better_than_guessing is None


def test_what_ended_at_chance_is_no_goal_and_is_not_ranked(tmp_path: Path) -> None:
    counts = {"ants": 700, "bees": 700}
    for workers, level in ((1, 0.9), (2, 0.88), (4, 0.5)):
        curve = rising(level, epochs=30, seed=workers)
        build(tmp_path / str(workers), Plan(workers=workers, accuracy=curve, per_class=counts, top1=curve[-1]))
    (job,) = survey([tmp_path]).workloads
    assert job.target is not None
    assert job.target > 0.8
    ranked = time_ranking(job)
    assert ranked is not None
    assert [label_of(configuration) for configuration, _ in ranked.time_s] == ["1 T4", "2 T4"]
    assert [configuration.is_at_chance for configuration in job.configurations] == [False, False, True]
