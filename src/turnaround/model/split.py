"""A frozen network as two: a backbone that never changes, and the last layer that learns.

What the backbone makes of an image depends on the image alone. So it may be computed for several steps at once, and
for images that are not varied it need be computed only once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from turnaround.model.network import Network, classifier_of

TOLERANCE = 1e-4


class Backbone(nn.Module):
    """Everything before the last layer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        features = self.network.forward_features(images)  # type: ignore[operator]  # timm's names, and SmallNetwork's
        return cast(Tensor, self.network.forward_head(features, pre_logits=True))  # type: ignore[operator]


@dataclass(frozen=True, kw_only=True)
class Split:
    """The two parts share their tensors with the network they were taken from."""

    backbone: nn.Module
    head: nn.Module


def split(network: Network, *, size_px: int) -> Split | None:
    """The two parts of a frozen network; None when everything learns, or when it cannot be taken apart.

    timm's networks differ in what follows the last layer (two heads, pooling after it), so the parts are tried on two
    random images: together they must give what the whole gives.
    """
    if network.fine_tune or not hasattr(network.module, "forward_head"):
        return None
    parts = Split(backbone=Backbone(network.module), head=classifier_of(network.module))
    like = next(network.module.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images = torch.randn(2, 3, size_px, size_px).to(like)
    network.module.eval()
    try:
        with torch.no_grad():
            whole, together = network.module(images), parts.head(parts.backbone(images))
        fits = whole.shape == together.shape and torch.allclose(whole, together, rtol=TOLERANCE, atol=TOLERANCE)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        fits = False
    network.train_mode()
    return parts if fits else None
