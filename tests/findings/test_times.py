"""What of the turnaround was not training."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table
from turnaround.analysis.shares import lost_s
from turnaround.analysis.workloads import survey
from turnaround.findings.times import time_lost_outside_training


def test_of_a_cold_epoch_only_what_it_took_longer(tmp_path: Path) -> None:
    build(tmp_path / "run", Plan(epoch_time_s=10, cold_time_s=50, evaluation_time_s=1, time_s={"decode": 7.0}))
    (run,) = survey([tmp_path]).workloads[0].configurations[0].summaries
    assert lost_s(run) == pytest.approx({"start_up": 1, "decode": 7, "evaluation": 20, "other": 0, "training_cold": 40})


def test_of_a_table_the_job_less_its_epochs(tmp_path: Path) -> None:
    caltech, fruit = survey([import_table(LAB, tmp_path)]).workloads
    assert lost_s(fruit.configurations[2].summaries[0]) == {"other": 155.0}
    assert lost_s(caltech.configurations[0].summaries[0]) == {"other": 0.0}  # its epochs take longer than its job


def test_rehearsals_are_not_asked(tmp_path: Path) -> None:
    build(tmp_path / "run", Plan(workers=8, processes=1, time_s={"start_up": 900.0}))
    assert list(time_lost_outside_training(survey([tmp_path]).workloads[0])) == []


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("decode", "most of it decoding"),
        ("checkpoint", "most of it checkpoints"),
        ("evaluation", "most of it evaluation"),
    ],
)
def test_the_largest_part_is_named(part: str, words: str, tmp_path: Path) -> None:
    build(tmp_path / "run", Plan(time_s={part: 300.0}))
    (finding,) = time_lost_outside_training(survey([tmp_path]).workloads[0])
    assert words in finding.text
