"""The contract's own arithmetic, and one process for which every collective is the identity."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from turnaround.errors import InputError
from turnaround.workers.contract import Workers
from turnaround.workers.shares import even_shares, hosted_by
from turnaround.workers.single import Single

CPU = torch.device("cpu")


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 300))
def test_every_worker_is_hosted_once(size: int, count: int) -> None:
    assume(size <= count)
    hosted = [hosted_by(rank, even_shares(workers=count, processes=size)) for rank in range(size)]
    assert [w for workers in hosted for w in workers] == list(range(count))  # contiguous, in the order of ranks
    lengths = [len(workers) for workers in hosted]
    assert min(lengths) >= 1
    assert max(lengths) - min(lengths) <= 1


def test_known_shares() -> None:
    assert [list(hosted_by(r, even_shares(workers=8, processes=2))) for r in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [list(hosted_by(r, even_shares(workers=4, processes=3))) for r in range(3)] == [[0], [1], [2, 3]]


class Bare(Single):
    """A process of any number, without anything to speak through."""

    def __init__(self, *, rank: int, size: int, count: int) -> None:
        Workers.__init__(self, rank=rank, size=size, count=count, device=CPU)


def test_a_process_without_a_worker_is_refused() -> None:
    with pytest.raises(InputError, match="4 processes for 3 workers") as error:
        Bare(rank=0, size=4, count=3)
    assert "--processes 3 or fewer" in str(error.value)
    assert list(Bare(rank=3, size=4, count=4).hosted) == [3]


def test_one_process_hosts_everybody() -> None:
    workers = Single(count=5, device=CPU)
    assert (workers.rank, workers.size, workers.count, workers.device) == (0, 1, 5, CPU)
    assert workers.hosted == range(5)


def test_every_collective_is_the_identity() -> None:
    workers, tensor = Single(count=3, device=CPU), torch.tensor([1.0, 2.0])
    workers.sum(tensor)
    workers.broadcast(tensor)
    workers.barrier()
    assert tensor.tolist() == [1.0, 2.0]
    assert workers.gather("grüße 🍎") == ["grüße 🍎"]
    assert workers.gather("") == [""]
    workers.close()


def test_gradients_add_up_as_they_do_without_it() -> None:
    workers, module = Single(count=3, device=CPU), nn.Linear(2, 1)
    wrapped = workers.wrap(module, on_last_gradient=lambda: pytest.fail("there is nobody to wait for"))
    assert wrapped is module
    with workers.deferred(wrapped):
        wrapped(torch.ones(1, 2)).sum().backward()
    wrapped(torch.ones(1, 2)).sum().backward()
    assert module.weight.grad is not None
    assert module.weight.grad.tolist() == [[2.0, 2.0]]
