"""A network made ready to learn: what learns, what stays frozen, and what of it is compiled.

Enters: a `Network` on its device. Leaves: the learner, wrapped by the engine, and the frozen backbone if there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from turnaround.model.network import Network
from turnaround.model.split import split
from turnaround.training.choices import CompileChoice, PrecisionChoice, choose_compile
from turnaround.training.frozen import FrozenBackbone
from turnaround.workers.contract import Workers


@dataclass(frozen=True, kw_only=True)
class StepSize:
    """How much this process will compute; what is chosen depends on it."""

    size_px: int
    images_per_step: int
    images_in_all: int
    forward_flops_per_image: int


@dataclass(frozen=True, kw_only=True)
class Learner:
    """The part that learns, and what feeds it."""

    module: nn.Module
    wrapped: nn.Module
    backbone: FrozenBackbone | None
    compiled: CompileChoice

    @property
    def is_compiled(self) -> bool:
        """Whether the learning part itself is; a compiled backbone is not its business."""
        return self.compiled.value and self.backbone is None


class CompiledForOneShape(nn.Module):
    """Compiled for full batches. The last batch of an epoch is smaller: it would be compiled for again, or make all of
    it compile for any size, which is slower; so it takes the plain way."""

    def __init__(self, module: nn.Module, *, images: int) -> None:
        super().__init__()
        self.module, self.images = module, images
        self._compiled: Callable[[Tensor], Tensor] = torch.compile(module, dynamic=False)

    def forward(self, images: Tensor) -> Tensor:
        run = self._compiled if len(images) == self.images and torch.is_grad_enabled() else self.module
        return run(images)


def make_learner(
    network: Network,
    workers: Workers,
    *,
    asked_to_compile: str,
    precision: PrecisionChoice,
    amount: StepSize,
    on_last_gradient: Callable[[], None],
) -> Learner:
    """Takes a frozen network apart where it can be, and compiles what takes the time where that pays."""
    parts = split(network, size_px=amount.size_px)
    passes = 1 if parts else 3  # a backward pass costs about two forward ones
    compiled = choose_compile(
        asked_to_compile,
        device=workers.device,
        flops=passes * float(amount.forward_flops_per_image) * amount.images_in_all,
        learns_all=parts is None,
        fuses_norms=parts is None and len(workers.hosted) > 1 and bool(network.batch_norms()),
    )
    if parts is None:
        module = network.module
        runs: nn.Module = CompiledForOneShape(module, images=amount.images_per_step) if compiled.value else module
        wrapped = workers.wrap(runs, on_last_gradient=on_last_gradient)
        return Learner(module=module, wrapped=wrapped, backbone=None, compiled=compiled)
    backbone = FrozenBackbone(parts.backbone, device=workers.device, precision=precision, size_px=amount.size_px)
    backbone.plan(images_per_step=amount.images_per_step)
    if compiled.value:
        backbone.compile()
    wrapped = workers.wrap(parts.head, on_last_gradient=on_last_gradient)
    return Learner(module=parts.head, wrapped=wrapped, backbone=backbone, compiled=compiled)
