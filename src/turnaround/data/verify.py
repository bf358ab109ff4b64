"""Is a cache of decoded images what was written? Enters: a cache, or one entry. Leaves: one verdict for each file.

All pixels are compared with their digests, not a sample as before a run. Nothing is repaired: an entry that is damaged
is built again by the next run that needs it. Links and FIFOs are not opened: a cache may be somebody else's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from turnaround.data.decode import DIGEST_BYTES, digest_of
from turnaround.data.pixels import ARRAYS, DAMAGED, MANIFEST, PIXELS, SUMS, checksum_of, open_images
from turnaround.data.plain import array_of, parsed_object, read_plain

MAX_ARRAY_BYTES = 4 << 30
"""Limit of labels, digests and manifests, which are read whole: 128 million images."""


class CacheFile(NamedTuple):
    """One file of an entry; the reasons are those of record/verify.py."""

    path: str
    reason: Literal["as_written", "no_checksum", "checksum", "digest", "manifest", "missing", "link", "not_plain"]
    detail: str = ""


def is_cache(path: Path) -> bool:
    """Return whether this is an entry, or a folder that holds some."""
    return _is_entry(path) or any(_is_entry(entry) for entry in _folders(path))


def verify_cache(path: Path) -> Iterator[CacheFile]:
    """Check an entry, or every entry of a cache."""
    for entry in [path] if _is_entry(path) else filter(_is_entry, _folders(path)):
        prefix = "" if entry == path else f"{entry.name}/"
        for file in _verify_entry(entry):
            yield file._replace(path=prefix + file.path)


def _is_entry(path: Path) -> bool:
    return os.path.lexists(path / MANIFEST) and os.path.lexists(path / ARRAYS[0])


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _verify_entry(entry: Path) -> Iterator[CacheFile]:
    manifest: dict[str, Any] = {}
    try:
        manifest = parsed_object(_read(entry / MANIFEST))
        stated = manifest.get("checksum", "")
        reason: Any = "no_checksum" if stated == "" else "as_written" if stated == checksum_of(manifest) else "checksum"
        yield CacheFile(MANIFEST, reason)
        manifest = {} if reason == "checksum" else manifest
    except _NotPlainError as error:
        yield CacheFile(MANIFEST, error.reason)
    except DAMAGED as error:
        yield CacheFile(MANIFEST, "checksum", str(error))
    checksums = manifest.get("checksums", {})
    checksums = checksums if isinstance(checksums, dict) else {}
    for name in (*ARRAYS, *([SUMS] if SUMS in checksums else [])):  # entries of older versions have no sums
        yield _checked(entry, name, checksums, is_known=bool(manifest))
    if manifest.get("decoded", True):
        yield _pixels(entry, manifest)


def _checked(entry: Path, name: str, checksums: dict[str, Any], *, is_known: bool) -> CacheFile:
    try:
        content = _read(entry / name)
    except _NotPlainError as error:
        return CacheFile(name, error.reason)
    except DAMAGED as error:
        return CacheFile(name, "checksum", str(error))
    if not is_known:
        return CacheFile(name, "manifest")
    if not checksums.get(name):
        return CacheFile(name, "no_checksum")
    return CacheFile(name, "as_written" if checksums[name] == digest_of(content).hex() else "checksum")


def _pixels(entry: Path, manifest: dict[str, Any]) -> CacheFile:
    """Compare every picture with the digest that was taken when it was decoded."""
    if not manifest:
        return CacheFile(PIXELS, "manifest")
    num_bad = 0
    try:
        _require_plain(entry / PIXELS)
        name, num_images = ARRAYS[-1], len(manifest["files"])
        digests = array_of(_read(entry / name), name, (num_images, DIGEST_BYTES), np.uint8)
        images = open_images(entry, manifest)
        for picture, digest in zip(images, digests, strict=True):
            num_bad += digest_of(np.ascontiguousarray(picture).data) != digest.tobytes()
    except _NotPlainError as error:
        return CacheFile(PIXELS, error.reason)
    except DAMAGED as error:
        return CacheFile(PIXELS, "digest", str(error))
    return CacheFile(PIXELS, "digest", f"{num_bad} of {len(images)}") if num_bad else CacheFile(PIXELS, "as_written")


class _NotPlainError(Exception):
    """What bears the name of a file is none."""

    def __init__(self, reason: Literal["missing", "link", "not_plain"]) -> None:
        super().__init__(reason)
        self.reason = reason


def _require_plain(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        raise _NotPlainError("missing") from None
    if not stat.S_ISREG(mode):
        raise _NotPlainError("link" if stat.S_ISLNK(mode) else "not_plain")


def _read(path: Path) -> bytes:
    _require_plain(path)
    return read_plain(path, most_bytes=MAX_ARRAY_BYTES)
