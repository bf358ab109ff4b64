"""The optimizers, one row each: which class, with which constants, how fast, and how it scales with the workers.

A new optimizer is a new row; recipe.py, the learning rate (training/schedule.py) and the checkpoints read it from here.
Importing this module loads no torch: the command line lists and checks the names too.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from turnaround.errors import MissingPartError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from turnaround.recipe import TrainingRecipe

ADAM_BETAS = (0.9, 0.999)
MOMENTUM = 0.9


class LearningRates(NamedTuple):
    """The learning rates to try first, for one worker at batch 32."""

    from_scratch: float
    last_layer: float
    """For a frozen network, of which only the last layer learns."""
    fine_tuned: float
    """Trained weights move by a tenth of the rate, so that the first updates do not wash them out."""


@dataclass(frozen=True, kw_only=True)
class OptimizerRow:
    """The facts about one optimizer."""

    library: Literal["torch.optim", "timm.optim"]
    class_name: str
    learning_rates: LearningRates
    auto_scaling: Literal["linear", "sqrt", "none"]
    """The rule by which `scaling = auto` multiplies the learning rate; the reasons are in training/schedule.py."""
    options: dict[str, Any] = field(default_factory=dict)
    has_betas: bool = False
    """True where it has Adam's moving averages, whose memory `scaling = auto` keeps constant in images."""
    can_fuse: bool = False
    """torch updates all parameters in one launch on a GPU."""


OPTIMIZERS = {
    "sgd": OptimizerRow(
        library="torch.optim",
        class_name="SGD",
        learning_rates=LearningRates(0.05, 0.05, 0.005),
        auto_scaling="linear",
        options={"momentum": MOMENTUM, "nesterov": True},
        can_fuse=True,
    ),
    "adam": OptimizerRow(
        library="torch.optim",
        class_name="Adam",
        learning_rates=LearningRates(2e-3, 5e-3, 2e-4),
        auto_scaling="sqrt",
        has_betas=True,
        can_fuse=True,
    ),
    "adamw": OptimizerRow(
        library="torch.optim",
        class_name="AdamW",
        learning_rates=LearningRates(2e-3, 5e-3, 2e-4),
        auto_scaling="sqrt",
        has_betas=True,
        can_fuse=True,
    ),
    "adadelta": OptimizerRow(
        library="torch.optim",
        class_name="Adadelta",
        learning_rates=LearningRates(1.0, 1.0, 0.1),
        auto_scaling="none",
        # Keras's constants, which the lab's runs used; torch's own rho is 0.9.
        options={"rho": 0.95, "eps": 1e-7},
    ),
    "lamb": OptimizerRow(
        library="timm.optim",
        class_name="Lamb",
        learning_rates=LearningRates(5e-3, 5e-3, 5e-4),
        auto_scaling="sqrt",
        has_betas=True,
    ),
    "lars": OptimizerRow(
        library="timm.optim",
        class_name="Lars",
        learning_rates=LearningRates(1.0, 1.0, 0.1),
        auto_scaling="linear",
        options={"momentum": MOMENTUM},
    ),
    # Orthogonalised momentum for matrices and, flattened, convolutions (Jordan 2024), scaled so that a step is as long
    # as one of AdamW (Liu et al. 2025: 0.2 sqrt(max(out, in))); AdamW for everything else. On CIFAR-10 with a residual
    # network of 2.4 million weights it reached 90.6 % at 128 images a step and 86.1 % at 8,192, where AdamW had 90.0
    # and 77.6 %; of the rates that were tried the lowest was best, so the rates here are low. The scaling rule is
    # AdamW's: nobody has measured it yet from scratch at scale.
    "muon": OptimizerRow(
        library="timm.optim",
        class_name="Muon",
        learning_rates=LearningRates(2e-3, 2e-3, 2e-4),
        auto_scaling="sqrt",
        has_betas=True,
    ),
}


def make_optimizer(
    module: nn.Module, recipe: TrainingRecipe, *, betas: tuple[float, float] = ADAM_BETAS
) -> torch.optim.Optimizer:
    """Make the optimizer of the parameters that learn.

    Biases and normalisation, whose scale means nothing, do not decay.
    """
    assert recipe.learning_rate is not None, "resolve the recipe first"
    row = OPTIMIZERS[recipe.optimizer]
    learning = [p for p in module.parameters() if p.requires_grad]
    # Biases and the scales and shifts of norms are the parameters of one dimension.
    groups = [
        {"params": [p for p in learning if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in learning if p.ndim <= 1], "weight_decay": 0.0},
    ]
    options = dict(row.options)
    if row.has_betas:
        options["betas"] = betas
    if row.can_fuse:  # all learning parameters are on one device, so the first one speaks for them
        options["fused"] = learning[0].is_cuda
    optimizer: torch.optim.Optimizer = _class_of(recipe.optimizer)(
        # A group without parameters is left out: a network may have no norms, a last layer no bias.
        [group for group in groups if group["params"]],
        lr=recipe.learning_rate,
        **options,
    )
    return optimizer


def _class_of(name: str) -> Any:
    """Return the class of a row, or say what to install: not every version of a library has every optimizer."""
    row = OPTIMIZERS[name]
    package = row.library.partition(".")[0]
    try:
        library = importlib.import_module(row.library)
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that was built for another torch
        raise MissingPartError(
            f"training.optimizer={name} comes from {package}, which does not import here. Install it with "
            "`pip install timm torchvision`, or choose another training.optimizer."
        ) from error
    if row.class_name not in vars(library):
        version = vars(importlib.import_module(package)).get("__version__", "of this version")
        raise MissingPartError(
            f"training.optimizer={name} is not in {package} {version}, which is installed here. Install a newer one "
            f"(`pip install --upgrade {package}`), or choose another training.optimizer."
        )
    return vars(library)[row.class_name]
