"""Precision, recall and F1: what older records have them from, and the cases without a number."""

from __future__ import annotations

from typing import Any

import pytest

from turnaround.record.class_metrics import class_result, completed, macro
from turnaround.record.schema import Evaluation, from_json, to_json

OLD: dict[str, Any] = {
    "format": 1,
    "epoch": 10,
    "num_images": 10,
    "top1": 0.7,
    "top5": None,
    "loss": 0.5,
    "classes": ["a", "b", "c"],
    "per_class": [
        {"name": "a", "num_images": 5, "accuracy": 0.8},
        {"name": "b", "num_images": 0, "accuracy": None},
        {"name": "c", "num_images": 5, "accuracy": 0.6},
    ],
    "confusion": [[4, 1, 0], [0, 0, 0], [1, 1, 3]],
}


def test_an_older_record_is_completed_from_its_matrix() -> None:
    old = from_json(Evaluation, OLD)
    assert (old.macro_f1, old.calibration_error, old.calibration) == (None, None, [])
    found = completed(old)
    assert [(one.precision, one.recall, one.f1) for one in found.per_class] == [
        (0.8, 0.8, 0.8),
        (0.0, None, None),
        (1.0, 0.6, 0.75),
    ]
    assert found.macro_f1 == pytest.approx(0.775)
    assert found.calibration_error is None  # confidences were not kept
    assert from_json(Evaluation, to_json(found)) == found


@pytest.mark.parametrize("matrix", [[], [[1, 0]], [[1, 0], [0, 1]]])
def test_without_a_whole_matrix_it_stays_as_it_is(matrix: list[list[int]]) -> None:
    old = from_json(Evaluation, {**OLD, "confusion": matrix})
    assert completed(old) == old


def test_a_class_that_was_never_predicted_counts_as_nought() -> None:
    results = [
        class_result("never", num_images=4, num_predicted=0, num_right=0),
        class_result("always", num_images=6, num_predicted=10, num_right=6),
    ]
    assert (results[0].precision, results[0].f1) == (None, 0.0)
    assert macro(results) == pytest.approx((0.3, 0.5, 0.375))
    assert macro([]) == (None, None, None)
