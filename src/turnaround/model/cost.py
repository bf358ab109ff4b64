"""What a network costs: numbers for the record and, later, for the forecast."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from turnaround.errors import ModelError


def cost(module: nn.Module, *, size_px: int) -> dict[str, int]:
    """Parameters, FLOPs (two per multiply-add) of one image forward, and the bytes that processes exchange a step."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    return {
        "parameters": sum(p.numel() for p in module.parameters()),
        "trainable_parameters": sum(p.numel() for p in trainable),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in trainable),
        "forward_flops_per_image": _forward_flops(module, size_px=size_px),
    }


def _forward_flops(module: nn.Module, *, size_px: int) -> int:
    was_training = {m: m.training for m in module.modules()}
    module.eval()
    like = next(module.parameters())
    image = torch.zeros(1, 3, size_px, size_px, device=like.device, dtype=like.dtype)
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module(image)
    except (AssertionError, RuntimeError, ValueError) as error:  # most transformers are made for one size
        raise ModelError(
            f"The network does not take images of {size_px} px ({error}). Set data.size_px to the size it is made for."
        ) from error
    for child, training in was_training.items():
        child.training = training
    return int(counter.get_total_flops())
