"""What is said about the cause of a lost accuracy: batch, learning rate, neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.build import Plan, build, rising
from turnaround.analysis.workloads import survey
from turnaround.findings.accuracy import accuracy_falls_with_workers, repeats_disagree
from turnaround.findings.finding import Finding


def falls(tmp_path: Path, training: dict[str, Any], *, num_validation: int | None = 2500) -> Finding:
    """From 85 % on one worker to 78 % on eight."""
    for workers, level in ((1, 0.85), (8, 0.78)):
        plan = Plan(workers=workers, accuracy=rising(level), training=training, num_validation=num_validation)
        build(tmp_path / str(workers), plan)
    (job,) = survey([tmp_path]).workloads
    (finding,) = accuracy_falls_with_workers(job)
    return finding


@pytest.mark.parametrize(
    ("training", "cause", "advice"),
    [
        ({"scaling": "none"}, "was not raised for the larger batch", "--set training.scaling=auto"),
        (
            {"scaling": "linear", "optimizer": "adam"},
            "raised 8-fold (scaling = linear), too much for adam",
            "scaling=auto",
        ),
        ({"scaling": "linear"}, "raised by the linear rule, and nothing else was adjusted", "--processes 1"),
        ({"scaling": "auto"}, "so what is left is the batch", "training.batch_total=32"),
        ({"scaling": None}, "how the learning rate was scaled is not recorded", "--set training.scaling=auto"),
    ],
)
def test_the_learning_rates_part(training: dict[str, Any], cause: str, advice: str, tmp_path: Path) -> None:
    finding = falls(tmp_path, training)
    assert "the global batch grew from 32 to 256 and the number of updates fell to 1/8" in finding.text
    assert cause in finding.text
    assert advice in finding.advice
    assert finding.severity is None  # as severe as its rule: a problem


def test_a_fixed_batch_is_not_the_batch(tmp_path: Path) -> None:
    finding = falls(tmp_path, {"batch_total": 64, "batch_per_worker": 8})
    assert "the global batch was 64 for both, so it is not the batch; nor the learning rate" in finding.text
    assert "the 8 images of its worker" in finding.text


def test_what_is_not_recorded_is_not_blamed(tmp_path: Path) -> None:
    finding = falls(tmp_path, {"batch_per_worker": None, "scaling": None})
    assert "the record does not give the batch" in finding.text
    assert "batch_total" not in finding.advice


def test_a_rehearsal_shows_it_before_anybody_pays(tmp_path: Path) -> None:
    build(tmp_path / "one", Plan(workers=1, accuracy=rising(0.85)))
    build(tmp_path / "rehearsed", Plan(workers=16, processes=1, accuracy=rising(0.75)))
    (finding,) = accuracy_falls_with_workers(survey([tmp_path]).workloads[0])
    assert "on 16 workers rehearsed on 1 T4" in finding.text


def test_a_small_validation_set_hides_a_small_drop(tmp_path: Path) -> None:
    for workers, level in ((1, 0.80), (8, 0.78)):
        build(tmp_path / str(workers), Plan(workers=workers, accuracy=rising(level), num_validation=200))
    (job,) = survey([tmp_path]).workloads
    assert list(accuracy_falls_with_workers(job)) == []  # one standard error is 2.8 points


def test_repeats_may_disagree_in_time_alone(tmp_path: Path) -> None:
    for seed, time_s in enumerate((10.0, 12.0)):
        build(tmp_path / str(seed), Plan(epoch_time_s=time_s, training={"seed": seed}))
    (finding,) = repeats_disagree(survey([tmp_path]).workloads[0])
    assert finding.text == "The 2 runs of 2 T4 disagree: epochs from 10 s to 12 s."
