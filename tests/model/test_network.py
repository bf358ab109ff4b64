"""Any network by name: a new last layer, frozen or not, and whether the images of a pass affect each other."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from turnaround.errors import MissingPartError, ModelError
from turnaround.model.network import IMAGENET_MEAN, Network, build, classifier_of
from turnaround.model.small import SmallNetwork
from turnaround.recipe import ModelRecipe

if find_spec("timm") is None:
    pytest.skip("no timm here", allow_module_level=True)


def create(name: str, **keys: Any) -> nn.Module:
    import timm  # here: it takes seconds, and every test process collects this file

    module: nn.Module = timm.create_model(name, **keys)
    return module


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These networks are too small to share out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(name: str = "small", *, num_classes: int = 7, seed: int = 0, **keys: object) -> Network:
    return build(ModelRecipe(name=name, **keys), num_classes=num_classes, seed=seed)


def frozen(name: str, folder: Path, *, num_classes: int = 7) -> Network:
    """With weights for ten classes from a file."""
    torch.manual_seed(9)
    source = SmallNetwork(num_classes=10) if name == "small" else create(name, num_classes=10)
    save_file({k: v.contiguous() for k, v in source.state_dict().items()}, folder / "w.safetensors")
    return made(name, num_classes=num_classes, weights=str(folder / "w.safetensors"), fine_tune=False)


def of(module: nn.Module, *, fine_tune: bool = True) -> Network:
    return Network(module=module, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), fine_tune=fine_tune)


def state(network: Network) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in network.module.state_dict().items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {k for k in before if not torch.equal(before[k], after[k])}


def trained_a_little(network: Network, num_classes: int = 7) -> None:
    torch.manual_seed(0)
    network.train_mode()
    optimizer = torch.optim.SGD([p for p in network.module.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        loss = F.cross_entropy(network.module(torch.randn(8, 3, 32, 32)), torch.arange(8) % num_classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("name", ["small", "test_resnet", "test_vit", "test_efficientnet"])
def test_the_last_layer_is_made_for_the_classes(name: str) -> None:
    network = made(name, num_classes=13)
    assert network.module.eval()(torch.zeros(2, 3, 160, 160)).shape == (2, 13)
    classifier = classifier_of(network.module)
    assert isinstance(classifier, nn.Linear)
    assert classifier.out_features == 13


@pytest.mark.parametrize("name", ["small", "test_resnet", "test_vit"])
def test_the_seed_alone_decides_the_weights(name: str) -> None:
    torch.rand(5)  # a state of the generator that must not matter
    first = state(made(name, seed=3))
    torch.rand(11)
    assert changed(first, state(made(name, seed=3))) == set()
    assert changed(first, state(made(name, seed=4)))


def test_the_seed_decides_a_new_layer_on_trained_weights(tmp_path: Path) -> None:
    first, again = frozen("small", tmp_path), frozen("small", tmp_path)
    assert changed(state(first), state(again)) == set()


def test_normalisation_is_the_networks_own() -> None:
    assert made("small").mean == IMAGENET_MEAN
    config = create("test_vit").pretrained_cfg
    assert made("test_vit").mean == tuple(config["mean"])
    assert made("test_vit").std == tuple(config["std"])


@pytest.mark.parametrize("name", ["small", "test_resnet"])
def test_a_frozen_backbone_does_not_move_at_all(name: str, tmp_path: Path) -> None:
    network = frozen(name, tmp_path)
    learning = {k for k, p in network.module.named_parameters() if p.requires_grad}
    head = {id(p) for p in classifier_of(network.module).parameters()}
    assert learning == {k for k, p in network.module.named_parameters() if id(p) in head}
    assert len(learning) == 2
    before = state(network)
    trained_a_little(network)
    assert changed(before, state(network)) == learning  # batch-norm statistics are in the state too
    backbone = [m for k, m in network.module.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert backbone
    assert not any(m.training for m in backbone)
    assert classifier_of(network.module).training


@pytest.mark.parametrize("name", ["small", "test_resnet"])
def test_fine_tuning_moves_everything(name: str) -> None:
    network = made(name)
    before = state(network)
    assert all(p.requires_grad for p in network.module.parameters())
    trained_a_little(network)
    assert changed(before, state(network)) == set(before)
    assert all(m.training for m in network.module.modules())


def test_train_mode_comes_back_after_evaluation(tmp_path: Path) -> None:
    for network in (made("small"), frozen("small", tmp_path)):
        network.module.eval()
        network.train_mode()
        assert classifier_of(network.module).training
        assert network.module.training == network.fine_tune


def test_what_couples_the_images_of_a_pass(tmp_path: Path) -> None:
    small, vit, resnet = made("small"), made("test_vit"), made("test_resnet")
    assert len(small.batch_norms()) == 12
    assert small.couples_images()
    assert not small.is_random()
    assert resnet.batch_norms()
    assert resnet.couples_images()
    assert vit.batch_norms() == []
    assert not vit.is_random()
    assert not vit.couples_images()
    for name in ("small", "test_resnet"):
        network = frozen(name, tmp_path)
        assert network.batch_norms() == []
        assert not network.couples_images()


@pytest.mark.parametrize("keys", [{"drop_rate": 0.1}, {"drop_path_rate": 0.1}, {"attn_drop_rate": 0.1}])
def test_dropout_and_drop_path_are_random(keys: dict[str, float]) -> None:
    network = of(create("test_vit", **keys))
    assert network.is_random()
    assert network.couples_images()
    assert not of(create("test_vit", **keys), fine_tune=False).is_random()
    assert not of(nn.Sequential(nn.Dropout(0.0))).is_random()


def test_dropout_without_a_module_is_random_too() -> None:
    assert of(create("test_efficientnet", drop_rate=0.5)).is_random()


@pytest.mark.parametrize("name", ["small", "test_resnet", "test_vit", "test_efficientnet", "test_convnext"])
def test_a_network_that_couples_nothing_gives_each_image_its_own_answer(name: str) -> None:
    """The claim behind the fused pass, on the network itself: in training mode, alone or together."""
    network = made(name)
    network.train_mode()
    torch.manual_seed(0)
    images = torch.randn(6, 3, 160, 160)
    with torch.no_grad():
        together = network.module(images)
        in_two = torch.cat([network.module(images[:3]), network.module(images[3:])])
    assert torch.allclose(together, in_two, atol=1e-4) != network.couples_images()


def test_a_batch_norm_in_the_last_layer_of_a_frozen_network_couples() -> None:
    network = of(create("levit_128s", num_classes=7), fine_tune=False)
    network.train_mode()
    torch.manual_seed(0)
    images = torch.randn(4, 3, 224, 224)
    with torch.no_grad():
        together = network.module(images)
        in_two = torch.cat([network.module(images[:2]), network.module(images[2:])])
    assert torch.allclose(together, in_two, atol=1e-4) != network.couples_images()


@pytest.mark.parametrize("name", ["levit_128s", "deit_tiny_distilled_patch16_224"])
def test_weights_of_another_class_count_fit_networks_with_two_heads(name: str, tmp_path: Path) -> None:
    network = frozen(name, tmp_path)
    assert network.module.eval()(torch.zeros(1, 3, 224, 224)).shape == (1, 7)


def test_a_network_without_a_last_layer_is_refused() -> None:
    module = create("test_resnet", num_classes=0)
    with pytest.raises(ModelError, match="ResNet has no last layer that could be replaced"):
        classifier_of(module)


def test_an_unknown_name_is_answered_with_near_ones() -> None:
    with pytest.raises(ModelError) as error:
        made("resnet5")
    message = str(error.value)
    assert "Unknown model.name 'resnet5'" in message
    assert "Did you mean" in message
    assert "resnet50" in message
    assert "Valid: small, resnet11, or one of timm's" in message


def test_small_has_no_imagenet_weights() -> None:
    with pytest.raises(ModelError, match="no ImageNet weights for `small`"):
        made("small", weights="imagenet")


def test_imagenet_weights_without_a_network_fail_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hub's address is closed for this test, so that it says the same on a machine with a network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "https://127.0.0.1:1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    made("test_resnet")  # what it takes to load timm is not meant
    start = time.monotonic()
    with pytest.raises(MissingPartError, match="ImageNet weights of 'test_resnet' could not be had") as error:
        made("test_resnet", weights="imagenet")
    assert time.monotonic() - start < 20
    assert "--set model.weights=FILE.safetensors" in str(error.value)
    assert "--set model.weights=none" in str(error.value)


def test_without_timm_our_own_network_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    made("small")
    with pytest.raises(MissingPartError, match="pip install timm torchvision") as error:
        made("resnet18")
    assert "--set model.name=small" in str(error.value)
