"""Any network by name: ours, or one of timm's; frozen backbone or fine-tuned; a new last layer for the classes.

Weights come from timm or from a file: .safetensors, or a PyTorch file read with `weights_only=True`, never a pickle
that could run code. The last layer may differ, since it is replaced; everything else must match by name and shape.
Of timm only what a network needs is imported, when it is asked for (timm_networks.py): the core runs with torch alone.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from turnaround.errors import MissingPartError, ModelError
from turnaround.model.convolutions import compute_depthwise_ourselves, multiply_full_windows
from turnaround.model.resnet11 import ResNet11
from turnaround.model.small import SmallNetwork
from turnaround.model.timm_networks import Timm, timm_for
from turnaround.recipe import AUTO, RESNET11, SMALL_NETWORK, ModelRecipe

OWN_NETWORKS: dict[str, Callable[..., nn.Module]] = {SMALL_NETWORK: SmallNetwork, RESNET11: ResNet11}
"""Our own networks by name; every other name is timm's."""
FROM_SCRATCH = ("none", AUTO)
"""Values of model.weights: a choice that nobody has made (launch/automatic.py) is none."""

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
        """Switch to training mode; a frozen backbone stays in eval mode, so that its batch norms do not drift."""
        self.module.train(self.fine_tune)
        classifier_of(self.module).train()

    def batch_norms(self) -> list[nn.Module]:
        """Return the batch norms that compute statistics over a worker's images while training."""
        return [m for m in self._in_training().modules() if isinstance(m, _BATCH_NORMS)]

    def is_random(self) -> bool:
        """Tell whether a training pass draws random numbers (dropout, stochastic depth)."""
        return any(_drops(m) for m in self._in_training().modules())

    def _in_training(self) -> nn.Module:
        """Return the part in training mode: everything, or the last layer, which may hold a batch norm too (LeViT)."""
        return self.module if self.fine_tune else classifier_of(self.module)

    def couples_images(self) -> bool:
        """Tell whether images of a pass affect each other: then gradients of its halves do not add up to its own."""
        return bool(self.batch_norms()) or self.is_random()


def build(recipe: ModelRecipe, *, num_classes: int, seed: int) -> Network:
    """Build the network of a recipe. The new layers depend on `seed` alone, so every process makes the same ones."""
    torch.manual_seed(seed)  # whatever was drawn before: a resumed process builds the same last layer
    name = SMALL_NETWORK if recipe.name == AUTO else recipe.name  # a choice that nobody has made
    if name in OWN_NETWORKS:
        if recipe.weights == "imagenet":
            raise ModelError(f"There are no ImageNet weights for `{name}`. Set model.weights to none or to a file.")
        module = OWN_NETWORKS[name](num_classes=num_classes)
        mean, std = IMAGENET_MEAN, IMAGENET_STD
    else:
        module = _timm_module(recipe, num_classes=num_classes)
        multiply_full_windows(module)
        compute_depthwise_ourselves(module)
        config = getattr(module, "pretrained_cfg", {})
        mean, std = tuple(config.get("mean", IMAGENET_MEAN)), tuple(config.get("std", IMAGENET_STD))
    if recipe.weights not in (*FROM_SCRATCH, "imagenet"):
        load_weights(module, Path(recipe.weights), name=name, heads=head_prefixes(module))
    if (
        recipe.weights not in FROM_SCRATCH
    ):  # also a layer for as many classes goes: nothing says that they are the same classes
        _start_near_zero(classifier_of(module))
    fine_tune = recipe.fine_tune is not False
    if not fine_tune:
        module.requires_grad_(False)
        classifier_of(module).requires_grad_(True)
    return Network(module=module, mean=mean, std=std, fine_tune=fine_tune)


def input_mean(name: str) -> tuple[float, float, float]:
    """Return the mean that a network of this name subtracts from its images, without building it."""
    if name in OWN_NETWORKS:
        return IMAGENET_MEAN
    config = _timm(name, downloads=False).get_pretrained_cfg(name, allow_unregistered=True)
    red, green, blue = IMAGENET_MEAN if config is None else config.mean
    return float(red), float(green), float(blue)


def load_code(name: str, *, downloads: bool = True) -> None:
    """Import what a network of this name needs; `downloads`: its trained weights may be fetched."""
    if name not in OWN_NETWORKS:
        _timm(name, downloads=downloads)


def classifier_of(module: nn.Module) -> nn.Module:
    """Return the last layer; raise ModelError where there is none that could be replaced."""
    classifier: Any = module.get_classifier()  # type: ignore[operator]  # ours and timm's all have it
    if isinstance(classifier, tuple | list):  # distilled networks have two heads
        classifier = nn.ModuleList(classifier)
    if not isinstance(classifier, nn.Module) or not any(True for _ in classifier.parameters()):
        raise ModelError(
            f"{type(module).__name__} has no last layer that could be replaced; choose another model.name."
        )
    return classifier


def _start_near_zero(classifier: nn.Module) -> None:
    """Initialise the last layer with small weights.

    On trained features a large random one must be unlearned first: 768 fruit photos, six epochs of a frozen
    tf_efficientnet_lite0 gave 84 % with the layer as timm makes it (standard deviation 0.24) and 94 % like this.
    """
    for layer in classifier.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.normal_(layer.weight, std=0.01)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def head_prefixes(module: nn.Module) -> tuple[str, ...]:
    """Return the last layer's prefixes in the state dict: ("head.",), or two where a network has two heads."""
    classifier = classifier_of(module)
    heads = list(classifier) if isinstance(classifier, nn.ModuleList) else [classifier]
    return tuple(f"{name}." for name, m in module.named_modules() if any(m is head for head in heads))


def _timm_module(recipe: ModelRecipe, *, num_classes: int) -> nn.Module:
    pretrained = recipe.weights == "imagenet"
    timm = _timm(recipe.name, downloads=pretrained)
    if pretrained:
        _stay_offline_without_network()
    try:
        return timm.create_model(recipe.name, pretrained=pretrained, num_classes=num_classes)  # type: ignore[no-any-return]
    except Exception as error:  # hub clients raise many kinds; with no download asked for it is timm's own complaint
        if not pretrained:
            raise ModelError(f"timm cannot make {recipe.name!r} for {num_classes} classes: {error}") from error
        raise MissingPartError(
            f"The ImageNet weights of {recipe.name!r} could not be had ({_first_sentence(error)}). Without a network, "
            "give a file: --set model.weights=FILE.safetensors (or a PyTorch file), or train from scratch: "
            "--set model.weights=none."
        ) from error


def _stay_offline_without_network() -> None:
    """Tell the hub client to stay offline where there is no network.

    It would retry for 46 s before it says so; offline, it uses what it has downloaded before and otherwise fails at
    once. Behind a proxy only the client itself can know.
    """
    from huggingface_hub import constants

    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return
    hub = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((hub.hostname or "", hub.port or 443), timeout=5).close()
    except OSError:
        constants.HF_HUB_OFFLINE = True


def _timm(name: str, *, downloads: bool) -> Timm:
    """Return as much of timm as a network of this name needs, or say that there is none."""
    try:
        timm = timm_for(name, downloads=downloads)
        if name in _known(timm):
            return timm
        whole: Timm = importlib.import_module("timm")
    except (ImportError, RuntimeError) as error:
        raise MissingPartError(
            f"This network comes from timm, which does not import here ({_first_sentence(error)}). Install it with "
            "`pip install timm torchvision`, or use our own network: --set model.name=small."
        ) from error
    if name not in _known(whole):
        raise ModelError(_unknown_name(whole, name))
    return whole


def _known(timm: Timm) -> set[str]:
    return {*timm.list_models(), *timm.list_models(pretrained=True)}


def _unknown_name(timm: Timm, name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, sorted(_known(timm)), n=5)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    return (
        f"Unknown model.name {name!r}.{hint} Valid: {', '.join(OWN_NETWORKS)}, or one of timm's "
        f"{len(timm.list_models()):,} names "
        "(turnaround models WORD lists those with a word in them)."
    )


def _drops(module: nn.Module) -> bool:
    """Dropout of torch and drop path of timm carry their probability under these names."""
    name = type(module).__name__
    kept_in = ("p",) if "Dropout" in name else ("drop_prob", "drop_rate")  # drop_rate: for F.dropout, without a module
    probabilities = [getattr(module, attribute, None) for attribute in kept_in]
    return any(isinstance(p, float) and p > 0 for p in probabilities)


def _first_sentence(error: BaseException) -> str:
    # A hub client goes on in further ones with what to do about its own flags.
    return (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". ")[0][:200]


def cost(module: nn.Module, *, size_px: int) -> dict[str, int]:
    """Parameters, FLOPs (two per multiply-add) of one image forward, and the bytes that processes exchange a step."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    return {
        "parameters": sum(p.numel() for p in module.parameters()),
        "trainable_parameters": sum(p.numel() for p in trainable),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in trainable),
        "forward_flops_per_image": _forward_flops(module, size_px=size_px),
    }


def _forward_flops(module: nn.Module, *, size_px: int) -> int:
    was_training = {m: m.training for m in module.modules()}
    module.eval()
    like = next(module.parameters())
    image = torch.zeros(1, 3, size_px, size_px, device=like.device, dtype=like.dtype)
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module(image)
    except (AssertionError, RuntimeError, ValueError) as error:  # most transformers are made for one size
        raise ModelError(
            f"The network does not take images of {size_px} px ({error}). Set data.size_px to the size it is made for."
        ) from error
    for child, training in was_training.items():
        child.training = training
    return int(counter.get_total_flops())


def load_weights(module: nn.Module, path: Path, *, name: str, heads: tuple[str, ...]) -> None:
    """Copies the file's tensors into the network, all but the last layer, whose names begin with one of `heads`."""
    found = _read_weights(path)
    wanted = module.state_dict()
    body = {k: v for k, v in wanted.items() if not k.startswith(heads)}
    counters = {k for k in body if k.endswith("num_batches_tracked")}  # some exporters leave them out; they do no harm
    missing = sorted(k for k in body if k not in found and k not in counters)
    reshaped = sorted(k for k in body if k in found and found[k].shape != body[k].shape)
    unexpected = sorted(k for k in found if k not in wanted and not k.startswith(heads))
    if missing or reshaped or unexpected:
        raise ModelError(
            _misfit_message(path, name, {"missing": missing, "of another shape": reshaped, "unexpected": unexpected})
        )
    module.load_state_dict({**wanted, **{k: v for k, v in found.items() if k in body}})


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ModelError(f"There is no weights file {str(path)!r}. model.weights takes a file, imagenet, or none.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # safetensors and torch raise many kinds for a damaged file
        reason = _first_sentence(error)
        if "weights only" in reason.lower():  # torch goes on to recommend opening it without that care
            reason = "no PyTorch file, or one that holds more than tensors"
        raise ModelError(
            f"{str(path)!r} cannot be read as weights ({reason}). Give a .safetensors file, or a PyTorch file that "
            "holds tensors only (a state dict)."
        ) from error
    for wrapper in ("state_dict", "model"):  # the usual wrappings of published checkpoints
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    items = content.items() if isinstance(content, dict) else ()
    tensors = {k: v for k, v in items if isinstance(k, str) and isinstance(v, Tensor)}
    if not tensors:
        raise ModelError(f"{str(path)!r} holds no tensors by name. Save a state dict, best as .safetensors.")
    return {k.removeprefix("module."): v for k, v in tensors.items()}


def _misfit_message(path: Path, name: str, problems: dict[str, list[str]]) -> str:
    parts = [f"{len(keys)} {kind} (such as {', '.join(keys[:3])})" for kind, keys in problems.items() if keys]
    return (
        f"{str(path)!r} does not fit model.name = {name!r}: tensors {'; '.join(parts)}. "
        "Choose the network that the weights were made for, or other weights."
    )
