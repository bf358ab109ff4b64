"""A run's network on other images with known labels: what is right, what is not, and how sure it was.

Enters: a predictor and labelled images. Leaves: the same `Evaluation` that a training ends with, and every image. The
counts are those of training/evaluate.py, so the figures mean the same as in evaluation.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from turnaround.data.labelled import LabelledImages, refuse_unknown_labels
from turnaround.errors import DataError
from turnaround.record.schema import Evaluation
from turnaround.training.evaluate import ClassCounts, Counts, final_evaluation
from turnaround.use.images import decode_all
from turnaround.use.predictor import BATCH, Predictor
from turnaround.words import counted

Show = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class EvaluatedImage:
    """One image: what it is, and what the network took it for."""

    file: str
    label: str
    predicted: str
    confidence: float
    """Probability that the network gives the class that it predicts."""
    label_probability: float
    """Probability that it gives the right class."""
    rank: int
    """Place of the right class among the predictions, from 1."""

    @property
    def is_right(self) -> bool:
        return self.rank == 1


@dataclass(frozen=True, kw_only=True)
class UnreadableFile:
    """A file that is no image, and why."""

    file: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class EvaluatedRun:
    """The figures of one run on labelled images, and each image."""

    run: Path
    weights: str
    """best or last."""
    which: str
    """The epoch whose weights these are, in words."""
    evaluation: Evaluation
    images: tuple[EvaluatedImage, ...]
    unreadable: tuple[UnreadableFile, ...]
    notes: tuple[str, ...] = ()
    """Sentences about the images that bear on every figure."""

    def mistakes(self) -> list[EvaluatedImage]:
        """Return the wrong answers, the surest first."""
        wrong = [image for image in self.images if not image.is_right]
        return sorted(wrong, key=lambda image: (-image.confidence, image.label_probability, image.file))


def evaluate_run(predictor: Predictor, images: LabelledImages, *, show: Show = lambda *_: None) -> EvaluatedRun:
    """Classify every image and count; unreadable files are named and count in no figure."""
    trained = predictor.trained
    refuse_unknown_labels(images, trained.classes, run=trained.run.path)
    # On the CPU: the logits are there already, and counting takes no time beside decoding.
    by_class = ClassCounts(len(trained.classes), torch.device("cpu"))
    unreadable: list[UnreadableFile] = []
    found: list[EvaluatedImage] = []
    for first in range(0, len(images.files), BATCH):
        found += _batch(predictor, images, range(first, min(first + BATCH, len(images.files))), by_class, unreadable)
        show("classifying images", min(first + BATCH, len(images.files)), len(images.files))
    if not found:
        example = unreadable[0]
        raise DataError(
            f"None of the {counted(len(unreadable), 'file')} of {str(images.source)!r} is an image that can be read. "
            f"{example.file!r}: {example.reason}."
        )
    counts = Counts(
        num_images=len(found),
        loss_sum=-sum(math.log(max(image.label_probability, 1e-30)) for image in found),
        num_top1=sum(image.is_right for image in found),
        num_top5=sum(image.rank <= 5 for image in found),
        confusion=by_class.confusion,
        num_predicted=by_class.num_predicted,
        calibration=by_class.calibration,
    )
    return EvaluatedRun(
        run=trained.run.path,
        weights="last" if trained.best is None else "best",
        which=trained.which,
        evaluation=final_evaluation(counts, epoch=trained.epoch, classes=trained.classes),
        images=tuple(found),
        unreadable=tuple(unreadable),
        notes=(*images.notes, *_trained_on(predictor, images)),
    )


def _batch(
    predictor: Predictor,
    images: LabelledImages,
    places: range,
    by_class: ClassCounts,
    unreadable: list[UnreadableFile],
) -> Iterator[EvaluatedImage]:
    """Yield the images of one batch, counted in `by_class`; note those that cannot be read."""
    classes = predictor.trained.classes
    decoded = decode_all([images.root / images.files[place] for place in places], size_px=predictor.trained.size_px)
    bad = [(place, one.problem) for place, one in zip(places, decoded, strict=True) if one.square is None]
    unreadable += (UnreadableFile(file=images.files[place], reason=reason or "") for place, reason in bad)
    readable = [(place, one.square) for place, one in zip(places, decoded, strict=True) if one.square is not None]
    if not readable:
        return
    logits = predictor.logits([square for _, square in readable]).float()  # (N, classes)
    number_of = {name: number for number, name in enumerate(classes)}
    labels = torch.tensor([number_of[images.labels[place]] for place, _ in readable])  # (N,)
    order = logits.argsort(dim=1, descending=True, stable=True)  # (N, classes), the most probable first
    by_class.add(logits, labels, predicted=order[:, 0])
    probabilities = logits.softmax(dim=1)
    ranks = (order == labels[:, None]).int().argmax(dim=1) + 1  # (N,), from 1
    for row, (place, _) in enumerate(readable):
        best = int(order[row, 0])
        yield EvaluatedImage(
            file=images.files[place],
            label=images.labels[place],
            predicted=classes[best],
            confidence=float(probabilities[row, best]),
            label_probability=float(probabilities[row, labels[row]]),
            rank=int(ranks[row]),
        )


def _trained_on(predictor: Predictor, images: LabelledImages) -> Iterator[str]:
    """Yield a caution where the images lie in the folder that the run was trained from."""
    source = Path(predictor.trained.recipe.data.source)
    try:
        is_own = source.is_dir() and images.root.resolve().is_relative_to(source.resolve())
    except OSError:
        return
    if is_own:
        yield (
            f"These images lie in {str(source)!r}, which the run was trained from: where they were trained on, the "
            "accuracy says nothing about new images."
        )
