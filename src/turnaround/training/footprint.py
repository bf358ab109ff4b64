"""What a step asks of a GPU, counted on whatever device is here: the bytes that a forward pass keeps, and the weights.

Enters: a network. Leaves: a `Footprint`, from which forecast/prior.py estimates time and memory on GPUs that nobody has
tried. One image, in evaluation mode: batch norm keeps the same tensors as in training, and its statistics stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from turnaround.training.fitting import KeptForBackward


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes in fp32; half precision has half of the activations'."""

    activation_bytes_per_image: int
    """Kept for a backward pass when every layer learns."""
    largest_activation_bytes: int
    """Of one image: the largest tensor among them."""
    kept_tensors: int
    """Number of them: a measure of the kernels that a step launches."""
    weight_bytes: int
    trained_bytes: int
    """Weights that learn."""


def count_footprint(module: nn.Module, *, size_px: int) -> Footprint:
    """Count one forward pass in which every layer learns; the network is left as it was."""
    weights = list(module.parameters())
    learns = [weight.requires_grad for weight in weights]
    was_training = {child: child.training for child in module.modules()}
    kept = KeptForBackward(iter(weights))
    image = torch.zeros(1, 3, size_px, size_px, device=weights[0].device, dtype=weights[0].dtype)
    try:
        module.eval()
        for weight in weights:
            weight.requires_grad_(True)
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
            output = module(image)
        del output  # the graph, and with it what was kept
    finally:
        for weight, own in zip(weights, learns, strict=True):
            weight.requires_grad_(own)
        for child, own in was_training.items():
            child.training = own
    in_fp32 = 4 / weights[0].element_size()
    return Footprint(
        activation_bytes_per_image=round(kept.num_bytes * in_fp32),
        largest_activation_bytes=round(kept.largest_bytes * in_fp32),
        kept_tensors=kept.num_tensors,
        weight_bytes=4 * sum(weight.numel() for weight in weights),
        trained_bytes=4 * sum(weight.numel() for weight, own in zip(weights, learns, strict=True) if own),
    )
