"""Called by the commands of a written file before and after each start; not for people.

python -m turnaround.launch.clusters.written.hooks before RUN RANK
    frees the lock of an earlier start; prints what the run's status is now, as a digest
... after RUN STATUS DIGEST    prints the exit status that the run's record gives
"""

from __future__ import annotations

import hashlib
import socket
import sys
import time
from pathlib import Path

from turnaround.errors import InputError, RunDirectoryError, TurnaroundError
from turnaround.launch.clusters.written.task import DIVERGED, RESUMABLE
from turnaround.record.files import read_bytes, read_json_or_nothing, remove_file
from turnaround.record.layout import RunDirectory
from turnaround.words import harmless

MAX_SILENCE_S = 120.0
"""A process writes its heartbeat once a second: one that was silent for so long is gone, or will find its lock lost."""
BY_RECORD = {"interrupted": RESUMABLE, "finished": 0, "diverged": DIVERGED}


def before(directory: RunDirectory, rank: int) -> str:
    """Free the lock of an earlier start that was ended without a warning; return the digest of the run's status.

    The lock's own rule, never to believe that a process on another host is dead, does not know what a cluster knows:
    that it runs one pod of each index, with the name of that index for a host.
    """
    lock = read_json_or_nothing(directory.lock)
    # Only the first host, which holds the lock: one that comes later would free that of this very start.
    if rank == 0 and lock:
        is_own_name = lock.get("host") == socket.gethostname()
        last_s = max((path.stat().st_mtime for path in _heartbeats(directory)), default=0.0)
        if is_own_name or time.time() - last_s > MAX_SILENCE_S:
            remove_file(directory.lock)
            host = harmless(str(lock.get("host")))
            sys.stderr.write(f"An earlier start on {host} has ended; its lock is free again.\n")
    return _digest(directory)


def after(directory: RunDirectory, status: int, known: str) -> int:
    """Return 75 where this start has left the run interrupted, 3 diverged, 0 finished; else the status as it is.

    A launcher that was told to stop may end with 0 or with 1: the record decides.
    """
    if _digest(directory) == known:
        return status
    return BY_RECORD.get(str(read_json_or_nothing(directory.status).get("state")), status)


def _heartbeats(directory: RunDirectory) -> list[Path]:
    try:
        return [directory.heartbeat(rank) for rank in directory.heartbeat_ranks()]
    except (OSError, RunDirectoryError):
        return []


def _digest(directory: RunDirectory) -> str:
    try:
        # The bytes, not the state: "interrupted" twice in a row are two starts, with other times.
        return hashlib.sha256(read_bytes(directory.status)).hexdigest()[:16]
    except RunDirectoryError:
        return "none"


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["before", run, rank]:
                sys.stdout.write(f"{before(RunDirectory(Path(run)), int(rank))}\n")
            case ["after", run, status, known]:
                sys.stdout.write(f"{after(RunDirectory(Path(run)), int(status), known)}\n")
            case _:
                raise InputError(f"before RUN RANK or after RUN STATUS DIGEST; received: {arguments}.")
    except TurnaroundError as error:
        sys.stderr.write(f"{harmless(str(error))}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
