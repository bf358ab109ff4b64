"""Links between pictures in, groups of pictures of one photo out, and a hold-out without train/test leakage.

A group lies on one side of that hold-out as a whole.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from turnaround.check.pairs import Kind, Link
from turnaround.data.split_file import TRAIN, VALIDATION

_ORDER: tuple[Kind, ...] = ("exact", "near", "augmented")  # from the strongest evidence to the weakest


@dataclass(frozen=True, kw_only=True)
class CopyGroup:
    """All pictures of one photo."""

    rows: tuple[int, ...]
    kind: Kind
    """The kind of its weakest link: augmented, near, exact."""
    links: tuple[Link, ...]
    crosses: bool
    """Some of its pictures are in the training part, some in the validation part: leakage."""
    labels: tuple[int, ...]
    """The classes of its pictures; more than one is a contradiction."""


def group(links: Sequence[Link], labels: NDArray[np.int64], num_train: int) -> tuple[CopyGroup, ...]:
    """Return the connected components of the links, the most harmful first."""
    num = len(labels)
    first, second = [link.first for link in links], [link.second for link in links]
    graph = coo_matrix((np.ones(len(links)), (first, second)), shape=(num, num))
    _, component = connected_components(graph, directed=False)
    by_component: dict[int, list[Link]] = {}
    for link in links:
        by_component.setdefault(int(component[link.first]), []).append(link)
    groups = [_group(found, labels, num_train) for found in by_component.values()]
    return tuple(sorted(groups, key=_harm))


def _group(links: list[Link], labels: NDArray[np.int64], num_train: int) -> CopyGroup:
    rows = tuple(sorted({row for link in links for row in (link.first, link.second)}))
    return CopyGroup(
        rows=rows,
        kind=max((link.kind for link in links), key=_ORDER.index),
        links=tuple(links),
        # Rows are sorted, and those of the training part come first in the table.
        crosses=rows[0] < num_train <= rows[-1],
        labels=tuple(sorted({int(labels[row]) for row in rows})),
    )


def _harm(found: CopyGroup) -> tuple[bool, bool, int, int]:
    # False sorts first: contradicting labels, then leakage, then the larger group; the row makes the order unique.
    return len(found.labels) < 2, not found.crosses, -len(found.rows), found.rows[0]


def leaking(groups: Iterable[CopyGroup], num_train: int) -> dict[Kind, int]:
    """Count the validation pictures that have a near-duplicate in the training part, by the kind of their group."""
    counts: Counter[Kind] = Counter()
    for found in groups:
        if found.crosses:
            counts[found.kind] += sum(row >= num_train for row in found.rows)
    return dict(counts)


def hold_out(
    files: Sequence[str], labels: NDArray[np.int64], groups: Iterable[CopyGroup], *, holdout: float, seed: int
) -> dict[str, str]:
    """Return the part of each file. Groups stay whole, every class keeps a training image; names and seed decide."""
    units = [found.rows for found in groups]
    grouped = {row for rows in units for row in rows}
    units += [(row,) for row in range(len(files)) if row not in grouped]

    def rank(rows: tuple[int, ...]) -> bytes:
        # A hash of the name instead of a shuffle: another file in the folder does not change the order of these.
        name = min(files[row] for row in rows)
        return hashlib.blake2b(f"{seed}\0{name}".encode("utf-8", "surrogateescape"), digest_size=16).digest()

    totals = Counter(labels.tolist())
    # One image at least to validate on, and one at least left to train on.
    wanted = {label: min(max(1, math.floor(holdout * num + 0.5)), num - 1) for label, num in totals.items()}
    held: Counter[int] = Counter()
    parts = dict.fromkeys(files, TRAIN)
    for rows in sorted(units, key=rank):
        more = Counter(int(labels[row]) for row in rows)
        # A group may overshoot by half of itself: then the share is right on average.
        if all(
            held[label] + num / 2 <= wanted[label] and held[label] + num < totals[label] for label, num in more.items()
        ):
            held += more
            parts.update(dict.fromkeys((files[row] for row in rows), VALIDATION))
    return parts
