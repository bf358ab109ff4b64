"""Classes in the evaluation after the last epoch: their confusion, and how well each is recognised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.summary import RunSummary
from turnaround.errors import RunDirectoryError
from turnaround.record.class_metrics import completed, is_square
from turnaround.record.reader import Run
from turnaround.record.schema import Evaluation


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """The evaluation whose confusion matrix stands for a job."""

    configuration: ConfigurationRuns
    summary: RunSummary
    run: Run
    evaluation: Evaluation


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Images of one class that were taken for another."""

    true: int
    """Place of the class in the network's order."""
    predicted: int
    num_images: int
    share: float
    """Share of the images of the true class."""


def best_evaluated(job: Workload, *, needs_matrix: bool = True) -> Confusion | None:
    """Return the evaluation of the most accurate run; None where no run has a whole confusion matrix."""
    found: list[Confusion] = []
    for configuration in job.configurations:
        for summary, run in configuration.members:
            evaluation = _evaluation(run, needs_matrix=needs_matrix)
            if evaluation is not None:
                found.append(Confusion(configuration=configuration, summary=summary, run=run, evaluation=evaluation))
    return max(found, key=lambda one: one.evaluation.top1, default=None)


def _evaluation(run: Run, *, needs_matrix: bool) -> Evaluation | None:
    try:
        evaluation = run.evaluation
    except RunDirectoryError:  # damaged: the summary of the run says so where it matters
        return None
    if evaluation is None or not evaluation.classes:
        return None
    matrix, count = evaluation.confusion, len(evaluation.classes)
    is_whole = is_square(matrix) and len(matrix) == count == len(evaluation.per_class)
    # Beyond 2,000 classes there is none; a matrix of any other shape is damage.
    is_left_out = not matrix and not needs_matrix and len(evaluation.per_class) == count
    return completed(evaluation) if is_whole or is_left_out else None


def confused_pairs(evaluation: Evaluation, *, most: int | None = None) -> tuple[Pair, ...]:
    """Return the confused pairs, most images first; among equals, the larger share of the class."""
    pairs = [
        Pair(true=true, predicted=predicted, num_images=images, share=images / total)
        for true, row in enumerate(evaluation.confusion)
        if (total := sum(row)) > 0
        for predicted, images in enumerate(row)
        if predicted != true and images > 0
    ]
    pairs.sort(key=lambda pair: (-pair.num_images, -pair.share, pair.true, pair.predicted))
    return tuple(pairs[:most])


def most_confused_classes(evaluation: Evaluation, *, most: int) -> list[int]:
    """Return at most so many classes, in the network's order: those of the most confused pairs."""
    count = len(evaluation.classes)
    if count <= most:
        return list(range(count))
    chosen: dict[int, None] = {}
    for pair in confused_pairs(evaluation):
        new = dict.fromkeys(place for place in (pair.true, pair.predicted) if place not in chosen)
        if len(chosen) + len(new) > most:
            break
        chosen |= new
    return sorted(chosen)


def row_shares(evaluation: Evaluation, classes: Sequence[int]) -> list[list[float | None]]:
    """Return the matrix divided by its row sums (recall on the diagonal); None for a class without images."""
    rows = []
    for true in classes:
        row, total = evaluation.confusion[true], sum(evaluation.confusion[true])
        rows.append([row[predicted] / total if total > 0 else None for predicted in classes])
    return rows
