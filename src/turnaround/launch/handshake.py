"""One start message for every process of a run: logs/start.json, written by the launcher of process 0, read by all.

Every process starts first, loads its code and waits for the message: what the launcher learns late, where the decoded
images are, then costs nobody a second start. The file is written up to three times: with the device, with the network
when it is chosen, and when the images are there. It is the same under a launcher of others (torch.distributed.run,
horovodrun, srun), which runs `turnaround train` once in each process: process 0 writes, all wait.

A start that was killed may leave its message behind. Processes of our own launcher know the token of their start. Under
a launcher of others nobody can hand them one; there a message counts when it has changed since the process began: the
launcher of process 0 writes it anew once a second, one that was left behind stays as it is. Neither the clocks of two
hosts nor numbers of processes, which the system uses again, are ever compared.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from turnaround.children import launcher_is_alive
from turnaround.errors import RunDirectoryError
from turnaround.record.coding import from_json, to_json
from turnaround.record.files import read_json, remove_file
from turnaround.record.host import host_name
from turnaround.record.layout import RunDirectory
from turnaround.record.writer import write_json
from turnaround.workers.environment import RankInfo
from turnaround.workers.shares import EVEN

START_VARIABLE = "TURNAROUND_START"
"""The token of a start, from a launcher of ours to its processes."""
MAX_PREPARATION_S = 3600.0
"""Maximum time for process 0 of a launcher of others to decode images: enough for a million on a slow disk. Processes
of our own wait without a limit, since they end with their launcher."""
POLL_S = 0.05
"""A file that is not there costs microseconds to look for, and the first step waits for it."""


@dataclass(frozen=True, kw_only=True)
class StartMessage:
    """Everything that a process is told. Made before there are images; `with_images` completes it."""

    device: str = "auto"
    network: str | None = None
    """The network to train: its code is loaded while the images are decoded. None until it is chosen."""
    downloads: bool = True
    """Its trained weights may be fetched: the hub's client is loaded, too."""
    share: str = EVEN
    """How the workers are shared out among the processes: even, auto, or a number for each (workers/shares.py)."""
    launch: str = "local"
    """The launcher that started the processes; for the record."""
    shows_progress: bool = True
    bench_part_s: float | None = None
    """Measure each part of a training for so long (training/bench.py) instead of training."""
    begun_at_s: float
    """Begin of the user's command, by the monotonic clock that all processes of `host` share."""
    host: str = field(default_factory=host_name)
    start: str = field(default_factory=lambda: secrets.token_hex(8))
    """The token of this start, or under a launcher of others what all its processes know."""
    pixels_dir: str | None = None
    """None until the images are decoded."""
    decode_time_s: float = 0.0
    decoded_at_s: float = 0.0
    """The moment when the images were there, by the same clock as `begun_at_s`."""
    beat: int = 0
    """Number of times that the message was written again: its heartbeat."""

    @property
    def is_of_this_host(self) -> bool:
        """True when the message was written on this host, so that its clock is ours."""
        return self.host == host_name()

    def with_images(self, pixels_dir: Path, *, decode_time_s: float) -> StartMessage:
        """Return the complete message: the images are there, now."""
        return replace(
            self,
            pixels_dir=str(pixels_dir.absolute()),
            decode_time_s=decode_time_s,
            decoded_at_s=time.monotonic(),
        )

    def waited_s(self, *, began_at_s: float, ready_at_s: float) -> float:
        """Return the part of decoding that a process waited for: what passed while it got ready is start-up."""
        if not self.is_of_this_host:
            # What passed while the process got ready cannot be told by two clocks: all of it counts as waited for.
            return self.decode_time_s
        # The overlap of [began, ready] of this process with [decoded - decode time, decoded] of the launcher.
        hidden_s = min(ready_at_s, self.decoded_at_s) - max(began_at_s, self.decoded_at_s - self.decode_time_s)
        return self.decode_time_s - max(0.0, hidden_s)


def write(directory: RunDirectory, message: StartMessage) -> None:
    """Write the message; only the launcher of process 0 does, which holds the run's lock."""
    # Not synced: after a crash of the machine nobody is left to read it.
    write_json(directory.start_message, to_json(message), directory.path, is_synced=False)


def clear(directory: RunDirectory) -> None:
    """Remove the message: the start is over, or another begins."""
    remove_file(directory.start_message, directory.path)


def wait_for_directory(directory: RunDirectory, place: RankInfo, *, patience_s: float = MAX_PREPARATION_S) -> None:
    """Return when process 0 has made the run directory; called by the commands of all other processes."""
    latest_s = time.monotonic() + patience_s
    # logs/ is the last that `RunDirectory.create` makes. A run that goes on has it already.
    while not directory.logs.is_dir():
        if time.monotonic() >= latest_s:
            raise _waited_in_vain(directory, place, patience_s)
        time.sleep(POLL_S)


class Handshake:
    """The waiting side. Made before anything large is imported: it notes which message lies there already."""

    def __init__(self, directory: RunDirectory, place: RankInfo, *, stop_asked: Callable[[], bool]) -> None:
        self.directory, self.place, self.stop_asked = directory, place, stop_asked
        self._token = os.environ.get(START_VARIABLE)
        # As early as can be: a message of this start that lies there by now counts as an old one until the next is
        # written.
        self._left_behind = None if self._token else _read(directory)

    def wait(
        self, *, for_network: bool = False, for_images: bool = False, patience_s: float = MAX_PREPARATION_S
    ) -> StartMessage | None:
        """Return the message, with its network or its images if asked for; None when nobody waits for us any more.

        That is when the launcher or the run is gone, or when we are asked to stop: nothing is trained yet, so there is
        nothing to save. Nothing is written then either: the directory may be a run in which we were never started.
        """
        latest_s = time.monotonic() + patience_s
        while True:
            message = self.look()
            is_enough = message is not None and not (
                (for_network and message.network is None) or (for_images and message.pixels_dir is None)
            )
            if is_enough:
                return message
            # After the message: who has one goes on, and the training itself sees a request to stop.
            # The folder goes where bad input or Ctrl-C has made the launcher remove the whole run.
            if self.stop_asked() or not launcher_is_alive() or not self.directory.logs.is_dir():
                return None
            # With a token the launcher is ours, and its death is seen above.
            if self._token is None and time.monotonic() >= latest_s:
                raise _waited_in_vain(self.directory, self.place, patience_s)
            time.sleep(POLL_S)

    def look(self) -> StartMessage | None:
        """Return the message as it is now; None where there is none for this start."""
        message = _read(self.directory)
        return message if message is not None and self._is_ours(message) else None

    def _is_ours(self, message: StartMessage) -> bool:
        if self._token is not None:
            return message.start == self._token
        # An earlier start may have had the same id: only a message that changes (`beat`) has a living writer.
        return message.start == self.place.start and message != self._left_behind


def _waited_in_vain(directory: RunDirectory, place: RankInfo, patience_s: float) -> RunDirectoryError:
    return RunDirectoryError(
        f"Process {place.rank} has waited {patience_s:.0f} s for process 0 to prepare {directory.path}. It must be on "
        "a file system that every host sees. If decoding takes longer than that, train with one process first: the "
        "decoded images stay in the cache."
    )


def _read(directory: RunDirectory) -> StartMessage | None:
    try:
        return from_json(StartMessage, read_json(directory.start_message, directory.path))
    except RunDirectoryError:  # not there yet, or damaged
        return None
