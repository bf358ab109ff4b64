"""A convolution over a whole picture and the matrix product it is: the same numbers, gradients and names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from turnaround.model.full_window import FullWindowConv2d, multiply_full_windows


def twins() -> tuple[nn.Conv2d, nn.Conv2d]:
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 5, kernel_size=4).double().to(memory_format=torch.channels_last)
    other = nn.Conv2d(3, 5, kernel_size=4).double().to(memory_format=torch.channels_last)
    other.load_state_dict(plain.state_dict())
    multiply_full_windows(other)
    assert isinstance(other, FullWindowConv2d)
    return plain, other


@pytest.mark.parametrize("side_px", [4, 6], ids=["the whole picture", "a larger picture"])
def test_the_same_numbers_and_gradients(side_px: int) -> None:
    plain, other = twins()
    images = torch.randn(7, 3, side_px, side_px, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    found = []
    for layer in (plain, other):
        taken = images.clone().requires_grad_()
        layer(taken).square().sum().backward()
        found.append([layer(images).detach(), taken.grad, layer.weight.grad, layer.bias.grad])
    for one, same in zip(*found, strict=True):
        torch.testing.assert_close(one, same, rtol=1e-12, atol=1e-12)


def test_names_and_shapes_stay() -> None:
    plain, other = twins()
    assert {k: v.shape for k, v in plain.state_dict().items()} == {k: v.shape for k, v in other.state_dict().items()}


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 8, stride=8),
    ],
    ids=["1x1", "padded", "grouped", "dilated", "patches"],
)
def test_other_convolutions_stay_as_they_are(layer: nn.Conv2d) -> None:
    module = nn.Sequential(layer)
    multiply_full_windows(module)
    assert type(layer) is nn.Conv2d
