"""Out-of-sample probabilities: of a run, of classifiers in folds, and that no image is answered by what it taught."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from turnaround import recipes
from turnaround.check.labels import check_labels
from turnaround.data.formats import scan
from turnaround.data.labelled import LabelledImages, labelled_images
from turnaround.data.pixels import prepare
from turnaround.errors import DataError
from turnaround.use.label_check import by_folds, fold_probabilities, joined, of_run
from turnaround.use.predictor import Predictor


def blobs(seed: int = 0, *, num: int = 120, classes: int = 3) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(num) % classes
    return torch.from_numpy(rng.normal(0, 1, (num, 8)) + 6 * np.eye(classes, 8)[labels]).float(), labels


def test_classifiers_in_folds_find_flipped_labels() -> None:
    features, true = blobs()
    labels = true.copy()
    labels[[7, 50]] = (labels[[7, 50]] + 1) % 3
    probabilities = fold_probabilities(features, labels, np.arange(120) // 3 % 5, 3)
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(120), abs=1e-5)
    assert probabilities[[7, 50]].argmax(axis=1).tolist() == true[[7, 50]].tolist()
    # 50 looks like its own class too, but less so than the others of that class on average: it is not accused.
    assert {one.row for one in check_labels(labels, probabilities).suspects} == {7}


def test_an_image_is_not_answered_by_its_own_label() -> None:
    features, labels = blobs()
    folds = np.arange(120) // 3 % 5
    before = fold_probabilities(features, labels, folds, 3)
    labels = labels.copy()
    labels[7] = (labels[7] + 1) % 3
    after = fold_probabilities(features, labels, folds, 3)
    own = folds == folds[7]
    assert np.array_equal(before[own], after[own])
    assert not np.array_equal(before[~own], after[~own])


def test_images_that_are_never_held_out_are_only_trained_on() -> None:
    features, labels = blobs()
    folds = np.arange(120) // 3 % 5
    folds[:3] = -1
    assert not fold_probabilities(features, labels, folds, 3)[:3].any()


def test_folds_on_the_features_of_a_network(fruit_folder: Path, tmp_path: Path) -> None:
    recipe = recipes.find(str(fruit_folder), ["model.name=small", "data.size_px=16"]).resolved()
    pixels = prepare(scan(fruit_folder, holdout=0.2, seed=0), size_px=16, cache=tmp_path, skip_bad=False)
    fold_of = np.arange(len(pixels.labels)) % 2
    fold_of[0] = -1
    shown: list[tuple[str, int, int]] = []
    found = by_folds(recipe, pixels, fold_of, device="cpu", show=lambda *at: shown.append(at))
    assert found is not None
    assert found.files == pixels.files[1:]
    assert found.probabilities.shape == (len(pixels.files) - 1, len(pixels.classes))
    assert shown[-1] == ("training folds", 2, 2)
    assert found.probabilities.sum(axis=1) == pytest.approx(np.ones(len(found.labels)), abs=1e-5)
    assert len(np.unique(found.probabilities[:, 0])) > 100  # each image has features of its own


def test_a_run_is_asked(trained_run: Path, fruit_folder: Path, tmp_path: Path) -> None:
    predictor = Predictor.load(trained_run, device="cpu")
    images = labelled_images(fruit_folder, run=trained_run)
    found = of_run(predictor, images)
    assert found.files == images.files
    guessed = predictor.classify([fruit_folder / found.files[0]], top=1)[0][0]
    best = int(found.probabilities[0].argmax())
    assert (found.classes[best], found.probabilities[0, best]) == (
        guessed.name,
        pytest.approx(guessed.probability, abs=1e-5),
    )
    both = joined([found, found])
    assert (len(both.files), both.probabilities.shape[0], both.classes) == (
        2 * len(found.files),
        len(both.labels),
        found.classes,
    )
    (tmp_path / "x.jpg").write_bytes(b"x")
    none = LabelledImages(source=tmp_path, root=tmp_path, files=("x.jpg",), labels=(found.classes[0],))
    with pytest.raises(DataError, match="None of the files"):
        of_run(predictor, none)


@pytest.mark.gpu
def test_features_on_a_gpu_are_those_of_the_cpu(fruit_folder: Path, tmp_path: Path) -> None:
    from turnaround.use.label_check import features_of

    recipe = recipes.find(
        str(fruit_folder), ["model.name=small", "data.size_px=16", "training.precision=fp32"]
    ).resolved()
    pixels = prepare(scan(fruit_folder, holdout=0.2, seed=0), size_px=16, cache=tmp_path, skip_bad=False)
    ours, theirs = (features_of(recipe, pixels, device=device) for device in ("cuda", "cpu"))
    assert ours is not None
    assert theirs is not None
    assert torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2)  # TF32 in the convolutions
