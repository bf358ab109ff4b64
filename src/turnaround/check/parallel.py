"""Many pieces of work in, their results out, in the order in which they are done: by processes where it pays."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from turnaround import children
from turnaround.data.decoders import killed

Piece = TypeVar("Piece")
Result = TypeVar("Result")


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Each process has a core: threads of their matrix products would only wait for each other."""
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ.update(dict.fromkeys(before, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def in_processes(
    work: Callable[[Piece], Result], pieces: Sequence[Piece], *, fewest: int = 4
) -> Generator[Result, None, None]:
    """`work` is a function of a module; below `fewest` pieces, starting processes costs more than it saves."""
    num_processes = min(children.num_cpus(), len(pieces))
    if len(pieces) < fewest or num_processes < 2 or not children.can_have_children():
        yield from map(work, pieces)
        return
    with children.pool(num_processes) as pool:
        try:
            with children.starting(), _one_thread_each():
                tasks = [pool.submit(work, piece) for piece in pieces]
            for task in as_completed(tasks):
                yield task.result()
        except BrokenProcessPool as error:
            raise killed(num_processes) from error
        finally:
            with contextlib.suppress(RuntimeError):
                pool.shutdown(cancel_futures=True)
