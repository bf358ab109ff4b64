"""Requests that come at once share a pass; each gets its own answer; too many are refused."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from turnaround.use.batcher import MAX_WAITING, Batcher, BusyError
from turnaround.use.images import Square
from turnaround.use.predictor import Guess


class Slow:
    """A network that says how dark a square is, once it is let go."""

    def __init__(self) -> None:
        self.goes = threading.Event()
        self.fails = False

    def guesses(self, squares: list[Square], *, top: int) -> list[tuple[Guess, ...]]:
        assert self.goes.wait(30)
        if self.fails:
            raise RuntimeError("out of memory")
        return [(Guess(str(square[0, 0, 0]), 1.0),) for square in squares]


def square(value: int) -> Square:
    return np.full((2, 2, 3), value, np.uint8)


async def waiting(batcher: Batcher, count: int) -> list[asyncio.Task[tuple[Guess, ...]]]:
    tasks = [asyncio.create_task(batcher.ask(square(number))) for number in range(count)]
    await asyncio.sleep(0.05)
    return tasks


def test_whoever_comes_during_a_pass_shares_the_next() -> None:
    async def scene() -> tuple[list[str], list[int]]:
        network = Slow()
        async with Batcher(network, top=1, most_in_batch=16) as batcher:
            first = await waiting(batcher, 1)  # this pass is under way
            others = await waiting(batcher, 40)
            network.goes.set()
            answers = await asyncio.gather(*first, *others)
            return [answer[0].name for answer in answers], batcher.batches

    names, batches = asyncio.run(scene())
    assert names == ["0", *map(str, range(40))]
    assert batches == [1, 16, 16, 8]


def test_too_many_are_refused_and_the_others_answered() -> None:
    async def scene() -> int:
        network = Slow()
        async with Batcher(network, top=1) as batcher:
            tasks = [*await waiting(batcher, 1), *await waiting(batcher, MAX_WAITING)]
            with pytest.raises(BusyError):
                await batcher.ask(square(0))
            network.goes.set()
            return len(await asyncio.gather(*tasks))

    assert asyncio.run(scene()) == MAX_WAITING + 1


def test_whoever_has_gone_is_not_asked_about() -> None:
    async def scene() -> list[int]:
        network = Slow()
        async with Batcher(network, top=1) as batcher:
            first, others = await waiting(batcher, 1), await waiting(batcher, 3)
            others[1].cancel()
            network.goes.set()
            await asyncio.gather(*first, others[0], others[2])
            return batcher.batches

    assert asyncio.run(scene()) == [1, 2]


def test_a_failing_network_is_told_to_those_who_asked_and_it_goes_on() -> None:
    async def scene() -> str:
        network = Slow()
        network.goes.set()
        async with Batcher(network, top=1) as batcher:
            network.fails = True
            with pytest.raises(RuntimeError, match="out of memory"):
                await batcher.ask(square(1))
            network.fails = False
            return (await batcher.ask(square(7)))[0].name

    assert asyncio.run(scene()) == "7"
