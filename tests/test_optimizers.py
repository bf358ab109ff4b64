"""Update rules by name: each one learns, none decays biases and normalisation."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from forking import WITHOUT_TIMM, ForkingParent
from turnaround.errors import MissingPartError
from turnaround.model.small import SmallNetwork
from turnaround.optimizers import OPTIMIZERS, make_optimizer
from turnaround.recipe import TrainingRecipe


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These networks are too small to share out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recipe(optimizer: str, **keys: object) -> TrainingRecipe:
    return TrainingRecipe(
        optimizer=optimizer, **{"learning_rate": OPTIMIZERS[optimizer].learning_rates.from_scratch, **keys}
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_lowers_the_loss_of_a_small_problem(optimizer: str) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    images, labels = torch.randn(16, 3, 8, 8), torch.arange(16) % 4
    made = make_optimizer(network, recipe(optimizer))
    losses = []
    for _ in range(60):
        loss = F.cross_entropy(network(images), labels)
        made.zero_grad()
        loss.backward()
        made.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_decay_and_biases_and_normalisation_do_not(optimizer: str) -> None:
    """Without any gradient only the decay moves anything."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    for parameter in network.parameters():
        nn.init.constant_(parameter, 0.5)
    made = make_optimizer(network, recipe(optimizer, weight_decay=0.1))
    for _ in range(3):
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        made.step()
    for name, parameter in network.named_parameters():
        if parameter.ndim > 1:
            if optimizer != "lars":  # its trust ratio is 0 without a gradient
                assert bool((parameter < 0.5).all()), name
        else:
            assert bool((parameter == 0.5).all()), name
    decays = {group["weight_decay"]: {p.ndim > 1 for p in group["params"]} for group in made.param_groups}
    assert decays == {0.1: {True}, 0.0: {False}}


def test_only_what_learns_is_in_it() -> None:
    network = SmallNetwork(num_classes=4)
    network.requires_grad_(False)
    network.head.requires_grad_(True)
    made = make_optimizer(network, recipe("sgd"))
    assert {id(p) for g in made.param_groups for p in g["params"]} == {id(p) for p in network.head.parameters()}
    network.head.bias.requires_grad_(False)
    assert len(make_optimizer(network, recipe("sgd")).param_groups) == 1


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "lamb", "muon"])
def test_the_scaled_averages_arrive(optimizer: str) -> None:
    made = make_optimizer(SmallNetwork(num_classes=4), recipe(optimizer), betas=(0.6, 0.99))
    assert all(tuple(group["betas"]) == (0.6, 0.99) for group in made.param_groups)


def test_sgd_is_nesterovs() -> None:
    made = make_optimizer(SmallNetwork(num_classes=4), recipe("sgd"))
    assert all(group["nesterov"] and group["momentum"] == 0.9 for group in made.param_groups)


def test_without_timm_only_its_own_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm.optim", None)
    network = SmallNetwork(num_classes=4)
    for optimizer in ("sgd", "adam", "adamw", "adadelta"):
        make_optimizer(network, recipe(optimizer))
    for optimizer in ("lamb", "lars", "muon"):
        with pytest.raises(MissingPartError, match="pip install timm torchvision"):
            make_optimizer(network, recipe(optimizer))


def test_an_older_timm_without_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm")
    optim = importlib.import_module("timm.optim")
    monkeypatch.delattr(optim, "Muon")
    with pytest.raises(MissingPartError, match=rf"muon is not in timm {timm.__version__}.*pip install --upgrade timm"):
        make_optimizer(SmallNetwork(num_classes=4), recipe("muon"))


def test_muon_takes_convolutions_and_leaves_the_rest_to_adamw() -> None:
    pytest.importorskip("timm")
    network = SmallNetwork(num_classes=6)
    made = make_optimizer(network, recipe("muon"))
    network(torch.randn(4, 3, 16, 16)).square().sum().backward()
    made.step()
    by_muon = {name for name, p in network.named_parameters() if made.state[p]["use_muon"]}
    assert by_muon == {name for name, p in network.named_parameters() if p.ndim > 1}
    update = made.state[network.stages[0].conv1.weight]["momentum_buffer"]  # type: ignore[union-attr, index]
    assert update.shape == network.stages[0].conv1.weight.shape  # type: ignore[union-attr]


def test_one_optimizer_of_timm_does_not_load_its_networks(forking_parent: ForkingParent) -> None:
    pytest.importorskip("timm")
    code = """
from torch import nn
from turnaround.optimizers import make_optimizer
from turnaround.recipe import TrainingRecipe
made = make_optimizer(nn.Linear(8, 8), TrainingRecipe(optimizer="muon", learning_rate=0.1))
assert not {"timm", "timm.models"} & sys.modules.keys(), "all of timm was loaded"
import timm.optim
assert type(made) is timm.optim.Muon, "a second Muon"
"""
    done = subprocess.run(
        [forking_parent.python, "-c", WITHOUT_TIMM + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_adaptive_optimizers_have_a_rate_that_does_not_grow_linearly() -> None:
    adaptive = {name for name, row in OPTIMIZERS.items() if row.is_adaptive}
    assert adaptive == {"adam", "adamw", "lamb"}
    assert {OPTIMIZERS[name].auto_scaling for name in adaptive} == {"sqrt"}
