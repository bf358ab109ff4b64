"""GPU kernels of our own: do they run here?

Triton compiles them on the spot, for which it needs a C compiler and the headers of Python: many containers and compute
nodes have neither. Then torch's own operations do the work. The kernels themselves stand beside what they replace, in
modules named *_triton.py, which are imported through `load` alone. This module itself imports neither torch nor Triton.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-call"

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

# Characters of a reason in the record: a compiler's complaint may be pages long.
MAX_REASON = 200
_WRITTEN = 2  # not 0, which the memory holds before


@cache
def unavailable_reason() -> str | None:
    """Return why kernels do not run here, in a few words; None when they do. Asked of the smallest kernel, once."""
    import torch

    if not torch.cuda.is_available():
        return "there is no CUDA device"
    try:
        run_smallest_kernel()
    except Exception as error:  # whatever a compiler, a linker or a driver may say
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"[:MAX_REASON].rstrip(": ")
    return None


@cache
def load(module: str) -> ModuleType | None:
    """Import a module of kernels; None where they do not run."""
    return importlib.import_module(module) if unavailable_reason() is None else None


def run_smallest_kernel(device: str = "cuda") -> None:
    """Compile and run a kernel that writes one number; raise an error of whatever kind when that fails."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def write(out, value):  # type: ignore[no-untyped-def]
        tl.store(out, value)

    out = torch.zeros(1, dtype=torch.int32, device=device)
    write[(1,)](out, _WRITTEN)
    if out.item() != _WRITTEN:  # `item` waits for the device, so an error of the launch is raised here
        raise RuntimeError("a kernel ran, and wrote nothing")
