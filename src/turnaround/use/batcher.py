"""Dynamic batching: requests that come at once share a forward pass.

One thread owns the network. It takes what waits, at most a batch, and whoever comes meanwhile waits for the next pass:
alone, a request is not delayed (there is no batching timeout); under load, batches grow by themselves.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from turnaround.use.images import Square
from turnaround.use.predictor import Guess

MAX_IN_BATCH = 32
MAX_WAITING = 64  # two batches: a request that would wait longer is refused at once (503)


class Asks(Protocol):
    """The part of a predictor that the batcher calls."""

    def guesses(self, squares: list[Square], *, top: int) -> list[tuple[Guess, ...]]: ...


class BusyError(Exception):
    """The queue is full."""


class Batcher:
    """The queue between the requests and the network, and the task that empties it."""

    def __init__(self, predictor: Asks, *, top: int, most_in_batch: int = MAX_IN_BATCH) -> None:
        self.predictor, self.top, self.most_in_batch = predictor, top, most_in_batch
        self.batches: list[int] = []
        """The number of images of each of the last passes."""
        self._waiting: asyncio.Queue[tuple[Square, asyncio.Future[tuple[Guess, ...]]]] = asyncio.Queue(MAX_WAITING)
        # One thread: passes through the network never run side by side, and the event loop stays free.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="network")
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Batcher:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def ask(self, square: Square) -> tuple[Guess, ...]:
        """Return the answer for one image; raise BusyError when too many wait."""
        answer: asyncio.Future[tuple[Guess, ...]] = asyncio.get_running_loop().create_future()
        try:
            self._waiting.put_nowait((square, answer))
        except asyncio.QueueFull:
            raise BusyError from None
        return await answer

    async def _run(self) -> None:
        while True:
            batch = [await self._waiting.get()]  # sleeps until somebody asks; the rest is taken without waiting
            while len(batch) < self.most_in_batch and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            batch = [(square, answer) for square, answer in batch if not answer.done()]  # whoever has gone is not asked
            if batch:
                await self._answer(batch)

    async def _answer(self, batch: list[tuple[Square, asyncio.Future[tuple[Guess, ...]]]]) -> None:
        self.batches = [*self.batches[-99:], len(batch)]
        squares = [square for square, _ in batch]
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, lambda: self.predictor.guesses(squares, top=self.top))
        except Exception as error:  # the server lives on: those who asked are told
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), guesses in zip(batch, answers, strict=True):
            if not answer.done():
                answer.set_result(guesses)
