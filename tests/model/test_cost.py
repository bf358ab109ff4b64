"""What a network costs, against numbers that a hand computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from turnaround.errors import ModelError
from turnaround.model.network import build, cost
from turnaround.recipe import ModelRecipe


class Known(nn.Module):
    """8 px -> a 3x3 convolution to 4 channels -> mean -> 5 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(x)).mean(dim=(2, 3)))


def test_the_counts_of_a_known_network() -> None:
    found = cost(Known(), size_px=8)
    parameters = 4 * 3 * 9 + 2 * 4 + 4 * 5 + 5
    assert found == {
        "parameters": parameters,
        "trainable_parameters": parameters,
        "gradient_bytes": 4 * parameters,
        "forward_flops_per_image": 2 * (8 * 8 * 4 * 3 * 9) + 2 * (4 * 5),
    }


def test_frozen_parameters_have_no_gradient_to_send() -> None:
    network = Known()
    network.conv.requires_grad_(False)
    network.norm.requires_grad_(False)
    found = cost(network, size_px=8)
    assert found["trainable_parameters"] == 25
    assert found["gradient_bytes"] == 100
    assert found["parameters"] == 4 * 3 * 9 + 8 + 25


def test_gradient_bytes_follow_the_precision() -> None:
    assert cost(Known().double(), size_px=8)["gradient_bytes"] == 2 * cost(Known(), size_px=8)["gradient_bytes"]


def test_counting_leaves_the_network_as_it_was() -> None:
    network = Known().train()
    network.norm.eval()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    cost(network, size_px=8)
    assert network.training
    assert network.conv.training
    assert not network.norm.training
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())


def test_our_own_network_costs_what_its_description_says() -> None:
    found = cost(build(ModelRecipe(), num_classes=6, seed=0).module, size_px=64)
    assert found["parameters"] == 308_310
    assert 15e6 < found["forward_flops_per_image"] / 2 < 17e6


def test_a_size_that_the_network_does_not_take_is_refused() -> None:
    """Most of timm's transformers are made for one size."""
    fixed = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    assert cost(fixed, size_px=8)["forward_flops_per_image"] == 2 * 3 * 8 * 8 * 5
    with pytest.raises(ModelError, match=r"data\.size_px"):
        cost(fixed, size_px=9)
