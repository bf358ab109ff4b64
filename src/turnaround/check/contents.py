"""Decoded pictures in, those without colour or without any content out; and what the counts of the classes say."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turnaround.data.folder import ImageTable

_CHUNK = 256
_GREY_TOLERANCE = 3.0  # mean difference of the channels in levels: JPEG colours a grey picture a little
_CONSTANT_SPREAD = 1.5  # levels
_FEW_IMAGES = 20
"""Of a class in the training part: below, its accuracy is luck."""


def grey_and_constant(images: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows have no colour, and which have nothing but one colour."""
    grey, constant = np.zeros(len(images), np.bool_), np.zeros(len(images), np.bool_)
    for start in range(0, len(images), _CHUNK):
        some = images[start : start + _CHUNK].astype(np.int16)
        rows = slice(start, start + len(some))
        grey[rows] = np.abs(some - some.mean(axis=-1, keepdims=True)).mean((1, 2, 3)) < _GREY_TOLERANCE
        constant[rows] = some.std(axis=(1, 2)).max(axis=-1) < _CONSTANT_SPREAD
    return grey, constant


def class_counts(table: ImageTable, bad: set[int]) -> dict[str, dict[str, int]]:
    """Class -> readable training and validation images, and unreadable ones."""
    counts = {name: {"train": 0, "validation": 0, "bad": 0} for name in table.classes}
    for row, label in enumerate(table.labels.tolist()):
        part = "bad" if row in bad else "train" if row < table.num_train else "validation"
        counts[table.classes[label]][part] += 1
    return counts


def small_classes(counts: dict[str, dict[str, int]]) -> list[str]:
    """Sentences about classes with few readable training images."""
    few = sorted((count["train"], name) for name, count in counts.items() if count["train"] < _FEW_IMAGES)
    if not few:
        return []
    listed = ", ".join(f"{name!r} {num}" for num, name in few[:5])
    more = f" and {len(few) - 5} more" if len(few) > 5 else ""
    return [f"{len(few)} classes have fewer than {_FEW_IMAGES} readable training images: {listed}{more}."]
