"""The smallest kernel: does Triton compile and run one here?"""

# mypy: disable-error-code="untyped-decorator,no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl

WRITTEN = 2


@triton.jit
def _write(out, value):  # type: ignore[no-untyped-def]
    tl.store(out, value)


def run(device: str = "cuda") -> None:
    """An error of whatever kind when it does not."""
    out = torch.zeros(1, dtype=torch.int32, device=device)
    _write[(1,)](out, WRITTEN)
    if out.item() != WRITTEN:
        raise RuntimeError("a kernel ran, and wrote nothing")
