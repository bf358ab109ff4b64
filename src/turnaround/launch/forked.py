"""Training processes that are forked from one which has loaded their code already (turnaround/worker_server.py).

Loading torch and a network takes 3 to 10 s, which is most of a short run. A study of many rehearsals pays that once:
`fork_server` starts the server, and says by TURNAROUND_FORK_SERVER where it listens; every launcher of ours below finds
it there. A server that is not there, has ended, or whose environment is another one, is no error: the process is
started as always.

Runs of several processes too, where the engine can (workers/engines.py). What the server had loaded before a run began
is part of that run's record (`preloaded` in status.json): added to its times they are those of a run that starts alone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from turnaround import safe_path
from turnaround.children import LAUNCHER_VARIABLE, die_with_parent
from turnaround.workers.engines import ENGINES

SERVER_VARIABLE = "TURNAROUND_FORK_SERVER"
"""The path of the server's socket; or `off`, for whoever wants every process to start by itself."""
OFF = "off"
SERVER_MODULE = "turnaround.worker_server"
OWN_PREFIX = "TURNAROUND_"
READ_LATE = (
    *("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    *("PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES"),
)
"""Variables besides our own that nothing has read when the code was loaded: a copy may have others. CUDA reads its own
when the first GPU is asked for, which the server never does; Gloo and NCCL when processes are connected."""
THREADS_VARIABLE = "OMP_NUM_THREADS"
"""Read when the code is loaded, but a copy can be told: each of several processes has fewer cores than one alone."""
HEADER_BYTES = 8
"""The length of the request that follows, big-endian."""
MAX_LOADING_S = 300.0
"""The first request waits until the server has loaded its code."""
LOOK_EVERY_S = 0.2
MAX_SOCKET_PATH = 107
"""Bytes of a Unix socket's path on Linux (sun_path of unix(7), less its end)."""


class TrainingProcess(Protocol):
    """What a launcher needs of a process it has started: subprocess.Popen, or a forked one."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, or raise subprocess.TimeoutExpired."""

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""


@contextmanager
def fork_server(settings: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Keep a server as long as the context is open; yield the variable by which launchers find it.

    `settings` is what a process of one training gets on top of our environment: libraries read it when they load. The
    server loads its code in the background. Nothing is yielded where processes cannot be forked this way.
    """
    if not can_fork() or os.environ.get(SERVER_VARIABLE) == OFF:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="turnaround-", ignore_cleanup_errors=True) as folder:  # ours alone: 0700
        path = str(Path(folder) / "fork")
        # A temporary folder far down: bind would fail, and without a server every run starts as always.
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            yield {}
            return
        # Our copy is closed once the server has its own: after the server's end nobody listens, so whoever asks is
        # refused at once instead of waiting in a queue that is never served.
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen(64)  # who asks before the code is loaded waits here
            # What the server prints belongs to no run: each copy gets the open files of its own
            # (worker_server._become).
            process = subprocess.Popen(
                [sys.executable, "-m", SERVER_MODULE, str(listening.fileno())],
                env={**os.environ, **safe_path.settings(), **settings, LAUNCHER_VARIABLE: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listening.fileno()],
                start_new_session=True,  # a Ctrl-C in the terminal must not end it before the runs have saved
                preexec_fn=die_with_parent,
            )
        try:
            yield {SERVER_VARIABLE: path}
        finally:
            # It has nothing to save; a training that is still below it dies with it (die_with_parent).
            process.kill()
            process.wait()


@contextmanager
def forking_here(settings: Mapping[str, str]) -> Iterator[None]:
    """Let the trainings that this process itself starts be forked: those of a loop, or of a notebook."""
    before = os.environ.get(SERVER_VARIABLE)
    with fork_server(settings) as variable:
        os.environ.update(variable)
        try:
            yield
        finally:
            os.environ.pop(SERVER_VARIABLE, None)
            if before is not None:
                os.environ[SERVER_VARIABLE] = before


def can_fork() -> bool:
    """Return whether this system can: Linux alone tells of the end of a process that is no child (pidfd)."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def has_server(environment: Mapping[str, str]) -> bool:
    """Return whether somebody keeps a fork server for us."""
    return environment.get(SERVER_VARIABLE, OFF) != OFF and can_fork()


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """What a launcher asks the server for: the processes of one start."""

    run: str
    network: str | None
    """The network whose code is loaded before the fork, so that the next run has it."""
    environment: dict[str, str]
    folder: str = field(default_factory=os.getcwd)
    processes: int = 1
    engine: str = "torch"


def ask_for_fork(
    run: Path,
    *,
    network: str | None,
    environment: Mapping[str, str],
    log: IO[bytes],
    processes: int = 1,
    engine: str = "torch",
) -> PendingFork | None:
    """Ask the server that the environment names for the processes of a start; None when nobody can be asked.

    A server that still loads its code answers later, so nobody waits for it here: images are prepared meanwhile.
    """
    if not has_server(environment) or (processes > 1 and not ENGINES[engine].can_be_forked):
        return None
    path = environment[SERVER_VARIABLE]
    own = {name: value for name, value in environment.items() if name != SERVER_VARIABLE}
    request = ForkRequest(run=str(run), network=network, environment=own, processes=processes, engine=engine)
    text = json.dumps(asdict(request)).encode()
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
        # A large environment may not fit into the socket's buffer: the rest is taken when the code is loaded.
        connection.settimeout(MAX_LOADING_S)
        # The future stdout and stderr: progress goes to our stderr, all else into the log, as in local._start. Flushed,
        # since two processes write there from now on. Descriptors travel with bytes (SCM_RIGHTS): here with the length.
        sys.stderr.flush()
        socket.send_fds(connection, [len(text).to_bytes(HEADER_BYTES, "big")], [sys.stderr.fileno(), log.fileno()])
        connection.sendall(text)
    except OSError:
        connection.close()
        return None
    return PendingFork(connection, processes=processes)


class PendingFork:
    """A request that the server has not answered yet. Closing it takes it back, or ends what was started."""

    def __init__(self, connection: socket.socket, *, processes: int) -> None:
        self._connection, self._processes = connection, processes

    def result(self, *, is_given_up: Callable[[], bool] = lambda: False) -> ForkedProcess | None:
        """Wait for the answer; None where the server refuses, has ended or takes too long, or where it is given up.

        A request to stop is only noted by its handler: a server that loads its code must not hold it up.
        """
        latest_s = time.monotonic() + MAX_LOADING_S
        answer: dict[str, Any] = {}
        # Python resumes a select after a signal handler (PEP 475): each is short, so a request to stop is seen soon.
        while not is_given_up() and time.monotonic() < latest_s:
            if select.select([self._connection], [], [], LOOK_EVERY_S)[0]:
                with suppress(OSError, ValueError):
                    answer = _answer(self._connection, self._processes)
                break
        pid, pids = answer.get("pid"), answer.get("ranks")
        if not isinstance(pid, int) or not isinstance(pids, list):
            self.close()
            return None
        return ForkedProcess(pid, self._connection, ranks={each: rank for rank, each in enumerate(pids)})

    def close(self) -> None:
        self._connection.close()


def _answer(connection: socket.socket, processes: int) -> dict[str, Any]:
    """Return the numbers of what was started; of several processes their leader tells them, before or after its own."""
    answer: dict[str, Any] = {}
    while not {"pid", "ranks"} <= answer.keys():
        text = _line(connection)
        if not text:
            return {}
        answer |= json.loads(text)
        # Refused, or ended before all numbers were known: nothing trains, and the launcher starts its own processes.
        if "refused" in answer or "status" in answer:
            return {}
        if processes == 1:
            answer["ranks"] = [answer.get("pid")]
    return answer


class ForkedProcess:
    """A training process below the server, or the leader of several. Closing the connection ends all of them, so none
    outlives this launcher."""

    def __init__(self, pid: int, connection: socket.socket, *, ranks: Mapping[int, int] | None = None) -> None:
        """`ranks` are the numbers of the training processes, with the rank of each."""
        self.pid, self.ranks = pid, dict(ranks or {})
        self._connection: socket.socket | None = connection
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status as subprocess has it; a server that has gone has killed it."""
        latest_s = None if timeout is None else time.monotonic() + timeout
        while self._connection is not None:
            left_s = None if latest_s is None else max(0.0, latest_s - time.monotonic())
            if not select.select([self._connection], [], [], left_s)[0]:
                raise subprocess.TimeoutExpired(SERVER_MODULE, timeout or 0.0)
            try:
                answer = json.loads(_line(self._connection) or b"{}")
            except OSError:
                answer = {}
            # The end of the stream without a line is the end of the server, which no process below it survives.
            self._status = int(answer.get("status", -signal.SIGKILL))
            # Only now may the server take the exit status and free the number (Server._bury); what the process has left
            # in its group is killed with that.
            self._connection.close()
            self._connection = None
        assert self._status is not None
        return self._status

    def terminate(self) -> None:
        """Ask it to stop. Its number is its own as long as we have not taken its exit status."""
        if self._connection is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)


def _line(connection: socket.socket) -> bytes:
    """Return one line of the server, and leave what comes after it; what there is when the server ends."""
    # A byte at a time: a larger read would take what follows the newline, and there is no buffer to keep it in. Lines
    # are short, and a start has two or three of them.
    text = b""
    while not text.endswith(b"\n") and (byte := connection.recv(1)):
        text += byte
    return text
