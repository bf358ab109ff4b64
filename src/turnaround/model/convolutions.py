"""Two kinds of convolution that cuDNN is slow at, computed in another way: same parameters, same names, same numbers.

*Depthwise* (every channel on its own): cuDNN since 9.10 compiles code at run time for each of these layers and each
shape, in every process. On an H200 MobileNetV2 waited 9 s for a new number of images, and a training has several (a
full batch, the last one of an epoch, what is measured, what is evaluated). The Triton kernels of depthwise_triton.py
hold for all of them and stay on the disk. Where they cannot be used, in a compiled network, and for a number of images
that comes so often that cuDNN's plan pays, the layer takes the ordinary way.

*Full window*: timm's VGG and a few others keep their first fully connected layer as a convolution with a 7 x 7 window
over a 7 x 7 picture. cuDNN computes its gradients several times slower than those of the matrix product that it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turnaround import kernels

if TYPE_CHECKING:
    _Layer = nn.Conv2d
else:
    _Layer = object

KERNELS = "turnaround.model.depthwise_triton"
SINGLE_OR_LESS = (torch.float32, torch.bfloat16, torch.float16)
SAME_AS_TENSORFLOW = "Conv2dSame"
"""timm's, for weights from there: zeros around the picture as needed, at the end one more than at the beginning."""
MIN_FULL_WINDOW = 2


@dataclass(frozen=True, kw_only=True)
class Window:
    """The window of a convolution, and the zeros around the picture."""

    height: int
    width: int
    stride: int
    dilation: int
    above: int
    """Rows of zeros above the picture."""
    left: int
    """Columns of zeros left of it."""


class _Axis(NamedTuple):
    window: int
    stride: int
    dilation: int
    padding: int | None  # None: as much as `SAME_AS_TENSORFLOW` asks for

    def laid_over(self, length: int) -> tuple[int, int]:
        """Return the output's length, and the zeros before the input."""
        # A window of k places with d - 1 gaps between them covers d (k - 1) + 1 pixels.
        covered = self.dilation * (self.window - 1) + 1
        if self.padding is not None:
            return (length + 2 * self.padding - covered) // self.stride + 1, self.padding
        # TensorFlow's SAME: ceil(length / stride) places, and half of the zeros that the last one needs, rounded down.
        output = -(-length // self.stride)
        return output, max(0, (output - 1) * self.stride + covered - length) // 2


class _Depthwise(_Layer):
    """Mixin before a class of convolutions; parameters and their names stay the same, so checkpoints fit both."""

    axes: tuple[_Axis, _Axis]
    planned: frozenset[int] = frozenset()
    """Numbers of images that are left to the library."""

    def forward(self, input: Tensor) -> Tensor:
        ours = _kernels_for(input, self.weight)
        if ours is None or len(input) in self.planned:
            return super().forward(input)
        # Autocast knows torch's own convolution only, so its cast is made here.
        if torch.is_autocast_enabled(input.device.type):
            input = input.to(torch.get_autocast_dtype(input.device.type))
        window, size = _output_geometry(*self.axes, input.shape[2], input.shape[3])
        output: Tensor = ours.DepthwiseConvolution.apply(input, self.weight, window, size)
        return output if self.bias is None else output + self.bias.to(output.dtype)[:, None, None]


def compute_depthwise_ourselves(module: nn.Module) -> None:
    """Change every depthwise convolution that the kernels can compute, in place."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d) and _is_depthwise(layer):
            axes = _axes_of(layer)
            layer.__class__ = _depthwise_class(type(layer))  # type: ignore[arg-type]  # a class can be hashed
            layer.axes = axes  # type: ignore[assignment]  # mypy sees a module's attributes as tensors


def has_depthwise(module: nn.Module) -> bool:
    """Tell whether there is one that we compute ourselves on a GPU."""
    weights = [layer.weight for layer in module.modules() if isinstance(layer, _Depthwise)]
    return kernels.load(KERNELS) is not None and any(weight.dtype in SINGLE_OR_LESS for weight in weights)


def leave_to_library(module: nn.Module, images: Iterable[int]) -> None:
    """Let cuDNN compute passes over these numbers of images: they come often enough for its plan to pay."""
    for layer in module.modules():
        if isinstance(layer, _Depthwise):
            layer.planned = frozenset(images)


def _is_depthwise(layer: nn.Conv2d) -> bool:
    is_known = type(layer) is nn.Conv2d or type(layer).__name__ == SAME_AS_TENSORFLOW
    is_depthwise = layer.groups == layer.in_channels == layer.out_channels > 1
    is_even = layer.stride[0] == layer.stride[1] and layer.dilation[0] == layer.dilation[1]
    return (
        is_known and is_depthwise and is_even and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    )


def _axes_of(layer: nn.Conv2d) -> tuple[_Axis, _Axis]:
    paddings = (None, None) if type(layer).__name__ == SAME_AS_TENSORFLOW else layer.padding
    axes = zip(layer.kernel_size, layer.stride, layer.dilation, paddings, strict=True)
    down, across = (_Axis(*axis) for axis in axes)  # type: ignore[arg-type]  # padding is no text: _is_depthwise
    return down, across


@cache
def _depthwise_class(kind: type[nn.Conv2d]) -> type[nn.Conv2d]:
    return type(f"Depthwise{kind.__name__}", (_Depthwise, kind), {})


@cache  # the same few pictures at every step
def _output_geometry(down: _Axis, across: _Axis, height: int, width: int) -> tuple[Window, tuple[int, int]]:
    """Return the window, and height and width of the output."""
    (made_height, above), (made_width, left) = down.laid_over(height), across.laid_over(width)
    window = Window(
        height=down.window,
        width=across.window,
        stride=down.stride,
        dilation=down.dilation,
        above=above,
        left=left,
    )
    return window, (made_height, made_width)


def _kernels_for(input: Tensor, weight: Tensor) -> ModuleType | None:
    """Return the kernels where they apply; None for a compiler or an export, which trace the network through torch."""
    # float64 is left to torch: the kernels add up in float32.
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return None
    kernel_applies = input.is_cuda and input.dim() == 4 and {input.dtype, weight.dtype}.issubset(SINGLE_OR_LESS)
    return kernels.load(KERNELS) if kernel_applies else None


class FullWindowConv2d(nn.Conv2d):
    """A convolution over a whole picture as a matrix product; pictures of another size take the ordinary way."""

    def forward(self, input: Tensor) -> Tensor:
        if torch._C._get_tracing_state() is not None or tuple(input.shape[-2:]) != self.kernel_size:
            return super().forward(input)
        # Channels last on both sides: in that memory format neither is copied.
        # (N, H W C) and (out, H W C)
        rows, weight = input.permute(0, 2, 3, 1).flatten(1), self.weight.permute(0, 2, 3, 1).flatten(1)
        return F.linear(rows, weight, self.bias)[:, :, None, None]


def multiply_full_windows(module: nn.Module) -> None:
    """Change every convolution that could see a whole picture at once, in place."""
    for layer in module.modules():
        if type(layer) is nn.Conv2d and _stands_for_linear(layer):
            layer.__class__ = FullWindowConv2d


def _stands_for_linear(layer: nn.Conv2d) -> bool:
    """Tell whether the window leaves nothing out and adds nothing: only such a layer can be a linear one."""
    return (
        min(layer.kernel_size) >= MIN_FULL_WINDOW
        and layer.padding in ((0, 0), 0)
        and layer.stride == (1, 1)
        and layer.dilation == (1, 1)
        and layer.groups == 1
    )
