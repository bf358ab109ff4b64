"""One training for each fold of the images, each on the others: for networks whose features nobody has learnt before.

Enters: a recipe, the files and the fold of each. Leaves: the finished run of each fold, while its folder is there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from turnaround.data.split_file import TRAIN, VALIDATION, write_split
from turnaround.launch.lifecycle import Request, start
from turnaround.launch.prepare import Show
from turnaround.recipe import Recipe


def train_folds(
    recipe: Recipe, files: Sequence[str], fold_of: Sequence[int], *, device: str, show: Show
) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield for each fold the run that was trained on the others, and the files that it has not seen.

    A negative fold is always trained on. Everything is removed in the end.
    """
    folds = sorted({fold for fold in fold_of if fold >= 0})
    with tempfile.TemporaryDirectory(prefix="turnaround-folds-") as folder:
        for number, fold in enumerate(folds, 1):
            show("training folds", number - 1, len(folds))
            parts = {file: VALIDATION if own == fold else TRAIN for file, own in zip(files, fold_of, strict=True)}
            split_file, out = Path(folder) / f"fold-{fold}.json", Path(folder) / f"fold-{fold}"
            write_split(split_file, parts, holdout=recipe.data.holdout, seed=recipe.training.seed)
            request = Request(out=out, show=show, device=device, shows_progress=False)
            start(recipe.replace("data", split_by_photo=str(split_file)), request)
            yield out, tuple(file for file, part in parts.items() if part == VALIDATION)
        show("training folds", len(folds), len(folds))
