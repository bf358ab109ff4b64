"""The fork server of a study: a process that has loaded the code of trainings and forks one for every run.

    python -m turnaround.worker_server LISTENING

LISTENING is the number of a listening Unix socket that launch/forked.py, which starts this, has opened. A connection
asks for the processes of one start: it sends a `ForkRequest` and two open files (stdout, stderr); it gets the process
number, later the exit status, and its end is the end of that process. Of several processes it is their leader's
number: a copy that forks them in turn, and does for them what torch.distributed.run does for those that start alone.

The server itself never touches a GPU, since a CUDA context does not survive a fork, and has no threads of its own.
Every run begins in a fresh copy: nothing of one is left in the next, and one that crashes ends alone.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from turnaround import worker
from turnaround.children import die_with_parent
from turnaround.launch.forked import HEADER_BYTES, OWN_PREFIX, READ_LATE, THREADS_VARIABLE, ForkRequest
from turnaround.record.host import process_age_s
from turnaround.workers.engines import ENGINES, host_meeting_point

MAX_REQUEST_BYTES = 2**22
"""An environment has at most 2 MiB on Linux (ARG_MAX), and JSON may escape what is in it."""
REQUEST_S = 10.0
"""A client of ours sends its request at once; one that does not must not keep the others waiting."""

Load = tuple[float, float]
"""Begin and end of loading some code, by the clock of the host; kept by network, by an engine's module, and under None
for what every training needs."""
LEADER_SIGNALS = (signal.SIGCHLD, *worker.STOP_SIGNALS)
CUDA_FILE = "/dev/nvidia-uvm"
"""The file that initialising CUDA opens, and NVML does not."""


@dataclass(frozen=True)
class _Fork:
    """A training process and the connection of the launcher that asked for it."""

    pid: int
    pidfd: int
    connection: socket.socket


class Server:
    """The loop: requests, ends of processes, ends of launchers."""

    def __init__(
        self, listening: socket.socket, began_with: Mapping[str, str], loads: Mapping[str | None, Load]
    ) -> None:
        """`began_with` is the environment before anything was loaded, which may have added to it."""
        self._listening, self._began_with, self._loads = listening, began_with, dict(loads)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ, None)

    def serve(self) -> NoReturn:
        """Serve until whoever has started us ends us."""
        while True:
            for key, _ in self._selector.select():
                # Two things tell of a training: its connection (the launcher has gone) and its pidfd (it has ended
                # itself). A connection that is closed has no descriptor any more: nobody is left to be told.
                if key.data is None:
                    self._accept()
                elif key.fileobj is key.data.connection:
                    self._bury(key.data)
                elif key.data.connection.fileno() < 0:
                    self._reap(key.data)
                else:
                    self._tell_end(key.data)

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        files: list[int] = []
        try:
            connection.settimeout(REQUEST_S)
            request, files = _received(connection)
            if reason := _refusal(request, self._began_with):
                connection.sendall(_line({"refused": reason}))
                connection.close()
                return
            # In the server, not in the copy: the next run has it too. Only then is CUDA looked for, which imported code
            # may have initialised.
            self._load_for(request)
            if _has_open(CUDA_FILE):
                connection.sendall(_line({"refused": "loading this code has initialised CUDA, which ends at a fork"}))
                connection.close()
                return
            pid = _fork()
            if pid == 0:
                self._become(request, connection, files)
            with suppress(OSError):  # here and in the copy: whoever is first, the group is there before its number is
                os.setpgid(pid, pid)
            # Registered before it is told: if the launcher has gone meanwhile, the error below finds it and ends it.
            fork = _Fork(pid=pid, pidfd=os.pidfd_open(pid), connection=connection)
            self._selector.register(connection, selectors.EVENT_READ, fork)
            self._selector.register(fork.pidfd, selectors.EVENT_READ, fork)
            connection.sendall(_line({"pid": pid}))
        except (OSError, ValueError, KeyError, TypeError):  # the client has gone, or is none of ours
            with suppress(KeyError):
                self._bury(self._selector.get_key(connection).data)
            connection.close()
        finally:
            # Ours: the copy has its own.
            for file in files:
                os.close(file)

    def _tell_end(self, fork: _Fork) -> None:
        """Send the exit status. The process stays a zombie until its launcher has gone, so its number stays its own."""
        end = os.waitid(os.P_PID, fork.pid, os.WEXITED | os.WNOWAIT)
        assert end is not None, "a pidfd is ready when its process has ended"
        status = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        # The pidfd of a zombie stays readable, and would wake the loop for ever.
        self._selector.unregister(fork.pidfd)
        with suppress(OSError):  # the launcher has gone: the connection says so next
            fork.connection.sendall(_line({"status": status}))

    def _bury(self, fork: _Fork) -> None:
        """End a process whose launcher has gone, with all that it has started. Nobody waits for it here: one that hangs
        in a driver or on a network disk does not die of any signal, and the other runs need the server."""
        self._selector.unregister(fork.connection)
        fork.connection.close()
        with suppress(ProcessLookupError):
            os.killpg(fork.pid, signal.SIGKILL)
        if fork.pidfd not in self._selector.get_map():  # its end was told: it is a zombie
            self._selector.register(fork.pidfd, selectors.EVENT_READ, fork)

    def _reap(self, fork: _Fork) -> None:
        """Forget a process that has ended after its launcher."""
        os.waitpid(fork.pid, 0)
        self._selector.unregister(fork.pidfd)
        os.close(fork.pidfd)

    def _load_for(self, request: ForkRequest) -> None:
        """Load what this request needs and none before it did."""
        if request.network not in self._loads:
            began_s = time.monotonic()
            _load(request.network)
            self._loads[request.network] = (began_s, time.monotonic())
        if request.processes > 1 and ENGINES[request.engine].module not in self._loads:
            began_s = time.monotonic()
            _load(is_alone=False)
            with suppress(Exception):  # what goes wrong here goes wrong again in the copy, which says so
                importlib.import_module(ENGINES[request.engine].module)
            self._loads[ENGINES[request.engine].module] = (began_s, time.monotonic())

    def _loads_of(self, request: ForkRequest) -> list[Load]:
        """Return when that was loaded which a copy for this request has: all, its network, its engine."""
        parts = (None, request.network, ENGINES[request.engine].module if request.processes > 1 else None)
        return [self._loads[part] for part in dict.fromkeys(parts)]

    def _become(self, request: ForkRequest, connection: socket.socket, files: list[int]) -> NoReturn:
        """Turn this copy into the training process that was asked for."""
        status = 1
        try:
            os.setpgid(0, 0)  # as every start has: what it starts ends with it
            if request.processes > 1:
                # Here already: threads that torch makes below inherit it. One that did not would take a signal away
                # from `sigwait`, and with SIGCHLD the end of a process would go unseen.
                signal.pthread_sigmask(signal.SIG_BLOCK, LEADER_SIGNALS)
            # A copy of another run's connection would keep its end from being seen.
            for opened in [key.fileobj for key in self._selector.get_map().values()]:
                opened.close() if isinstance(opened, socket.socket) else os.close(int(opened))  # type: ignore[arg-type]
            self._selector.close()
            for number, file in enumerate([os.open(os.devnull, os.O_RDONLY), *files]):
                os.dup2(file, number)
                os.close(file)
            os.chdir(request.folder)
            loads = json.dumps(self._loads_of(request))
            # What libraries have set while they were loaded stays, as in a process that loads them itself; everything
            # else is the launcher's environment.
            added = {name: value for name, value in os.environ.items() if name not in self._began_with}
            os.environ.clear()
            os.environ.update({**added, **request.environment, worker.FORKED_VARIABLE: loads})
            # The server ignores Ctrl-C, and what is ignored stays ignored in a copy.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # Python chose how to buffer when stdout was /dev/null: for a terminal it would have been by lines.
            if sys.stdout is not None:
                sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr]
            if request.environment.get(THREADS_VARIABLE) != self._began_with.get(THREADS_VARIABLE):
                _use_threads(int(request.environment[THREADS_VARIABLE]))
            sys.argv = [worker.__file__, request.run]
            if request.processes == 1:
                # The server alone keeps it: with its end the launcher must see the end of the stream.
                connection.close()
                status = worker.main([request.run])
            else:
                status = _lead(request, connection)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        worker.leave(status)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python counts the idle threads of OpenBLAS, which knows about forks (pthread_atfork).
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _lead(request: ForkRequest, connection: socket.socket) -> int:
    """Fork the processes of a training, let them meet, pass on requests to stop; return 0 when all have ended well."""
    # LEADER_SIGNALS are blocked and waited for: a handler would have to be asked again and again whether it was called.
    die_with_parent()  # the server; the processes die with us
    pids: list[int] = []
    writing_ends: list[int] = []
    for rank in range(request.processes):
        reading, writing = os.pipe()
        pid = _fork()
        if pid == 0:
            connection.close()
            # The pipe of a rank ends when nobody can write to it any more, and json.load in `_follow` reads to that
            # end: no copy of a writing end may stay with a sibling.
            for end in (*writing_ends, writing):
                os.close(end)
            _follow(request, rank, reading)
        os.close(reading)
        pids.append(pid)
        writing_ends.append(writing)
    # After the forks: the store has threads.
    store, variables = host_meeting_point(request.engine)
    for end in writing_ends:
        with suppress(BrokenPipeError), os.fdopen(end, "w") as file:  # one that has died is found below
            json.dump(variables, file)
    connection.sendall(_line({"ranks": pids}))
    connection.close()
    is_well = _wait_for_all(pids)
    # Until here they could meet: the store lives as long as somebody holds it.
    del store
    return 0 if is_well else 1


def _follow(request: ForkRequest, rank: int, reading: int) -> NoReturn:
    """Be one of several training processes: wait for the place where they meet, then train."""
    status = 1
    try:
        die_with_parent()
        with os.fdopen(reading) as file:
            os.environ.update(json.load(file))
        size = str(request.processes)
        names = ENGINES[request.engine].rank_variables
        # All on one host: rank and size are those on this host as well.
        os.environ.update(dict(zip(names, (str(rank), size, str(rank), size), strict=True)))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])  # the others wait until the worker listens
        status = worker.main([request.run])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    worker.leave(status)


def _wait_for_all(pids: Sequence[int]) -> bool:
    """Wait for the end of all, and return whether it was a good one. When one fails the others are asked to stop, as
    torch.distributed.run does; those that cannot are the launcher's to end."""
    left, is_well = set(pids), True
    while left:
        # Signals of one kind do not queue: one SIGCHLD may stand for the ends of several, so all are asked.
        number = signal.sigwait(LEADER_SIGNALS)
        passed_on = {number} - {signal.SIGCHLD}
        for pid in sorted(left):
            found, status = os.waitpid(pid, os.WNOHANG)
            if not found:
                continue
            left.remove(pid)
            if status != 0 and is_well:
                is_well = False
                passed_on.add(signal.SIGTERM)
        for pid in left:  # their numbers are their own: nobody but us takes their exit status
            for each in passed_on:
                os.kill(pid, each)
    return is_well


def _received(connection: socket.socket) -> tuple[ForkRequest, list[int]]:
    """Return the request and its two files; only the user whom this server belongs to may ask."""
    # struct ucred of unix(7): pid, uid, gid.
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    if uid != os.getuid():
        raise ValueError("another user")
    header, files, _, _ = socket.recv_fds(connection, HEADER_BYTES, 2)
    num_bytes, text = int.from_bytes(header, "big"), b""
    if len(files) != 2 or not 0 < num_bytes <= MAX_REQUEST_BYTES:
        for file in files:
            os.close(file)
        raise ValueError("no request")
    while len(text) < num_bytes:
        part = connection.recv(num_bytes - len(text))
        if not part:
            raise ValueError("half a request")
        text += part
    return ForkRequest(**json.loads(text)), files


def _refusal(request: ForkRequest, ours: Mapping[str, str]) -> str | None:
    """Return why a copy of this process would not be what a new one is: libraries read most variables when loaded."""
    theirs = request.environment
    differing = {name for name in {*theirs, *ours} if theirs.get(name) != ours.get(name)}
    if theirs.get(THREADS_VARIABLE, "").isdecimal():
        differing.discard(THREADS_VARIABLE)
    others = sorted(name for name in differing if name not in READ_LATE and not name.startswith(OWN_PREFIX))
    return f"another environment: {', '.join(others)}" if others else None


def _load(network: str | None = None, *, is_alone: bool = True) -> None:
    """Load the code of trainings, and of a network, once for all that are forked later."""
    # In a copy collections would write to, and so copy, every page of what was loaded.
    with worker.without_collections(), _asking_nvml():
        import turnaround.launch.failure
        import turnaround.record.heartbeat
        import turnaround.reporting.progress
        import turnaround.training.run  # noqa: F401
        from turnaround.training.loading import load_late_code

        load_late_code(network, is_alone=is_alone)


@contextmanager
def _asking_nvml() -> Iterator[None]:
    """Let torch ask NVML whether there are GPUs: code that asks while it is loaded would initialise CUDA otherwise."""
    variable = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        del os.environ[variable]
        os.environ.update({} if before is None else {variable: before})


def _use_threads(count: int) -> None:
    from turnaround.training.loading import use_threads

    use_threads(count)


def _has_open(file: str, descriptors: Path = Path("/proc/self/fd")) -> bool:
    """Return whether this process has a file open; False where that cannot be told."""
    try:
        return any(os.readlink(descriptors / name) == file for name in os.listdir(descriptors))
    except OSError:
        return False


def _line(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def main(listening: int) -> NoReturn:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launchers: each run saves what it has
    began_with = dict(os.environ)
    began_s = time.monotonic() - process_age_s()
    _load()
    Server(socket.socket(fileno=listening), began_with, {None: (began_s, time.monotonic())}).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
