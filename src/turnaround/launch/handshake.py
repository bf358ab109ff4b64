"""`turnaround train` under somebody else's launcher (horovodrun, torch.distributed.run): it runs once in each process.

Process 0 makes the run directory and prepares the images; the others wait for its word, a small file in the run's logs.
Then each starts its own worker, with the launcher's variables. The file goes when process 0 ends; one that was killed
may leave it, so the file says whose word it is.

The same word goes to processes of our own that were started before the images were decoded.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from turnaround.errors import RunDirectoryError
from turnaround.launch.contract import LaunchPlan
from turnaround.launch.parent import LAUNCHER_VARIABLE
from turnaround.record.files import read_json, remove_file
from turnaround.record.layout import RunDirectory
from turnaround.record.writer import write_json
from turnaround.workers.environment import RankInfo

MAX_PREPARATION_S = 3600.0
"""How long process 0 may take to decode the images."""
MAX_DELAY_S = 600.0
"""A word of another host that is older than this when we begin was not meant for us: its process may be dead."""


class StartMessage(NamedTuple):
    """What a process hears that was started before the images were decoded."""

    pixels_dir: Path
    decode_time_s: float
    decoded_at_s: float  # by this host's monotonic clock

    def waited_s(self, *, begun_at_s: float, ready_at_s: float) -> float:
        """What decoding cost: all of it but what passed while this process got ready, which is start-up."""
        hidden_s = min(ready_at_s, self.decoded_at_s) - max(begun_at_s, self.decoded_at_s - self.decode_time_s)
        return self.decode_time_s - max(0.0, hidden_s)


@contextmanager
def start_message(plan: LaunchPlan, *, is_awaited: bool = False) -> Iterator[None]:
    """Process 0 of several tells the others where the images are; inside, they start.

    `is_awaited`: processes of our own are there already, and wait.
    """
    if plan.place.rank != 0 or (plan.place.is_alone and not is_awaited):
        yield
        return
    assert plan.pixels_dir is not None
    directory = plan.directory
    write_json(
        directory.start_message,
        {
            "start": plan.place.start,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "at_s": time.time(),
            "pixels": str(plan.pixels_dir.absolute()),
            "decode_time_s": plan.decode_time_s,
            "decoded_at_s": plan.decoded_at_s,
        },
        directory.path,
    )
    try:
        yield
    finally:
        remove_file(directory.start_message, directory.path)


def clear(directory: RunDirectory) -> None:
    """Forgets the word of an earlier start that was killed."""
    remove_file(directory.start_message, directory.path)


def wait_for_start(
    directory: RunDirectory, place: RankInfo, *, begun_at_s: float, patience_s: float = MAX_PREPARATION_S
) -> tuple[Path, float]:
    """Where process 0 has put the images, and how long it decoded; called by the others."""
    latest_s = time.monotonic() + patience_s
    while time.monotonic() < latest_s:
        word = _read(directory)
        if word and _is_for_us(word, place, begun_at_s=begun_at_s):
            return Path(word["pixels"]), float(word["decode_time_s"])
        time.sleep(0.1)
    raise RunDirectoryError(
        f"Process {place.rank} has waited {patience_s:.0f} s for process 0 to prepare {directory.path}. It must be on "
        "a file system that every host sees. If decoding takes longer than that, train with one process first: the "
        "decoded images stay in the cache."
    )


def wait_for_launcher(directory: RunDirectory) -> StartMessage | None:
    """The word of whoever started this process, however long it decodes; None when it has gone, or given the run up.

    A request to stop changes nothing here: the launcher ends us, or we stop after the first step like any other.
    """
    launcher = int(os.environ[LAUNCHER_VARIABLE])
    while (word := _read(directory)) is None or word["pid"] != launcher:
        if not psutil.pid_exists(launcher) or not directory.logs.is_dir():
            return None
        time.sleep(0.05)
    return StartMessage(Path(word["pixels"]), float(word["decode_time_s"]), float(word["decoded_at_s"]))


def _is_for_us(word: dict[str, Any], place: RankInfo, *, begun_at_s: float) -> bool:
    if word.get("start") != place.start:
        return False
    if word.get("host") == socket.gethostname():
        return psutil.pid_exists(word["pid"])
    return bool(word["at_s"] > begun_at_s - MAX_DELAY_S)


def _read(directory: RunDirectory) -> dict[str, Any] | None:
    try:
        return read_json(directory.start_message, directory.path)
    except RunDirectoryError:  # not there yet
        return None
