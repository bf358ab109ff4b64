"""The bytes of a request, within limits: the image itself as the body, or one file of a multipart form.

Everything stays in memory and nothing that a client names becomes a path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

BUSY = "Too many pictures at once. Try again in a second."
MAX_UPLOAD_BYTES = 25_000_000
"""Largest upload: more than a phone's photo; a picture of 50 Mpx as JPEG fits."""
UPLOAD_TIMEOUT_S = 30.0
GRACE_S, MIN_BYTES_PER_S = 5.0, 10_000
"""A body must come at this rate after the grace: whoever sends a byte a second holds one of the few connections."""
MAX_DRAINED_BYTES = 100_000_000
"""Bytes that are taken of a refused body and thrown away: a client that still sends would see a reset instead."""
FORM_OVERHEAD_BYTES = 10_000  # boundaries and headers of a multipart form around the file


class RefusedUploadError(Exception):
    """An error of a request, told to its sender."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class UploadLimits:
    """Limits of size, and of the time to arrive."""

    max_bytes: int = MAX_UPLOAD_BYTES
    timeout_s: float = UPLOAD_TIMEOUT_S

    @property
    def too_large(self) -> RefusedUploadError:
        return RefusedUploadError(413, f"The picture is larger than {self.max_bytes / 1e6:g} MB. Send a smaller one.")


class UploadMemory:
    """The bytes of all pictures that are arriving or waiting for their answer."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes bytes for one request; they are free again when it is answered."""
        taken = 0

        def take(num_bytes: int) -> None:
            nonlocal taken
            taken += num_bytes
            self.num_bytes += num_bytes
            if self.num_bytes > self.max_bytes:
                raise RefusedUploadError(503, BUSY)

        try:
            yield take
        finally:
            self.num_bytes -= taken


class _InMemory(MultiPartParser):
    spool_max_size = 2**62  # never a temporary file; the body has been limited before
    max_file_size = 2**62


async def picture_of(request: Request, limits: UploadLimits, take: Callable[[int], None]) -> bytes:
    """Return the image file that a request carries; raise RefusedUploadError when there is none, or too much of it.

    `take` counts the bytes that it keeps in memory (UploadMemory).
    """
    begun_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(min(limits.timeout_s, GRACE_S)) as timeout:

            def arrived(num_bytes: int) -> None:
                timeout.reschedule(begun_s + min(limits.timeout_s, GRACE_S + num_bytes / MIN_BYTES_PER_S))

            body = await _body(request, limits, take, arrived)
    except TimeoutError:
        reason = f"The picture did not arrive within {limits.timeout_s:g} s, or came at less than 10 kB a second."
        raise RefusedUploadError(408, reason) from None
    except ClientDisconnect:
        raise RefusedUploadError(400, "The connection was closed before the picture had arrived.") from None
    kind = request.headers.get("content-type", "")
    data = await _file_in_form(request, body) if kind.lower().startswith("multipart/") else body
    if not data:
        raise RefusedUploadError(400, "There is no picture in this request. Send the file as the body, or in a form.")
    if len(data) > limits.max_bytes:
        raise limits.too_large
    return data


async def _body(
    request: Request, limits: UploadLimits, take: Callable[[int], None], arrived: Callable[[int], None]
) -> bytes:
    """Return the body, counted while it comes: a stated length may be a lie, or missing."""
    most, num_bytes = limits.max_bytes + FORM_OVERHEAD_BYTES, 0
    stated = request.headers.get("content-length", "0")
    if not (stated.isascii() and stated.isdecimal()) or int(stated) > MAX_DRAINED_BYTES:
        raise limits.too_large
    is_too_large = int(stated) > most
    if is_too_large and request.headers.get("expect"):  # who asks before it sends hears the answer at once
        raise limits.too_large
    body = bytearray()
    async for piece in request.stream():
        num_bytes += len(piece)
        arrived(num_bytes)
        is_too_large |= num_bytes > most
        if not is_too_large:
            take(len(piece))
            body += piece
        elif num_bytes > MAX_DRAINED_BYTES:
            break
    if is_too_large:
        raise limits.too_large
    return bytes(body)


async def _file_in_form(request: Request, body: bytes) -> bytes:
    async def whole() -> AsyncIterator[bytes]:
        yield body

    try:
        parser = _InMemory(request.headers, whole(), max_files=1, max_fields=4, max_part_size=FORM_OVERHEAD_BYTES)  # type: ignore[arg-type]
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError, AssertionError) as error:
        reason = f"The form cannot be read ({str(error)[:100]}). Send one file, or the picture itself as the body."
        raise RefusedUploadError(400, reason) from None
    files = [value for value in form.values() if isinstance(value, UploadFile)]
    try:
        return await files[0].read() if files else b""
    finally:
        await form.close()
