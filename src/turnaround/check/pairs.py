"""Near-duplicates: decoded pictures in, the pairs that show the same photo and the change between them out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from turnaround.check.descriptors import (
    COMBINATIONS,
    PROBES,
    QUERIES,
    Floats,
    as_they_stand,
    describe,
    half_sides_of,
)
from turnaround.check.register import Registration, fit, picture_batch
from turnaround.check.search import Pairs, joined, nearest_pairs
from turnaround.children import in_children
from turnaround.data.decoders import Progress
from turnaround.data.pixels import open_pixels

SIZE_PX = 64
MAX_MISFIT = 0.25
"""Above this misfit two pictures are unrelated. Chosen on copies of fruit and Caltech-101 photos, see docs/LOG.md."""
_MIN_OVERLAP, _FULL_OVERLAP, _STRICTER = 0.2, 0.75, 0.5
"""Pictures that have little in common, because one is a part of the other or white was taken for fill, must fit better:
the ends of a banana are what tells it from others."""
STANDING_NEIGHBOURS = 4  # of upright thumbnails: a second search, for strongly brightened copies
_PAIRS_AT_ONCE, _PAIRS_PER_TASK = 64, 1024  # the Jacobian of 64 pairs at 64 px, (64, 4, 4096), takes 4 MB

Kind = Literal["exact", "near", "augmented"]


@dataclass(frozen=True, kw_only=True)
class Link:
    """Two pictures of one photo."""

    first: int
    second: int
    kind: Kind
    change: str
    """The change in words, e.g. 'mirrored, turned by 30 degrees'; empty when nothing but the encoding differs."""


@dataclass(frozen=True, kw_only=True)
class _Task:
    cache_dir: Path
    half_sides: Floats  # of all pictures
    pairs: Pairs


def find_links(
    cache_dir: Path, sizes_px: NDArray[np.int64], *, but_not: set[int], on_progress: Progress | None = None
) -> list[Link]:
    """Return all pairs without pictures in `but_not`: one of each set of exact copies is enough.

    `sizes_px` is (N, 2), width and height of the files: the decoded squares have lost their aspect ratio.
    """
    images = open_pixels(cache_dir).images
    assert images is not None
    rows = np.array([row for row in range(len(images)) if row not in but_not], np.int64)
    if len(rows) < 2:
        return []
    half_sides = half_sides_of(sizes_px)
    queries, probes = describe(images[rows], half_sides[rows])
    found = nearest_pairs(queries, probes)
    standing = nearest_pairs(
        *as_they_stand(images[rows]), [(0, view) for view in range(4)], neighbours=STANDING_NEIGHBOURS
    )
    # Pairs of the second search have no disc in which they are alike: registration starts from the whole picture.
    found = joined(found, standing._replace(combination=np.full_like(standing.combination, _WHOLE)))
    pairs = Pairs(rows[found.first], rows[found.second], found.combination)
    # A child gets the numbers of its pairs, not pixels: it maps the same cache entry.
    tasks = [
        _Task(cache_dir=cache_dir, half_sides=half_sides, pairs=Pairs(*(c[s : s + _PAIRS_PER_TASK] for c in pairs)))
        for s in range(0, len(pairs.first), _PAIRS_PER_TASK)
    ]
    links: list[Link] = []
    for done, some in enumerate(in_children(_verified, tasks, purpose="compares images"), 1):
        links += some
        if on_progress is not None:  # the last task is smaller
            on_progress(min(done * _PAIRS_PER_TASK, len(pairs.first)), len(pairs.first))
    # Sorted: results do not depend on which child was first.
    return sorted(links, key=lambda link: (link.first, link.second))


_WHOLE = COMBINATIONS.index((QUERIES.index((1.0, 0.0, 0.0)), PROBES.index((1.0, 0.0, 0.0))))
# (combinations, 6): radius and centre of the first picture's disc, then of the second's.
_DISCS = np.array([(*QUERIES[query], *PROBES[probe]) for query, probe in COMBINATIONS], np.float32)


def _verified(task: _Task) -> list[Link]:
    images = open_pixels(task.cache_dir).images
    assert images is not None
    links: list[Link] = []
    for start in range(0, len(task.pairs.first), _PAIRS_AT_ONCE):
        first, second, combination = (column[start : start + _PAIRS_AT_ONCE] for column in task.pairs)
        sides = task.half_sides[first], task.half_sides[second]
        discs = _DISCS[combination]
        # Centres are shares of half the width and half the height; registration has halves of the shorter side.
        one, other = discs[:, :3].copy(), discs[:, 3:].copy()
        one[:, 1:] *= sides[0]
        other[:, 1:] *= sides[1]
        found = fit(picture_batch(images[first], sides[0]), picture_batch(images[second], sides[1]), one, other)
        # From 0.25 at an overlap of 0.75 and more down to -0.025 at 0.2: then only agreement of fine detail convinces.
        limit = MAX_MISFIT - _STRICTER * np.maximum(_FULL_OVERLAP - found.overlap, 0)
        keep = np.flatnonzero((found.misfit < limit) & (found.overlap > _MIN_OVERLAP))
        links += [_link(int(first[row]), int(second[row]), found, row) for row in keep.tolist()]
    return links


def _link(first: int, second: int, found: Registration, row: int) -> Link:
    if first > second:  # the words tell how to make the second of the first
        first, second, turn = second, first, np.linalg.inv(found.turn[row])
    else:
        turn = found.turn[row]
    change = change_in_words(turn)
    return Link(first=first, second=second, kind="augmented" if change else "near", change=change)


def change_in_words(turn: NDArray[np.floating]) -> str:
    """Return the change as a person would say it; empty below 3 degrees, 5 % of size and 4 % of the side."""
    is_mirrored = turn[0, 0] * turn[1, 1] - turn[0, 1] * turn[1, 0] < 0
    scale = math.sqrt(abs(turn[0, 0] * turn[1, 1] - turn[0, 1] * turn[1, 0]))
    # A mirror image flips y before the turn, so the first column holds the angle in both cases.
    degrees = math.degrees(math.atan2(turn[1, 0], turn[0, 0]))
    words = []
    if is_mirrored:
        words.append("mirrored")
    if abs(degrees) >= 3:
        words.append(f"turned by {abs(degrees):.0f} degrees")
    if abs(math.log(scale)) >= 0.05:
        words.append(f"scaled by {scale:.2f}")
    if math.hypot(turn[0, 2], turn[1, 2]) >= 0.08:  # in halves of the side
        words.append("shifted or cropped")
    return ", ".join(words)
