"""A run's network on other images: the figures are those of the run's own evaluation where the images are its own."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from turnaround.data.labelled import labelled_images
from turnaround.errors import DataError
from turnaround.record.reader import Run
from turnaround.use.evaluate import evaluate_run
from turnaround.use.predictor import Predictor
from use_helpers import validation_images


@pytest.fixture(scope="module")
def predictor(trained_run: Path) -> Predictor:
    return Predictor.load(trained_run, device="cpu", weights="last")


@pytest.fixture(scope="module")
def table(trained_run: Path, predictor: Predictor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The validation images of the run as a table."""
    files, labels = validation_images(trained_run)
    path = tmp_path_factory.mktemp("table") / "labels.csv"
    with path.open("w", newline="") as file:
        rows = [(str(file), predictor.trained.classes[label]) for file, label in zip(files, labels, strict=True)]
        csv.writer(file).writerows([("file", "label"), *rows])
    return path


def test_the_validation_images_give_the_runs_own_evaluation(
    trained_run: Path, predictor: Predictor, table: Path
) -> None:
    own = Run.load(trained_run).evaluation
    assert own is not None
    shown: list[tuple[str, int, int]] = []
    found = evaluate_run(predictor, labelled_images(table, run=trained_run), show=lambda *at: shown.append(at))
    evaluation = found.evaluation
    assert (evaluation.num_images, evaluation.epoch, evaluation.top1) == (own.num_images, own.epoch, own.top1)
    assert (evaluation.confusion, evaluation.per_class) == (own.confusion, own.per_class)
    assert (evaluation.top5, evaluation.macro_f1) == (own.top5, own.macro_f1)
    assert evaluation.loss == pytest.approx(own.loss, rel=1e-4)
    assert evaluation.calibration_error == pytest.approx(own.calibration_error, abs=1e-4)
    assert shown == [("classifying images", 48, 48)]
    assert (found.weights, found.unreadable) == ("last", ())


def test_every_image_is_there_and_the_surest_mistakes_come_first(
    trained_run: Path, predictor: Predictor, table: Path
) -> None:
    images = labelled_images(table, run=trained_run)
    found = evaluate_run(predictor, images)
    assert [image.file for image in found.images] == list(images.files)
    guesses = predictor.classify(images.paths, top=6)
    for image, guessed in zip(found.images, guesses, strict=True):
        assert (image.predicted, image.confidence) == (guessed[0].name, pytest.approx(guessed[0].probability, abs=1e-5))
        assert guessed[image.rank - 1].name == image.label
        assert image.label_probability == pytest.approx(guessed[image.rank - 1].probability, abs=1e-5)
    wrong = found.mistakes()
    assert len(wrong) == sum(image.predicted != image.label for image in found.images) > 0
    assert [image.confidence for image in wrong] == sorted((image.confidence for image in wrong), reverse=True)


def test_unreadable_files_are_named_and_count_nowhere(
    trained_run: Path, predictor: Predictor, fruit_folder: Path, tmp_path: Path
) -> None:
    for name in ("fresh_apple", "rotten_apple"):
        (tmp_path / name).mkdir()
    good = sorted((fruit_folder / "fresh_apple").iterdir())[:3]
    for file in good:
        shutil.copy(file, tmp_path / "fresh_apple")
    (tmp_path / "rotten_apple" / "bad.jpg").write_text("no image")
    found = evaluate_run(predictor, labelled_images(tmp_path, run=trained_run))
    assert found.evaluation.num_images == len(found.images) == 3
    assert [one.file for one in found.unreadable] == ["rotten_apple/bad.jpg"]
    assert found.unreadable[0].reason
    shutil.rmtree(tmp_path / "fresh_apple")
    with pytest.raises(DataError, match=r"None of the 1 file of .* is an image that can be read"):
        evaluate_run(predictor, labelled_images(tmp_path, run=trained_run))


def test_the_folder_that_was_trained_on_is_told(trained_run: Path, predictor: Predictor, fruit_folder: Path) -> None:
    found = evaluate_run(predictor, labelled_images(fruit_folder, run=trained_run))
    assert found.evaluation.num_images == 240
    assert any("which the run was trained from" in note for note in found.notes)


def test_classes_that_the_run_does_not_know_are_refused(
    trained_run: Path, predictor: Predictor, fruit_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(fruit_folder / "fresh_apple", tmp_path / "fresh_aple")
    with pytest.raises(DataError, match="Did you mean 'fresh_apple'"):
        evaluate_run(predictor, labelled_images(tmp_path, run=trained_run))
