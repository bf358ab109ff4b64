"""A folder of images in, everything that is wrong with it out: the whole check.

decode      small copies of all images, through the cache; what cannot be decoded is bad
headers     what is odd about the others: orientation, mode, frames, size
contents    pictures without colour or without any content
links       exact copies by digest, then the pictures that show the same photo (pairs.py)
groups      what hangs together by links, and which groups lie on both sides of the split
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnaround.check import headers
from turnaround.check.copies import find_copies
from turnaround.check.groups import CopyGroup, group, hold_out, leaking
from turnaround.check.pairs import SIZE_PX, Link, find_links
from turnaround.data.decoders import Progress, Show, silent
from turnaround.data.folder import ImageTable
from turnaround.data.formats import scan
from turnaround.data.pixels import Pixels, default_cache, prepare
from turnaround.errors import StorageError
from turnaround.words import counted

_CHUNK = 256  # pictures at a time: 64 px in 16 bits, 6 MB
_GREY_LEVELS = 6  # between the channels of a pixel: JPEG colours a grey picture by up to 3
_GREY_SHARE = 0.005  # of the pixels: more colour than this is seen, however large and white the background is
_CONSTANT_SPREAD = 1.5  # levels of standard deviation
_FEW_IMAGES = 20  # of a class in the training part: below, its accuracy is luck


@dataclass(frozen=True, kw_only=True)
class Check:
    """Everything that was found. Rows count the files of the table, training part first."""

    table: ImageTable
    groups: tuple[CopyGroup, ...]
    bad: dict[int, str]
    """Unreadable files: the reason."""
    odd: dict[str, tuple[int, ...]]
    """Rows of odd images, by the names of `headers.ODDITIES`."""
    classes: dict[str, dict[str, int]]
    warnings: tuple[str, ...]

    @property
    def leaking(self) -> dict[str, int]:
        """Return the number of validation images with a near-duplicate in the training part, by kind."""
        return {str(kind): num for kind, num in leaking(self.groups, self.table.num_train).items()}

    @property
    def contradictions(self) -> tuple[CopyGroup, ...]:
        return tuple(found for found in self.groups if len(found.labels) > 1)

    @property
    def is_serious(self) -> bool:
        return bool(self.bad or self.leaking or self.contradictions)

    def payload(self) -> dict[str, Any]:
        """Plain values for JSON, text and pages; paths are relative to the folder."""
        table, files = self.table, self.table.files
        return {
            "folder": str(table.root),
            "split": table.split,
            "num_train": table.num_train,
            "num_validation": len(files) - table.num_train,
            "serious": self.is_serious,
            "leaks": {
                "num": sum(self.leaking.values()),
                "of": len(files) - table.num_train,
                "by_kind": self.leaking,
            },
            "groups": [self._group(found) for found in self.groups],
            "bad": [{"file": files[row], "reason": reason} for row, reason in sorted(self.bad.items())],
            "odd": [
                {"what": what, "becomes": headers.ODDITIES[what], "files": [files[row] for row in rows]}
                for what, rows in self.odd.items()
            ],
            "classes": self.classes,
            "ignored": list(table.ignored),
            "warnings": list(self.warnings),
        }

    def _group(self, found: CopyGroup) -> dict[str, Any]:
        table = self.table
        return {
            "kind": found.kind,
            "files": [table.files[row] for row in found.rows],
            "parts": ["train" if row < table.num_train else "validation" for row in found.rows],
            "classes": [table.classes[label] for label in found.labels],
            "crosses_split": found.crosses,
            "links": [
                {"files": [table.files[link.first], table.files[link.second]], "kind": link.kind, "change": link.change}
                for link in found.links
            ],
        }


def check_folder(
    folder: Path, *, holdout: float = 0.2, seed: int = 0, cache: Path | None = None, show: Show = silent
) -> Check:
    """Check a folder. Without a validation folder, leaks are those of the hold-out that a training would make."""
    return check_table(scan(folder, holdout=holdout, seed=seed), cache=cache, show=show)


def split_by_photo(check: Check, *, holdout: float, seed: int) -> dict[str, str]:
    """Return the part of each file, so that no photo is on both sides; unreadable files are dealt out as any other."""
    table = check.table
    return hold_out(table.files, table.labels, check.groups, holdout=holdout, seed=seed)


def check_table(table: ImageTable, *, cache: Path | None = None, show: Show = silent) -> Check:
    """Check as `check_folder` does, for files that are known already."""
    pixels = _small_copies(table, cache or default_cache(), show)
    rows = rows_in_table(table, pixels)
    bad = _bad(table, pixels, set(rows.tolist()))
    # After decoding, which has limits of time: what was decoded has a header that can be read as quickly.
    readable = {int(row): table.files[row] for row in rows.tolist()}
    read = _headers(table, readable, show)
    assert pixels.images is not None
    grey, constant = grey_and_constant(pixels.images)
    links = _links(pixels, headers.sizes_of([read[row] for row in rows.tolist()]), constant, show)
    links = [
        Link(first=int(rows[link.first]), second=int(rows[link.second]), kind=link.kind, change=link.change)
        for link in links
    ]
    classes = class_counts(table, set(bad))
    return Check(
        table=table,
        groups=group(links, table.labels, table.num_train),
        bad=bad,
        odd=_odd(read, bad, grey_rows=rows[grey & ~constant], constant_rows=rows[constant]),
        classes=classes,
        warnings=(*table.warnings, *small_classes(classes)),
    )


def _shown(show: Show, what: str) -> Progress:
    return lambda done, total: show(what, done, total)


def _small_copies(table: ImageTable, cache: Path, show: Show) -> Pixels:
    pixels = prepare(table, size_px=SIZE_PX, cache=cache, skip_bad=None, on_progress=_shown(show, "decoding images"))
    if pixels.images is None:
        raise StorageError(
            f"The check needs {pixels.num_bytes / 1e9:.1f} GB for small copies of the images in {str(cache)!r}, which "
            "has no room. Name another directory: TURNAROUND_CACHE=DIR turnaround check ..."
        )
    return pixels


def _headers(table: ImageTable, readable: dict[int, str], show: Show) -> list[headers.Header]:
    """Return the header of every file of the table; an empty one for those that cannot be decoded."""
    read = headers.read_headers(table.root, tuple(readable.values()), _shown(show, "reading headers"))
    by_row = dict(zip(readable, read, strict=True))
    return [by_row.get(row, headers.Header()) for row in range(len(table.files))]


def rows_in_table(table: ImageTable, pixels: Pixels) -> NDArray[np.int64]:
    """Return the row in the table of each row of the pixels: the cache skips what it cannot decode."""
    kept = set(pixels.files)
    return np.array([row for row, name in enumerate(table.files) if name in kept], np.int64)


def _bad(table: ImageTable, pixels: Pixels, kept: set[int]) -> dict[int, str]:
    # `skipped` has the unreadable files in the order of the table.
    missing = [row for row in range(len(table.files)) if row not in kept]
    return {row: reason for row, (_, reason) in zip(missing, pixels.skipped, strict=True)}


def _links(pixels: Pixels, sizes_px: NDArray[np.int64], constant: NDArray[np.bool_], show: Show) -> list[Link]:
    """Return exact duplicates by digest, then near-duplicates among one picture of each set of exact ones."""
    exact = [
        Link(first=rows[0], second=row, kind="exact", change="")
        for rows in find_copies(pixels).sets
        for row in rows[1:]
    ]
    but_not = {link.second for link in exact} | set(np.flatnonzero(constant).tolist())
    return exact + find_links(pixels.cache_dir, sizes_px, but_not=but_not, on_progress=_shown(show, "comparing pairs"))


def grey_and_constant(images: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which rows have no colour, and which have nothing but one colour. `images`: (N, px, px, 3)."""
    grey, constant = np.zeros(len(images), np.bool_), np.zeros(len(images), np.bool_)
    for start in range(0, len(images), _CHUNK):
        some = images[start : start + _CHUNK].astype(np.int16)
        rows = slice(start, start + len(some))
        # By the share of coloured pixels, not by their mean: a red apple on a white ground is not grey.
        coloured = some.max(axis=-1) - some.min(axis=-1) > _GREY_LEVELS  # (N, px, px)
        grey[rows] = coloured.mean(axis=(1, 2)) < _GREY_SHARE
        constant[rows] = some.std(axis=(1, 2)).max(axis=-1) < _CONSTANT_SPREAD
    return grey, constant


def class_counts(table: ImageTable, bad: set[int]) -> dict[str, dict[str, int]]:
    """Return for each class its readable training and validation images, and its unreadable ones."""
    counts = {name: {"train": 0, "validation": 0, "bad": 0} for name in table.classes}
    for row, label in enumerate(table.labels.tolist()):
        part = "bad" if row in bad else "train" if row < table.num_train else "validation"
        counts[table.classes[label]][part] += 1
    return counts


def small_classes(counts: dict[str, dict[str, int]]) -> list[str]:
    """Return a sentence about classes with few readable training images, if there are any."""
    few = sorted((count["train"], name) for name, count in counts.items() if count["train"] < _FEW_IMAGES)
    if not few:
        return []
    listed = ", ".join(f"{name!r} {num}" for num, name in few[:5])
    more = f" and {len(few) - 5} more" if len(few) > 5 else ""
    return [f"{counted(len(few), 'class')} with fewer than {_FEW_IMAGES} readable training images: {listed}{more}."]


def _odd(
    read: Sequence[headers.Header],
    bad: dict[int, str],
    *,
    grey_rows: NDArray[np.int64],
    constant_rows: NDArray[np.int64],
) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {what: [] for what in headers.ODDITIES}
    for row, header in enumerate(read):
        for what in header.odd if row not in bad else ():
            found[what].append(row)
    if 2 * len(grey_rows) < len(read) - len(bad):  # where most are grey, grey is the rule
        found["grey among colour"] += grey_rows.tolist()
    found["constant"] += constant_rows.tolist()
    return {what: tuple(rows) for what, rows in found.items() if rows}
