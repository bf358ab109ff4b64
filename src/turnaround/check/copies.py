"""Exact duplicates: digests in, sets of identical images out. The digests are there, so every training does it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnaround.data.pixels import Pixels
from turnaround.words import counted


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Identical images, those of them that leak between the parts, and those with contradicting labels."""

    sets: tuple[tuple[int, ...], ...]
    """Rows of identical images, two at least in each, in ascending order."""
    leaking: tuple[tuple[int, int], ...]
    """A validation image, and a training image that is the same."""
    two_labels: tuple[tuple[int, int], ...]
    """Two images that are the same under different classes, one pair for each set."""


def identical(*digests: NDArray[np.uint8]) -> tuple[tuple[int, ...], ...]:
    """Return the sets of rows that agree in one of the tables of digests, (N, 16), directly or through others."""
    # Union-find: `head` leads from a row to a smaller one of its set, so the top of a set is its smallest row: a
    # training image where there is one. Rows without a copy, most of them, are not in it.
    head: dict[int, int] = {}

    def top(row: int) -> int:
        while head.get(row, row) != row:
            row = head[row]
        return row

    for table in digests:
        first: dict[bytes, int] = {}
        for row, digest in enumerate(map(bytes, table)):
            one, other = top(first.setdefault(digest, row)), top(row)
            if one != other:
                head[max(one, other)] = min(one, other)
    sets: defaultdict[int, list[int]] = defaultdict(list)
    for row in head:
        sets[top(row)].append(row)
    return tuple(tuple(sorted({*rows, one})) for one, rows in sorted(sets.items()))


def find_copies(pixels: Pixels) -> Copies:
    """Find duplicates by the files' bytes and by their pixels: the same picture may be in another format."""
    sets = identical(pixels.digests, pixels.pixel_digests)
    labels, num_train = pixels.labels, pixels.num_train
    leaking, two_labels = [], []
    for rows in sets:
        if rows[0] < num_train:
            leaking += [(row, rows[0]) for row in rows if row >= num_train]
        other = next((row for row in rows if labels[row] != labels[rows[0]]), None)
        if other is not None:
            two_labels.append((rows[0], other))
    return Copies(sets=sets, leaking=tuple(leaking), two_labels=tuple(two_labels))


def sentences(copies: Copies, pixels: Pixels) -> tuple[str, ...]:
    """Return the warnings to give before a training."""
    found = []
    files, num_validation = pixels.files, len(pixels.labels) - pixels.num_train
    if copies.leaking:
        val, train = copies.leaking[0]
        found.append(
            f"{len(copies.leaking)} of {num_validation} validation images are exact copies of training images, e.g. "
            f"{files[val]!r} of {files[train]!r}: the validation accuracy will be too high. `turnaround check` lists "
            "them; data.split_by_photo=auto keeps copies on one side."
        )
    if copies.two_labels:
        one, other = copies.two_labels[0]
        found.append(
            f"{counted(len(copies.two_labels), 'image')} under two classes, e.g. {files[one]!r} is {files[other]!r}: "
            "no network can get both right. `turnaround check` lists them."
        )
    return tuple(found)
