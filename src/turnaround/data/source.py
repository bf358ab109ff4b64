"""A recipe's data source -> a folder of images on this machine.

Enters: the [data] section. Leaves: a path that `formats.scan` reads.
A generated set is drawn once, a known set is fetched once, a folder, table or shards are taken as they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from turnaround import fruitbowl
from turnaround.children import process_tag
from turnaround.data import formats
from turnaround.errors import DataError, MissingPartError
from turnaround.recipe import DataRecipe

CIFAR10_ON_GITHUB = "https://github.com/cyizhuo/CIFAR-10-dataset"
"""The original pixels as PNGs. JPEGs of them cost resnet11 three points of accuracy (docs/LOG.md, 2026-11-19)."""
FRUIT_ON_KAGGLE = "sriramr/fruits-fresh-and-rotten-for-classification"


def folder_of(
    recipe: DataRecipe, *, size_px: int, cache: Path, on_progress: Callable[[int], None] | None = None
) -> Path:
    """Return the folder, file or pattern that the recipe's source stands for; draw or fetch it when needed."""
    if recipe.source == "fruitbowl":
        # The seed of the drawing is fixed: runs that differ in training.seed train on the same images.
        place = _fruitbowl(recipe, size_px=size_px, cache=cache)
        return fruitbowl.generate(place, images=recipe.images, size_px=size_px, seed=0, on_progress=on_progress)
    if recipe.source == "caltech256":
        return _caltech256(cache)
    if recipe.source == "fruit":
        raise MissingPartError(
            "The fruit photos come from Kaggle, which wants an account:\n"
            f"  1. kaggle datasets download --unzip -p fruit {FRUIT_ON_KAGGLE}\n"
            "     (or download and unpack it in a browser)\n"
            "  2. turnaround train fruit --set data.source=fruit/dataset\n"
            "Any folder with train/CLASS and test/CLASS, or CLASS folders, will do: --set data.source=FOLDER."
        )
    if recipe.source == "cifar10":
        raise MissingPartError(
            "CIFAR-10 as folders of PNGs comes from GitHub (60,000 files, 136 MB):\n"
            f"  1. git clone --depth 1 {CIFAR10_ON_GITHUB}\n"
            "     (or download and unpack it in a browser)\n"
            "  2. turnaround train cifar10 --set data.source=CIFAR-10-dataset\n"
            "     (or cifar10-quick, cifar10-long)\n"
            "Any folder with train/CLASS and test/CLASS, or CLASS folders, will do: --set data.source=FOLDER."
        )
    return Path(recipe.source)


def folder_here(recipe: DataRecipe, *, size_px: int, cache: Path) -> Path | None:
    """Return the same source if it is there already: nothing is drawn or fetched."""
    known = {"fruitbowl": _fruitbowl(recipe, size_px=size_px, cache=cache), "caltech256": _caltech256_place(cache)}
    place = known.get(recipe.source, Path(recipe.source))
    try:
        return place if formats.is_source(place) else None
    except DataError:
        return None  # a pattern that leads to too much; whoever prepares the images says so


def _fruitbowl(recipe: DataRecipe, *, size_px: int, cache: Path) -> Path:
    return cache / f"fruitbowl-v{fruitbowl.VERSION}-{recipe.images}x{size_px}px"


def _caltech256_place(cache: Path) -> Path:
    return cache / "caltech256" / "256_ObjectCategories"


def _caltech256(cache: Path) -> Path:
    place = _caltech256_place(cache)
    if place.is_dir():
        return place
    try:
        from torchvision.datasets import Caltech256
    except (ImportError, RuntimeError) as error:
        raise MissingPartError(
            f"Fetching Caltech-256 needs torchvision, which does not import here ({error}). Install it with "
            "`pip install torchvision`, or give a folder that you have: --set data.source=FOLDER."
        ) from error
    unfinished = cache / f".caltech256.{process_tag()}.unfinished"  # what dies while unpacking must not look whole
    try:
        Caltech256(root=str(unfinished), download=True)
        shutil.rmtree(place.parent, ignore_errors=True)
        (unfinished / "caltech256").rename(place.parent)
    except Exception as error:  # urllib, zip and checksum errors of many kinds: all mean "not fetched"
        raise MissingPartError(
            f"Caltech-256 could not be fetched ({error}). Without a network, give a folder that you have, with one "
            "folder per class: --set data.source=FOLDER."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return place
