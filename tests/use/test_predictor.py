"""The network answers with the accuracy that was recorded when it was trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from turnaround.errors import InputError
from turnaround.record.reader import Run
from turnaround.use.predictor import Predictor
from use_helpers import validation_images


@pytest.fixture(scope="module")
def predictor(trained_run: Path) -> Predictor:
    return Predictor.load(trained_run, device="cpu")


def test_the_recorded_accuracy_and_confusion_come_out_again(predictor: Predictor, trained_run: Path) -> None:
    evaluation = Run.load(trained_run).evaluation
    files, labels = validation_images(trained_run)
    answers = predictor.classify_files(files)
    confusion = [[0] * len(evaluation.classes) for _ in evaluation.classes]
    for answer, label in zip(answers, labels, strict=True):
        confusion[label][evaluation.classes.index(answer.guesses[0].name)] += 1
    assert confusion == evaluation.confusion


def test_probabilities_are_ordered_and_sum_to_one(predictor: Predictor, trained_run: Path) -> None:
    files, _ = validation_images(trained_run)
    for guesses in predictor.classify(files[:5], top=99):
        shares = [guess.probability for guess in guesses]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert {guess.name for guess in guesses} == set(predictor.trained.classes)


def test_an_answer_does_not_depend_on_the_others_in_the_batch(predictor: Predictor, trained_run: Path) -> None:
    files, _ = validation_images(trained_run)
    together = predictor.classify(files[:12], top=1)
    alone = [predictor.classify([file], top=1)[0] for file in files[:12]]
    for one, other in zip(together, alone, strict=True):
        assert one[0].name == other[0].name
        assert one[0].probability == pytest.approx(other[0].probability, abs=1e-5)


def test_files_are_told_batch_by_batch_and_bad_ones_with_a_reason(
    predictor: Predictor, trained_run: Path, tmp_path: Path
) -> None:
    files, _ = validation_images(trained_run)
    told: list[int] = []
    files = [*files, *files[:20], tmp_path / "gone.jpg"]
    answers = predictor.classify_files(files, top=2, on_batch=lambda batch: told.append(len(batch)))
    assert told == [64, 5]
    assert [answer.name for answer in answers] == [str(file) for file in files]
    assert (answers[-1].guesses, answers[-1].problem) == ((), "no such file or directory")
    assert all(len(answer.guesses) == 2 and answer.problem is None for answer in answers[:-1])


def test_nothing_to_classify(predictor: Predictor) -> None:
    assert predictor.classify([]) == []
    assert predictor.classify_files([]) == []


def test_top_must_be_positive(predictor: Predictor) -> None:
    with pytest.raises(InputError, match=r"top must be 1 or more. Received: 0."):
        predictor.classify([], top=0)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_answers(predictor: Predictor, trained_run: Path) -> None:
    files, _ = validation_images(trained_run)
    gpu = Predictor.load(trained_run, device="cuda")
    assert gpu.device.type == "cuda"
    for one, other in zip(predictor.classify(files), gpu.classify(files), strict=True):
        torch.testing.assert_close(
            [guess.probability for guess in one], [guess.probability for guess in other], atol=1e-3, rtol=0
        )
