"""What has happened to the images since a run began: files added, removed, changed.

The run itself keeps only their fingerprint; the names and digests of then are in the cache, as long as it is kept.
"""

from __future__ import annotations

import json
from pathlib import Path

from turnaround.data.pixels import Pixels, open_pixels
from turnaround.errors import StorageError

NAMED = 3


def changes(before_fingerprint: str, now: Pixels) -> str:
    """In words, for a message; empty when nobody knows any more what was there."""
    before = _entry_of(now.cache_dir.parent, before_fingerprint)
    if before is None:
        return ""
    then = dict(zip(before.files, map(bytes, before.digests), strict=True))
    today = dict(zip(now.files, map(bytes, now.digests), strict=True))
    found = {
        "added": sorted(today.keys() - then.keys()),
        "removed": sorted(then.keys() - today.keys()),
        "changed": sorted(name for name in then.keys() & today.keys() if then[name] != today[name]),
    }
    told = [f"{len(names)} {what} ({_some(names)})" for what, names in found.items() if names]
    return ", ".join(told) or "the same files in other classes or parts"


def _entry_of(cache: Path, fingerprint: str) -> Pixels | None:
    for manifest in sorted(cache.glob("*/manifest.json")):
        try:
            if json.loads(manifest.read_text(encoding="utf-8"))["fingerprint"] == fingerprint:
                return open_pixels(manifest.parent)
        except (OSError, ValueError, KeyError, TypeError, StorageError):
            continue  # damaged, or removed while we looked
    return None


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(repr, names[:NAMED])) + more
