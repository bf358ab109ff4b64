"""Whether kernels run here: the smallest one is compiled and run, once."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

MAX_REASON = 200


@cache
def unavailable_reason() -> str | None:
    """Why they do not, in a few words; None when they do."""
    import torch

    if not torch.cuda.is_available():
        return "there is no CUDA device"
    try:
        importlib.import_module("turnaround.kernels.smallest_triton").run()
    except Exception as error:  # whatever a compiler, a linker or a driver may say
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"[:MAX_REASON].rstrip(": ")
    return None


@cache
def load(module: str) -> ModuleType | None:
    """A module of kernels; None where they do not run."""
    return importlib.import_module(module) if unavailable_reason() is None else None
