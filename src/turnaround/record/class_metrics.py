"""Precision, recall and F1 of the classes, from counts: one definition for who writes evaluation.json and who reads it.

    recall      right / images of the class            none without images
    precision   right / images predicted as the class  none where it was never predicted
    F1          2 right / (images + predicted)         none without images

Macro figures are plain means over the classes that have validation images, as scikit-learn's `average="macro"` with
`zero_division=0`: a class that was never predicted counts as precision 0. A class without images counts in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from turnaround.record.schema import ClassResult, Evaluation


def class_result(name: str, *, num_images: int, num_predicted: int, num_right: int) -> ClassResult:
    """Return the figures of one class."""
    recall = num_right / num_images if num_images else None
    return ClassResult(
        name=name,
        num_images=num_images,
        accuracy=recall,
        num_predicted=num_predicted,
        precision=num_right / num_predicted if num_predicted else None,
        recall=recall,
        f1=2 * num_right / (num_images + num_predicted) if num_images else None,
    )


class Macro(NamedTuple):
    """Plain means over the classes that have images; None where no class was counted."""

    precision: float | None
    recall: float | None
    f1: float | None


def macro(results: Iterable[ClassResult]) -> Macro:
    """Return the macro figures of the classes."""
    # A record of an earlier version has no `num_predicted`: its precision is unknown, which is not 0.
    counted = [one for one in results if one.num_images and one.num_predicted is not None]
    if not counted:
        return Macro(None, None, None)
    return Macro(
        precision=fmean(one.precision or 0.0 for one in counted),
        recall=fmean(one.recall or 0.0 for one in counted),
        f1=fmean(one.f1 or 0.0 for one in counted),
    )


def completed(evaluation: Evaluation) -> Evaluation:
    """Return the evaluation with its class metrics: those of an older record are counted from its confusion matrix."""
    matrix = evaluation.confusion
    is_known = all(one.num_predicted is not None for one in evaluation.per_class)
    if is_known or not is_square(matrix) or len(matrix) != len(evaluation.per_class):
        return evaluation
    # confusion[true][predicted]: rows are what the images show, columns what the network said.
    predicted = [sum(column) for column in zip(*matrix, strict=True)]
    results = [
        class_result(one.name, num_images=sum(row), num_predicted=taken, num_right=row[place])
        for place, (one, row, taken) in enumerate(zip(evaluation.per_class, matrix, predicted, strict=True))
    ]
    mean = macro(results)
    return replace(
        evaluation, per_class=results, macro_precision=mean.precision, macro_recall=mean.recall, macro_f1=mean.f1
    )


def is_square(matrix: Sequence[Sequence[int]]) -> bool:
    """Tell whether the confusion matrix is there and whole."""
    return bool(matrix) and all(len(row) == len(matrix) for row in matrix)
