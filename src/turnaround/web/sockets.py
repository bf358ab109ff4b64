"""Listening sockets and their limits: number of connections, timeouts.

A client that says nothing, sends its request byte by byte, or does not take its answer is closed; more than
MAX_CONNECTIONS at once are turned away before anything is read.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from turnaround.errors import InputError
from turnaround.web.guard import MAX_HEAD_BYTES

MAX_CONNECTIONS = 128
REQUEST_HEAD_TIMEOUT_S = 10
STALLED_S = 30
"""Longest time that a client may leave its answer in our memory."""
KEEP_ALIVE_S = 5  # below REQUEST_HEAD_TIMEOUT_S, which also runs between two requests of a connection
PORTS_TRIED = 20


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket: a port that is taken is found before anything is loaded."""
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(place[:2], family=family, backlog=MAX_CONNECTIONS)
    except socket.gaierror as error:
        raise InputError(f"--host {host}: there is no such address ({error.strerror}).") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            free = _next_free(host, port)
            other = f" --port {free} is free." if free else ""
            raise InputError(
                f"Port {port} is taken by another program. Choose another: --port 0 takes any.{other}"
            ) from error
        raise InputError(f"Cannot listen on {host}, port {port}: {error.strerror}. Choose another.") from error


def _next_free(host: str, port: int) -> int | None:
    for candidate in range(port + 1, min(port + 1 + PORTS_TRIED, 65536)):
        with suppress(OSError):
            family, *_, place = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0]
            socket.create_server(place[:2], family=family).close()
            return candidate
    return None


@contextmanager
def listen_at(path: Path) -> Iterator[socket.socket]:
    """Yield a Unix socket that only its owner may open; a dead one of an earlier start is replaced."""
    _clear(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # not chmod after bind: between the two, others could connect
    try:
        listening.bind(str(path))
    except OSError as error:
        listening.close()
        raise InputError(
            f"--socket {path}: cannot listen there ({error.strerror or error}). Choose another."
        ) from error
    finally:
        os.umask(before)
    try:
        listening.listen(MAX_CONNECTIONS)
        yield listening
    finally:
        listening.close()
        path.unlink(missing_ok=True)


def _clear(path: Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return
    if not is_socket:
        raise InputError(f"--socket {path}: a file of that name already exists. Choose another.")
    # A socket file outlives its process: only a connection tells whether anybody listens.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise InputError(f"--socket {path}: another program already answers there. Choose another.")


class BoundedProtocol(H11Protocol):
    """HTTP with deadlines for the request's head and for an answer that nobody takes; uvicorn alone waits for ever."""

    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:  # abort, not close: nothing is sent or waited for
            transport.abort()
        else:
            self._deadline = self.loop.call_later(REQUEST_HEAD_TIMEOUT_S, transport.abort)

    def handle_events(self) -> None:
        super().handle_events()
        is_served = self.cycle is not None and not self.cycle.response_complete
        if is_served and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def on_response_complete(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(REQUEST_HEAD_TIMEOUT_S, self.transport.abort)
        super().on_response_complete()

    # asyncio calls these two when the write buffer is above its high mark, and below its low mark again.
    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_stall()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._end_stall()
        super().connection_lost(exc)

    def _end_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


def settings() -> dict[str, Any]:
    """Return what every uvicorn.Config of ours has: no logs, no name in the answers, no web sockets, all bounded."""
    return {
        "http": BoundedProtocol,
        "ws": "none",
        "lifespan": "on",
        "log_level": "error",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": 5,
        "h11_max_incomplete_event_size": MAX_HEAD_BYTES,
    }
