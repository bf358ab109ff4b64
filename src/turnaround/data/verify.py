"""Is a cache of decoded images what was written? Enters: a cache, or one entry. Leaves: one verdict for each file.

All pixels are compared with their digests, not a sample as before a run. Nothing is repaired: an entry that is damaged
is built again by the next run that needs it. Links and FIFOs are not opened: a cache may be somebody else's.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from turnaround.data.decode import digest_of
from turnaround.data.pixels import ARRAYS, MANIFEST, PIXELS, SUMS, checksum_of

MAX_ARRAY_BYTES = 4 << 30
"""Of labels, digests and manifests, which are read whole: 128 million images."""
_DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError, OverflowError)


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
        manifest = json.loads(_read(entry / MANIFEST))
        stated = manifest.get("checksum", "")
        reason: Any = "no_checksum" if stated == "" else "as_written" if stated == checksum_of(manifest) else "checksum"
        yield CacheFile(MANIFEST, reason)
        manifest = {} if reason == "checksum" else manifest
    except _NotPlainError as error:
        yield CacheFile(MANIFEST, error.reason)
    except _DAMAGED as error:
        yield CacheFile(MANIFEST, "checksum", str(error))
    checksums = manifest.get("checksums", {})
    checksums = checksums if isinstance(checksums, dict) else {}
    for name in (*ARRAYS, *([SUMS] if SUMS in checksums else [])):  # entries of older versions have no sums
        yield _checked(entry, name, checksums, is_known=bool(manifest))
    if manifest.get("decoded", True):
        yield _pixels(entry, is_known=bool(manifest))


def _checked(entry: Path, name: str, checksums: dict[str, Any], *, is_known: bool) -> CacheFile:
    try:
        content = _read(entry / name)
    except _NotPlainError as error:
        return CacheFile(name, error.reason)
    except _DAMAGED as error:
        return CacheFile(name, "checksum", str(error))
    if not is_known:
        return CacheFile(name, "manifest")
    if not checksums.get(name):
        return CacheFile(name, "no_checksum")
    return CacheFile(name, "as_written" if checksums[name] == digest_of(content).hex() else "checksum")


def _pixels(entry: Path, *, is_known: bool) -> CacheFile:
    """Compare every picture with the digest that was taken when it was decoded."""
    if not is_known:
        return CacheFile(PIXELS, "manifest")
    num_bad = 0
    try:
        _require_plain(entry / PIXELS)
        _require_plain(entry / ARRAYS[-1])
        digests = np.load(entry / ARRAYS[-1], allow_pickle=False)
        images = np.load(entry / PIXELS, mmap_mode="r", allow_pickle=False)
        if len(images) != len(digests):
            return CacheFile(PIXELS, "digest", f"{len(images)} pictures, {len(digests)} digests")
        for picture, digest in zip(images, digests, strict=True):
            num_bad += digest_of(np.ascontiguousarray(picture).data) != digest.tobytes()
    except _NotPlainError as error:
        return CacheFile(PIXELS, error.reason)
    except _DAMAGED as error:
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
    # By descriptor: what was plain a moment ago may be a FIFO by now, which an open must not wait for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(MAX_ARRAY_BYTES + 1)
    if len(content) > MAX_ARRAY_BYTES:
        raise ValueError(f"larger than {MAX_ARRAY_BYTES >> 30} GiB")
    return content
