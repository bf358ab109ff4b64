"""A client that sends exactly what it is told, also what no browser would; a port for a server that starts later."""

from __future__ import annotations

import json
import os
import socket
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any


def free_port() -> int:
    """Return a port that the system gives to nobody who asks for any (32768 and up), so it is still free seconds later.

    Other test processes begin their search elsewhere.
    """
    for port in range(10_000 + os.getpid() * 7 % 20_000, 32_768):
        with suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


def ask(port: int, path: str = "/", method: str = "GET", body: Any = None, **headers: str) -> Reply:
    """One request to a server of this machine; X_Name=... is the header X-Name."""
    sent = {"Host": f"127.0.0.1:{port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    with closing(HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request(method, path, body=body, headers=sent)
        reply = connection.getresponse()
        return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
