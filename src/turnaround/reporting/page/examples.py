"""Example pictures of the classes that are confused most, drawn anew from the run's own folder of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnaround.analysis.confusion import best_evaluated, confused_pairs
from turnaround.analysis.workloads import Survey
from turnaround.check.thumbnails import thumbnails
from turnaround.data.folder import scan
from turnaround.data.pixels import default_cache
from turnaround.data.source import folder_here
from turnaround.errors import TurnaroundError
from turnaround.recipe import Recipe
from turnaround.record.reader import Run
from turnaround.reporting.page.blocks import MAX_CONFUSED

MAX_PICTURES = 24  # on the whole page: each is a data URI inside it
PICTURES_EACH = 2
PICTURE_PX = 96
MAX_SEARCHED = 50_000
"""Largest folder that is searched for examples, in images: more would keep people waiting."""


def example_pictures(survey: Survey) -> tuple[dict[str, dict[str, tuple[str, ...]]], list[str]]:
    """Return examples by job and class, and a sentence for each job that has none although it could."""
    pictures: dict[str, dict[str, tuple[str, ...]]] = {}
    notes, room = [], MAX_PICTURES
    for job in survey.workloads:
        best = best_evaluated(job)
        pairs = confused_pairs(best.evaluation, most=MAX_CONFUSED) if best else ()
        places = dict.fromkeys(place for pair in pairs for place in (pair.true, pair.predicted))
        if best is None or not places or room < 1:
            continue
        names = [best.evaluation.classes[place] for place in places]
        pictures[job.name] = _examples(best.run, names[: room // PICTURES_EACH])
        room -= sum(len(each) for each in pictures[job.name].values())
        if not pictures[job.name]:
            notes.append(f"{job.name}: no example pictures, because its folder of images is not here as it was.")
    return pictures, notes


def _examples(run: Run, classes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return thumbnails by class, without the files' metadata; none where the folder is not as the run found it.

    A record may come from others and name any folder: only one with the same classes and as many images is opened.
    """
    images = run.recipe.get("images")
    if run.imported is not None or not isinstance(images, dict):
        return {}
    try:
        recipe = Recipe.from_record(run.recipe)
        folder = folder_here(recipe.data, size_px=recipe.size_px, cache=default_cache())
        if folder is None or not 0 < _num_images(images) <= MAX_SEARCHED:
            return {}
        table = scan(folder, holdout=recipe.data.holdout, seed=recipe.training.seed)
    except (TurnaroundError, AssertionError, OSError, ValueError):
        return {}
    if list(table.classes) != images.get("classes") or len(table.files) != _num_images(images):
        return {}
    validation = range(table.num_train, len(table.files))
    files: dict[str, list[str]] = {}
    for name in classes:
        label = table.classes.index(name) if name in table.classes else -1
        files[name] = [table.files[i] for i in validation if table.labels[i] == label][:PICTURES_EACH]
    drawn = thumbnails(table.root, [file for each in files.values() for file in each], size_px=PICTURE_PX)
    return {name: tuple(drawn[file] for file in each if file in drawn) for name, each in files.items()}


def _num_images(images: Mapping[str, object]) -> int:
    counts = [images.get(key) for key in ("num_train", "num_validation")]
    skipped = images.get("skipped")
    known = sum(count for count in counts if isinstance(count, int))
    return known + (len(skipped) if isinstance(skipped, list) else 0)
