"""The contract of an engine. One process is not a special case: its collectives are the identity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from turnaround.errors import InputError
from turnaround.workers.shares import Shares, even_shares, hosted_by


class Workers(ABC):
    """`count` workers on `size` processes; this process is `rank` and hosts the workers `hosted`."""

    backend = ""
    """The library that carries the messages of this engine, for the record: nccl, gloo, mpi."""

    def __init__(self, *, rank: int, size: int, count: int, device: torch.device) -> None:
        if size > count:
            raise InputError(
                f"{size} processes for {count} workers: a process without a worker would have nothing to do. "
                f"Use --processes {count} or fewer, or more workers."
            )
        self.rank, self.size, self.count, self.device = rank, size, count, device
        self.share_out(even_shares(workers=count, processes=size))

    def share_out(self, shares: Shares) -> None:
        """Host as many workers on each process as `shares` says; every process calls this between the same steps."""
        assert (len(shares), sum(shares)) == (self.size, self.count), shares
        self.shares, self.hosted = shares, hosted_by(self.rank, shares)

    @abstractmethod
    def wrap(self, module: nn.Module, *, on_last_gradient: Callable[[], None]) -> nn.Module:
        """Return a module whose backward pass leaves the mean over processes in `.grad` (all-reduce, overlapped).

        `on_last_gradient` is called when this process has computed its last gradient: the time after that is exposed
        communication.
        """

    @abstractmethod
    def deferred(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which gradients add up in this process only: for all passes of a step but the last."""

    @abstractmethod
    def sum(self, tensor: Tensor) -> None:
        """Sum a tensor over processes, in place (all-reduce)."""

    @abstractmethod
    def broadcast(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of process 0, in place."""

    @abstractmethod
    def gather(self, value: str) -> list[str]:
        """Return every process's text, by rank, for comparing what must agree."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for every process."""

    @abstractmethod
    def close(self) -> None:
        """Leave the process group."""
