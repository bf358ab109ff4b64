"""Facts that torch has about a training, for the frameworks that are built on it. Each answer may be None."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from turnaround.adapters.holding import ask, known


def of_model(model: Any) -> dict[str, Any]:
    """Its name, its size, what of it learns, and where it is."""
    if model is None:
        return {}
    parameters = ask(lambda: list(model.parameters())) or []
    device = ask(lambda: str(parameters[0].device.type))
    found: dict[str, Callable[[], Any]] = {
        "model": lambda: name_of(model),
        "parameters": lambda: sum(p.numel() for p in parameters),
        "trainable_parameters": lambda: sum(p.numel() for p in parameters if p.requires_grad),
        "fine_tune": lambda: None if all(p.requires_grad for p in parameters) else False,
        "device": lambda: device,
        "synchronize": lambda: _waiting_for(device),
    }
    return known(found)


def of_optimizer(optimizer: Any) -> dict[str, Any]:
    if optimizer is None:
        return {}
    return known(
        {
            "optimizer": lambda: type(_inner(optimizer)).__name__.lower(),
            "learning_rate": lambda: float(optimizer.param_groups[0]["lr"]),
        }
    )


def of_loaders(training: Any, validation: Any = None) -> dict[str, Any]:
    """Return the images of both; a set without a length has no number."""
    found: dict[str, Callable[[], Any]] = {
        "batch_per_worker": lambda: training.batch_size or training.batch_sampler.batch_size,
        "num_train": lambda: len(training.dataset),
        "num_validation": lambda: len(validation.dataset),
        "classes": lambda: list(training.dataset.classes),
    }
    return known(found)


def name_of(model: Any) -> str:
    """A framework's wrapper has the network inside."""
    inner = next((m for name in ("module", "model", "net", "network") if (m := getattr(model, name, None))), None)
    is_wrapper = type(model).__name__ in ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
    return type(inner if is_wrapper and inner is not None else model).__name__


def _inner(optimizer: Any) -> Any:
    """Accelerate wraps the optimiser it is given."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if hasattr(inner, "param_groups") else optimizer


def _waiting_for(device: str | None) -> Callable[[], object] | None:
    torch = sys.modules.get("torch")
    if torch is None or device not in ("cuda", "mps"):
        return None
    wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else torch.mps.synchronize
    return wait
