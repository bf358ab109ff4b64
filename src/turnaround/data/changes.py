"""Which image files were added, removed or changed since a run began, as far as the cache still knows."""

from __future__ import annotations

from pathlib import Path

from turnaround.data.pixels import DAMAGED, MANIFEST, Pixels, open_pixels, read_manifest
from turnaround.errors import StorageError

_NAMED_CHANGES = 3


def changes_since(before_fingerprint: str, now: Pixels) -> str:
    """Return in words which files were added, removed or changed since a run began; empty when nobody knows any more.

    The run itself keeps only the fingerprint; names and digests of then are in the cache, as long as it is kept.
    """
    before = _entry_with(now.cache_dir.parent, before_fingerprint)
    if before is None:
        return ""
    then = dict(zip(before.files, map(bytes, before.digests), strict=True))
    today = dict(zip(now.files, map(bytes, now.digests), strict=True))
    names_by_change = {
        "added": sorted(today.keys() - then.keys()),
        "removed": sorted(then.keys() - today.keys()),
        "changed": sorted(name for name in then.keys() & today.keys() if then[name] != today[name]),
    }
    phrases = [f"{len(names)} {what} ({_some(names)})" for what, names in names_by_change.items() if names]
    return ", ".join(phrases) or "the same files in other classes or parts"


def _entry_with(cache: Path, fingerprint: str) -> Pixels | None:
    for manifest in sorted(cache.glob(f"*/{MANIFEST}")):
        try:
            if read_manifest(manifest.parent)["fingerprint"] == fingerprint:
                return open_pixels(manifest.parent)
        except (*DAMAGED, StorageError):
            continue  # damaged, or removed while we looked
    return None


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_CHANGES} more" if len(names) > _NAMED_CHANGES else ""
    return ", ".join(map(repr, names[:_NAMED_CHANGES])) + more
