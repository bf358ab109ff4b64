"""What the tests of the live page share: a real server on a folder of runs, and clients that read its stream."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import http_client
from http_client import Reply
from turnaround.record.folder import FollowedFolder
from turnaround.reporting.live.page_builder import PageBuilder
from turnaround.reporting.live.server import LiveServer, LiveService, Pacing
from turnaround.reporting.live.view import LiveView
from turnaround.web.guard import Access
from turnaround.web.sockets import listen

TOKEN = "s3cret-s3cret-s3cret-s3cret-s3cr"
QUICK = Pacing(now_every_s=0.05, now_rest=0.0, page_every_s=0.05, page_rest=0.0, heartbeat_s=0.3)


def ask(port: int, path: str = "/", method: str = "GET", token: str | None = TOKEN, **headers: str) -> Reply:
    """One request, as somebody who knows the token; None: as somebody who does not."""
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return http_client.ask(port, path, method, **headers)


@contextmanager
def watching(folder: Path, pacing: Pacing = QUICK, *, port: int = 0) -> Iterator[tuple[int, LiveService]]:
    """A real server on a port of this machine; yields the port and what answers there."""
    followed = FollowedFolder(folder)
    view = LiveView(followed)
    service = LiveService(PageBuilder(followed, view, title=view.title), pacing)
    server = LiveServer(service, Access(token=TOKEN))
    with listen("127.0.0.1", port) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            wait_for(lambda: server.started or not thread.is_alive())
            assert thread.is_alive()
            yield listening.getsockname()[1], service
        finally:
            server.should_exit = True
            thread.join(timeout=120)
            assert not thread.is_alive()


def wait_for(is_so: Callable[[], object], *, timeout_s: float = 120.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.02)


class Stream(threading.Thread):
    """An open page: what was pushed to it."""

    def __init__(self, port: int, path: str = "/events", **headers: str) -> None:
        super().__init__(daemon=True)
        self.connection = HTTPConnection("127.0.0.1", port, timeout=120)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}", **sent})
        self.socket = self.connection.sock
        self.answer = self.connection.getresponse()
        self.blocks: dict[str, dict[str, Any]] = {}
        self.order: list[str] = []
        self.heard = ""
        self.num_blocks = self.num_orders = self.num_heartbeats = 0
        self.start()

    def run(self) -> None:
        kind = ""
        with contextlib.suppress(OSError, ValueError, AttributeError, HTTPException):  # cut off, or closed by us
            while line := self.answer.readline().decode():
                name, _, value = line.rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "id":
                    self.heard = value
                elif name == "data":
                    self._take(kind, json.loads(value))
                elif line.startswith(":"):
                    self.num_heartbeats += 1

    def _take(self, kind: str, content: Any) -> None:
        if kind == "block":
            self.blocks[content["id"]] = content
            self.num_blocks += 1
        else:
            self.blocks = {name: block for name, block in self.blocks.items() if name in content}
            self.order = content
            self.num_orders += 1

    @property
    def is_whole(self) -> bool:
        """Whether it has every block of the page."""
        return bool(self.order) and set(self.order) == set(self.blocks)

    def html(self, prefix: str = "live") -> str:
        """Of all blocks whose id begins so."""
        return "\n".join(block["html"] for name, block in sorted(self.blocks.items()) if name.startswith(prefix))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        self.join(timeout=60)
