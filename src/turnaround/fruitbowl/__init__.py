"""fruitbowl: a data set that is drawn, so that everything works offline and within seconds.

Enters: how many images, how large, which seed. Leaves: `root/CLASS/00017.bmp` for six classes (three fruits,
fresh or rotten), and `root/fruitbowl.json` with the parameters. The folder reader holds out a fifth of them.
The same seed gives the same bytes on every machine.

    scene.py   apples, bananas and oranges, fresh and rotten, composed into one picture
    shapes.py  ellipses, arcs and noise in integer arithmetic: the same bytes everywhere
"""

import itertools
import json
import shutil
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from turnaround import children
from turnaround.errors import DataError, RecipeError, StorageError
from turnaround.fruitbowl.scene import CLASSES, draw

__all__ = ["CLASSES", "draw", "generate"]

VERSION = 1  # rises whenever a pixel changes: two versions must never mix in one folder
MIN_PER_CLASS = 2  # one to train on, one to hold out
SIZE_RANGE_PX = (16, 1024)
PARALLEL_FROM_IMAGES = 400  # below, starting processes takes longer than drawing
CHUNK_IMAGES = 50


def generate(
    root: Path, *, images: int, size_px: int, seed: int, on_progress: Callable[[int], None] | None = None
) -> Path:
    """Write the data set to `root` and return it; at once if it is there already with these parameters.

    `root` appears whole or not at all. `on_progress` receives the number of images written so far.
    """
    _validate(images=images, size_px=size_px)
    parameters = {"version": VERSION, "images": images, "size_px": size_px, "seed": seed}
    if _is_complete(root, parameters):
        return root
    unfinished = root.absolute().with_name(f".{root.name}.{children.process_tag()}.unfinished")
    try:
        for name in CLASSES:
            (unfinished / name).mkdir(parents=True)
        with closing(_write_all(unfinished, images=images, size_px=size_px, seed=seed)) as progress:
            for num_written in progress:
                if on_progress is not None:
                    on_progress(num_written)
        (unfinished / "fruitbowl.json").write_text(json.dumps(parameters, indent=2) + "\n", encoding="utf-8")
        _publish(unfinished, root, parameters)
    except OSError as error:
        raise StorageError(
            f"Cannot write the generated images to {root}: {error}. Free some space or choose another folder."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return root


def _validate(*, images: int, size_px: int) -> None:
    least = MIN_PER_CLASS * len(CLASSES)
    if images < least:
        raise RecipeError(
            f"fruitbowl needs at least {MIN_PER_CLASS} images for each of its {len(CLASSES)} classes. "
            f"Received: images = {images}. Set data.images to {least} or more."
        )
    low, high = SIZE_RANGE_PX
    if not low <= size_px <= high:
        raise RecipeError(
            f"fruitbowl draws images of {low} to {high} px. Received: size_px = {size_px}. "
            f"Set data.size_px within this range; 64 is a good start."
        )


def _per_class(images: int) -> list[int]:
    """Evenly; the first classes take what does not divide."""
    each, rest = divmod(images, len(CLASSES))
    return [each + (label < rest) for label in range(len(CLASSES))]


def _is_complete(root: Path, parameters: dict[str, int]) -> bool:
    """True: it is there as asked for. False: there is nothing. Anything else is somebody's data: an error."""
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return False
    advice = f"Delete {root} or choose another folder."
    try:
        found = json.loads((root / "fruitbowl.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError(f"{root} exists and is not a generated fruitbowl data set. {advice}") from None
    if found != parameters:
        raise DataError(f"{root} holds fruitbowl with other parameters. Found: {found}. Wanted: {parameters}. {advice}")
    present = [len(list((root / name).glob("*.bmp"))) for name in CLASSES]
    if present != _per_class(parameters["images"]):
        raise DataError(f"{root} is damaged: it holds {sum(present)} of {parameters['images']} images. {advice}")
    return True


def _publish(unfinished: Path, root: Path, parameters: dict[str, int]) -> None:
    try:
        unfinished.rename(root)
    except OSError:
        # Several processes of a job may generate the same folder: whoever comes second uses the first one's.
        if not _is_complete(root, parameters):
            raise


def _write_all(root: Path, *, images: int, size_px: int, seed: int) -> Generator[int]:
    """Draw and write everything; yields the number of images written so far."""
    todo = [(label, index) for label, count in enumerate(_per_class(images)) for index in range(count)]
    tasks = [
        _DrawTask(root=root, images=todo[at : at + CHUNK_IMAGES], size_px=size_px, seed=seed)
        for at in range(0, images, CHUNK_IMAGES)
    ]
    min_tasks = PARALLEL_FROM_IMAGES // CHUNK_IMAGES
    with closing(children.in_children(_write, tasks, purpose="draws images", min_tasks=min_tasks)) as written:
        yield from itertools.accumulate(written)


class _DrawTask(NamedTuple):
    root: Path
    images: list[tuple[int, int]]  # label and index of each
    size_px: int
    seed: int


def _write(task: _DrawTask) -> int:
    for label, index in task.images:
        pixels = draw(label=label, index=index, seed=task.seed, size_px=task.size_px)
        Image.fromarray(pixels).save(task.root / CLASSES[label] / f"{index:05d}.bmp")
    return len(task.images)
