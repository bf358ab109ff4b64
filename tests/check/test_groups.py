"""Links become groups, groups stay on one side of a hold-out."""

from __future__ import annotations

import numpy as np

from turnaround.check.groups import group, hold_out, leaking
from turnaround.check.pairs import Kind, Link


def link(first: int, second: int, kind: Kind = "near") -> Link:
    return Link(first=first, second=second, kind=kind, change="")


LABELS = np.array([0, 0, 1, 1, 0, 0, 1], np.int64)  # the first four are trained on


def test_what_is_linked_through_others_is_one_group_and_the_worst_comes_first() -> None:
    groups = group([link(0, 1, "exact"), link(1, 4, "augmented"), link(2, 3, "exact"), link(5, 6)], LABELS, 4)
    assert [one.rows for one in groups] == [(5, 6), (0, 1, 4), (2, 3)]  # two labels, then a leak, then copies
    assert [one.kind for one in groups] == ["near", "augmented", "exact"]
    assert [one.crosses for one in groups] == [False, True, False]
    assert [one.labels for one in groups] == [(0, 1), (0,), (1,)]
    assert leaking(groups, 4) == {"augmented": 1}


def test_no_links_no_groups() -> None:
    assert group([], LABELS, 4) == ()


def test_a_hold_out_keeps_each_group_on_one_side() -> None:
    num = 300
    labels = np.arange(num, dtype=np.int64) % 3
    files = [f"{number % 3}/{number:03d}.png" for number in range(num)]
    groups = group([link(number, number + 3) for number in range(num - 3) if number // 3 % 5 != 4], labels, num)
    assert {len(one.rows) for one in groups} == {5}
    parts = hold_out(files, labels, groups, holdout=0.2, seed=1)
    for one in groups:
        assert len({parts[files[row]] for row in one.rows}) == 1
    for label in range(3):
        held = [parts[files[row]] == "validation" for row in range(num) if labels[row] == label]
        assert 0.15 <= sum(held) / len(held) <= 0.25
    assert parts == hold_out(files, labels, groups, holdout=0.2, seed=1)
    assert parts != hold_out(files, labels, groups, holdout=0.2, seed=2)


def test_a_class_that_is_one_group_keeps_its_training_images() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1, 1, 1], np.int64)
    files = [str(number) for number in range(8)]
    parts = hold_out(files, labels, group([link(0, 1), link(1, 2)], labels, 8), holdout=0.5, seed=0)
    assert [parts[name] for name in files[:3]] == ["train"] * 3
    assert "validation" in parts.values()
