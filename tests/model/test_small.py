"""Our own network: its size, its shapes, and that it learns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from turnaround.model.small import Residual, SmallNetwork


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These networks are too small to share out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_it_is_as_small_as_its_description_says() -> None:
    assert sum(p.numel() for p in SmallNetwork(num_classes=6).parameters()) == 308_310


@pytest.mark.parametrize("size_px", [16, 32, 64, 97])
def test_it_takes_any_size(size_px: int) -> None:
    network = SmallNetwork(num_classes=7).eval()
    assert network(torch.zeros(2, 3, size_px, size_px)).shape == (2, 7)


def test_a_block_starts_as_its_short_cut() -> None:
    torch.manual_seed(0)
    block, x = Residual(8, 8, stride=1), torch.randn(4, 8, 5, 5)
    assert torch.equal(block(x), F.relu(x))
    wider = Residual(8, 16, stride=2)
    assert torch.equal(wider.eval()(x), F.relu(wider.short_cut(x)))
    assert wider(x).shape == (4, 16, 3, 3)


def test_its_last_layer_is_what_it_says() -> None:
    network = SmallNetwork(num_classes=11)
    assert network.get_classifier() is network.head
    assert isinstance(network.head, nn.Linear)
    assert network.head.out_features == 11


def test_it_learns_a_few_images_by_heart() -> None:
    torch.manual_seed(0)
    network, images, labels = SmallNetwork(num_classes=4), torch.randn(16, 3, 32, 32), torch.arange(16) % 4
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(30):
        loss = F.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    assert all(p.grad is not None for p in network.parameters())
