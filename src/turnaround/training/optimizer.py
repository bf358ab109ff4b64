"""Update rules by name. LAMB and LARS are timm's; the others torch's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from turnaround.errors import MissingPartError
from turnaround.recipe import TrainingRecipe
from turnaround.training.schedule import ADAM_BETAS

MOMENTUM = 0.9


def make_optimizer(
    module: nn.Module, recipe: TrainingRecipe, *, betas: tuple[float, float] = ADAM_BETAS
) -> torch.optim.Optimizer:
    """Over the parameters that learn; no weight decay on biases and normalisation, whose scale means nothing."""
    learning = [p for p in module.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in learning if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in learning if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [g for g in groups if g["params"]]
    rate = recipe.learning_rate
    assert rate is not None, "resolve the recipe first"
    fused = learning[0].is_cuda  # one launch for all parameters
    match recipe.optimizer:
        case "sgd":
            return torch.optim.SGD(groups, lr=rate, momentum=MOMENTUM, nesterov=True, fused=fused)
        case "adam":
            return torch.optim.Adam(groups, lr=rate, betas=betas, fused=fused)
        case "adamw":
            return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=fused)
        case "adadelta":
            # Keras's constants, which the lab's runs used; torch's own rho is 0.9.
            return torch.optim.Adadelta(groups, lr=rate, rho=0.95, eps=1e-7)
        case "lamb":
            return _timm_optimizers().Lamb(groups, lr=rate, betas=betas)  # type: ignore[no-any-return]
        case "lars":
            return _timm_optimizers().Lars(groups, lr=rate, momentum=MOMENTUM)  # type: ignore[no-any-return]
    raise AssertionError(f"the recipe let {recipe.optimizer!r} through")


def _timm_optimizers() -> Any:
    try:
        import timm.optim
    except (ImportError, RuntimeError) as error:
        raise MissingPartError(
            "LAMB and LARS come from timm, which does not import here. Install it with `pip install timm torchvision`, "
            "or choose another training.optimizer."
        ) from error
    return timm.optim
