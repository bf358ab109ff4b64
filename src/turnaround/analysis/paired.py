"""Two networks on the same images: McNemar's exact test.

Images that both get right, or both wrong, say nothing about which is better. Of the others, each network would win half
if the two were equally good, so the number that one wins is binomial with p = 1/2 (McNemar 1947, exact form).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SIGNIFICANCE = 0.05
"""The usual level: one in twenty pairs of equally good networks would be told apart by mistake."""


@dataclass(frozen=True, kw_only=True)
class PairedAnswers:
    """Images by which of two networks got them right."""

    both: int
    only_first: int
    only_second: int
    neither: int
    p: float
    """Two-sided probability of so large an imbalance between equally good networks; 1 where they never disagree."""

    @property
    def is_told_apart(self) -> bool:
        return self.p < SIGNIFICANCE


def paired_answers(first: Sequence[bool], second: Sequence[bool]) -> PairedAnswers:
    """Compare which images each network got right, image by image."""
    pairs = list(zip(first, second, strict=True))
    only_first, only_second = pairs.count((True, False)), pairs.count((False, True))
    return PairedAnswers(
        both=pairs.count((True, True)),
        only_first=only_first,
        only_second=only_second,
        neither=pairs.count((False, False)),
        p=_two_sided_p(min(only_first, only_second), only_first + only_second),
    )


def _two_sided_p(fewer: int, total: int) -> float:
    if total == 0:
        return 1.0
    from scipy.special import bdtr  # loading scipy takes longer than all that is computed here

    # Both tails: the distribution is symmetric at p = 1/2. At a tie they overlap, hence the 1.
    return min(1.0, 2.0 * float(bdtr(fewer, total, 0.5)))
