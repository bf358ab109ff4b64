"""Weights from a file into a network, or one clear message why they do not fit.

A .safetensors file, or a PyTorch file read with `weights_only=True`: never a pickle that could run code.
The last layer may differ, since it is replaced; everything else must match by name and shape.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from turnaround.errors import ModelError


def load_weights(module: nn.Module, path: Path, *, name: str, heads: tuple[str, ...]) -> None:
    """Copies the file's tensors into the network, all but the last layer, whose names begin with one of `heads`."""
    found = _read(path)
    wanted = module.state_dict()
    body = {k: v for k, v in wanted.items() if not k.startswith(heads)}
    counters = {k for k in body if k.endswith("num_batches_tracked")}  # some exporters leave them out; they do no harm
    missing = sorted(k for k in body if k not in found and k not in counters)
    reshaped = sorted(k for k in body if k in found and found[k].shape != body[k].shape)
    unexpected = sorted(k for k in found if k not in wanted and not k.startswith(heads))
    if missing or reshaped or unexpected:
        raise ModelError(
            _misfit(path, name, {"missing": missing, "of another shape": reshaped, "unexpected": unexpected})
        )
    module.load_state_dict({**wanted, **{k: v for k, v in found.items() if k in body}})


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ModelError(f"There is no weights file {str(path)!r}. model.weights takes a file, imagenet, or none.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # safetensors and torch raise many kinds for a damaged file
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
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


def _misfit(path: Path, name: str, problems: dict[str, list[str]]) -> str:
    parts = [f"{len(keys)} {kind} (such as {', '.join(keys[:3])})" for kind, keys in problems.items() if keys]
    return (
        f"{str(path)!r} does not fit model.name = {name!r}: tensors {'; '.join(parts)}. "
        "Choose the network that the weights were made for, or other weights."
    )
