"""A folder of images in, everything that is wrong with it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnaround.check import contents, headers
from turnaround.check.copies import find_copies
from turnaround.check.groups import CopyGroup, group, hold_out, leaking
from turnaround.check.pairs import SIZE_PX, Link, find_links
from turnaround.data.decoders import Progress, Show, silent
from turnaround.data.folder import ImageTable, scan
from turnaround.data.pixels import Pixels, default_cache, prepare
from turnaround.errors import StorageError


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was found. Rows count the files of the table, training part first."""

    table: ImageTable
    groups: tuple[CopyGroup, ...]
    bad: dict[int, str]
    """Unreadable files: the reason."""
    odd: dict[str, tuple[int, ...]]
    """By the names of `headers.ODDITIES`."""
    classes: dict[str, dict[str, int]]
    warnings: tuple[str, ...]

    @property
    def leaking(self) -> dict[str, int]:
        """Validation images with a relative in the training part, by kind."""
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
    """The whole check. Without a validation folder, leaks are those of the hold-out that a training would make."""
    return check_table(scan(folder, holdout=holdout, seed=seed), cache=cache, show=show)


def split_by_photo(check: Check, *, holdout: float, seed: int) -> dict[str, str]:
    """File -> part, so that no photo is on both sides; unreadable files are dealt out as any other."""
    table = check.table
    return hold_out(table.files, table.labels, check.groups, holdout=holdout, seed=seed)


def check_table(table: ImageTable, *, cache: Path | None = None, show: Show = silent) -> Check:
    """As `check_folder`, for files that are known already."""
    read = headers.read_headers(table.root, table.files, _shown(show, "reading headers"))
    pixels = _decoded(table, cache or default_cache(), show)
    rows = _rows_in_table(table, pixels)
    bad = _bad(table, pixels, set(rows.tolist()))
    assert pixels.images is not None
    grey, constant = contents.grey_and_constant(pixels.images)
    links = _links(pixels, headers.sizes_of([read[row] for row in rows.tolist()]), constant, show)
    links = [
        Link(first=int(rows[link.first]), second=int(rows[link.second]), kind=link.kind, change=link.change)
        for link in links
    ]
    classes = contents.class_counts(table, set(bad))
    return Check(
        table=table,
        groups=group(links, table.labels, table.num_train),
        bad=bad,
        odd=_odd(read, bad, grey_rows=rows[grey & ~constant], constant_rows=rows[constant]),
        classes=classes,
        warnings=(*table.warnings, *contents.small_classes(classes)),
    )


def _shown(show: Show, what: str) -> Progress:
    return lambda done, total: show(what, done, total)


def _decoded(table: ImageTable, cache: Path, show: Show) -> Pixels:
    pixels = prepare(table, size_px=SIZE_PX, cache=cache, skip_bad=None, on_progress=_shown(show, "decoding images"))
    if pixels.images is None:
        raise StorageError(
            f"The check needs {pixels.num_bytes / 1e9:.1f} GB for small copies of the images in {str(cache)!r}, which "
            "has no room. Name another directory: TURNAROUND_CACHE=DIR turnaround check ..."
        )
    return pixels


def _rows_in_table(table: ImageTable, pixels: Pixels) -> NDArray[np.int64]:
    kept = set(pixels.files)
    return np.array([row for row, name in enumerate(table.files) if name in kept], np.int64)


def _bad(table: ImageTable, pixels: Pixels, kept: set[int]) -> dict[int, str]:
    missing = [row for row in range(len(table.files)) if row not in kept]
    return {
        row: entry.removeprefix(f"{table.files[row]}: ") for row, entry in zip(missing, pixels.skipped, strict=True)
    }


def _links(pixels: Pixels, sizes_px: NDArray[np.int64], constant: NDArray[np.bool_], show: Show) -> list[Link]:
    """Exact copies by their digests; the others by their looks, one of each set of copies standing for all."""
    exact = [
        Link(first=rows[0], second=row, kind="exact", change="")
        for rows in find_copies(pixels).sets
        for row in rows[1:]
    ]
    but_not = {link.second for link in exact} | set(np.flatnonzero(constant).tolist())
    return exact + find_links(pixels.cache_dir, sizes_px, but_not=but_not, on_progress=_shown(show, "comparing pairs"))


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
