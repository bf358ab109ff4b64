"""Confident learning: what is contradicted, that cleanlab says the same, and folds that keep copies together."""

from __future__ import annotations

import numpy as np
import pytest

from turnaround.check.groups import CopyGroup
from turnaround.check.labels import CLEANLAB, NEVER_HELD_OUT, OURS, check_labels, contradicted, folds_of
from turnaround.check.pairs import Link


def noisy(seed: int, *, num: int = 400, classes: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels with 5 % flipped, probabilities of a decent network, and which were flipped."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, classes, num)
    logits = rng.normal(0, 1, (num, classes)) + 6 * np.eye(classes)[true]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    flipped = rng.choice(num, num // 20, replace=False)
    labels = true.copy()
    labels[flipped] = (labels[flipped] + rng.integers(1, classes, len(flipped))) % classes
    return labels, probabilities, flipped


def test_flipped_labels_are_found() -> None:
    labels, probabilities, flipped = noisy(0)
    found = check_labels(labels, probabilities, uses_cleanlab=False)
    rows = [one.row for one in found.suspects]
    assert (found.method, found.num_asked) == (OURS, 400)
    assert len(set(rows) & set(flipped.tolist())) >= 16  # of 20
    assert len(set(rows) - set(flipped.tolist())) <= 8  # of 380
    assert [one.label_probability for one in found.suspects] == sorted(one.label_probability for one in found.suspects)
    for one in found.suspects:
        assert one.suggested == probabilities[one.row].argmax() != labels[one.row]
        assert one.suggested_probability == pytest.approx(probabilities[one.row].max())


def test_the_rule_by_hand() -> None:
    # Thresholds: the mean of 0.9, 0.7 and 0.1 for class 0, of 0.9 and 0.6 for class 1.
    probabilities = np.array([[0.9, 0.1], [0.7, 0.3], [0.1, 0.9], [0.1, 0.9], [0.4, 0.6]])
    labels = np.array([0, 0, 0, 1, 1])
    assert contradicted(labels, probabilities).tolist() == [2]
    # Not confident enough for class 1, whose threshold is 0.75.
    probabilities[2] = (0.3, 0.7)
    assert contradicted(labels, probabilities).tolist() == []


def test_a_class_without_an_example_accuses_nobody() -> None:
    probabilities = np.array([[0.4, 0.1, 0.5], [0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.1, 0.9, 0.0]])
    assert contradicted(np.array([0, 0, 1, 1]), probabilities).tolist() == []


@pytest.mark.frameworks
@pytest.mark.filterwarnings("default")  # cleanlab's own
def test_cleanlab_says_the_same() -> None:
    """The real one, asked by itself and through our door; and the same rule in numpy. Also of rare and many classes."""
    from cleanlab.filter import find_label_issues

    for seed, (num, classes) in enumerate([(400, 4), (400, 2), (1000, 40), (120, 10), (60, 3)]):
        labels, probabilities, _ = noisy(seed, num=num, classes=classes)
        asked = find_label_issues(labels, probabilities, filter_by="confident_learning", n_jobs=1)
        theirs, ours = (check_labels(labels, probabilities, uses_cleanlab=uses) for uses in (True, False))
        assert (theirs.method, ours.method) == (CLEANLAB, OURS)
        assert sorted(one.row for one in theirs.suspects) == np.flatnonzero(asked).tolist() != []
        assert theirs.suspects == ours.suspects


def test_folds_are_even_and_keep_copies_together() -> None:
    files = [f"{number}.jpg" for number in range(40)] + ["alone.jpg"]
    labels = [number % 2 for number in range(40)] + [2]
    links = tuple(Link(first=0, second=row, kind="near", change="") for row in (2, 4))
    group = CopyGroup(rows=(0, 2, 4), labels=(0,), links=links, crosses=False, kind="near")
    fold_of = folds_of(files, labels, [group], folds=5, seed=0)
    assert len({int(fold_of[row]) for row in (0, 2, 4)}) == 1
    assert fold_of[40] == NEVER_HELD_OUT
    assert np.bincount(fold_of[1:40:2]).tolist() == [4] * 5
    assert fold_of.tolist() == folds_of(files, labels, [group], folds=5, seed=0).tolist()
    assert fold_of.tolist() != folds_of(files, labels, [group], folds=5, seed=1).tolist()
