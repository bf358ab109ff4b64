"""The fork server of a study: a process that has loaded the code of trainings and forks one for every run.

    python -m turnaround.worker_server LISTENING

LISTENING is the number of a listening Unix socket that launch/forked.py, which starts this, has opened. A connection
asks for one training process: it sends the environment, the working folder, the run and two open files (stdout,
stderr); it gets the process number, later the exit status, and its end is the end of that process.

The server itself never touches a GPU, since a CUDA context does not survive a fork, and has no threads of its own.
Every run begins in a fresh copy: nothing of one is left in the next, and one that crashes ends alone.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from turnaround import worker
from turnaround.children import die_with_parent
from turnaround.launch.forked import HEADER_BYTES, OWN_PREFIX, READ_LATE

MAX_REQUEST_BYTES = 2**22
"""An environment has at most 2 MiB on Linux (ARG_MAX), and JSON may escape what is in it."""
REQUEST_S = 10.0
"""A client of ours sends its request at once; one that does not must not keep the others waiting."""


@dataclass(frozen=True)
class _Fork:
    """A training process and the connection of the launcher that asked for it."""

    pid: int
    pidfd: int
    connection: socket.socket


class Server:
    """The loop: requests, ends of processes, ends of launchers."""

    def __init__(self, listening: socket.socket, began_with: Mapping[str, str]) -> None:
        """`began_with` is the environment before anything was loaded, which may have added to it."""
        self._listening, self._began_with = listening, began_with
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ, None)

    def serve(self) -> NoReturn:
        """Serve until whoever has started us ends us."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._accept()
                elif key.fileobj is key.data.connection:
                    self._bury(key.data)
                else:
                    self._tell_end(key.data)

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        files: list[int] = []
        try:
            connection.settimeout(REQUEST_S)
            request, files = _received(connection)
            if reason := _refusal(request["environment"], self._began_with):
                connection.sendall(_line({"refused": reason}))
                connection.close()
                return
            _load(request["network"])
            with warnings.catch_warnings():
                # Python counts the idle threads of OpenBLAS, which knows about forks (pthread_atfork).
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                self._become(request, connection, files)
            with suppress(OSError):  # here and in the copy: whoever is first, the group is there before its number is
                os.setpgid(pid, pid)
            fork = _Fork(pid=pid, pidfd=os.pidfd_open(pid), connection=connection)
            self._selector.register(connection, selectors.EVENT_READ, fork)
            self._selector.register(fork.pidfd, selectors.EVENT_READ, fork)
            connection.sendall(_line({"pid": pid}))
        except (OSError, ValueError, KeyError, TypeError):  # the client has gone, or is none of ours
            with suppress(KeyError):
                self._bury(self._selector.get_key(connection).data)
            connection.close()
        finally:
            for file in files:
                os.close(file)

    def _tell_end(self, fork: _Fork) -> None:
        """Send the exit status. The process stays a zombie until its launcher has gone, so its number stays its own."""
        end = os.waitid(os.P_PID, fork.pid, os.WEXITED | os.WNOWAIT)
        assert end is not None, "a pidfd is ready when its process has ended"
        status = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        self._selector.unregister(fork.pidfd)
        with suppress(OSError):  # the launcher has gone: the connection says so next
            fork.connection.sendall(_line({"status": status}))

    def _bury(self, fork: _Fork) -> None:
        """End a process whose launcher has gone, with all that it has started, and forget it."""
        with suppress(ProcessLookupError):
            os.killpg(fork.pid, signal.SIGKILL)
        os.waitpid(fork.pid, 0)
        self._selector.unregister(fork.connection)
        with suppress(KeyError):
            self._selector.unregister(fork.pidfd)
        os.close(fork.pidfd)
        fork.connection.close()

    def _become(self, request: Mapping[str, Any], connection: socket.socket, files: list[int]) -> NoReturn:
        """Turn this copy into the training process that was asked for."""
        status = 1
        try:
            os.setpgid(0, 0)  # as every start has: what it starts ends with it
            # A copy of another run's connection would keep its end from being seen.
            for opened in [key.fileobj for key in self._selector.get_map().values()]:
                opened.close() if isinstance(opened, socket.socket) else os.close(int(opened))  # type: ignore[arg-type]
            self._selector.close()
            connection.close()
            for number, file in enumerate([os.open(os.devnull, os.O_RDONLY), *files]):
                os.dup2(file, number)
                os.close(file)
            os.chdir(request["folder"])
            added = {name: value for name, value in os.environ.items() if name not in self._began_with}
            os.environ.clear()
            os.environ.update({**added, **request["environment"], worker.FORKED_VARIABLE: "1"})
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if sys.stdout is not None:
                sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr]
            sys.argv = [worker.__file__, request["run"]]
            status = worker.main([request["run"]])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        worker.leave(status)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the request and its two files; only the user whom this server belongs to may ask."""
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
    return json.loads(text), files


def _refusal(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """Return why a copy of this process would not be what a new one is: libraries read most variables when loaded."""
    differing = {name for name in {*theirs, *ours} if theirs.get(name) != ours.get(name)}
    others = sorted(name for name in differing if name not in READ_LATE and not name.startswith(OWN_PREFIX))
    return f"another environment: {', '.join(others)}" if others else None


def _load(network: str | None = None) -> None:
    """Load the code of trainings, and of a network, once for all that are forked later."""
    with worker.without_collections():  # in a copy they would write to, and so copy, every page of what was loaded
        import turnaround.launch.failure
        import turnaround.record.heartbeat
        import turnaround.reporting.progress  # noqa: F401
        from turnaround.training.run import load_late_code

        load_late_code(network)


def _line(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def main(listening: int) -> NoReturn:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launchers: each run saves what it has
    began_with = dict(os.environ)
    _load()
    Server(socket.socket(fileno=listening), began_with).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
