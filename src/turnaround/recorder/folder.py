"""The directory that this process writes into. Process 0 makes it; the others find it, without a word between them.

A name that is taken is never written into: the next free one is used, NAME-2, NAME-3. So the others look for a
directory of that name whose first process was started together with them and is not gone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from turnaround.errors import RunDirectoryError
from turnaround.record.files import names_in, read_json_or_nothing
from turnaround.record.host import own_job
from turnaround.record.layout import RunDirectory, default_run_path
from turnaround.record.lock import RunLock, is_held

ATTEMPTS = 100


def create_directory(path: Path) -> tuple[RunDirectory, RunLock]:
    """Return a new run directory at the path, or at the next free name beside it, and its lock."""
    for _ in range(ATTEMPTS):
        try:
            directory = RunDirectory.create(path, job_id=own_job())
            lock = RunLock(directory.lock)
            lock.acquire()
        except RunDirectoryError:
            following = default_run_path(path.parent, path.name)
            if following == path:  # not there, and cannot be made either
                raise
            path = following
        else:
            return directory, lock
    raise RunDirectoryError(f"{path} and the names after it are all taken.")


def find_directory(path: Path, *, start: str) -> RunDirectory | None:
    """Return the directory that process 0 of this start has made; None as long as there is none."""
    for candidate in _candidates(path):
        directory = RunDirectory(candidate)
        # Both: the id of a start may come again, and a lock that is held shows that this one is alive.
        if note_of(directory, 0).get("start") == start and is_held(directory.lock):
            return directory
    return None


def note_of(directory: RunDirectory, rank: int) -> dict[str, Any]:
    """Return what a process has written down about itself; nothing when it has not, or not yet."""
    return read_json_or_nothing(directory.rank_note(rank), directory.path)


def ranks(directory: RunDirectory) -> dict[int, dict[str, Any]]:
    """Return the notes of all processes that have said where they are, by rank."""
    notes = (note_of(directory, rank) for rank in directory.noted_ranks())
    return {note["rank"]: note for note in notes if isinstance(note.get("rank"), int)}


def _candidates(path: Path) -> list[Path]:
    """Return the path and its numbered followers, the newest first."""
    pattern = re.compile(rf"{re.escape(path.name)}(?:-([0-9]{{1,6}}))?")
    numbers = [(int(match[1] or 1), name) for name in names_in(path.parent) if (match := pattern.fullmatch(name))]
    return [path.parent / name for _, name in sorted(numbers, reverse=True)]
