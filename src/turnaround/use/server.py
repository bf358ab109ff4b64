"""The server's address and token; web/sockets.py bounds how many connections may come.

It listens on this machine alone. Another address must be asked for, and then pictures are answered only to those who
have the token in the printed address.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import uvicorn

from turnaround.use.predictor import Predictor
from turnaround.use.service import Limits, application
from turnaround.web.guard import Access, base_url, is_loopback
from turnaround.web.sockets import listen, settings

__all__ = ["Address", "listen", "make_server", "run_server"]


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of the server, and who may ask it."""

    host: str
    """The address that was given with --host."""
    port: int
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, listening: socket.socket, host: str) -> Address:
        """Make the address, with a token unless only this machine reaches it."""
        token = None if is_loopback(host) else secrets.token_urlsafe(24)
        return cls(host=host, port=listening.getsockname()[1], token=token)

    @property
    def url(self) -> str:
        """The URL for a browser; the token stands behind #, which browsers do not send and servers do not log."""
        return base_url(self.host, self.port) + (f"#{self.token}" if self.token else "")

    @property
    def access(self) -> Access:
        return Access.of(self.host, token=self.token, is_opened=self.token is not None)

    def lines(self, run: str) -> Iterator[str]:
        """Yield what a person must know."""
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


def make_server(predictor: Predictor, access: Access, limits: Limits | None = None) -> uvicorn.Server:
    """Return a server that is ready to run; nothing is bound yet."""
    return uvicorn.Server(uvicorn.Config(application(predictor, access, limits), **settings()))


def run_server(predictor: Predictor, address: Address, listening: socket.socket) -> None:
    """Serve until Ctrl-C, which is the ordinary end."""
    with suppress(KeyboardInterrupt):
        make_server(predictor, address.access).run(sockets=[listening])
