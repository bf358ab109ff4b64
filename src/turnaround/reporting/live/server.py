"""The live page over HTTP.

    GET /         the page, as it is now
    GET /events   server-sent events: the blocks that changed, each once; after a pause a reader gets what it missed

Both want the token. Rendering is paced: after one that took t seconds of CPU time the next waits a
multiple of t (Cooldown), so that all of it stays under a tenth of a core, however many runs there are.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnaround.reporting.live.hub import Hub
from turnaround.reporting.live.now import mark_block
from turnaround.reporting.live.page_builder import PageBuilder
from turnaround.reporting.page.render import content_policy, render_page
from turnaround.web.guard import Access, Guard, Rules
from turnaround.web.pages import POLICY, error, refusal
from turnaround.web.sockets import settings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

STRICT = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""The content security policy of every answer but the page, which names its own scripts by their hashes."""
COOKIE = "turnaround-watch"


@dataclass(frozen=True, kw_only=True)
class Pacing:
    """Rate limits of rendering, and the number of readers."""

    most_streams: int = 64  # half of web/sockets.MAX_CONNECTIONS: pages and errors can still be answered
    heartbeat_s: float = 15.0  # a comment line after so much silence, so that a dead connection is noticed
    now_every_s: float = 1.0
    now_rest: float = 30.0
    """Cooldown after a quick rendering, in multiples of its CPU time: 1 / 31, 3 % of a core."""
    page_every_s: float = 1.0
    page_rest: float = 16.0
    """Cooldown after the whole analysis: 1 / 17, 6 % of a core."""
    first_page_s: float = 20.0
    """Longest time that the first visitor waits for the first analysis."""
    retry_ms: int = 2000  # after which a browser connects again


class Cooldown:
    """The pause after a rendering: a multiple of the CPU time it took, at least `least_s`.

    The smaller of the last two times counts, so that a first rendering, which reads everything and loads modules, does
    not delay the second.
    """

    def __init__(self, least_s: float, times: float) -> None:
        self.least_s, self.times, self._before_s = least_s, times, 0.0

    def after(self, cpu_s: float) -> float:
        usual_s, self._before_s = min(cpu_s, self._before_s), cpu_s
        return max(self.least_s, self.times * usual_s)


class LiveService:
    """The routes, and the two loops that render."""

    def __init__(self, builder: PageBuilder, pacing: Pacing) -> None:
        self.builder, self.pacing, self.hub = builder, pacing, Hub()
        self.num_streams = 0
        self._first_page = asyncio.Event()
        self._rendered: tuple[str, bytes] = ("", b"")  # the event id of the last page, and its text
        # One thread for each of the two loops, and one for the page of a visitor.
        self._pool = ThreadPoolExecutor(3, thread_name_prefix="live")

    @asynccontextmanager
    async def alive(self, app: Starlette) -> AsyncIterator[None]:
        """Run both loops for as long as the server runs."""
        loops = [asyncio.create_task(self._render_now()), asyncio.create_task(self._render_page())]
        try:
            yield
        finally:
            self.hub.close()
            for task in loops:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _render_now(self) -> None:
        loop, cooldown = asyncio.get_running_loop(), Cooldown(self.pacing.now_every_s, self.pacing.now_rest)
        while True:
            rendered = await loop.run_in_executor(self._pool, self.builder.now)
            self.hub.publish(now=rendered.blocks)
            await asyncio.sleep(cooldown.after(rendered.cpu_s))

    async def _render_page(self) -> None:
        loop, cooldown = asyncio.get_running_loop(), Cooldown(self.pacing.page_every_s, self.pacing.page_rest)
        shown: object = None
        while True:
            wanted = (self.builder.snapshots, self.builder.notes)
            if not self.hub.blocks:  # the folder has not been read yet: the first `now` is on its way
                await asyncio.sleep(0.05)
            elif _is_same(wanted, shown):
                await asyncio.sleep(self.pacing.page_every_s)
            else:
                rendered = await loop.run_in_executor(self._pool, self.builder.page, *wanted)
                shown = wanted
                self.hub.publish(page=rendered.blocks)
                self._first_page.set()
                await asyncio.sleep(cooldown.after(rendered.cpu_s))

    async def page(self, request: Request) -> Response:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._first_page.wait(), self.pacing.first_page_s)
        if self._rendered[0] != self.hub.id:  # rendered once for all visitors between two publications
            packed, heard = self.hub.blocks, self.hub.id
            blocks = [*(one.block for one in packed), mark_block(heard, {one.block.id: one.digest for one in packed})]
            title = f"{self.builder.title} · turnaround"
            loop = asyncio.get_running_loop()
            text = await loop.run_in_executor(self._pool, lambda: render_page(blocks, title=title, live=True))
            self._rendered = (heard, text.encode("utf-8", "replace"))
        policy = f"{content_policy(live=True)}; frame-ancestors 'none'"
        return Response(self._rendered[1], media_type="text/html", headers={POLICY: policy})

    async def events(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream server-sent events; an ASGI application of its own, since it must see its reader go.

        A reader that takes nothing is closed by web/sockets.py.
        """
        request = Request(scope, receive)
        if self.num_streams >= self.pacing.most_streams:
            busy = "Too many pages are open on this server. Close one, or try again later."
            return await error(503, busy, **{"retry-after": "10"})(scope, receive, send)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if request.method == "HEAD":
            return await send({"type": "http.response.body", "body": b"", "more_body": False})
        self.num_streams += 1
        left = asyncio.create_task(_left(receive))
        try:
            await self._stream(request, send, left)
        finally:
            self.num_streams -= 1
            left.cancel()
        return None

    async def _stream(self, request: Request, send: Send, left: asyncio.Task[None]) -> None:
        # A browser that connects again sends the id of its last event; the first time, the page names what it shows.
        heard = request.headers.get("last-event-id") or request.query_params.get("since")
        text = f"retry: {self.pacing.retry_ms}\n\n"
        while not (left.done() or self.hub.is_closed):
            # One event at a time, and only as fast as it is taken: what changes meanwhile is sent once, as it is then.
            events, heard = self.hub.since(heard), self.hub.id
            for event in [text, *events]:
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            text = "" if await self._news(heard, left) else ": still here\n\n"
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _news(self, heard: str, left: asyncio.Task[None]) -> bool:
        news = asyncio.create_task(self.hub.news(heard, timeout_s=self.pacing.heartbeat_s))
        await asyncio.wait([news, left], return_when=asyncio.FIRST_COMPLETED)
        if not news.done():
            news.cancel()
            return True
        return news.result()


def _is_same(wanted: tuple[tuple[object, ...], tuple[str, ...]], shown: object) -> bool:
    """Compare by identity: snapshots are the same objects as long as nothing has changed."""
    if not isinstance(shown, tuple) or wanted[1] != shown[1]:
        return False
    return len(wanted[0]) == len(shown[0]) and all(a is b for a, b in zip(wanted[0], shown[0], strict=True))


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Events:
    """The events as an ASGI application; a class, since starlette takes a function for one that answers a request."""

    def __init__(self, service: LiveService) -> None:
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.service.events(scope, receive, send)


def application(service: LiveService, access: Access, *, cookie: str = COOKIE) -> Guard:
    """Return the ASGI application, guarded as a whole."""
    routes = [
        Route("/", service.page, methods=["GET"]),
        Route("/events", _Events(service), methods=["GET"]),
    ]

    async def not_found(request: Request, exception: Exception) -> Response:
        return refusal(request.headers, 404, "There is nothing at this address.")

    app = Starlette(routes=routes, exception_handlers={404: not_found}, lifespan=service.alive)
    app.router.redirect_slashes = False
    rules = Rules(verb="watch", policy=STRICT, needs_token=None, cookie=cookie, only_own_pages_read=True)
    return Guard(app, access, rules)


class LiveServer(uvicorn.Server):
    """A server that ends its streams before it waits for its connections."""

    def __init__(self, service: LiveService, access: Access, *, cookie: str = COOKIE) -> None:
        super().__init__(uvicorn.Config(application(service, access, cookie=cookie), **settings()))
        self.service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.hub.close()
        await super().shutdown(sockets)


def run_server(server: LiveServer, listening: socket.socket) -> None:
    """Serve until Ctrl-C, which is the ordinary end."""
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
