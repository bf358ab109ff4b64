"""Which classes are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from analysis.build import Plan, build
from turnaround.analysis.confusion import best_evaluated, confused_pairs, most_confused_classes, row_shares
from turnaround.analysis.workloads import survey
from turnaround.findings.labels import label_of
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import ClassResult, Evaluation, to_json
from turnaround.record.writer import write_json


def evaluation(confusion: Sequence[Sequence[int]], top1: float = 0.8) -> Evaluation:
    names = [f"class {place}" for place in range(len(confusion))]
    return Evaluation(
        epoch=1,
        num_images=sum(map(sum, confusion)),
        top1=top1,
        top5=None,
        loss=0.5,
        classes=names,
        per_class=[ClassResult(name=name, num_images=1, accuracy=0.5) for name in names],
        confusion=[list(row) for row in confusion],
    )


def test_pairs_by_images_then_by_share() -> None:
    pairs = confused_pairs(evaluation([[8, 2, 0], [2, 2, 0], [0, 5, 0]]))
    assert [(pair.true, pair.predicted, pair.num_images) for pair in pairs] == [(2, 1, 5), (1, 0, 2), (0, 1, 2)]
    assert pairs[1].share == 0.5
    assert len(confused_pairs(evaluation([[8, 2, 0], [2, 2, 0], [0, 5, 0]]), most=1)) == 1


def test_nothing_is_confused_where_all_is_right() -> None:
    assert confused_pairs(evaluation([[3, 0], [0, 0]])) == ()


def test_of_many_classes_those_that_are_confused_most() -> None:
    count = 50
    confusion = [[10 if true == predicted else 0 for predicted in range(count)] for true in range(count)]
    confusion[40][7] = 9
    confusion[7][33] = 5
    confusion[1][2] = 1
    assert most_confused_classes(evaluation(confusion), most=4) == [7, 33, 40]
    assert most_confused_classes(evaluation(confusion), most=50) == list(range(50))


def test_shares_are_of_the_true_class() -> None:
    shares = row_shares(evaluation([[6, 2], [0, 0]]), [0, 1])
    assert shares == [[0.75, 0.25], [None, None]]


def test_the_most_accurate_run_is_shown(tmp_path: Path) -> None:
    for name, top1 in (("a", 0.7), ("b", 0.9)):
        build(tmp_path / name, Plan(workers=1 if name == "a" else 2))
        write_json(RunDirectory(tmp_path / name).evaluation, to_json(evaluation([[1, 0], [0, 1]], top1)))
    (job,) = survey([tmp_path]).workloads
    found = best_evaluated(job)
    assert found is not None
    assert (found.summary.name, label_of(found.configuration), found.evaluation.top1) == ("b", "2 T4", 0.9)


@pytest.mark.parametrize("damage", [[], [[1, 0]], [[1, 0], [0]], "nonsense"])
def test_a_matrix_that_is_none_is_passed_over(tmp_path: Path, damage: object) -> None:
    build(tmp_path / "a", Plan())
    content = {**to_json(evaluation([[1, 0], [0, 1]])), "confusion": damage}
    build(tmp_path / "b", Plan(training={"seed": 1}))
    write_json(RunDirectory(tmp_path / "a").evaluation, content)
    jobs = survey([tmp_path]).workloads
    assert [best_evaluated(job) for job in jobs] == [None]
