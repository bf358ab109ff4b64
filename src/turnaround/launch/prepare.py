"""A recipe -> decoded pixels, before anything is trained: bad input stops here, by name.

Enters: a resolved recipe and a cache directory. Leaves: the table of files and the `Pixels`. No torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from turnaround.check import CHECK_VERSION
from turnaround.check.copies import Copies, find_copies, sentences
from turnaround.data.decoders import Show as Show
from turnaround.data.entry import remove_leftovers
from turnaround.data.folder import ImageTable
from turnaround.data.formats import scan
from turnaround.data.order import step_bounds
from turnaround.data.pixels import Pixels, default_cache, key_of, prepare, space_needed_bytes
from turnaround.data.source import folder_of
from turnaround.data.split_file import read_split, write_split
from turnaround.data.verify import is_cache
from turnaround.errors import DataError, StorageError
from turnaround.recipe import Recipe

NOT_KEPT = "none"
"""The value of data.cache that keeps no pixels: every image is decoded each time; that it was checked is kept."""
PLACES = ("on", "off", NOT_KEPT)
"""The values of data.cache that name no folder."""
AUTOMATIC = "auto"
"""The value of data.split_by_photo that compares the images before they are split."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The images of a run, ready for every process."""

    table: ImageTable
    pixels: Pixels
    copies: Copies
    notes: tuple[str, ...] = ()
    """Sentences about the recipe that the user reads before those about the images."""


def cache_root(recipe: Recipe, *, temporary: Path) -> Path:
    """Return the cache directory; with the cache off, `temporary`, which the caller removes after the run."""
    if recipe.data.cache in PLACES:
        return temporary if recipe.data.cache == "off" else default_cache()
    return Path(recipe.data.cache)


def cache_of_record(recipe: Recipe, *, temporary: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the cache directory for a recipe that a record has, and a note where it is not the one that it names.

    The record may be somebody else's: a folder that it names is written into only where it is a cache of images
    already, as one is that this user has trained with.
    """
    cache = cache_root(recipe, temporary=temporary)
    if recipe.data.cache in PLACES or _is_ours(cache):
        return cache, ()
    note = f"The record names {recipe.data.cache} as the cache, where there is none: {default_cache()} is used instead."
    return default_cache(), (note,)


def _is_ours(cache: Path) -> bool:
    """Return whether a folder is the usual cache, or holds entries of one."""
    with suppress(ValueError, RuntimeError):  # no path, or ~ of nobody
        cache = cache.expanduser().absolute()
        return cache == default_cache().expanduser().absolute() or is_cache(cache)
    return False


def prepare_images(recipe: Recipe, *, cache: Path, show: Show) -> Prepared:
    """Generate or fetch the images when needed, scan, check, and decode what the cache does not have yet."""
    data = recipe.data
    remove_leftovers(cache.expanduser())  # also where nothing has to be built
    folder = folder_of(
        data,
        size_px=recipe.size_px,
        cache=cache,
        on_progress=lambda done: show("drawing images", done, data.images),
    )
    table = split_table(recipe, folder, cache=cache, show=show)
    # Found before anything is decoded: the same rule decides the steps of every epoch.
    step_bounds(num_images=table.num_train, global_batch=recipe.global_batch, workers=recipe.workers.count)
    table = replace(table, warnings=(*table.warnings, *_large_batch(recipe, table.num_train)))
    pixels = prepare(
        table,
        size_px=recipe.size_px,
        cache=cache,
        skip_bad=data.skip_bad,
        keeps_pixels=data.cache != NOT_KEPT,
        on_progress=lambda done, total: show("decoding images", done, total),
    )
    if pixels.images is None and data.cache != NOT_KEPT:
        table = replace(table, warnings=(*table.warnings, _why_not_kept(pixels)))
    if pixels.rebuilt_over:
        table = replace(table, warnings=(*table.warnings, _why_built_again(pixels)))
    copies = find_copies(pixels)
    # Leakage first: it makes every accuracy of the run too high.
    table = replace(table, warnings=(*sentences(copies, pixels), *table.warnings))
    return Prepared(table=table, pixels=pixels, copies=copies)


def split_table(recipe: Recipe, folder: Path, *, cache: Path, show: Show) -> ImageTable:
    """Return the files of the folder in the two parts that the recipe asks for."""
    data, seed = recipe.data, recipe.training.seed
    if data.split_by_photo is None:
        return scan(folder, holdout=data.holdout, seed=seed)
    if data.split_by_photo != AUTOMATIC:
        return scan(folder, holdout=data.holdout, seed=seed, given=read_split(Path(data.split_by_photo)))
    parts = _by_photo(scan(folder, holdout=data.holdout, seed=seed), recipe, cache=cache, show=show)
    return scan(folder, holdout=data.holdout, seed=seed, given=parts)


def _by_photo(table: ImageTable, recipe: Recipe, *, cache: Path, show: Show) -> dict[str, str]:
    """Return the part of each file. Comparing takes minutes, so it is cached: for a resume, and a study's next run."""
    holdout, seed = recipe.data.holdout, recipe.training.seed
    # Everything that the split depends on is in the name: the check's version, both settings, the files.
    key = key_of(table, size_px=0, skip_bad=None)
    split_file = cache.expanduser() / f"split-{CHECK_VERSION}-{holdout:g}-{seed}-{key}.json"
    with suppress(DataError):  # not there yet, or damaged
        return read_split(split_file)
    # Only here: it brings scipy, and every training would wait for it.
    from turnaround.check.dataset import check_table, split_by_photo

    parts = split_by_photo(check_table(table, cache=cache, show=show), holdout=holdout, seed=seed)
    with suppress(StorageError):  # a cache that cannot be written costs the next run its minutes, not this one
        write_split(split_file, parts, holdout=holdout, seed=seed)
    return parts


def _large_batch(recipe: Recipe, num_train: int) -> Iterator[str]:
    """Say when all images fit into one step: an epoch is then one update, and hardly anything is learnt."""
    batch, workers = recipe.global_batch, recipe.workers.count
    if batch > num_train:
        # Some ten updates an epoch, a power of two, two images at least.
        smaller = max(2, 2 ** ((num_train // (10 * workers) or 1).bit_length() - 1))
        yield (
            f"The global batch of {batch:,} is larger than the {num_train:,} training images: each epoch is one "
            f"update. Take a smaller one: --batch {smaller}."
        )


def _why_built_again(pixels: Pixels) -> str:
    return (
        f"The decoded images in {str(pixels.cache_dir)!r} were not usable ({pixels.rebuilt_over[:200]}): they were "
        "decoded again from the images."
    )


def _why_not_kept(pixels: Pixels) -> str:
    """Say what does not fit, what that costs, what to do."""
    cache, needed_gb = pixels.cache_dir.parent, space_needed_bytes(pixels.num_bytes) / 1e9
    free_gb = shutil.disk_usage(cache).free / 1e9
    num_images, images_per_s = len(pixels.labels), pixels.decode_images_per_s
    assert images_per_s is not None  # every entry without pixels knows it
    return (
        f"The decoded images do not fit into the cache {str(cache)!r} ({needed_gb:.2f} GB needed, "
        f"{free_gb:.2f} GB free), so all {num_images:,} images are decoded again at every start and, where memory "
        f"cannot hold them either, in every epoch: at {images_per_s:,.0f} images/s that takes "
        f"{num_images / images_per_s:,.1f} s on this machine. Use a cache directory with {needed_gb:.2f} GB free "
        "(--set data.cache=DIR), or smaller images (--set data.size_px=N)."
    )


def image_facts(prepared: Prepared) -> dict[str, Any]:
    """Return what recipe.json says about the images that were found."""
    table, pixels = prepared.table, prepared.pixels
    return {
        "fingerprint": pixels.fingerprint,
        "num_train": pixels.num_train,
        "num_validation": len(pixels.labels) - pixels.num_train,
        "num_classes": len(pixels.classes),
        "classes": list(pixels.classes),
        "num_train_by_class": np.bincount(pixels.labels[: pixels.num_train], minlength=len(pixels.classes)).tolist(),
        "split": table.split,
        "skipped": [f"{file}: {reason}" for file, reason in pixels.skipped],
        "num_ignored": len(table.ignored),
        "leaks": {
            "num": len(prepared.copies.leaking),
            "of": len(pixels.labels) - pixels.num_train,
            "kind": "exact",
        },
        "warnings": list(table.warnings),
    }
