"""Which labels do networks contradict that have not seen the images? Confident learning, by cleanlab where it is there.

Enters: labels (N,) and out-of-sample probabilities (N, classes). Leaves: the rows whose label is contradicted, the
least probable label first.

Confident learning (Northcutt, Jiang and Chuang, 2021; "Confident Learning: Estimating Uncertainty in Dataset Labels"):
the threshold of a class is the mean probability that it gets from the images that are labelled with it; an image
belongs to the class whose threshold it reaches, to the most probable one where it reaches several. Where that is
another class than its label says, the label is contradicted: the off-diagonal of the confident joint. No constant is
chosen here.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnaround.check.groups import CopyGroup

CLEANLAB, OURS = "confident learning (cleanlab)", "confident learning"
NEVER_HELD_OUT = -1
_ROUNDING = 1e-6  # a probability that equals its threshold but for rounding reaches it, as in cleanlab

Floats = NDArray[np.floating]


@dataclass(frozen=True, kw_only=True)
class SuspectLabel:
    """An image whose label is contradicted."""

    row: int
    suggested: int
    """The class that the networks hold for the most probable."""
    label_probability: float
    suggested_probability: float


@dataclass(frozen=True, kw_only=True)
class LabelCheck:
    """The labels that are contradicted, and how that was found."""

    method: str
    num_asked: int
    suspects: tuple[SuspectLabel, ...]


def check_labels(labels: NDArray[np.int64], probabilities: Floats, *, uses_cleanlab: bool = True) -> LabelCheck:
    """Return the rows whose label is contradicted, the least probable label first."""
    found = _by_cleanlab(labels, probabilities) if uses_cleanlab else None
    rows = contradicted(labels, probabilities) if found is None else found
    best = probabilities.argmax(axis=1)
    suspects = [
        SuspectLabel(
            row=row,
            suggested=int(best[row]),
            label_probability=float(probabilities[row, labels[row]]),
            suggested_probability=float(probabilities[row, best[row]]),
        )
        for row in rows.tolist()
    ]
    suspects.sort(key=lambda one: (one.label_probability, one.row))
    return LabelCheck(method=OURS if found is None else CLEANLAB, num_asked=len(labels), suspects=tuple(suspects))


def contradicted(labels: NDArray[np.int64], probabilities: Floats) -> NDArray[np.int64]:
    """Return the rows off the diagonal of the confident joint."""
    num_classes = probabilities.shape[1]
    count = np.bincount(labels, minlength=num_classes)
    own = probabilities[np.arange(len(labels)), labels]
    mean = np.bincount(labels, weights=own, minlength=num_classes) / np.maximum(count, 1)
    threshold = np.where(count > 0, mean, np.inf)  # nobody can be taken for a class without an example
    reaches = probabilities >= threshold - _ROUNDING  # (N, classes)
    best = probabilities.argmax(axis=1)
    guess = np.where(reaches.sum(axis=1) > 1, best, reaches.argmax(axis=1))
    # A label that is the most probable class is not contradicted, whatever the thresholds say.
    return np.flatnonzero(reaches.any(axis=1) & (guess != labels) & (best != labels))


def _by_cleanlab(labels: NDArray[np.int64], probabilities: Floats) -> NDArray[np.int64] | None:
    """Return the same by cleanlab; None where it is not installed."""
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        return None
    # One process: it would fork with torch's threads in the middle of their work.
    mask = find_label_issues(labels, np.asarray(probabilities, np.float64), filter_by="confident_learning", n_jobs=1)
    return np.flatnonzero(np.asarray(mask))


def folds_of(
    files: Sequence[str], labels: Iterable[int], groups: Sequence[CopyGroup], *, folds: int, seed: int
) -> NDArray[np.int64]:
    """Return the fold of each image: every class is dealt out evenly, and copies of one photo stay together.

    A copy on the other side would answer with the label that it was trained with, however wrong.
    """
    first_of = {row: min(found.rows) for found in groups for row in found.rows}
    members: defaultdict[int, list[int]] = defaultdict(list)
    labels = list(labels)
    for row in range(len(files)):
        members[first_of.get(row, row)].append(row)

    def rank(first: int) -> bytes:
        keyed = f"{seed}\0{files[first]}".encode("utf-8", "surrogateescape")
        return hashlib.blake2b(keyed, digest_size=16).digest()

    fold_of = np.zeros(len(files), np.int64)
    num_dealt: defaultdict[int, int] = defaultdict(int)
    for first in sorted(members, key=rank):
        label = labels[first]
        fold_of[members[first]] = num_dealt[label] % folds
        num_dealt[label] += 1
    # A class of a single photo is never held out: nothing would be left to learn it from.
    fold_of[[row for row, label in enumerate(labels) if num_dealt[label] < 2]] = NEVER_HELD_OUT
    return fold_of
