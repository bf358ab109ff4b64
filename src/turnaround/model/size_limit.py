"""Building a network of a recipe that may be somebody else's: it ends where the network outgrows its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from turnaround.errors import ModelError

_MAKING = frozenset((torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn))
"""What parameters and buffers are made by; torch.empty's memory is not taken before it is written to."""
# Masks and indices are made and not saved, and some layers make their weights twice: what a window transformer makes
# beside its weights is about as much as these. 64 million numbers are 256 MB.
_SLACK_FACTOR, _SLACK_NUMBERS = 4, 64_000_000


class _Counting(TorchFunctionMode):
    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _MAKING and isinstance(made, Tensor):
            self._left -= made.numel()
            if self._left < 0:
                raise ModelError("This network is far larger than the weights that are kept of it")
        return made


@contextmanager
def at_most_numbers(num_saved: int) -> Iterator[None]:
    """Raise ModelError as soon as what is built holds far more numbers than its saved weights."""
    with _Counting(_SLACK_FACTOR * num_saved + _SLACK_NUMBERS):
        yield
