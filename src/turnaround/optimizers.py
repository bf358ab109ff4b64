"""The optimizers, one row each: which class, with which constants, how fast, and how it scales with the workers.

A new optimizer is a new row; recipe.py, the learning rate (training/schedule.py) and the checkpoints read it from here.
Importing this module loads no torch: the command line lists and checks the names too.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from turnaround.errors import MissingPartError
from turnaround.lean_imports import module_alone, not_installed

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
    is_adaptive: bool = False
    """True where a step is divided by the gradients' own size, as Adam does: a rate that grows linearly with the batch
    overshoots (Malladi 2022)."""
    has_betas: bool = False
    """True where it has Adam's moving averages, whose memory `scaling = auto` keeps constant in images."""
    can_fuse: bool = False
    """torch updates all parameters in one launch on a GPU."""
    can_capture: bool = False
    """Its update has so many launches that it is captured as a CUDA graph (training/graph.py), in versions of its
    library that keep everything they count on the device."""
    weight_decay: float = 0.01
    rate_grows_with_batch: bool = False
    """True where the learning rates above are multiplied by the square root of (images a worker / 32)."""
    min_momentum: float | None = None
    """`scaling = auto` lowers `momentum` with the workers as it lowers Adam's betas, to this at the least; None: not
    at all."""
    max_batch_from_scratch: int
    """The most images a step, over all workers, at which `scaling = auto` is known to keep the accuracy of a network
    that is trained from scratch within a point of that at 128; beyond it the training warns before it begins."""
    max_batch_mixed: int | None = None
    """The same where images are mixed, as far as that is known to be less."""

    def known_batch(self, *, mixes: bool) -> int:
        """Return up to how many images a step the accuracy is known to be kept."""
        return self.max_batch_mixed if mixes and self.max_batch_mixed is not None else self.max_batch_from_scratch


# From scratch at 128 images a worker, a thin ResNet-9 (2 million weights), 12 epochs of CIFAR-10, 5,000 training
# images held out, best of the rates tried, 1 / 16 / 64 workers (docs/LOG.md, 2026-11-16): sgd 89.2 / 86.9 / 52, adamw
# 88.9 / 86.6 / 65, lamb 88.1 / 84.4 / 72, lars 86.2 / 86.6 / 70, adadelta 88.8 / 82.5 / 60, muon 90.2 / 89.2 / no
# figure. The rules hold (for 16 workers sgd's best rate is the linear one, adamw's the square root's or half of it);
# what fails beyond is the number of updates: 60 in all with 64 workers. So lamb and adadelta are known for one worker
# of 128 images only; lars, too, for its 16 took the best of several rates, not the rule's.
OPTIMIZERS = {
    "sgd": OptimizerRow(
        library="torch.optim",
        class_name="SGD",
        learning_rates=LearningRates(0.05, 0.05, 0.005),
        auto_scaling="linear",
        options={"momentum": MOMENTUM, "nesterov": True},
        can_fuse=True,
        # No more is known: `small` lost 1.5 points with 512 images a step (CIFAR-10, 30 epochs), 1,024 lost 2.4
        # (docs/LOG.md, 2026-11-16, a trial before all others).
        max_batch_from_scratch=128,
    ),
    "adam": OptimizerRow(
        library="torch.optim",
        class_name="Adam",
        learning_rates=LearningRates(2e-3, 5e-3, 2e-4),
        auto_scaling="sqrt",
        is_adaptive=True,
        has_betas=True,
        can_fuse=True,
        max_batch_from_scratch=512,  # never measured: adamw's
    ),
    "adamw": OptimizerRow(
        library="torch.optim",
        class_name="AdamW",
        learning_rates=LearningRates(2e-3, 5e-3, 2e-4),
        auto_scaling="sqrt",
        is_adaptive=True,
        has_betas=True,
        can_fuse=True,
        # Between one worker and 1,024 images, which lost 0.8 points; 2,048 lost 1.8 there and 2.3 above.
        max_batch_from_scratch=512,
    ),
    "adadelta": OptimizerRow(
        library="torch.optim",
        class_name="Adadelta",
        learning_rates=LearningRates(1.0, 1.0, 0.1),
        auto_scaling="none",
        # Keras's constants, which the lab's runs used; torch's own rho is 0.9.
        options={"rho": 0.95, "eps": 1e-7},
        max_batch_from_scratch=128,
    ),
    "lamb": OptimizerRow(
        library="timm.optim",
        class_name="Lamb",
        learning_rates=LearningRates(5e-3, 5e-3, 5e-4),
        auto_scaling="sqrt",
        is_adaptive=True,
        has_betas=True,
        max_batch_from_scratch=128,
    ),
    "lars": OptimizerRow(
        library="timm.optim",
        class_name="Lars",
        learning_rates=LearningRates(1.0, 1.0, 0.1),
        auto_scaling="linear",
        options={"momentum": MOMENTUM},
        max_batch_from_scratch=128,
    ),
    # Orthogonalised momentum for matrices and, flattened, convolutions (Jordan 2024), scaled so that a step is as long
    # as one of AdamW (Liu et al. 2025: 0.2 sqrt(max(out, in))); AdamW for everything else. The rate grows with the
    # square root of the batch, both in a worker and over workers, and the momentum keeps its memory in images down to
    # 0.6 (airbench's value for 2,000 images a step). From scratch, ResNet-9 with GELU, CIFAR-10, 16 epochs, 5,000
    # training images held out: 90.9 % with 1 worker of 128 images (with ReLU), 91.2 with 4, 91.2 with 16, 90.1 with
    # 64; half and twice the rate at 64 workers gave 89.5 and 89.8, a momentum of 0.8 89.0 (docs/LOG.md, 2026-11-16).
    "muon": OptimizerRow(
        library="timm.optim",
        class_name="Muon",
        learning_rates=LearningRates(2e-3, 2e-3, 2e-4),
        auto_scaling="sqrt",
        options={"momentum": 0.95, "nesterov": True},
        has_betas=True,
        can_capture=True,
        weight_decay=0.1,
        rate_grows_with_batch=True,
        min_momentum=0.6,
        # resnet11, 30 epochs, one seed: 64 workers lost 0.5 points with light augmentation and 1.6 with strong, whose
        # 16 lost 0.3 (docs/LOG.md, 2026-11-16).
        max_batch_from_scratch=8_192,
        max_batch_mixed=2_048,
    ),
}


def make_optimizer(
    module: nn.Module,
    recipe: TrainingRecipe,
    *,
    betas: tuple[float, float] = ADAM_BETAS,
    momentum: float | None = None,
) -> torch.optim.Optimizer:
    """Make the optimizer of the parameters that learn; a `momentum` replaces that of its row.

    Biases and normalisation, whose scale means nothing, do not decay.
    """
    assert recipe.learning_rate is not None, "resolve the recipe first"
    row = OPTIMIZERS[recipe.optimizer]
    decay = row.weight_decay if recipe.weight_decay is None else recipe.weight_decay
    learning = [p for p in module.parameters() if p.requires_grad]
    # Biases and the scales and shifts of norms are the parameters of one dimension.
    groups = [
        {"params": [p for p in learning if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in learning if p.ndim <= 1], "weight_decay": 0.0},
    ]
    options = dict(row.options)
    if row.has_betas:
        options["betas"] = betas
    if momentum is not None:
        options["momentum"] = momentum
    if row.can_fuse:  # all learning parameters are on one device, so the first one speaks for them
        options["fused"] = learning[0].is_cuda
    kind = _class_of(recipe.optimizer)
    if row.can_capture and learning[0].is_cuda and "capturable" in inspect.signature(kind).parameters:
        options["capturable"] = True
    optimizer: torch.optim.Optimizer = kind(
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
        library = _library(row)
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


def _library(row: OptimizerRow) -> ModuleType:
    """Return a module that has the class of a row, if its library has it.

    `import timm.optim` loads all networks of timm, and torchvision: 3.1 s of computing where the one file of Muon takes
    0.8 (2 cores, 2026-11-16). So that file is loaded alone, where it is called as its class. Of those 0.8 s nearly all
    are the sharded tensors of torch, which our parameters never are and without which it does as well.
    """
    if row.library != "timm.optim" or row.library in sys.modules:
        return importlib.import_module(row.library)
    try:
        with not_installed("torch.distributed.tensor"):
            return module_alone(f"{row.library}.{row.class_name.lower()}")
    except (ImportError, AttributeError):  # a version whose files are arranged otherwise
        return importlib.import_module(row.library)
