"""A pattern of file names -> the files: *, ?, [0-9], and ranges as {000..099}.

A pattern may come with somebody else's run: what it costs is limited, whatever it says.
"""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path

from turnaround.errors import DataError

_PATTERN = re.compile(r"[*?\[{]")
_WILD = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MAX_NAMES = 100_000  # of {000..999}, all ranges together: more shards than anybody has
_MAX_FOLDERS = 10_000  # that are looked through for one pattern
_MAX_COMPARED = 10_000_000  # names held against a part of the pattern: about 3 s


def is_pattern(source: Path) -> bool:
    return bool(_PATTERN.search(str(source)))


def files_of(pattern: Path) -> list[Path]:
    """Return the files that a pattern names; DataError where it is none, or names some that are not there."""
    names = _names_of(pattern)
    plain = [name for name in names if not _PATTERN.search(name)]
    missing = [name for name in plain if not os.path.isfile(name)]
    if missing and len(missing) < len(names):
        raise DataError(
            f"{str(pattern)!r}: {len(missing):,} of its {len(names):,} files are not there: {min(missing)!r}."
        )
    search = _Search(pattern)
    found = {path for name in names for path in search.found(name)}
    return sorted(Path(path) for path in found if os.path.isfile(path))


def fixed_folder(pattern: Path) -> Path:
    """Return the part of a pattern before its first special character: what the names are relative to."""
    fixed = pattern
    while _PATTERN.search(str(fixed)):
        fixed = fixed.parent
    return fixed


def _names_of(pattern: Path) -> list[str]:
    """Return the pattern once for each combination of the numbers of its ranges."""
    waiting, num_names = [str(pattern)], 1
    while (braces := _BRACES.search(waiting[0])) is not None:
        first, last = braces[1], braces[2]
        # By length first: int() of thousands of digits is an error of its own, or takes its time.
        count = int(last) - int(first) + 1 if max(len(first), len(last)) < 19 else 0
        num_names *= max(0, count)
        if not 0 < num_names <= _MAX_NAMES:
            raise DataError(
                f"{str(pattern)[:200]!r}: {braces[0][:80]} is no range of at most {_MAX_NAMES:,} numbers, all ranges "
                "of the pattern together."
            )
        numbers = [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
        # Every text has the same range next, since all come from one; it stands elsewhere, as numbers have lengths.
        waiting = [text.replace(braces[0], number, 1) for text in waiting for number in numbers]
    return waiting


class _Search:
    """As glob.glob, with limits; a folder is listed once, however many names are looked for in it."""

    def __init__(self, pattern: Path) -> None:
        self._pattern = pattern
        self._listed: dict[str, list[str]] = {}
        self._num_compared = 0

    def found(self, name: str) -> list[str]:
        places = ["/"] if name.startswith("/") else [""]
        for part in filter(None, name.split("/")):
            if _WILD.search(part):
                places = [os.path.join(place, one) for place in places for one in self._matching(place, part)]
            else:
                places = [os.path.join(place, part) for place in places]
        return places

    def _matching(self, place: str, part: str) -> list[str]:
        if place not in self._listed:
            try:
                self._listed[place] = os.listdir(place or ".")
            except OSError:
                self._listed[place] = []
        names = self._listed[place]
        self._num_compared += len(names)
        if len(self._listed) > _MAX_FOLDERS or self._num_compared > _MAX_COMPARED:
            raise DataError(
                f"{str(self._pattern)[:200]!r} leads into more than {_MAX_FOLDERS:,} folders, or to more than "
                f"{_MAX_COMPARED:,} names. Name the folders, and leave the pattern to the files."
            )
        return [name for name in fnmatch.filter(names, part) if part.startswith(".") or not name.startswith(".")]
