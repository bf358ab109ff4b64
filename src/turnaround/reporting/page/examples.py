"""Pictures of the surest mistakes and of the most confused classes, drawn anew from the run's own folder of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from turnaround.analysis.confusion import best_evaluated, confused_pairs
from turnaround.analysis.workloads import Survey
from turnaround.data.folder import ImageTable
from turnaround.data.formats import scan
from turnaround.data.pixels import default_cache
from turnaround.data.source import folder_here
from turnaround.errors import TurnaroundError
from turnaround.recipe import Recipe
from turnaround.record.reader import Run
from turnaround.record.schema import Evaluation
from turnaround.reporting.page.blocks import MAX_CONFUSED, MAX_MISTAKES
from turnaround.reporting.pictures import thumbnails

MAX_PICTURES = 24  # of each kind on the whole page: each is a data URI inside it
PICTURES_EACH = 2
PICTURE_PX = 96
MAX_SEARCHED = 50_000
"""Largest folder that is searched for examples, in images: more would keep people waiting."""


@dataclass(kw_only=True)
class PagePictures:
    """The pictures of the page as data URIs, by the job's name."""

    by_class: dict[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    by_file: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Those of mistakes, by the file's path within the folder of images."""
    notes: list[str] = field(default_factory=list)
    """A sentence for each job that has no pictures although it could."""


def example_pictures(survey: Survey) -> PagePictures:
    """Return the pictures of each job's most accurate run, as far as there is room for them on the page."""
    found = PagePictures()
    for job in survey.workloads:
        best = best_evaluated(job, needs_matrix=False)
        if best is None or not (wanted := _wanted(best.evaluation)):
            continue
        room = MAX_PICTURES - sum(len(each) for classes in found.by_class.values() for each in classes.values())
        table = _table(best.run)
        if table is not None:
            found.by_class[job.name] = _examples(table, wanted[: room // PICTURES_EACH])
            room = MAX_PICTURES - sum(map(len, found.by_file.values()))
            found.by_file[job.name] = _mistakes(table, best.evaluation, room)
        if not found.by_class.get(job.name) and not found.by_file.get(job.name):
            found.notes.append(f"{job.name}: no example pictures, because its folder of images is not here as it was.")
    return found


def _wanted(evaluation: Evaluation) -> list[str]:
    """Return the classes that are confused most, and those of the mistakes."""
    pairs = confused_pairs(evaluation, most=MAX_CONFUSED)
    places = dict.fromkeys(place for pair in pairs for place in (pair.true, pair.predicted))
    return [evaluation.classes[place] for place in places] or [one.true for one in evaluation.mistakes[:1]]


def _table(run: Run) -> ImageTable | None:
    """Return the images of the run; None where the folder is not as the run found it.

    A record may come from others and name any folder: only one with the same classes and as many images is opened.
    """
    images = run.recipe.get("images")
    if run.imported is not None or not isinstance(images, dict):
        return None
    try:
        recipe = Recipe.from_record(run.recipe)
        folder = folder_here(recipe.data, size_px=recipe.size_px, cache=default_cache())
        if folder is None or not 0 < _num_images(images) <= MAX_SEARCHED:
            return None
        table = scan(folder, holdout=recipe.data.holdout, seed=recipe.training.seed)
    except (TurnaroundError, AssertionError, OSError, ValueError):
        return None
    is_same = list(table.classes) == images.get("classes") and len(table.files) == _num_images(images)
    return table if is_same else None


def _examples(table: ImageTable, classes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return thumbnails of validation images by class, without the files' metadata."""
    validation = range(table.num_train, len(table.files))
    files: dict[str, list[str]] = {}
    for name in classes:
        label = table.classes.index(name) if name in table.classes else -1
        files[name] = [table.files[i] for i in validation if table.labels[i] == label][:PICTURES_EACH]
    drawn = thumbnails(table.root, [file for each in files.values() for file in each], size_px=PICTURE_PX)
    return {name: tuple(drawn[file] for file in each if file in drawn) for name, each in files.items()}


def _mistakes(table: ImageTable, evaluation: Evaluation, room: int) -> dict[str, str]:
    """Return thumbnails of the surest mistakes by file: only of files that the folder has, whatever the record says."""
    here = set(table.files)
    files = [one.file for one in evaluation.mistakes[: min(MAX_MISTAKES, max(room, 0))] if one.file in here]
    return dict(thumbnails(table.root, files, size_px=PICTURE_PX))


def _num_images(images: Mapping[str, object]) -> int:
    counts = [images.get(key) for key in ("num_train", "num_validation")]
    skipped = images.get("skipped")
    known = sum(count for count in counts if isinstance(count, int))
    return known + (len(skipped) if isinstance(skipped, list) else 0)
