"""A run directory -> what was trained in it: the network with its weights, the class names, how an image must look.

The weights are those of the best epoch, or of the newest checkpoint where they are asked for, where none are kept, or
where they are damaged: only files with the SHA-256 that their manifest states are used. A run may come from somebody
else: nothing in it is executed, no file that its recipe names is opened, and nothing is fetched for it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError
from torch import nn

from turnaround.errors import InputError, RecipeError, RunDirectoryError, one_of
from turnaround.model.network import build
from turnaround.model.size_limit import at_most_numbers
from turnaround.recipe import Recipe
from turnaround.record.layout import CheckpointName
from turnaround.record.reader import Run
from turnaround.record.schema import BestEpoch
from turnaround.training import checkpoint
from turnaround.training.saving import best_epoch, newest_best
from turnaround.words import percent

MAX_NAMED = 5
WEIGHTS = ("best", "last")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A network in evaluation mode on the CPU, and everything that is needed to ask it."""

    run: Run
    recipe: Recipe
    module: nn.Module
    classes: tuple[str, ...]
    """Class names in the network's order."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    checkpoint: Path
    """The folder that the weights come from: a checkpoint, or that of the best epoch."""
    best: BestEpoch | None
    """The epoch of the weights where they were taken as the best; None where they are the last."""
    passed_over: tuple[str, ...]
    """Damaged weights that would have been used instead, each in a sentence."""

    @property
    def name(self) -> str:
        """The name of the run: that of its folder."""
        return self.run.path.resolve().name

    def notes(self) -> list[str]:
        """Return a sentence for each damaged one that would have been used instead."""
        return [f"{reason}; {self.checkpoint.name} is used" for reason in self.passed_over]

    @property
    def which(self) -> str:
        """The epoch whose weights these are, and by which measure it was taken, in words."""
        if self.best is None:
            at = f"epoch {self.position.epoch}" + (f", step {self.position.step}" if self.position.step else "")
            return f"weights after {at}, the last that are saved"
        last = max((record.epoch for record in self.run.epochs), default=self.best.epoch)
        if last <= 1:
            return "weights of epoch 1, the only one"
        # Said wherever the best is shown: a maximum over many noisy figures lies above what it will do elsewhere.
        return (
            f"weights of epoch {self.best.epoch}, the best of {last} by validation accuracy "
            f"({percent(self.best.val_accuracy, 1)}: chosen on these images, so a little optimistic)"
        )

    @property
    def val_accuracy(self) -> float | None:
        """The validation accuracy of these weights; None where it was not measured."""
        if self.best is not None:
            return self.best.val_accuracy
        evaluation = self.run.evaluation
        return evaluation.top1 if evaluation is not None and evaluation.epoch == self.epoch else None

    @property
    def position(self) -> CheckpointName:
        """The position in the training at which the weights were saved: after whole epochs, or within one."""
        name = CheckpointName.parse(self.checkpoint.name)
        assert name is not None, "only folders with such a name are looked at"
        return name

    @property
    def size_px(self) -> int:
        return self.recipe.size_px

    @property
    def epoch(self) -> int:
        """The number of epochs that the weights were trained for."""
        return self.position.epoch


def load_trained(path: Path, *, weights: str = "best") -> Trained:
    """Load the best or the last valid weights of a run; RunDirectoryError says what is missing."""
    if weights not in WEIGHTS:
        raise InputError(one_of("--weights", weights, WEIGHTS))
    run = Run.load(path)
    if run.imported is not None:
        raise RunDirectoryError(
            f"{path} was imported from {run.imported.source}: it has figures and no weights. Only a run of "
            "`turnaround train` can be used."
        )
    if run.is_of_others:
        raise RunDirectoryError(
            f"{path} is the record of another program: it has figures and no weights. Only a run of `turnaround train` "
            "can be used."
        )
    recipe, classes = _recipe(run), class_names(run)
    found, passed_over = (None, None) if weights == "last" else newest_best(run.directory.best)
    best, damaged = None if found is None else best_epoch(found), [passed_over] if passed_over else []
    if found is None:
        found, older = checkpoint.newest_valid(run.directory.checkpoint)
        damaged += older
    if found is None:
        raise RunDirectoryError(_no_checkpoint(run, damaged))
    try:
        tensors = checkpoint.evaluated_weights(found)
        # No weights of ImageNet, no file that the recipe names: the checkpoint holds every tensor.
        with at_most_numbers(sum(tensor.numel() for tensor in tensors.values())):
            network = build(replace(recipe.model, weights="none"), num_classes=len(classes), seed=0)
        network.module.load_state_dict(tensors)
    except (RuntimeError, SafetensorError, OSError) as error:
        raise RunDirectoryError(
            f"{found} does not fit {recipe.model.name!r} with {len(classes)} classes ({str(error).splitlines()[0]}): "
            "the recipe was changed after the run began, or timm has changed this network since."
        ) from error
    return Trained(
        run=run,
        recipe=recipe,
        module=network.module.eval().requires_grad_(False),
        classes=classes,
        mean=network.mean,
        std=network.std,
        checkpoint=found,
        best=best,
        passed_over=tuple(damaged),
    )


def class_names(run: Run) -> tuple[str, ...]:
    """Return the class names in the network's order: from the final evaluation, or from the recipe's [images]."""
    images = run.recipe.get("images")
    told = images.get("classes") if isinstance(images, dict) else None
    names = run.evaluation.classes if run.evaluation is not None else told
    if names is None:
        raise RunDirectoryError(
            f"{run.path} has not finished ({run.status.state}), and only a finished run names its classes. "
            f"Go on with it: turnaround resume {shlex.quote(str(run.path))}"
        )
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_list or len(names) < 2 or len(set(names)) != len(names):
        raise RunDirectoryError(f"{run.path}: its class names are damaged ({str(names)[:80]}). Train again.")
    return tuple(names)


def _recipe(run: Run) -> Recipe:
    try:
        return Recipe.from_record(run.recipe).resolved()
    except RecipeError as error:
        raise RunDirectoryError(f"{run.directory.recipe} is no recipe of this turnaround: {error}") from error


def _no_checkpoint(run: Run, passed_over: list[str]) -> str:
    if passed_over:
        named = "; ".join(passed_over[:MAX_NAMED])
        return f"No checkpoint of {run.path} can be used: {named}. Copy the run again from where it was trained."
    return (
        f"{run.path} has no checkpoint: it has not come to the end of its first epoch, or the folder was removed. "
        f"Go on with it: turnaround resume {shlex.quote(str(run.path))}"
    )
