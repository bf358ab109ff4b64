"""A convolution whose window is the whole picture, as the matrix product that it is.

timm's VGG and a few others keep their first fully connected layer as a convolution with a 7 x 7 window over a 7 x 7
picture. cuDNN computes its gradients several times slower than a matrix product's; the numbers are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MIN_WINDOW = 2


class FullWindowConv2d(nn.Conv2d):
    """The same parameters under the same names. Pictures of another size take the ordinary way."""

    def forward(self, input: Tensor) -> Tensor:
        if torch._C._get_tracing_state() is not None or tuple(input.shape[-2:]) != self.kernel_size:
            return super().forward(input)
        # Channels last on both sides: in that memory format neither is copied.
        rows, weight = input.permute(0, 2, 3, 1).flatten(1), self.weight.permute(0, 2, 3, 1).flatten(1)
        return F.linear(rows, weight, self.bias)[:, :, None, None]


def multiply_full_windows(module: nn.Module) -> None:
    """Every convolution that could see a whole picture at once, in place."""
    for layer in module.modules():
        if type(layer) is nn.Conv2d and _is_plain(layer):
            layer.__class__ = FullWindowConv2d


def _is_plain(layer: nn.Conv2d) -> bool:
    """A large window that leaves nothing out and adds nothing: only such ones stand for a linear layer."""
    return (
        min(layer.kernel_size) >= MIN_WINDOW
        and layer.padding in ((0, 0), 0)
        and layer.stride == (1, 1)
        and layer.dilation == (1, 1)
        and layer.groups == 1
    )
