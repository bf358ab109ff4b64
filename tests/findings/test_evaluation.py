"""What an evaluation on other images says, in sentences."""

from __future__ import annotations

import pytest

from turnaround.analysis.paired import paired_answers
from turnaround.findings.evaluation import evaluation_sentences, headline, paired_sentence
from turnaround.record.class_metrics import class_result
from turnaround.record.schema import CalibrationBin, Evaluation


def evaluation(
    *, right: int = 90, error: float = 0.02, confidence: float = 0.9, top5: float | None = None
) -> Evaluation:
    classes = [
        class_result("apple", num_images=60, num_predicted=60, num_right=right - 35),
        class_result("pear", num_images=40, num_predicted=40, num_right=35),
    ]
    return Evaluation(
        epoch=3,
        num_images=100,
        top1=right / 100,
        top5=top5,
        loss=0.3,
        classes=["apple", "pear"],
        per_class=classes,
        confusion=[],
        macro_precision=0.9,
        macro_recall=0.8,
        macro_f1=0.85,
        calibration_error=error,
        calibration=[CalibrationBin(num_images=100, confidence=confidence, accuracy=right / 100)],
    )


def test_the_accuracy_has_its_interval() -> None:
    # Wilson's interval of 90 of 100, by hand: 0.8256 to 0.9448.
    assert headline(evaluation()) == "90.0 % accuracy: 90 of 100 images (95 % interval 82.6 % to 94.5 %)."


def test_it_is_held_against_guessing() -> None:
    assert next(evaluation_sentences(evaluation())) == "Always answering 'apple' would give 60.0 %: the run is better."
    said = next(evaluation_sentences(evaluation(right=65)))
    assert said == "Always answering 'apple' would give 60.0 %: no worse than the run, as far as these images tell."


def test_means_and_top_5() -> None:
    said = list(evaluation_sentences(evaluation(top5=0.99)))
    assert "The right class is among the first five for 99.0 %." in said
    assert "As a mean over the classes: precision 90.0 %, recall 80.0 %, F1 85.0 %." in said


@pytest.mark.parametrize(
    ("error", "confidence", "said"),
    [
        (0.02, 0.91, "Calibration error 2.0 points: it is about as sure as it is right (mean confidence 91.0 %)."),
        (0.08, 0.98, "it is surer than it is right"),
        (0.08, 0.82, "it is right more often than it is sure"),
        (0.08, 0.9, "it is too sure of some images, and not sure enough of others"),
    ],
)
def test_calibration(error: float, confidence: float, said: str) -> None:
    assert said in list(evaluation_sentences(evaluation(error=error, confidence=confidence)))[-1]


def test_two_runs() -> None:
    def said(only_first: int, only_second: int) -> str:
        pairs = [(True, True)] * 9 + [(True, False)] * only_first + [(False, True)] * only_second
        return paired_sentence("a", "b", paired_answers([one for one, _ in pairs], [one for _, one in pairs]))

    assert said(0, 0) == "a and b are right on the same images."
    assert said(12, 1) == (
        "a is right on 12 images that b gets wrong, b on 1 that a gets wrong; on the other 9 they agree. a is better "
        "on these images (p = 0.0034, McNemar's exact test)."
    )
    assert said(1, 20).endswith("b is better on these images (p < 0.001, McNemar's exact test).")
    assert said(3, 2).endswith(
        "That may be chance (p = 1, McNemar's exact test): these images do not tell the two apart."
    )
