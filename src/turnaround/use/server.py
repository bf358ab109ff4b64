"""The socket: where it listens, how many may come, how long they may take.

It listens on this machine alone. Another address must be asked for, and then pictures are answered only to those who
have the token in the printed address.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from turnaround.errors import InputError
from turnaround.use.guard import Access, is_loopback
from turnaround.use.predictor import Predictor
from turnaround.use.service import Limits, application

MOST_CONNECTIONS = 128
REQUEST_HEAD_TIMEOUT_S = 10
KEEP_ALIVE_S = 5
MOST_HEAD_BYTES = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the server is, and for whom."""

    host: str
    """As it was asked for."""
    port: int
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, listening: socket.socket, host: str) -> Address:
        """With a token unless only this machine reaches it."""
        token = None if is_loopback(host) else secrets.token_urlsafe(24)
        return cls(host=host, port=listening.getsockname()[1], token=token)

    @property
    def url(self) -> str:
        """For a browser; the token stands behind #, which browsers do not send and servers do not log."""
        name = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104
        shown = f"[{name}]" if ":" in name else name
        return f"http://{shown}:{self.port}/" + (f"#{self.token}" if self.token else "")

    @property
    def access(self) -> Access:
        names = {self.host.lower()}
        if self.token is not None:
            names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        return Access(names=frozenset(names), token=self.token)

    def lines(self, run: str) -> Iterator[str]:
        """What a person must know."""
        yield f"{run} answers at {self.url}"
        bearer = f' -H "Authorization: Bearer {self.token}"' if self.token else ""
        yield f"  curl{bearer} --data-binary @picture.jpg {self.url.partition('#')[0]}classify"
        if self.token is None:
            yield "Only this machine reaches it. --host 0.0.0.0 opens it to the network, with a token. Ctrl-C ends it."
        else:
            yield (
                "Open to the network: whoever has the token may ask, and pictures travel unencrypted. On a network "
                "that you do not trust, leave --host out and use ssh -L. Ctrl-C ends it."
            )


def listen(host: str, port: int) -> socket.socket:
    """A bound socket: a port that is taken is found before anything is loaded."""
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(place[:2], family=family, backlog=MOST_CONNECTIONS)
    except socket.gaierror as error:
        raise InputError(f"--host {host}: there is no such address ({error.strerror}).") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"Port {port} is taken by another program. Choose another: --port 0 takes any.") from error
        raise InputError(f"Cannot listen on {host}, port {port}: {error.strerror}. Choose another.") from error


class BoundedProtocol(H11Protocol):
    """uvicorn waits for ever for a request that never comes, and for a head that comes byte by byte."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
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

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)


def make_server(predictor: Predictor, access: Access, limits: Limits | None = None) -> uvicorn.Server:
    """Ready to run; nothing is bound yet."""
    settings: dict[str, Any] = {
        "http": BoundedProtocol,
        "ws": "none",
        "lifespan": "on",
        "log_level": "error",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": 5,
        "h11_max_incomplete_event_size": MOST_HEAD_BYTES,
    }
    return uvicorn.Server(uvicorn.Config(application(predictor, access, limits), **settings))


def run_server(predictor: Predictor, address: Address, listening: socket.socket) -> None:
    """Until Ctrl-C, which is its ordinary end."""
    with suppress(KeyboardInterrupt):
        make_server(predictor, address.access).run(sockets=[listening])
