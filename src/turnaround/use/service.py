"""The HTTP application: a page to drop a picture on, and an address for programs.

    GET  /           the page, with /serve.css and /serve.js
    GET  /about      the run, its classes, its size, as JSON
    POST /classify   an image file as the body, or one file in a multipart form; ?top=3 for fewer classes
                     -> {"classes": [{"name": ..., "probability": ...}, ...]}

A picture that cannot be read, is too large or comes too slowly is answered with {"error": "..."}; the server lives on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from turnaround.data.decode import MAX_PIXELS, UnreadableImage, is_costly
from turnaround.data.decoders import GuardedDecoder
from turnaround.use.batcher import Batcher, BusyError
from turnaround.use.images import Square, square_of, without_warnings
from turnaround.use.predictor import Predictor
from turnaround.use.uploads import BUSY, RefusedUploadError, UploadLimits, UploadMemory, picture_of
from turnaround.web.guard import Access, Guard, Rules
from turnaround.web.pages import base_css, error, refusal

ASSETS = {
    "/": ("serve.html", "text/html"),
    "/serve.css": ("serve.css", "text/css"),
    "/serve.js": ("serve.js", "text/javascript"),
}
RULES = Rules(
    verb="serve",
    # blob: and data: show the picture that was dropped on the page; nothing else comes from anywhere but this server.
    policy=(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    posts_to=frozenset(["/classify"]),
    # The page itself is open: its address carries the token behind #, which browsers do not send with the request.
    needs_token=frozenset(["/classify", "/about"]),
)
MAX_AT_ONCE = 32
"""Requests that wait for their answer. Pictures that are arriving do not count, however slowly they come, but their
bytes do: all together have as much memory as so many pictures of the largest size."""
MAX_DECODERS = 2
"""Pictures that are being decoded in each of two lanes: costly ones, at most 0.7 GB each and that only for those of 40
Mpx or more, and the others, at most a second and 430 MB each (data/decode.py)."""
DECODE_CPU_LIMIT_S = 10
"""CPU time for one picture: three times what the slowest honest one takes."""
ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of what one client may ask for."""

    upload: UploadLimits = field(default_factory=UploadLimits)
    most_at_once: int = MAX_AT_ONCE
    answer_timeout_s: float = ANSWER_TIMEOUT_S


class Service:
    """The routes, and what they share."""

    def __init__(self, predictor: Predictor, limits: Limits) -> None:
        self.predictor, self.limits = predictor, limits
        self.num_at_once = self.num_costly = 0
        self.memory = UploadMemory(limits.most_at_once * limits.upload.max_bytes)
        self.decoder = GuardedDecoder(cpu_limit_s=DECODE_CPU_LIMIT_S, trusts_none=True)
        # Two lanes: who waits behind pictures that each take ten seconds of computing has sent one of that kind.
        self.num_decoders = min(MAX_DECODERS, os.cpu_count() or 1)
        self.quick, self.slow = (ThreadPoolExecutor(self.num_decoders, f"{lane}-decoder") for lane in ("quick", "slow"))

    @asynccontextmanager
    async def alive(self, app: Starlette) -> AsyncIterator[None]:
        """Run the batcher and the decoders for as long as the server runs."""
        classes = len(self.predictor.trained.classes)
        with without_warnings():
            self.decoder.start(self.num_decoders)
            async with Batcher(self.predictor, top=classes) as self.batcher:
                yield
            self.decoder.close()  # a picture that is being decoded is not waited for
            for lane in (self.quick, self.slow):
                lane.shutdown(wait=True, cancel_futures=True)

    async def about(self, request: Request) -> Response:
        trained = self.predictor.trained
        return JSONResponse(
            {
                "run": _readable(trained.name),
                "model": _readable(trained.recipe.model.name),
                "epoch": trained.epoch,
                "classes": [_readable(name) for name in trained.classes],
                "weights": "last" if trained.best is None else "best",
                "val_accuracy": trained.val_accuracy,
                "size_px": trained.size_px,
                "max_bytes": self.limits.upload.max_bytes,
                "max_pixels": MAX_PIXELS,
            }
        )

    async def classify(self, request: Request) -> Response:
        with self.memory.share() as take:
            if self.num_at_once >= self.limits.most_at_once:  # before the body is read
                return error(503, BUSY, **{"retry-after": "1", "connection": "close"})
            try:
                top = self._top(request)
                data = await picture_of(request, self.limits.upload, take)
            except RefusedUploadError as refused:
                busy = {"retry-after": "1"} if refused.status == 503 else {}
                return error(refused.status, str(refused), connection="close", **busy)
            if self.num_at_once >= self.limits.most_at_once:  # others have arrived meanwhile
                return error(503, BUSY, **{"retry-after": "1"})
            return await self._answer(data, top)

    async def _answer(self, data: bytes, top: int) -> Response:
        self.num_at_once += 1
        try:
            async with asyncio.timeout(self.limits.answer_timeout_s):
                square = await self._decoded(data)
                guesses = await self.batcher.ask(square)
        except UnreadableImage as unreadable:
            return error(422, f"This cannot be read as an image: {_readable(unreadable.reason)}.")
        except BusyError:
            return error(503, BUSY, **{"retry-after": "1"})
        except TimeoutError:
            return error(504, f"No answer within {self.limits.answer_timeout_s:g} s: this machine is busy. Try again.")
        except Exception as failure:  # the memory of a GPU is full, ...: told, and the server lives on
            return error(500, f"The network failed on this picture ({type(failure).__name__}).")
        finally:
            self.num_at_once -= 1
        classes = [{**asdict(guess), "name": _readable(guess.name)} for guess in guesses[:top]]
        return JSONResponse({"classes": classes})

    async def _decoded(self, data: bytes) -> Square:
        """Decode in one of the lanes; costly pictures may take no more than half of the places of those that wait."""
        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(self.quick, is_costly, data):
            return await loop.run_in_executor(self.quick, self._square, data)
        if self.num_costly >= max(1, self.limits.most_at_once // 2):
            raise BusyError
        self.num_costly += 1
        try:
            return await loop.run_in_executor(self.slow, self._square, data)
        finally:
            self.num_costly -= 1

    def _square(self, data: bytes) -> Square:
        return square_of(data, size_px=self.predictor.trained.size_px, name="the picture", decoder=self.decoder)

    def _top(self, request: Request) -> int:
        text = request.query_params.get("top", "5")
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:6]) <= 100_000):
            raise RefusedUploadError(400, f"top must be a whole number from 1. Received: {_readable(text[:40])!r}.")
        return int(text)


def application(predictor: Predictor, access: Access, limits: Limits | None = None) -> Guard:
    """Return the ASGI application, guarded as a whole."""
    service = Service(predictor, limits or Limits())
    needs_token = access.token is not None
    routes = [Route(path, _asset(*asset, needs_token=needs_token), methods=["GET"]) for path, asset in ASSETS.items()]
    routes += [
        Route("/about", service.about, methods=["GET"]),
        Route("/classify", service.classify, methods=["POST"]),
    ]

    async def not_found(request: Request, exception: Exception) -> Response:
        return refusal(request.headers, 404, "There is nothing at this address.")

    app = Starlette(routes=routes, exception_handlers={404: not_found}, lifespan=service.alive)
    app.router.redirect_slashes = False  # nothing is answered with the Host that a client states
    return Guard(app, access, RULES)


def _asset(name: str, kind: str, *, needs_token: bool) -> Callable[[Request], Awaitable[Response]]:
    """Return the route of a file of the page, read once: no request names a file."""
    content = Path(str(files("turnaround.use") / "assets" / name)).read_bytes()
    if name == "serve.css":
        content = base_css().encode() + content
    if needs_token:  # so that the page can say that its address lacks it, instead of asking in vain
        content = content.replace(b"<body>", b"<body data-needs-token>")

    async def asset(request: Request) -> Response:
        return Response(content, media_type=kind)

    return asset


def _readable(name: str) -> str:
    """Replace lone surrogates, which stand for names that are no UTF-8: JSON cannot send them."""
    return name.encode("utf-8", "replace").decode()
