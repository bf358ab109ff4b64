"""Incremental updates of the live page: the published blocks, and those that a reader has not seen yet.

Every block has the number of the publication in which it last changed. A reader names the last one that it has heard
of, with the server's own mark, which another start does not have; it gets the blocks that changed since, or all. It
runs on the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from turnaround.record.coding import plain
from turnaround.reporting.page.blocks import Block

RUN_BLOCK = "live/run/"
"""How the id begins of the block of a run that is not finished."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A block, serialised, with the digest of its content."""

    block: Block
    digest: str
    payload: str
    """JSON, in one line."""


def pack(block: Block) -> Packed:
    """Serialise a block. It takes time for large figures: called outside the event loop."""
    content = {
        "id": block.id,
        "html": str(block.html),
        "figure": None if block.figure is None else plain(asdict(block.figure)),
        "fold": block.fold,
    }
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    # The digest goes into the JSON text by hand: a second dump of a large figure would cost as much as the first.
    return Packed(block=block, digest=digest, payload=f'{text[:-1]},"digest":"{digest}"}}')


class Hub:
    """The published blocks of two sources: the state of the runs (`now`), and the page."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(4)
        self.number = 0
        self.is_closed = False
        self._now: tuple[Packed, ...] = ()
        self._page: tuple[Packed, ...] = ()
        self._changed_in: dict[str, int] = {}
        self._changed = asyncio.Event()

    @property
    def blocks(self) -> list[Packed]:
        """The blocks in reading order: what runs or went wrong comes first, else the answer does."""
        is_moving = any(packed.block.id.startswith(RUN_BLOCK) for packed in self._now)
        return [*self._now, *self._page] if is_moving else [*self._page[:1], *self._now, *self._page[1:]]

    @property
    def id(self) -> str:
        """The event id of a reader that has seen everything."""
        return f"{self.mark}.{self.number}"

    def publish(self, *, now: Sequence[Packed] | None = None, page: Sequence[Packed] | None = None) -> None:
        """Replace the blocks of one or both sources; wake the readers when anything has changed."""
        before = {packed.block.id: packed.digest for packed in self.blocks}
        order = list(before)
        self._now = self._now if now is None else tuple(now)
        self._page = self._page if page is None else tuple(page)
        after = {packed.block.id: packed.digest for packed in self.blocks}
        changed = [name for name, digest in after.items() if before.get(name) != digest]
        if not changed and order == list(after):  # a block that has gone, or moved, changes the order alone
            return
        self.number += 1
        self._changed_in = {name: self._changed_in.get(name, 0) for name in after}
        self._changed_in |= dict.fromkeys(changed, self.number)
        self._wake()

    def close(self) -> None:
        """End every stream."""
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        # A new event instead of clear(): whoever waits on the old one is woken, however late it is scheduled.
        self._changed.set()
        self._changed = asyncio.Event()

    def since(self, heard: str | None) -> list[str]:
        """Return the events that bring a reader up to date; the last one has its new id and the order of all blocks."""
        # Only the last event carries an id: a reader that is cut off before it asks for all of them again.
        number = self._number_of(heard)
        if number == self.number:
            return []
        lines = [
            f"event: block\ndata: {packed.payload}\n\n"
            for packed in self.blocks
            if self._changed_in[packed.block.id] > number
        ]
        order = json.dumps([packed.block.id for packed in self.blocks])
        return [*lines, f"event: order\nid: {self.id}\ndata: {order}\n\n"]

    def _number_of(self, heard: str | None) -> int:
        mark, _, number = (heard or "").partition(".")
        # Given by a client: digits alone, and few. Anything else, or a number of another start, means "send all" (-1).
        is_ours = mark == self.mark and number.isascii() and number.isdecimal() and len(number) < 10
        return int(number) if is_ours and int(number) <= self.number else -1

    async def news(self, heard: str | None, *, timeout_s: float) -> bool:
        """Wait until there is something after `heard`; return false when nothing came in time."""
        changed = self._changed
        if self.is_closed or self._number_of(heard) != self.number:
            return True
        try:
            await asyncio.wait_for(changed.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
