"""Our network for small images: its size, its shapes, that it keeps every pixel, and that it learns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from turnaround.model.network import cost
from turnaround.model.resnet11 import ResNet11


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_it_is_as_large_as_its_description_says() -> None:
    found = cost(ResNet11(num_classes=10), size_px=32)
    assert found["parameters"] == 9_966_400
    assert found["forward_flops_per_image"] / 2 == pytest.approx(0.63e9, rel=0.01)
    weighted = [m for m in ResNet11(num_classes=10).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(weighted) == 11


@pytest.mark.parametrize("size_px", [16, 33, 64])
def test_it_takes_any_size(size_px: int) -> None:
    network = ResNet11(num_classes=7).eval()
    images = torch.zeros(2, 3, size_px, size_px)
    assert network(images).shape == (2, 7)
    assert network.forward_head(network.forward_features(images), pre_logits=True).shape == (2, 512)
    assert network.get_classifier() is network.head


def test_its_first_layer_keeps_every_pixel() -> None:
    network = ResNet11(num_classes=3).eval()
    images = torch.randn(1, 3, 32, 32, requires_grad=True)
    assert network.stem(images).shape == (1, 64, 32, 32)
    network.stem(images).square().sum().backward()
    assert bool((images.grad != 0).all())


def test_it_learns_a_few_images_by_heart() -> None:
    torch.manual_seed(0)
    network, images, labels = ResNet11(num_classes=4), torch.randn(8, 3, 16, 16), torch.arange(8) % 4
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(8):
        loss = F.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3
