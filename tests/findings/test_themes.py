"""Words and corners of the other themes: speed, images, curves of tables, and how figures are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from turnaround.analysis.workloads import survey
from turnaround.findings import find_all
from turnaround.findings.data import class_imbalance
from turnaround.findings.speed import faster_gpu_no_gain, more_than_linear
from turnaround.reporting.survey_text import evidence_text

TALKING = (0.001, 0.001, 0.063, 0.030, 0.005)


def test_a_gain_that_is_not_there_is_not_always_the_inputs_fault(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan(epoch_time_s=10))
    build(tmp_path / "b", Plan(epoch_time_s=11, gpu="Tesla V100", parts_s={0: TALKING, 1: TALKING}))
    (finding,) = faster_gpu_no_gain(survey([tmp_path]).workloads[0])
    assert finding.text.startswith("2 V100 take longer than 2 T4 (11 s and 10 s an epoch)")
    assert "these runs measured the exchange of gradients" in finding.text


def test_a_kind_without_a_data_sheet_is_not_judged(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan(epoch_time_s=10))
    build(tmp_path / "b", Plan(epoch_time_s=10, gpu="Voodoo 2"))
    assert list(faster_gpu_no_gain(survey([tmp_path]).workloads[0])) == []


def test_each_impossible_step_is_told_once(tmp_path: Path) -> None:
    for workers, time_s in ((1, 100.0), (2, 30.0), (4, 14.9)):
        build(tmp_path / str(workers), Plan(workers=workers, epoch_time_s=time_s))
    found = [finding.text.partition(" is ")[0] for finding in more_than_linear(survey([tmp_path]).workloads[0])]
    assert found == ["1 -> 2 T4", "1 -> 4 T4"]


def test_a_configuration_is_not_compared_with_itself(tmp_path: Path) -> None:
    """The same hardware for other numbers of epochs: neither a speed-up nor unfair."""
    for epochs, time_s in ((10, 20.0), (30, 25.0), (40, 10.0)):
        plan = Plan(workers=2, epoch_time_s=time_s, accuracy=rising(epochs=epochs), training={"epochs": epochs})
        build(tmp_path / str(epochs), plan)
    found = {finding.id for finding in find_all(survey([tmp_path]))}
    assert not found & {"efficiency-falls", "more-than-linear", "unfair-comparison"}


def test_the_evidence_of_interrupted_runs_can_be_read(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan(state="interrupted", cause="Stopped by Ctrl-C: all of it, and saved.", accuracy=(0.1,)))
    build(tmp_path / "b", Plan(state="interrupted", accuracy=(0.1, 0.2), training={"seed": 1}))
    (finding,) = [one for one in find_all(survey([tmp_path])) if one.id == "run-interrupted"]
    assert finding.advice.endswith(f"turnaround resume {tmp_path / 'a'}")
    told = evidence_text(finding.evidence)
    assert told == "epochs done: a 1, b 2; cause: a Stopped by Ctrl-C: all of it, and saved"


def test_unequal_classes_by_their_validation_images(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan(per_class={"apple": 300, "pear": 12, "none": 0}))
    (finding,) = class_imbalance(survey([tmp_path]).workloads[0])
    assert finding.text == "Strong imbalance: 300 validation images of 'apple', 12 of 'pear'."
    assert "turnaround train photos --set training.class_weights=balanced" in finding.advice


def test_classes_that_are_weighed_already_need_images(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan(per_class={"apple": 300, "pear": 12}, training={"class_weights": "balanced"}))
    (finding,) = class_imbalance(survey([tmp_path]).workloads[0])
    assert "--set" not in finding.advice
    assert "add images" in finding.advice


def test_a_table_without_a_gap_is_not_memorising(tmp_path: Path) -> None:
    table = LAB
    for number in ("0.8610", "0.8678", "0.8713", "0.8636"):
        table = table.replace(number, "0.6900")
    assert "memorising" not in {finding.id for finding in find_all(survey([import_table(table, tmp_path)]))}


@pytest.mark.parametrize("leaks", [[], "many", {"num": "x"}, {"num": 5}, {"num": 5, "of": 0}, {"num": True}])
def test_a_leak_that_is_told_in_another_way_breaks_nothing(leaks: object, tmp_path: Path) -> None:
    build(tmp_path / "a", Plan(images={"leaks": leaks, "warnings": None}))
    assert all("of 0" not in finding.text for finding in find_all(survey([tmp_path])))
