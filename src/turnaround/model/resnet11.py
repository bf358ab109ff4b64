"""Our network for small images: a residual network whose first layer keeps every pixel of a 32 px image.

Networks made for photos (resnet18, mobilenet) halve an image five times, twice of that in their first layers: of 32 px
nothing is left. This one is ResNet-9 (Page 2018, "How to train your ResNet") with a residual block in every
stage, wider in the middle, and GELU: 9,966,400 parameters for ten classes, 0.63 billion multiply-adds an image at
32 px. Ten epochs of CIFAR-10 (JPEGs of quality 75; 45,000 to train on, 5,000 held out): ResNet-9 90.4 %, with GELU
90.9, this 91.4, twice as wide in the first stages 91.4 (docs/LOG.md, 2026-11-16). Pure torch.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from torch import Tensor, nn

WIDTHS = (64, 128, 384, 512)
"""Channels of the stem and of the three stages; each stage halves the image."""
LOGIT_SCALE = 0.125
"""The maximum over a feature map is large where its mean is near 0; unscaled, the first logits would saturate the loss
(the value is ResNet-9's)."""


class ConvNormGelu(nn.Sequential):
    """A 3x3 convolution, a maximum over 2x2 pixels when asked, batch norm, GELU."""

    def __init__(self, inputs: int, outputs: int, *, halves: bool = False) -> None:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        # Pooled before the norm: it and the activation then handle a quarter of the pixels.
        pooled = [nn.MaxPool2d(2)] if halves else []
        super().__init__(convolution, *pooled, nn.BatchNorm2d(outputs), nn.GELU())


class Stage(nn.Module):
    """Half the size, more channels, and two convolutions that are added to what they start from."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.down = ConvNormGelu(inputs, outputs, halves=True)
        self.block = nn.Sequential(ConvNormGelu(outputs, outputs), ConvNormGelu(outputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return cast(Tensor, x + self.block(x))


class ResNet11(nn.Module):
    """A stem at full size, three stages, the maximum over the image, one linear layer: eleven layers with weights."""

    def __init__(self, *, num_classes: int) -> None:
        super().__init__()
        self.stem = ConvNormGelu(3, WIDTHS[0])
        self.stages = nn.Sequential(*(Stage(inputs, outputs) for inputs, outputs in pairwise(WIDTHS)))
        self.head = nn.Linear(WIDTHS[-1], num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    # The names below are timm's.

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the feature maps of the images: (N, 512, H / 8, W / 8)."""
        return cast(Tensor, self.stages(self.stem(x)))

    def forward_head(self, x: Tensor, *, pre_logits: bool = False) -> Tensor:
        """Apply global max pooling and, unless `pre_logits`, the last layer."""
        pooled = x.amax(dim=(2, 3)) * LOGIT_SCALE  # (N, 512)
        return pooled if pre_logits else cast(Tensor, self.head(pooled))

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.head
