"""A recipe -> decoded pixels, before any process is started: bad input stops here, by name.

Enters: a resolved recipe and a cache directory. Leaves: the table of files and the `Pixels`. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from turnaround.data.folder import ImageTable, scan
from turnaround.data.order import step_bounds
from turnaround.data.pixels import Pixels, default_cache, prepare
from turnaround.data.source import folder_of
from turnaround.recipe import Recipe


class Show(Protocol):
    """Who shows a long task to a person: `what` is done for `total` items, `done` so far."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The images of a run, ready for every process."""

    table: ImageTable
    pixels: Pixels


def cache_root(recipe: Recipe, *, temporary: Path) -> Path:
    """Where decoded pixels are kept; with the cache off, in a folder that the caller removes after the run."""
    places = {"on": default_cache(), "off": temporary}
    return places.get(recipe.data.cache) or Path(recipe.data.cache)


def prepare_images(recipe: Recipe, *, cache: Path, show: Show) -> Prepared:
    """Generates or fetches when needed, scans, checks, and decodes what the cache does not have yet."""
    data, seed = recipe.data, recipe.training.seed
    folder = folder_of(
        data,
        size_px=recipe.size_px,
        cache=cache,
        on_progress=lambda done: show("drawing images", done, data.images),
    )
    table = scan(folder, holdout=data.holdout, seed=seed)
    # Found before anything is decoded: the same rule decides the steps of every epoch.
    step_bounds(num_images=table.num_train, global_batch=recipe.global_batch, workers=recipe.workers.count)
    pixels = prepare(
        table,
        size_px=recipe.size_px,
        cache=cache,
        skip_bad=data.skip_bad,
        on_progress=lambda done, total: show("decoding images", done, total),
    )
    return Prepared(table=table, pixels=pixels)
