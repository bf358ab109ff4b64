"""Findings about the images: what the record of a run tells of leaks and of unequal classes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from turnaround.analysis.compare import value_at
from turnaround.analysis.configurations import Workload
from turnaround.findings.finding import Draft, Evidence
from turnaround.record.reader import Run
from turnaround.words import counted, percent

IMBALANCE_RATIO = 10
"""The limit of the scan of a folder (data/folder.py): with it, the rarest of two classes is below a tenth of all."""


def leak(job: Workload) -> Iterator[Draft]:
    """Report validation images that were trained on, as the check of the images counted them."""
    for name, run in _runs(job):
        leaks = value_at(run.recipe, "images", "leaks")
        num, of = value_at(leaks, "num"), value_at(leaks, "of")
        if type(num) is int and num > 0:
            share = f" of {of:,} ({percent(num / of)})" if isinstance(of, int) and of >= num else ""
            text = (
                f"{num:,}{share} validation images have a copy or a variant among the training images: the validation "
                "accuracy is too high by an unknown amount."
            )
            yield Draft(
                text=text,
                evidence=(Evidence(run=name, what="validation images that leak", value=num, unit="images"),),
                advice="Split by photo (data.split_by_photo=auto), or remove the copies; turnaround check lists them.",
            )
            return  # the images are those of the job: once is enough


def class_imbalance(job: Workload) -> Iterator[Draft]:
    """Report classes of very unequal size: one class has more than ten times the images of another."""
    for name, run in _runs(job):
        text, evidence = _imbalance(name, run)
        if text:
            yield Draft(text=text, evidence=evidence, advice=_imbalance_advice(run))
            return


def _imbalance_advice(run: Run) -> str:
    """Say what can be done without more images, as the command to type, unless it was done."""
    read = "Read the macro F1 and the recall of each class: the large ones decide the accuracy."
    if value_at(run.recipe, "training", "class_weights") == "balanced":
        return f"{read} The loss weighs the classes alike already; add images to the small ones."
    source = value_at(run.recipe, "data", "source")
    words = ["turnaround", "train", str(source or "SOURCE"), "--set", "training.class_weights=balanced"]
    return f"{read} Weigh them alike: {shlex.join(words)}. Or add images to the small ones."


def _imbalance(name: str, run: Run) -> tuple[str, tuple[Evidence, ...]]:
    """Count by the training images of each class where the record has them, else by the validation images."""
    part, sizes = "training", _training_images(run)
    if not sizes:
        results = run.evaluation.per_class if run.evaluation else []
        part, sizes = "validation", {result.name: result.num_images for result in results if result.num_images > 0}
    if len(sizes) < 2:
        return "", ()
    most, least = max(sizes, key=lambda one: sizes[one]), min(sizes, key=lambda one: sizes[one])
    if sizes[most] <= IMBALANCE_RATIO * sizes[least]:
        return "", ()
    text = f"Strong imbalance: {counted(sizes[most], f'{part} image')} of {most!r}, {sizes[least]} of {least!r}."
    return text, tuple(Evidence(run=name, what=f"{part} images of {one}", value=sizes[one]) for one in (most, least))


def _training_images(run: Run) -> dict[str, int]:
    """Images by class; empty for records that do not count them."""
    names, sizes = (value_at(run.recipe, "images", key) for key in ("classes", "num_train_by_class"))
    if not isinstance(names, list) or not isinstance(sizes, list) or len(names) != len(sizes):
        return {}
    return {str(name): size for name, size in zip(names, sizes, strict=True) if type(size) is int}


def _runs(job: Workload) -> Iterator[tuple[str, Run]]:
    return ((summary.name, run) for summary, run in job.members)
