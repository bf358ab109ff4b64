"""Findings about the images: what the record of a run tells of leaks and of unequal classes."""

from __future__ import annotations

from collections.abc import Iterator

from turnaround.analysis.compare import value_at
from turnaround.analysis.configurations import Workload
from turnaround.findings.finding import Evidence, Finding, Rule
from turnaround.record.reader import Run
from turnaround.record.schema import ClassResult
from turnaround.words import counted, percent

IMBALANCE_RATIO = 10


def leak(job: Workload) -> Iterator[Finding]:
    """Validation images that were trained on, as the check of the images counted them."""
    for name, run in _runs(job):
        leaks = value_at(run.recipe, "images", "leaks")
        num, of = value_at(leaks, "num"), value_at(leaks, "of")
        if type(num) is int and num > 0:
            share = f" of {of:,} ({percent(num / of)})" if isinstance(of, int) and of >= num else ""
            text = (
                f"{num:,}{share} validation images have a copy or a variant among the training images: the validation "
                "accuracy is too high by an unknown amount."
            )
            yield Finding(
                id="leak",
                severity="problem",
                text=text,
                evidence=(Evidence(run=name, what="validation images that leak", value=num, unit="images"),),
                advice="Split by photo (data.split_by_photo=auto), or remove the copies; turnaround check lists them.",
                job=job.name,
            )
            return  # the images are those of the job: once is enough


def class_imbalance(job: Workload) -> Iterator[Finding]:
    """Classes of very unequal size: by the warning of the scan, else by the validation images of the classes."""
    for name, run in _runs(job):
        text, evidence = _imbalance(name, run)
        if text:
            yield Finding(
                id="class-imbalance",
                severity="caution",
                text=text,
                evidence=evidence,
                advice="Read the accuracy of each class: the large ones decide the total. Add images to the small.",
                job=job.name,
            )
            return


def _imbalance(name: str, run: Run) -> tuple[str, tuple[Evidence, ...]]:
    warnings = value_at(run.recipe, "images", "warnings")
    for warning in warnings if isinstance(warnings, list) else ():
        if "imbalance" in str(warning).lower():
            return str(warning), (Evidence(run=name, what="warning", value=str(warning)),)
    classes = [c for c in run.evaluation.per_class if c.num_images > 0] if run.evaluation else []
    if len(classes) < 2:
        return "", ()
    least, most = min(classes, key=_size), max(classes, key=_size)
    if most.num_images <= IMBALANCE_RATIO * least.num_images:
        return "", ()
    text = (
        f"Strong imbalance: {counted(most.num_images, 'validation image')} of {most.name!r}, {least.num_images} of "
        f"{least.name!r}."
    )
    return text, tuple(
        Evidence(run=name, what=f"validation images of {c.name}", value=c.num_images) for c in (most, least)
    )


def _size(result: ClassResult) -> int:
    return result.num_images


def _runs(job: Workload) -> Iterator[tuple[str, Run]]:
    return ((summary.name, run) for summary, run in job.members)


RULES: dict[str, Rule] = {"leak": leak, "class-imbalance": class_imbalance}
