"""What an evaluation on other images says, in sentences: one run, or two on the same images."""

from __future__ import annotations

from collections.abc import Iterator

from turnaround.analysis.guessing import against_guessing, wilson_interval
from turnaround.analysis.paired import PairedAnswers
from turnaround.record.schema import Evaluation
from turnaround.words import accuracy, counted, percent, points

CALIBRATED = 0.05
"""Calibration errors below it are not worth a warning: 15 bins of a few hundred images give as much by chance."""


def headline(evaluation: Evaluation) -> str:
    """Return the accuracy with its 95 % interval."""
    low, high = wilson_interval(evaluation.top1, evaluation.num_images)
    right = round(evaluation.top1 * evaluation.num_images)
    return (
        f"{accuracy(evaluation.top1)} accuracy: {right:,} of {counted(evaluation.num_images, 'image')} (95 % interval "
        f"{accuracy(low)} to {accuracy(high)})."
    )


def evaluation_sentences(evaluation: Evaluation) -> Iterator[str]:
    """Yield what a careful reader would say about the figures."""
    held = against_guessing(evaluation)
    if held is not None:
        guessing = f"Always answering {held.largest_class!r} would give {accuracy(held.guessing)}"
        yield (
            f"{guessing}: the run is better."
            if held.is_better
            else (f"{guessing}: no worse than the run, as far as these images tell.")
        )
    if evaluation.top5 is not None:
        yield f"The right class is among the first five for {accuracy(evaluation.top5)}."
    if evaluation.macro_f1 is not None:
        yield (
            f"As a mean over the classes: precision {accuracy(evaluation.macro_precision)}, recall "
            f"{accuracy(evaluation.macro_recall)}, F1 {accuracy(evaluation.macro_f1)}."
        )
    yield from _calibration(evaluation)


def _calibration(evaluation: Evaluation) -> Iterator[str]:
    error = evaluation.calibration_error
    if error is None:
        return
    # Bins without images have no confidence.
    sure = sum(one.num_images * (one.confidence or 0.0) for one in evaluation.calibration) / evaluation.num_images
    gap = sure - evaluation.top1
    if error < CALIBRATED:
        verdict = "it is about as sure as it is right"
    elif abs(gap) < error / 2:
        verdict = "it is too sure of some images, and not sure enough of others"
    else:
        verdict = "it is surer than it is right" if gap > 0 else "it is right more often than it is sure"
    yield f"Calibration error {points(error)}: {verdict} (mean confidence {percent(sure, 1)})."


def paired_sentence(first: str, second: str, answers: PairedAnswers) -> str:
    """Compare two runs on the same images; the first has been asked for, the second is what it is held against."""
    if not answers.only_first and not answers.only_second:
        return f"{first} and {second} are right on the same images."
    alike = answers.both + answers.neither
    text = (
        f"{first} is right on {counted(answers.only_first, 'image')} that {second} gets wrong, {second} on "
        f"{answers.only_second:,} that {first} gets wrong; on the other {alike:,} they agree. "
    )
    p = f"p = {answers.p:.2g}" if answers.p >= 0.001 else "p < 0.001"
    if not answers.is_told_apart:
        return f"{text}That may be chance ({p}, McNemar's exact test): these images do not tell the two apart."
    better = first if answers.only_first > answers.only_second else second
    return f"{text}{better} is better on these images ({p}, McNemar's exact test)."
