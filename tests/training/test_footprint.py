"""What a step asks of any GPU, counted: against what torch's own layers keep, and nothing is changed by it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from turnaround.training.bench import Footprint, count_footprint

SIZE = 8


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(256, 5)
    )


def counted(module: nn.Module) -> Footprint:
    return count_footprint(module, size_px=SIZE)


def test_what_a_forward_pass_keeps() -> None:
    found = counted(network())
    image, map_bytes = 4 * 3 * SIZE**2, 4 * 4 * SIZE**2
    # The image for the convolution; its output for batch norm; the output of the ReLU, which the linear layer shares.
    assert image + 2 * map_bytes <= found.activation_bytes_per_image <= image + 3 * map_bytes + 100
    assert found.largest_activation_bytes == map_bytes
    assert found.kept_tensors >= 3
    weights = sum(weight.numel() for weight in network().parameters())
    assert (found.weight_bytes, found.trained_bytes) == (4 * weights, 4 * weights)


def test_a_frozen_network_keeps_the_same_and_learns_less() -> None:
    module = network()
    for weight in list(module.parameters())[:-2]:
        weight.requires_grad_(False)
    found, whole = counted(module), counted(network())
    assert found.activation_bytes_per_image == whole.activation_bytes_per_image
    assert found.trained_bytes == 4 * (256 * 5 + 5)
    assert [weight.requires_grad for weight in module.parameters()] == [False] * 4 + [True] * 2


def test_nothing_is_changed() -> None:
    module = network().train()
    module[1].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    random = torch.random.get_rng_state()
    counted(module)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert [child.training for child in module] == [True, False, True, True, True, True]
    assert all(weight.grad is None for weight in module.parameters())
    assert torch.equal(random, torch.random.get_rng_state())


def test_double_precision_counts_as_single() -> None:
    assert counted(network().double()) == counted(network())


@pytest.mark.gpu
def test_a_gpu_counts_the_same() -> None:
    on_gpu, here = counted(network().cuda()), counted(network())
    assert on_gpu.weight_bytes == here.weight_bytes
    assert on_gpu.activation_bytes_per_image == pytest.approx(here.activation_bytes_per_image, rel=0.2)
