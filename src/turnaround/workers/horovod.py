"""Several processes through Horovod: every gradient is averaged by an all-reduce of its own, started when it is ready.

Horovod joins small messages itself. Its names, not the order of the calls, say which messages belong together, so each
call has one; only gradients are under way at the same time, and each parameter has its number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from turnaround.errors import InputError, MissingPartError
from turnaround.workers import engines
from turnaround.workers.contract import Workers
from turnaround.workers.environment import RankInfo

TIMEOUT_S = 600
"""Time that a message waits for a silent process, as with the other engine; Horovod's own 30 s are short for a start
on a busy machine, and a stalled message would only be warned about."""


def connect(*, place: RankInfo, count: int, device: torch.device, shares_device: bool) -> Workers:
    """Meet the other processes, where Horovod's variables say; it lets several share a GPU by itself."""
    del shares_device
    return Horovod(place=place, count=count, device=device)


class Horovod(Workers):
    """One process of several."""

    def __init__(self, *, place: RankInfo, count: int, device: torch.device) -> None:
        super().__init__(rank=place.rank, size=place.size, count=count, device=device)
        # Before `init`, which reads them.
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(TIMEOUT_S))
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(TIMEOUT_S))
        self._hvd = _horovod()
        self._hvd.init()
        if not (self._hvd.gloo_built() or self._hvd.mpi_built()):
            raise engines.not_built("neither Gloo nor MPI was compiled in")
        if (self._hvd.rank(), self._hvd.size()) != (place.rank, place.size):
            raise InputError(
                f"Horovod knows process {self._hvd.rank()} of {self._hvd.size()}, the environment says {place.rank} of "
                f"{place.size}. Start it with horovodrun, or with `turnaround train --engine horovod` alone."
            )
        self._refuse_device()
        self.backend = "nccl" if device.type == "cuda" and self._hvd.nccl_built() else self._controller()

    def wrap(self, module: nn.Module, *, on_last_gradient: Callable[[], None]) -> nn.Module:
        return _Averaged(module, hvd=self._hvd, on_last_gradient=on_last_gradient)

    def deferred(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        assert isinstance(wrapped, _Averaged)
        return wrapped.deferred()

    def sum(self, tensor: Tensor) -> None:
        flat = tensor.detach().contiguous()
        self._hvd.allreduce_(flat, name="sum", op=self._hvd.Sum)
        _put_back(flat, tensor)

    def broadcast(self, tensor: Tensor) -> None:
        flat = tensor.detach().contiguous()
        # As bytes: of whatever type, also of those that Horovod does not know.
        self._hvd.broadcast_(flat.view(-1).view(torch.uint8), root_rank=0, name="broadcast")
        _put_back(flat, tensor)

    def gather(self, value: str) -> list[str]:
        # As bytes in tensors: Horovod's own gather of objects pickles them. It joins tensors of unequal length.
        mine = torch.tensor(list(value.encode()), dtype=torch.uint8, device=self.device)
        lengths = self._hvd.allgather(torch.tensor([len(mine)], device=self.device), name="lengths").tolist()
        texts = self._hvd.allgather(mine, name="texts").cpu().split(lengths)
        return [bytes(text.tolist()).decode() for text in texts]

    def barrier(self) -> None:
        self.sum(torch.zeros(1, device=self.device))

    def close(self) -> None:
        self._hvd.shutdown()

    def _controller(self) -> str:
        return "mpi" if self._hvd.mpi_enabled() else "gloo"

    def _refuse_device(self) -> None:
        kind = self.device.type
        if kind == "cuda" and not self._hvd.cuda_built():
            raise MissingPartError(
                "This Horovod was built without CUDA. Use --device cpu, or build it again with "
                f"HOROVOD_GPU_OPERATIONS=NCCL {engines.INSTALL_HOROVOD}"
            )
        if kind not in ("cpu", "cuda"):
            raise InputError(f"Horovod knows no device of type {kind}. Use --device cpu, or --engine torch.")


class _Averaged(nn.Module):
    """A module whose backward pass averages each gradient as soon as it is complete, and ends when all are."""

    def __init__(self, module: nn.Module, *, hvd: Any, on_last_gradient: Callable[[], None]) -> None:
        super().__init__()
        self.module = module
        self._hvd, self._on_last_gradient = hvd, on_last_gradient
        self._is_deferred = False
        self._under_way: list[Any] = []
        for number, parameter in enumerate(module.parameters()):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._hook(f"gradient.{number}"))  # type: ignore[no-untyped-call]

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.module(*arguments, **named)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        def gradient_is_complete(parameter: Tensor) -> None:
            if self._is_deferred:
                return
            if not self._under_way:
                # Called by the autograd engine at the end of this pass, in its own thread; DDP waits the same way.
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            assert parameter.grad is not None
            message = _in_memory_order(parameter.grad)
            self._under_way.append(self._hvd.allreduce_async_(message, name=name, op=self._hvd.Average))

        return gradient_is_complete

    def _finish(self) -> None:
        """Wait for the all-reduces at the end of the backward pass: nothing is left to compute that could hide them."""
        self._on_last_gradient()
        under_way, self._under_way = self._under_way, []
        for handle in under_way:
            self._hvd.synchronize(handle)


def _horovod() -> Any:
    """Return horovod.torch, or raise MissingPartError: its Python part imports without the compiled one."""
    engines.require("horovod")
    try:
        import horovod.torch as hvd
    except ImportError as error:  # compiled for another torch or another Python
        raise engines.not_built(str(error).strip().splitlines()[0]) from error
    if not hasattr(hvd, "init"):
        raise engines.not_built("its extension for PyTorch is missing")
    return hvd


def _in_memory_order(gradient: Tensor) -> Tensor:
    """Return a flat view of a gradient.

    Horovod takes contiguous tensors only, and gradients are laid out like their parameters (channels last). The layout
    is the same on every process.
    """
    # Dimensions from the largest stride to the smallest: in that order a dense tensor is contiguous.
    by_stride = sorted(range(gradient.dim()), key=gradient.stride, reverse=True)
    return gradient.permute(by_stride).view(-1)


def _put_back(flat: Tensor, tensor: Tensor) -> None:
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat)
