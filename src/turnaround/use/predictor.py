"""Squares of pixels -> classes with probabilities, in batches, on the best device that is here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from turnaround.errors import InputError
from turnaround.model.network import Network
from turnaround.training.choices import choose_device, computes_bf16
from turnaround.training.frozen import Split, split
from turnaround.use.graph import WithPreprocessing
from turnaround.use.images import DecodedImage, Picture, Square, decode_all, square_of
from turnaround.use.trained import Trained, load_trained
from turnaround.workers.environment import RankInfo

BATCH = 64


@dataclass(frozen=True)
class Guess:
    """One class, and how probable the network holds it."""

    name: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class ClassifiedFile:
    """The classes of one file, or why it could not be read."""

    name: str
    guesses: tuple[Guess, ...]
    """The most probable first; empty when the file could not be read."""
    problem: str | None


class Predictor:
    """A trained network that classifies."""

    def __init__(self, trained: Trained, *, device: str = "auto") -> None:
        self.trained = trained
        self.device = choose_device(device, RankInfo()).value.device
        self.graph = WithPreprocessing(trained, network=_as_trained(trained, self.device)).to(self.device)

    @classmethod
    def load(cls, run: Path, *, device: str = "auto", weights: str = "best") -> Predictor:
        """Load the network of a run directory, with the weights of its best or its last epoch."""
        return cls(load_trained(run, weights=weights), device=device)

    def classify(self, pictures: Iterable[Picture], *, top: int = 5) -> list[tuple[Guess, ...]]:
        """Return the classes of each picture, the most probable first; UnreadableImage for one that is none."""
        top = self.checked_top(top)
        squares = [
            square_of(picture, size_px=self.trained.size_px, name=f"picture {number}")
            for number, picture in enumerate(pictures, start=1)
        ]
        return self.guesses(squares, top=top)

    def classify_files(
        self, files: Sequence[Path], *, top: int = 5, on_batch: Callable[[list[ClassifiedFile]], None] | None = None
    ) -> list[ClassifiedFile]:
        """Return an answer for every file, in order, also for those that cannot be read; `on_batch` gets each batch."""
        top, answers = self.checked_top(top), []
        for first in range(0, len(files), BATCH):
            decoded = decode_all(list(files[first : first + BATCH]), size_px=self.trained.size_px)
            batch = self._answers(decoded, top)
            answers += batch
            if on_batch is not None:
                on_batch(batch)
        return answers

    def _answers(self, decoded: Sequence[DecodedImage], top: int) -> list[ClassifiedFile]:
        guessed = iter(self.guesses([one.square for one in decoded if one.square is not None], top=top))
        return [
            ClassifiedFile(name=one.name, guesses=() if one.square is None else next(guessed), problem=one.problem)
            for one in decoded
        ]

    def guesses(self, squares: Sequence[Square], *, top: int) -> list[tuple[Guess, ...]]:
        """Classify pixels that are decoded already."""
        found: list[tuple[Guess, ...]] = []
        for first in range(0, len(squares), BATCH):
            probabilities = self.logits(squares[first : first + BATCH]).softmax(dim=1)
            best = probabilities.topk(top, dim=1)
            for values, places in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                names = (self.trained.classes[place] for place in places)
                found.append(tuple(Guess(name, value) for name, value in zip(names, values, strict=True)))
        return found

    @torch.inference_mode()
    def logits(self, squares: Sequence[Square]) -> Tensor:
        """Return the logits on the CPU, (N, classes), in single precision."""
        # (N, size, size, 3) bytes cross to the device: a quarter of what normalised floats would be.
        images = torch.from_numpy(np.stack(squares)).to(self.device)
        logits: Tensor = self.graph(images)
        return logits.cpu()

    def checked_top(self, top: int) -> int:
        """Return `top`, but at most the number of classes."""
        if top < 1:
            raise InputError(f"top must be 1 or more. Received: {top}.")
        return min(top, len(self.trained.classes))


def _as_trained(trained: Trained, device: torch.device) -> nn.Module:
    """Return the network, on a processor with its frozen backbone in the precision that the training computed it in.

    So the run's own validation images are counted as in its evaluation.json, to the last borderline one.
    """
    # A run may come from somebody else: nothing in its record is taken for granted.
    choices = trained.run.machine.get("choices")
    chosen = choices.get("backbone") if isinstance(choices, dict) else None
    precision = chosen.get("value") if isinstance(chosen, dict) else None
    if device.type != "cpu" or precision != "bf16" or not computes_bf16():
        return trained.module
    network = Network(module=trained.module, mean=trained.mean, std=trained.std, fine_tune=False)
    parts = split(network, size_px=trained.size_px)
    return trained.module.eval() if parts is None else HalfBackbone(parts)


class HalfBackbone(nn.Module):
    """A frozen backbone in bf16 with its last layer in fp32."""

    def __init__(self, parts: Split) -> None:
        super().__init__()
        self.backbone, self.head = parts.backbone, parts.head
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            features = self.backbone(images)
        return self.head(features.float())  # type: ignore[no-any-return]
