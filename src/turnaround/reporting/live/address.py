"""The address of the live page, and what a person must know to reach it."""

from __future__ import annotations

import getpass
import os
import shlex
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from turnaround.web.guard import Access, base_url, is_loopback

DEFAULT_PORT = 8765


@dataclass(frozen=True, kw_only=True)
class PageAddress:
    """The address of the live page, and who may open it."""

    directory: Path
    host: str
    port: int
    """0 on a Unix socket."""
    token: str = field(repr=False)
    is_kept: bool
    """The token will be the same at the next start."""
    socket: Path | None = None

    @property
    def url(self) -> str:
        return f"{base_url(self.host, self.port or DEFAULT_PORT)}?token={self.token}"

    @property
    def is_opened(self) -> bool:
        return self.socket is None and not is_loopback(self.host)

    @property
    def access(self) -> Access:
        return Access.of(self.host, token=self.token, is_opened=self.is_opened)

    def lines(self) -> Iterator[str]:
        """Yield what a person must know."""
        yield f"{self.directory} is shown at {self.url}"
        if not self.is_kept:
            yield "The address changes with every start: there is no folder of yours to keep its token in."
        if self.is_opened:
            yield (
                "Open to the network: whoever has this address may read what the runs have recorded, and it travels "
                "unencrypted. On a network that you do not trust, leave --host out and use ssh -L. Ctrl-C ends it."
            )
            return
        yield "Only this machine reaches it, and only with this address. Ctrl-C ends it."
        if self.socket is not None:
            yield f"Through ssh, on your own machine: {tunnel(DEFAULT_PORT, str(self.socket.absolute()))}"
        elif is_remote():
            yield f"From your own machine first: {tunnel(self.port, f'127.0.0.1:{self.port}')}"


def is_remote() -> bool:
    """Return true where somebody has come here through ssh."""
    return bool(os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"))


def tunnel(port: int, target: str) -> str:
    """Return the command that brings the page to where its reader sits."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = "USER"
    return shlex.join(["ssh", "-L", f"{port}:{target}", f"{user}@{socket.gethostname()}"])
