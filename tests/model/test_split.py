"""A frozen network as backbone and last layer: together they are the network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from turnaround.model.network import Network, build
from turnaround.model.split import split
from turnaround.recipe import ModelRecipe


def frozen(tmp_path: Path, name: str) -> Network:
    """With weights of its own: a recipe refuses to freeze a network without."""
    weights = tmp_path / f"{name}.safetensors"
    made = build(ModelRecipe(name=name), num_classes=7, seed=1).module.state_dict()
    save_file({k: v.contiguous().clone() for k, v in made.items()}, weights)
    return build(ModelRecipe(name=name, weights=str(weights), fine_tune=False), num_classes=7, seed=2)


@pytest.mark.parametrize("name", ["small", "resnet18", "mobilenetv2_100", "vit_tiny_patch16_224"])
def test_the_parts_are_the_whole(tmp_path: Path, name: str) -> None:
    network = frozen(tmp_path, name)
    size_px = 64 if name == "small" else 224
    parts = split(network, size_px=size_px)
    assert parts is not None
    images = torch.randn(3, 3, size_px, size_px, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        together, whole = parts.head(parts.backbone(images)), network.module(images)
    assert torch.allclose(together, whole, atol=1e-4)
    assert not any(
        p.requires_grad for p in network.module.parameters() if id(p) not in set(map(id, parts.head.parameters()))
    )
    assert all(p.requires_grad for p in parts.head.parameters())


def test_a_network_with_two_heads_stays_whole(tmp_path: Path) -> None:
    assert split(frozen(tmp_path, "deit_tiny_distilled_patch16_224"), size_px=224) is None


def test_a_network_that_learns_stays_whole() -> None:
    assert split(build(ModelRecipe(name="small"), num_classes=7, seed=0), size_px=64) is None


def test_trying_leaves_no_trace(tmp_path: Path) -> None:
    network = frozen(tmp_path, "small")
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    before = {k: v.clone() for k, v in network.module.state_dict().items()}
    split(network, size_px=64)
    assert torch.equal(torch.rand(1), wanted)
    assert all(torch.equal(v, before[k]) for k, v in network.module.state_dict().items())
    assert not network.module.stages.training
    assert network.module.head.training
