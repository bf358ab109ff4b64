"""Out-of-sample probabilities of labelled images: of a run that did not see them, or of classifiers trained in folds.

Enters: a run and images, or a recipe, decoded pixels and the fold of each. Leaves: `OutOfSample`; which labels it
contradicts is decided in check/labels.py.

In folds, a frozen network turns every image into features once; only a linear classifier (multinomial logistic
regression) is trained for each fold, on the features of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from turnaround.data.labelled import LabelledImages, refuse_unknown_labels
from turnaround.data.pixels import Pixels
from turnaround.data.reading import rows_of
from turnaround.errors import DataError
from turnaround.model.network import build
from turnaround.recipe import Recipe
from turnaround.training.choices import choose_backbone_precision, choose_device, choose_precision
from turnaround.training.frozen import FrozenBackbone, split
from turnaround.use.images import decode_all
from turnaround.use.predictor import BATCH, Predictor
from turnaround.workers.environment import RankInfo

PENALTY = 1.0
"""Factor of the squared weights, beside the summed loss on standardised features: scikit-learn's default (C = 1)."""
MAX_STEPS = 100
"""Iterations of L-BFGS, as there."""
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class OutOfSample:
    """Probabilities of images that their network was not trained on; files that cannot be read are left out."""

    files: tuple[str, ...]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float32]  # (N, classes)
    classes: tuple[str, ...]


def of_run(predictor: Predictor, images: LabelledImages, *, show: Show = lambda *_: None) -> OutOfSample:
    """Ask the network of a run about images that it was not trained on."""
    trained = predictor.trained
    refuse_unknown_labels(images, trained.classes, run=trained.run.path)
    number_of = {name: number for number, name in enumerate(trained.classes)}
    files: list[str] = []
    labels: list[int] = []
    parts: list[NDArray[np.float32]] = []
    for first in range(0, len(images.files), BATCH):
        places = range(first, min(first + BATCH, len(images.files)))
        decoded = decode_all([images.root / images.files[place] for place in places], size_px=trained.size_px)
        readable = [(place, one.square) for place, one in zip(places, decoded, strict=True) if one.square is not None]
        if readable:
            logits = predictor.logits([square for _, square in readable]).float()
            parts.append(logits.softmax(dim=1).numpy())
            files += (images.files[place] for place, _ in readable)
            labels += (number_of[images.labels[place]] for place, _ in readable)
        show("asking about images", places.stop, len(images.files))
    if not parts:
        raise DataError(f"None of the files of {str(images.source)!r} is an image that can be read.")
    return OutOfSample(
        files=tuple(files),
        labels=np.array(labels, np.int64),
        probabilities=np.concatenate(parts),
        classes=trained.classes,
    )


def joined(parts: Sequence[OutOfSample]) -> OutOfSample:
    """Return the answers of several networks, each about its own images."""
    return OutOfSample(
        files=tuple(file for part in parts for file in part.files),
        labels=np.concatenate([part.labels for part in parts]),
        probabilities=np.concatenate([part.probabilities for part in parts]),
        classes=parts[0].classes,
    )


def by_folds(
    recipe: Recipe, pixels: Pixels, fold_of: NDArray[np.int64], *, device: str, show: Show = lambda *_: None
) -> OutOfSample | None:
    """Ask classifiers that were trained on the other folds; None where the network has no features to train them on."""
    features = features_of(recipe, pixels, device=device, show=show)
    if features is None:
        return None
    probabilities = fold_probabilities(features, pixels.labels, fold_of, len(pixels.classes), show=show)
    asked = np.flatnonzero(fold_of >= 0)
    return OutOfSample(
        files=tuple(pixels.files[row] for row in asked.tolist()),
        labels=pixels.labels[asked],
        probabilities=probabilities[asked],
        classes=pixels.classes,
    )


def features_of(recipe: Recipe, pixels: Pixels, *, device: str, show: Show = lambda *_: None) -> Tensor | None:
    """Return what the frozen network makes of each image, (N, features) on the CPU."""
    place = choose_device(device, RankInfo()).value.device
    network = build(replace(recipe.model, fine_tune=False), num_classes=len(pixels.classes), seed=recipe.training.seed)
    network.module.to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
    parts = split(network, size_px=recipe.size_px)
    if parts is None:
        return None
    wanted = recipe.training.precision
    precision = choose_backbone_precision(wanted, place, choose_precision(wanted, place).value).value
    backbone = FrozenBackbone(
        parts.backbone.eval(), device=place, precision=precision, size_px=recipe.size_px, images_per_step=BATCH
    )
    mean, std = (torch.tensor(values, device=place)[:, None, None] for values in (network.mean, network.std))
    rows, num_images, found = rows_of(pixels), len(pixels.labels), list[Tensor]()
    try:
        for first in range(0, num_images, BATCH):
            ids = np.arange(first, min(first + BATCH, num_images))
            squares = np.empty((len(ids), recipe.size_px, recipe.size_px, 3), np.uint8)
            rows.take(ids, squares)
            # (N, size, size, 3) bytes -> (N, 3, size, size) floats that keep the channels last in memory.
            images = (torch.from_numpy(squares).to(place).permute(0, 3, 1, 2).float() / 255 - mean) / std
            found.append(backbone(images).float().flatten(1).cpu())
            show("computing features", int(ids[-1]) + 1, num_images)
    finally:
        rows.close()
    return torch.cat(found)


def fold_probabilities(
    features: Tensor,
    labels: NDArray[np.int64],
    fold_of: NDArray[np.int64],
    num_classes: int,
    *,
    show: Show = lambda *_: None,
) -> NDArray[np.float32]:
    """Return for each image the probabilities of the classifier that was trained without its fold, (N, classes).

    Images of a negative fold are always trained on and never asked about: theirs are zero.
    """
    targets, folds = torch.from_numpy(labels), torch.from_numpy(fold_of)
    found = torch.zeros(len(labels), num_classes)
    every = [fold for fold in np.unique(fold_of).tolist() if fold >= 0]
    for number, fold in enumerate(every, 1):
        kept = folds != fold
        mean, std = features[kept].mean(dim=0), features[kept].std(dim=0).clamp_min(1e-6)
        classifier = _trained_classifier((features[kept] - mean) / std, targets[kept], num_classes)
        with torch.no_grad():
            found[~kept] = classifier((features[~kept] - mean) / std).softmax(dim=1)
        show("training folds", number, len(every))
    return found.numpy()


def _trained_classifier(features: Tensor, targets: Tensor, num_classes: int) -> nn.Linear:
    """Return a multinomial logistic regression, by L-BFGS from zero: nothing in it is random."""
    classifier = nn.Linear(features.shape[1], num_classes)
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    optimizer = torch.optim.LBFGS(classifier.parameters(), max_iter=MAX_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        # Divided by the number of images: the same minimum, and gradients of a size that L-BFGS's tolerances suit.
        value = F.cross_entropy(classifier(features), targets)
        value = value + PENALTY / 2 * classifier.weight.square().sum() / len(targets)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return classifier
