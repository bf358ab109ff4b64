"""How large a batch pays: what `training.batch_per_worker = auto` tries the memory with, and never goes beyond.

Enters: a resolved recipe, the number of its training images, the folder with earlier runs. Leaves: a batch for each
worker, a power of two, and why this one. No torch: whether it fits is tried by the processes (training/fitting.py).

    a noise scale is known   workers x batch <= noise scale: there a step needs twice the images that the smallest would
                             (McCandlish et al. 2018), and beyond it more images buy hardly anything
    else                     at least MIN_UPDATES updates in all, and at most MAX_UNKNOWN images a worker
"""

from __future__ import annotations

from pathlib import Path

from turnaround.choice import Choice
from turnaround.errors import TurnaroundError
from turnaround.recipe import MAX_PER_WORKER, USUAL_BATCH, Recipe
from turnaround.record.reader import Run

MIN_UPDATES = 400
"""Updates of a whole training, at the least. Chosen, not measured."""
MAX_UNKNOWN = 512
"""Images of a worker without a noise scale: the batch of `model.name = auto` for many small images."""
MIN_BATCH = 8
"""Batch norm's statistics of fewer images are mostly noise."""


def paying_batch(recipe: Recipe, *, num_train: int | None, runs: Path | None) -> Choice[int]:
    """Return the largest batch of a worker that pays; `num_train` is None for images that are not here yet."""
    workers = recipe.workers.count
    known = None if runs is None else known_noise_scale(recipe, runs)
    if num_train is None:
        return Choice(USUAL_BATCH, "how many images there will be is not known yet")
    each = num_train // workers  # an epoch has one step at least
    if known is not None:
        images, run = known
        batch = _power_of_two(min(images / workers, MAX_PER_WORKER), most=each)
        reason = f"{run} has a gradient noise scale of about {images:,.0f} images, beyond which more buy little"
        return Choice(batch, reason)
    images = num_train * recipe.training.num_epochs / MIN_UPDATES
    batch = _power_of_two(min(images / workers, MAX_UNKNOWN), most=each)
    updates = recipe.training.num_epochs * max(1, num_train // (batch * workers))
    if batch == MAX_UNKNOWN:
        return Choice(batch, f"{updates:,} updates in all, and no noise scale that says that more images pay")
    return Choice(batch, f"{updates:,} updates in all: a larger batch would leave fewer than {MIN_UPDATES}")


def known_noise_scale(recipe: Recipe, runs: Path) -> tuple[float, str] | None:
    """Return the noise scale, in images, and the name of the newest run here that learnt the same from these images."""
    try:
        folders = sorted((f for f in runs.iterdir() if f.is_dir()), key=lambda f: f.stat().st_mtime, reverse=True)
    except OSError:
        return None
    for folder in folders:
        try:
            run = Run.load(folder)
            if not _is_alike(run, recipe):
                continue
            scales = [epoch.noise_scale for epoch in run.epochs if epoch.noise_scale]
        except TurnaroundError:
            continue  # another folder, a damaged run, or one that has only begun
        if scales:
            # It grows while the loss falls, so the smallest would hold for the first epochs only.
            return float(scales[-1]), run.path.name
    return None


def _is_alike(run: Run, recipe: Recipe) -> bool:
    """Tell whether a run learnt with the same network from the same images, as far as recipes tell."""
    ours = recipe.to_dict()
    keys = (("data", "source"), ("data", "size_px"), ("model", "name"), ("model", "fine_tune"))
    theirs = {section: run.recipe.get(section) for section, _ in keys}
    return all(isinstance(content := theirs[s], dict) and content.get(k) == ours[s][k] for s, k in keys)


def _power_of_two(limit: float, *, most: int) -> int:
    """Return the largest power of two up to a limit, at least MIN_BATCH where there are so many images."""
    allowed = max(1, min(max(int(limit), MIN_BATCH), most))
    return 1 << (allowed.bit_length() - 1)
