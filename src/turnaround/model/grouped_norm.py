"""Batch norm with one set of statistics for each worker, in one pass.

Enters: a pass whose images are the slices of several workers, one after the other, and the sizes of the slices.
Leaves: the output of separate passes, and running statistics that are the mean over those workers.

    with by_worker((32, 32, 32, 32)):
        logits = network(images)          # 128 images, four workers

Every batch norm inside is affected, whatever module computes it. On a GPU one Triton kernel handles all workers
(grouped_norm_triton.py); elsewhere, and for slices of different sizes, torch's own batch norm is called slice by slice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from turnaround import kernels


class by_worker(TorchFunctionMode):  # noqa: N801 - reads as a statement, like torch.no_grad
    """While it is active, batch norm in training mode computes its statistics worker by worker.

    A function mode sees every call of `F.batch_norm`, in any module of any network, so nothing need be replaced in it.
    torch.compile bypasses it: what is compiled calls no Python.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm and len(self.sizes) > 1:
            return _batch_norm(self.sizes, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(  # noqa: PLR0913 - the signature of torch.nn.functional.batch_norm, after the sizes
    sizes: tuple[int, ...],
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    # A frozen norm uses its running statistics, which are the same for every worker.
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    assert sum(sizes) == len(input), f"{sizes} images of workers, but a batch of {len(input)}"
    # Our kernels reduce (workers, rows, channels) at once, so they need slices of one size: not an epoch's last step.
    ours = kernels.load("turnaround.model.grouped_norm_triton") if input.is_cuda else None
    if ours and ours.can_handle(input, sizes, weight, bias):
        # (N, C, ...), (workers, C), (workers, C)
        output, mean, variance = ours.GroupedNorm.apply(input, weight, bias, len(sizes), eps)
        if running_mean is not None and running_var is not None:
            rows = input.numel() // (len(sizes) * input.shape[1])  # images x height x width of one worker
            ours.move_running((running_mean, running_var), mean, variance, rows=rows, momentum=momentum)
        return output  # type: ignore[no-any-return]
    return _slice_by_slice(sizes, input, (running_mean, running_var), weight, bias, (momentum, eps))


def _slice_by_slice(
    sizes: tuple[int, ...],
    input: Tensor,
    running: tuple[Tensor | None, Tensor | None],
    weight: Tensor | None,
    bias: Tensor | None,
    constants: tuple[float, float],
) -> Tensor:
    """Normalise worker by worker from the same running statistics, and leave the mean of the workers' results in them.

    With (1 - m) old + m new_w for each worker w, that mean is (1 - m) old + m mean(new_w): one step of momentum m.
    """
    momentum, eps = constants
    outputs, moved = [], []
    for part in torch.split(input, list(sizes)):  # (images of one worker, C, ...)
        # A copy for each worker: batch norm moves what it is given, and the next worker must not start from there.
        copies = tuple(None if r is None else r.clone() for r in running)
        outputs.append(F.batch_norm(part, copies[0], copies[1], weight, bias, True, momentum, eps))
        moved.append(copies)
    for target, results in zip(running, zip(*moved, strict=True), strict=True):
        if target is not None:
            target.copy_(torch.stack(results).mean(dim=0))  # in place: the module keeps the buffer it has
    return torch.cat(outputs)
