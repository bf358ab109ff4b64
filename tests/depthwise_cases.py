"""Depthwise layers by torch and by our kernels, for test_convolutions.py.

`print_all_by_turnaround` computes all cases on the CPU; its process has Triton's interpreter (tests/interpreting.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from turnaround.model import convolutions
from turnaround.model.convolutions import compute_depthwise_ourselves

WINDOWS = {
    "3x3": {"kernel_size": 3, "padding": 1},
    "3x3, stride 2": {"kernel_size": 3, "stride": 2, "padding": 1},
    "5x5, stride 2": {"kernel_size": 5, "stride": 2, "padding": 2},
    "7x7": {"kernel_size": 7, "padding": 3},
    "stride 3": {"kernel_size": 3, "stride": 3, "padding": 1},
    "dilated": {"kernel_size": 3, "padding": 2, "dilation": 2},
    "dilated, stride 2": {"kernel_size": 3, "stride": 2, "padding": 2, "dilation": 2},
    "not square, without zeros": {"kernel_size": (1, 3), "padding": 0},
    "with bias": {"kernel_size": 3, "padding": (1, 0), "bias": True},
}
SAME_STRIDES = {"same": 1, "same, stride 2": 2}
"""timm's Conv2dSame, 3 x 3."""
NO_IMAGES = "no images"
SIZES = ((5, 7, 6), (33, 5, 4))
"""Channels, height and width: less and more than a block of channels, odd and even."""


def layer_of(case: str, *, channels: int) -> nn.Conv2d:
    if case not in SAME_STRIDES:
        return nn.Conv2d(channels, channels, groups=channels, **{"bias": False, **WINDOWS[case]})
    from timm.layers import Conv2dSame

    return Conv2dSame(channels, channels, 3, stride=SAME_STRIDES[case], groups=channels, bias=False)


def differences(case: str, size: tuple[int, int, int], *, images: int, device: str) -> list[float]:
    """Of the output and every gradient: ours in single precision against torch's in double, largest value = 1."""
    torch.manual_seed(1)
    layer = layer_of(case, channels=size[0])
    pictures, seed = torch.randn(images, *size), None
    results = []
    for dtype in (torch.float64, torch.float32):
        layer.to(device, dtype).zero_grad()
        if dtype == torch.float32:
            compute_depthwise_ourselves(layer)
            assert type(layer).__name__.startswith("Depthwise")
        x = pictures.to(device, dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
        output = layer(x)
        seed = torch.randn_like(output) if seed is None else seed
        output.backward(seed.to(dtype))
        results.append([output, x.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
    return [_difference(theirs, ours) for theirs, ours in zip(*results, strict=True)]


def _difference(theirs: Tensor, ours: Tensor) -> float:
    assert theirs.shape == ours.shape
    if theirs.numel() == 0:
        return 0.0
    return ((theirs - ours).abs().max() / theirs.abs().max().clamp(min=1e-30)).item()


def _all() -> Iterator[tuple[str, list[float]]]:
    for place, case in enumerate((*WINDOWS, *SAME_STRIDES)):
        # The interpreter takes a second for a case. Windows and blocks of channels are independent in the kernels, so
        # two windows have both sizes and the others one of them in turn; a GPU computes every pair.
        sizes = SIZES if place < 2 else SIZES[place % 2 :][:1]
        yield case, [d for size in sizes for d in differences(case, size, images=2, device="cpu")]
    yield NO_IMAGES, differences("3x3", SIZES[0], images=0, device="cpu")


def print_all_by_turnaround() -> None:
    """Print the differences of every case, as JSON."""
    from turnaround.model import depthwise_triton

    depthwise_triton._programs = lambda _device: 6
    convolutions._kernels_for = lambda _input, weight: depthwise_triton if weight.dtype == torch.float32 else None
    print(json.dumps(dict(_all())))
