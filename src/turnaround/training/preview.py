"""What a training will see: its first images, as they are and as it varies and mixes them. Nothing is trained.

Enters: a resolved recipe and its pixels. Leaves: pairs of pictures with their labels, of the first worker's slices of
epoch 1, made by the same functions as in a training, on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnaround.data.augment import Augmentation
from turnaround.data.batches import Batches, Slicing
from turnaround.data.inputs import Inputs
from turnaround.data.mixing import MixedLabels
from turnaround.data.pixels import Pixels
from turnaround.model.network import input_mean
from turnaround.recipe import Recipe

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class VariedImage:
    """A training image before and after its variation in epoch 1."""

    file: str
    before: NDArray[np.uint8]
    """(H, W, 3), as `after`."""
    after: NDArray[np.uint8]
    labels: tuple[tuple[str, float], ...]
    """Class names with their weights: one, or the two of a mixed image, the heavier first."""


def varied_images(recipe: Recipe, pixels: Pixels, *, most: int) -> list[VariedImage]:
    """Return the first training images of worker 0, at most so many."""
    slicing = Slicing(
        seed=recipe.training.seed,
        global_batch=recipe.global_batch,
        workers=recipe.workers.count,
        hosted=range(1),
    )
    # Read where they lie: the images of a few steps do not pay for a copy of all.
    batches = Batches(pixels, device=CPU, residency="files" if pixels.images is None else "disk")
    with closing(batches):
        found: list[VariedImage] = []
        for image in _steps(recipe, batches, slicing):
            found.append(image)
            if len(found) == most:
                break
    return found


def _steps(recipe: Recipe, batches: Batches, slicing: Slicing) -> Iterator[VariedImage]:
    pixels = batches.pixels
    # Not divided by a deviation, so adding the mean gives pixels again. What is hidden has its colour.
    mean = input_mean(recipe.model.name)
    inputs = Inputs(
        Augmentation(recipe.augment, seed=recipe.training.seed),
        mean=mean,
        std=(1.0, 1.0, 1.0),
        num_train=pixels.num_train,
        device=CPU,
        dtype=torch.float32,
    )
    for batch in batches.steps(slicing, epoch=1):
        after = inputs.varied(batch, epoch=1) + torch.tensor(mean)[:, None, None]
        shown = (after.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        labels = inputs.labels(batch, epoch=1)
        for i, number in enumerate(batch.ids.tolist()):
            names = _names(labels, i, pixels.classes)
            before = batch.images[i].numpy()
            yield VariedImage(file=pixels.files[number], before=before, after=shown[i], labels=names)


def _names(labels: Tensor | MixedLabels, i: int, classes: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
    if not isinstance(labels, MixedLabels):
        return ((classes[int(labels[i])], 1.0),)
    first, second, share = int(labels.first[i]), int(labels.second[i]), float(labels.share[i])
    if first == second:
        return ((classes[first], 1.0),)
    both = ((classes[first], share), (classes[second], 1 - share))
    return both if share >= 0.5 else (both[1], both[0])
