"""Any network by name: ours, or one of timm's; frozen backbone or fine-tuned; a new last layer for the classes.

timm and torchvision are imported only when a timm name is asked for, so that the core runs with torch alone.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import nn

from turnaround.errors import MissingPartError, ModelError
from turnaround.model.depthwise import compute_depthwise_ourselves
from turnaround.model.full_window import multiply_full_windows
from turnaround.model.small import SmallNetwork
from turnaround.model.weights import load_weights
from turnaround.recipe import SMALL_NETWORK, ModelRecipe

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A module ready to train, and how its input must look."""

    module: nn.Module
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    fine_tune: bool

    def train_mode(self) -> None:
        """Training mode; a frozen backbone stays in eval mode, so that its batch norms do not drift."""
        self.module.train(self.fine_tune)
        classifier_of(self.module).train()

    def batch_norms(self) -> list[nn.Module]:
        """The batch norms that compute statistics over a worker's images while training."""
        return [m for m in self._in_training().modules() if isinstance(m, _BATCH_NORMS)]

    def is_random(self) -> bool:
        """Whether a training pass draws random numbers (dropout, stochastic depth)."""
        return any(_drops(m) for m in self._in_training().modules())

    def _in_training(self) -> nn.Module:
        """What is in training mode: everything, or the last layer, which may hold a batch norm too (LeViT)."""
        return self.module if self.fine_tune else classifier_of(self.module)

    def couples_images(self) -> bool:
        """Whether the images of a pass affect each other: then the gradients of its halves do not add up to its own."""
        return bool(self.batch_norms()) or self.is_random()


def build(recipe: ModelRecipe, *, num_classes: int, seed: int) -> Network:
    """The network of a recipe. The new layers depend on `seed` alone, so every process makes the same ones."""
    torch.manual_seed(seed)
    if recipe.name == SMALL_NETWORK:
        if recipe.weights == "imagenet":
            raise ModelError("There are no ImageNet weights for `small`. Set model.weights to none or to a file.")
        module: nn.Module = SmallNetwork(num_classes=num_classes)
        mean, std = IMAGENET_MEAN, IMAGENET_STD
    else:
        module = _timm_module(recipe, num_classes=num_classes)
        multiply_full_windows(module)
        compute_depthwise_ourselves(module)
        config = getattr(module, "pretrained_cfg", {})
        mean, std = tuple(config.get("mean", IMAGENET_MEAN)), tuple(config.get("std", IMAGENET_STD))
    if recipe.weights not in ("none", "imagenet"):
        load_weights(module, Path(recipe.weights), name=recipe.name, heads=head_prefixes(module))
    if recipe.weights != "none":  # also a layer for as many classes goes: nothing says that they are the same classes
        _start_near_zero(classifier_of(module))
    if not recipe.fine_tune:
        module.requires_grad_(False)
        classifier_of(module).requires_grad_(True)
    return Network(module=module, mean=mean, std=std, fine_tune=recipe.fine_tune)


def load_code(name: str) -> None:
    """What a network of this name needs to be imported."""
    if name != SMALL_NETWORK:
        _timm()


def classifier_of(module: nn.Module) -> nn.Module:
    """The last layer."""
    classifier: Any = module.get_classifier()  # type: ignore[operator]  # both SmallNetwork and timm have it
    if isinstance(classifier, tuple | list):  # distilled networks have two heads
        classifier = nn.ModuleList(classifier)
    if not isinstance(classifier, nn.Module) or not any(True for _ in classifier.parameters()):
        raise ModelError(
            f"{type(module).__name__} has no last layer that could be replaced; choose another model.name."
        )
    return classifier


def _start_near_zero(classifier: nn.Module) -> None:
    """On trained features a large random last layer must be unlearned first: 768 fruit photos, six epochs of a frozen
    tf_efficientnet_lite0 gave 84 % with the layer as timm makes it (standard deviation 0.24) and 94 % like this."""
    for layer in classifier.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.normal_(layer.weight, std=0.01)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def head_prefixes(module: nn.Module) -> tuple[str, ...]:
    """Where the last layer's tensors are in the state dict: ("head.",), or two where a network has two heads."""
    classifier = classifier_of(module)
    heads = list(classifier) if isinstance(classifier, nn.ModuleList) else [classifier]
    return tuple(f"{name}." for name, m in module.named_modules() if any(m is head for head in heads))


def _timm_module(recipe: ModelRecipe, *, num_classes: int) -> nn.Module:
    timm = _timm()
    if recipe.name not in _known(timm):
        raise ModelError(_unknown_name(timm, recipe.name))
    pretrained = recipe.weights == "imagenet"
    if pretrained:
        _stay_offline_without_network()
    try:
        return timm.create_model(recipe.name, pretrained=pretrained, num_classes=num_classes)  # type: ignore[no-any-return]
    except Exception as error:  # hub clients raise many kinds; with no download asked for it is timm's own complaint
        if not pretrained:
            raise ModelError(f"timm cannot make {recipe.name!r} for {num_classes} classes: {error}") from error
        raise MissingPartError(
            f"The ImageNet weights of {recipe.name!r} could not be had ({_first_line(error)}). Without a network, "
            "give a file: --set model.weights=FILE.safetensors (or a PyTorch file), or train from nothing: "
            "--set model.weights=none."
        ) from error


def _stay_offline_without_network() -> None:
    """The hub client retries for 46 s before it says that there is no network; told to stay offline, it uses what
    it has downloaded before and otherwise fails at once. Behind a proxy only the client itself can know."""
    from huggingface_hub import constants

    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return
    hub = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((hub.hostname or "", hub.port or 443), timeout=5).close()
    except OSError:
        constants.HF_HUB_OFFLINE = True


def _timm() -> Any:
    try:
        import timm
    except (ImportError, RuntimeError) as error:
        raise MissingPartError(
            f"This network comes from timm, which does not import here ({_first_line(error)}). Install it with "
            "`pip install timm torchvision`, or use our own network: --set model.name=small."
        ) from error
    return timm


def _known(timm: Any) -> set[str]:
    return {*timm.list_models(), *timm.list_models(pretrained=True)}


def _unknown_name(timm: Any, name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, sorted(_known(timm)), n=5)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    return (
        f"Unknown model.name {name!r}.{hint} Valid: small, or one of timm's {len(timm.list_models()):,} names "
        "(python -c \"import timm; print(*timm.list_models('*resnet*'))\" lists some)."
    )


def _drops(module: nn.Module) -> bool:
    """Dropout of torch and drop path of timm carry their probability under these names."""
    name = type(module).__name__
    kept_in = ("p",) if "Dropout" in name else ("drop_prob", "drop_rate")  # drop_rate: for F.dropout, without a module
    probabilities = [getattr(module, attribute, None) for attribute in kept_in]
    return any(isinstance(p, float) and p > 0 for p in probabilities)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
