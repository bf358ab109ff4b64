"""How many wrong labels are found, and how many right ones accused? Labels are flipped by a seed, then looked for.

    python bench/wrong_labels.py FOLDER --weights FILE [--flip 0.05] [--folds 5] [--seeds 3]

The folder's own labels are taken for right, which they are not quite: what is accused beside the flipped ones may be
wrong too, and is listed with --list. Nothing is tuned here: the method has no constant, the classifier scikit-learn's.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from turnaround import recipes
from turnaround.check.dataset import check_table
from turnaround.check.labels import check_labels, folds_of
from turnaround.data.formats import scan
from turnaround.data.pixels import prepare
from turnaround.launch.automatic import decide
from turnaround.use.label_check import features_of, fold_probabilities


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--flip", type=float, default=0.05)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="a key of the recipe: training.precision=bf16")
    parser.add_argument("--list", action="store_true", help="name what is accused besides, in the first seed")
    parser.add_argument(
        "--no-copies", action="store_true", help="deal out images one by one, without looking for copies"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        recipe = recipes.find(str(given.folder), [f"model.weights={given.weights}", *given.set])
        recipe = decide(recipe, cache=cache, device="auto").recipe.resolved()
        table = scan(given.folder, holdout=0.2, seed=0)
        groups = () if given.no_copies else check_table(table, cache=cache).groups
        pixels = prepare(table, size_px=recipe.size_px, cache=cache, skip_bad=False)
        started_s = time.perf_counter()
        features = features_of(recipe, pixels, device="auto")
        assert features is not None
        print(f"{given.folder.name}: {len(pixels.labels):,} images, {len(pixels.classes)} classes, {recipe.model.name}")
        print(f"features in {time.perf_counter() - started_s:.0f} s", flush=True)
        for seed in range(given.seeds):
            rng = np.random.default_rng(seed)
            flipped = rng.choice(len(pixels.labels), round(given.flip * len(pixels.labels)), replace=False)
            labels = pixels.labels.copy()
            # Any other class, each as probable as the next.
            labels[flipped] = (labels[flipped] + rng.integers(1, len(pixels.classes), len(flipped))) % len(
                pixels.classes
            )
            started_s = time.perf_counter()
            fold_of = folds_of(pixels.files, labels.tolist(), groups, folds=given.folds, seed=seed)
            probabilities = fold_probabilities(features, labels, fold_of, len(pixels.classes))
            checked = check_labels(labels, probabilities)
            found = {one.row for one in checked.suspects}
            hits = len(found & set(flipped.tolist()))
            accuracy = (probabilities.argmax(axis=1) == pixels.labels).mean()
            print(
                f"seed {seed}: {len(flipped)} flipped, {hits} found ({hits / len(flipped):.1%}), "
                f"{len(found) - hits} of {len(labels) - len(flipped):,} others accused "
                f"({(len(found) - hits) / (len(labels) - len(flipped)):.2%}); right among the accused "
                f"{hits / max(len(found), 1):.1%}; accuracy against the folder's labels {accuracy:.1%}; "
                f"{time.perf_counter() - started_s:.0f} s; {checked.method}",
                flush=True,
            )
            if given.list and not seed:
                for one in checked.suspects:
                    if one.row not in set(flipped.tolist()):
                        print(f"    {pixels.files[one.row]} -> {pixels.classes[one.suggested]}")


if __name__ == "__main__":
    main()
