"""One process that hosts every worker: each collective is the identity."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from turnaround.workers.contract import Workers


class Single(Workers):
    """All workers in this process."""

    def __init__(self, *, count: int, device: torch.device) -> None:
        super().__init__(rank=0, size=1, count=count, device=device)

    def wrap(self, module: nn.Module, *, on_last_gradient: Callable[[], None]) -> nn.Module:
        return module

    def deferred(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        return nullcontext()

    def sum(self, tensor: Tensor) -> None:
        pass

    def broadcast(self, tensor: Tensor) -> None:
        pass

    def gather(self, value: str) -> list[str]:
        return [value]

    def barrier(self) -> None:
        pass

    def close(self) -> None:
        pass
