"""How much too good is the accuracy of a set that leaks?

    python bench/honest_split.py --photos DIR --out DIR [--per-class 20] [--epochs 12] [--seeds 0,1,2]

DIR has class folders at any depth, as data/fruit. Of each class some photos are taken, each in six variants (as it is,
turned three times, mirrored, with salt and pepper), as the fruit set on Kaggle has them. Our small network is trained
twice on that set: with a fifth held out at random, so that nearly every validation image has a variant in the training
part, and with a fifth held out by photo (data.split_by_photo = auto). Prints both validation accuracies.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import numpy as np
from leaks import KINDS, photos_below
from PIL import Image

VARIANTS = ("rotated by 15", "rotated by 45", "rotated by 75", "mirrored", "noised")
SPLITS = {"at random": "none", "by photo": "auto"}


def make_set(photos: Path, place: Path, *, per_class: int) -> int:
    """FOLDER/CLASS/PHOTO-VARIANT.png; the number of images."""
    by_class: defaultdict[str, list[Path]] = defaultdict(list)
    for photo in photos_below(photos):
        by_class[photo.parent.name].append(photo)
    num = 0
    for name, members in by_class.items():
        (place / name).mkdir(parents=True, exist_ok=True)
        for index, photo in enumerate(members[:: max(1, len(members) // per_class)][:per_class]):
            with Image.open(photo) as opened:
                image = opened.convert("RGB")
            image.save(place / name / f"{index:03d}-original.png")
            for number, kind in enumerate(VARIANTS):
                altered = KINDS[kind](image, np.random.default_rng([index, number]))
                altered.save(place / name / f"{index:03d}-{kind.replace(' ', '-')}.png")
            num += 1 + len(VARIANTS)
    return num


def accuracy(folder: Path, out: Path, *, split: str, epochs: int, seed: int) -> tuple[float, int]:
    """Of the last epoch, and the validation images."""
    settings = [f"data.split_by_photo={split}", f"training.epochs={epochs}", f"training.seed={seed}"]
    flags = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "turnaround", "train", str(folder), "--out", str(out), "--device", "cpu", "--json"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    images = json.loads((out / "recipe.json").read_text())["images"]
    return json.loads(done.stdout)["final_val_accuracy"], images["num_validation"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="for the set and the runs; must not hold any yet")
    parser.add_argument("--per-class", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", default="0")
    given = parser.parse_args()
    num = make_set(given.photos, given.out / "photos", per_class=given.per_class)
    print(f"{num} images, {num // (1 + len(VARIANTS))} photos", flush=True)
    for name, split in SPLITS.items():
        found = []
        for seed in map(int, given.seeds.split(",")):
            out = given.out / f"{name.replace(' ', '-')}-{seed}"
            found.append(accuracy(given.out / "photos", out, split=split, epochs=given.epochs, seed=seed))
        each = ", ".join(f"{100 * value:.1f} % of {num_val}" for value, num_val in found)
        print(f"held out {name}: {100 * mean(value for value, _ in found):.1f} % ({each})", flush=True)


if __name__ == "__main__":
    main()
