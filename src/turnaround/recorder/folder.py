"""Which directory this process writes into. Process 0 makes it; the others find it, without a word between them.

A name that is taken is never written into: the next free one is used, NAME-2, NAME-3. So the others look for a
directory of that name whose first process was started together with them and is not gone.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from turnaround.errors import RunDirectoryError
from turnaround.record.job import own_job
from turnaround.record.layout import RunDirectory, default_run_path
from turnaround.record.lock import RunLock, is_held

ATTEMPTS = 100


def made(path: Path) -> tuple[RunDirectory, RunLock]:
    """A new run directory at the path, or at the next free name beside it, and its lock."""
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


def found(path: Path, *, start: str) -> RunDirectory | None:
    """The directory that process 0 of this start has made; None as long as there is none."""
    for candidate in _candidates(path):
        directory = RunDirectory(candidate)
        if said(directory.logs / "rank-0.json").get("start") == start and is_held(directory.lock):
            return directory
    return None


def said(path: Path) -> dict[str, Any]:
    """What a process has written down about itself; nothing when it has not, or not yet."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def ranks(directory: RunDirectory) -> dict[int, dict[str, Any]]:
    """All processes that have said where they are, by rank."""
    known = (said(path) for path in directory.logs.glob("rank-*.json"))
    return {one["rank"]: one for one in known if isinstance(one.get("rank"), int)}


def claimed(path: Path) -> bool:
    """Whether this process is the first that wants this file: the one on its host that writes the telemetry."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    except FileExistsError:
        return False
    return True


def _candidates(path: Path) -> list[Path]:
    """The path and its numbered followers, the newest first."""
    pattern = re.compile(rf"{re.escape(path.name)}(?:-([0-9]{{1,6}}))?")
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return []
    numbers = [(int(match[1] or 1), name) for name in names if (match := pattern.fullmatch(name))]
    return [path.parent / name for _, name in sorted(numbers, reverse=True)]
