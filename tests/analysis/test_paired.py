"""McNemar's exact test on which images two networks got right."""

from __future__ import annotations

import math

import pytest

from turnaround.analysis.paired import paired_answers


def answers(both: int, only_first: int, only_second: int, neither: int) -> tuple[list[bool], list[bool]]:
    pairs = [(True, True)] * both + [(True, False)] * only_first + [(False, True)] * only_second
    pairs += [(False, False)] * neither
    return [first for first, _ in pairs], [second for _, second in pairs]


@pytest.mark.parametrize(("first", "second"), [(0, 1), (3, 12), (10, 41), (6, 6), (400, 300), (0, 5)])
def test_the_binomial_by_hand(first: int, second: int) -> None:
    total = first + second
    tail = sum(math.comb(total, n) for n in range(min(first, second) + 1)) / 2**total
    found = paired_answers(*answers(7, first, second, 2))
    assert (found.both, found.only_first, found.only_second, found.neither) == (7, first, second, 2)
    assert found.p == pytest.approx(min(1.0, 2 * tail), rel=1e-9)
    assert found.is_told_apart == (found.p < 0.05)


def test_networks_that_never_disagree_are_not_told_apart() -> None:
    found = paired_answers(*answers(5, 0, 0, 3))
    assert (found.p, found.is_told_apart) == (1.0, False)


def test_the_images_must_be_the_same() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired_answers([True], [True, False])
