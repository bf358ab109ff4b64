"""Decoded pictures in, the pairs that show the same photo out, each with the change that makes one of the other."""

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
"""Larger, and two pictures are strangers. Chosen on copies of fruit and Caltech-101 photos, see docs/LOG.md."""
_MIN_OVERLAP, _FULL_OVERLAP, _STRICTER = 0.2, 0.75, 0.5
"""Pictures that have little in common, because one is a part of the other or white was taken for fill, must fit better:
the ends of a banana are what tells it from others."""
STANDING_NEIGHBOURS = 4
_PAIRS_AT_ONCE, _PAIRS_PER_TASK = 64, 1024

Kind = Literal["exact", "near", "augmented"]


@dataclass(frozen=True, kw_only=True)
class Link:
    """Two pictures of one photo."""

    first: int
    second: int
    kind: Kind
    change: str
    """In words, for example 'turned by 30 degrees, mirrored'; empty when nothing but the encoding differs."""


@dataclass(frozen=True, kw_only=True)
class _Task:
    cache_dir: Path
    half_sides: Floats  # of all pictures
    pairs: Pairs


def find_links(
    cache_dir: Path, sizes_px: NDArray[np.int64], *, but_not: set[int], on_progress: Progress | None = None
) -> list[Link]:
    """All pairs but those with pictures in `but_not`: exact copies stand for each other, constant ones for nothing."""
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
    found = joined(found, standing._replace(combination=np.full_like(standing.combination, _WHOLE)))
    pairs = Pairs(rows[found.first], rows[found.second], found.combination)
    tasks = [
        _Task(cache_dir=cache_dir, half_sides=half_sides, pairs=Pairs(*(c[s : s + _PAIRS_PER_TASK] for c in pairs)))
        for s in range(0, len(pairs.first), _PAIRS_PER_TASK)
    ]
    links: list[Link] = []
    for done, some in enumerate(in_children(_verified, tasks, purpose="compares images"), 1):
        links += some
        if on_progress is not None:
            on_progress(min(done * _PAIRS_PER_TASK, len(pairs.first)), len(pairs.first))
    return sorted(links, key=lambda link: (link.first, link.second))


_WHOLE = COMBINATIONS.index((QUERIES.index((1.0, 0.0, 0.0)), PROBES.index((1.0, 0.0, 0.0))))
_DISCS = np.array([(*QUERIES[query], *PROBES[probe]) for query, probe in COMBINATIONS], np.float32)


def _verified(task: _Task) -> list[Link]:
    images = open_pixels(task.cache_dir).images
    assert images is not None
    links: list[Link] = []
    for start in range(0, len(task.pairs.first), _PAIRS_AT_ONCE):
        first, second, combination = (column[start : start + _PAIRS_AT_ONCE] for column in task.pairs)
        sides = task.half_sides[first], task.half_sides[second]
        discs = _DISCS[combination]
        one, other = discs[:, :3].copy(), discs[:, 3:].copy()
        one[:, 1:] *= sides[0]
        other[:, 1:] *= sides[1]
        found = fit(picture_batch(images[first], sides[0]), picture_batch(images[second], sides[1]), one, other)
        limit = MAX_MISFIT - _STRICTER * np.maximum(_FULL_OVERLAP - found.overlap, 0)
        keep = np.flatnonzero((found.misfit < limit) & (found.overlap > _MIN_OVERLAP))
        links += [_link(int(first[row]), int(second[row]), found, row) for row in keep.tolist()]
    return links


def _link(first: int, second: int, found: Registration, row: int) -> Link:
    if first > second:
        first, second, turn = second, first, np.linalg.inv(found.turn[row])
    else:
        turn = found.turn[row]
    change = change_in_words(turn)
    return Link(first=first, second=second, kind="augmented" if change else "near", change=change)


def change_in_words(turn: NDArray[np.floating]) -> str:
    """What a person would say; empty for less than 3 degrees, 5 % of size and 4 % of the side."""
    is_mirrored = turn[0, 0] * turn[1, 1] - turn[0, 1] * turn[1, 0] < 0
    scale = math.sqrt(abs(turn[0, 0] * turn[1, 1] - turn[0, 1] * turn[1, 0]))
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
