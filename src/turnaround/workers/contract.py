"""What an engine must do. One process is not a special case: its collectives are the identity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from turnaround.errors import InputError


def hosted_range(*, rank: int, size: int, count: int) -> range:
    """The workers of process `rank`: contiguous, so that its images are one slice of the global batch."""
    return range(rank * count // size, (rank + 1) * count // size)


class Workers(ABC):
    """`count` workers on `size` processes; this process is `rank` and hosts the workers `hosted`."""

    backend = ""
    """What carries the messages of this engine, for the record: nccl, gloo, mpi."""

    def __init__(self, *, rank: int, size: int, count: int, device: torch.device) -> None:
        if size > count:
            raise InputError(
                f"{size} processes for {count} workers: a process without a worker would have nothing to do. "
                f"Use --processes {count} or fewer, or more workers."
            )
        self.rank, self.size, self.count, self.device = rank, size, count, device
        self.hosted = hosted_range(rank=rank, size=size, count=count)

    @abstractmethod
    def wrap(self, module: nn.Module, *, on_last_gradient: Callable[[], None]) -> nn.Module:
        """The module whose backward pass leaves the mean over processes in `.grad`, overlapped with the pass.

        `on_last_gradient` is called when this process has computed its last gradient: what is waited for after that
        is communication that nothing hides.
        """

    @abstractmethod
    def deferred(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        """Let gradients add up in this process only, inside it: for all passes of a step but the last."""

    @abstractmethod
    def sum(self, tensor: Tensor) -> None:
        """In place, over processes."""

    @abstractmethod
    def broadcast(self, tensor: Tensor) -> None:
        """In place, from process 0."""

    @abstractmethod
    def gather(self, value: str) -> list[str]:
        """Every process's text, by rank, for comparing what must agree."""

    @abstractmethod
    def barrier(self) -> None:
        """Waits for every process."""

    @abstractmethod
    def close(self) -> None:
        """Ends the conversation."""
