"""How many altered copies does `turnaround check` find, and how many unrelated images does it call related?

    python bench/leaks.py --photos DIR [--rounds 4] [--seed 0] [--keep DIR]

Every second photo below DIR gets one copy, altered in one way; a round deals the kinds out anew. The copies stand
beside all photos in one folder, the check runs on it, and a copy is found when it is in one group with its photo. A
photo without a copy that is grouped with a copy only is a false alarm. One that is grouped with another photo may be
one too, or the set holds that photo twice: these are counted in a line of their own, to be looked at (--keep).
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from turnaround.check.dataset import check_folder
from turnaround.check.pairs import SIZE_PX
from turnaround.data.folder import IMAGE_EXTENSIONS, scan
from turnaround.data.pixels import prepare

KAGGLE_DEGREES = (15, 30, 45, 60, 75)
"""The turns of the fruit set on Kaggle: the corners are black, the canvas stays."""
BLACK, WHITE = (0, 0, 0), (255, 255, 255)

Alter = Callable[[Image.Image, np.random.Generator], Image.Image]


def rotated(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """By any angle, the canvas kept or grown, the corners black or white."""
    fill = BLACK if rng.random() < 0.5 else WHITE
    grows = bool(rng.random() < 0.5)
    return image.rotate(float(rng.uniform(-180, 180)), Image.Resampling.BILINEAR, expand=grows, fillcolor=fill)


def kaggle(degrees: int) -> Alter:
    return lambda image, rng: image.rotate(degrees, Image.Resampling.BILINEAR, fillcolor=BLACK)


def mirrored(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    ways = (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM)
    return image.transpose(ways[int(rng.integers(2))])


def cropped(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """70 to 90 % of each side, from anywhere."""
    width, height = (max(8, round(side * float(rng.uniform(0.7, 0.9)))) for side in image.size)
    left = int(rng.integers(image.width - width + 1))
    top = int(rng.integers(image.height - height + 1))
    return image.crop((left, top, left + width, top + height))


def shifted(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """By up to 15 % of each side; black comes in."""
    dx, dy = (round(side * float(rng.uniform(-0.15, 0.15))) for side in image.size)
    canvas = Image.new("RGB", image.size, BLACK)
    canvas.paste(image, (dx, dy))
    return canvas


def scaled(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A smaller file, or the same canvas with the picture 20 % smaller to 25 % larger."""
    if rng.random() < 0.5:
        factor = float(rng.uniform(0.4, 0.9))
        return image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC)
    factor = float(rng.uniform(0.8, 1.25))
    large = image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC)
    canvas = Image.new("RGB", image.size, WHITE)
    canvas.paste(large, ((image.width - large.width) // 2, (image.height - large.height) // 2))
    return canvas


def brightened(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """0.6 to 1.5 times as bright; what is white already stays white."""
    return ImageEnhance.Brightness(image).enhance(float(rng.choice([rng.uniform(0.6, 0.85), rng.uniform(1.15, 1.5)])))


def noised(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Salt and pepper on 2 to 6 % of the pixels."""
    pixels = np.array(image)
    hit = rng.random(pixels.shape[:2]) < float(rng.uniform(0.02, 0.06))
    pixels[hit] = np.where(rng.random((int(hit.sum()), 1)) < 0.5, 0, 255)
    return Image.fromarray(pixels)


def recompressed(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """JPEG at quality 20 to 50."""
    data = BytesIO()
    image.save(data, "JPEG", quality=int(rng.integers(20, 51)))
    return Image.open(data).convert("RGB")


KINDS: dict[str, Alter] = {
    "rotated": rotated,
    **{f"rotated by {degrees}": kaggle(degrees) for degrees in KAGGLE_DEGREES},
    "mirrored": mirrored,
    "cropped": cropped,
    "shifted": shifted,
    "scaled": scaled,
    "brightened": brightened,
    "noised": noised,
    "recompressed": recompressed,
}


def photos_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix[1:].lower() in IMAGE_EXTENSIONS)


def lay_out(photos: list[Path], place: Path, *, number: int, seed: int) -> dict[str, tuple[str, str]]:
    """All photos and the copies of every second one, in two classes; copy -> (photo, kind)."""
    copies = {}
    kinds = list(KINDS)
    for index, photo in enumerate(photos):
        name = f"train/{index % 2}/{index:06d}{photo.suffix}"
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(photo, place / name)
        if index % 2 == 0:
            kind = kinds[(index // 2 + number) % len(kinds)]
            rng = np.random.default_rng([seed, number, index])
            with Image.open(photo) as image:
                altered = KINDS[kind](image.convert("RGB"), rng)
            copy = f"val/0/{index:06d}.png"
            (place / copy).parent.mkdir(parents=True, exist_ok=True)
            altered.save(place / copy)
            copies[copy] = (name, kind)
    return copies


def groups_of(folder: Path, cache: Path) -> tuple[dict[str, int], str]:
    """File -> number of its group; and what the check took, its small pictures having been decoded before."""
    prepare(scan(folder, holdout=0.2, seed=0), size_px=SIZE_PX, cache=cache, skip_bad=None)
    started_s, before = time.perf_counter(), os.times()
    payload = check_folder(folder, cache=cache).payload()
    took_s, after = time.perf_counter() - started_s, os.times()
    cpu_s = sum(after[:4]) - sum(before[:4])  # with that of the processes that have ended
    group = {name: number for number, found in enumerate(payload["groups"]) for name in found["files"]}
    return group, f"{took_s:.1f} s, {cpu_s:.1f} s of one core"


def rounds(photos: list[Path], *, num_rounds: int, seed: int, keep: Path | None) -> Iterator[tuple[str, Counter[str]]]:
    """For each round: what happened, and the counts."""
    for number in range(num_rounds):
        with tempfile.TemporaryDirectory(prefix="leaks-") as folder:
            place = (keep or Path(folder)) / f"round-{number}"
            copies = lay_out(photos, place, number=number, seed=seed)
            group, took = groups_of(place, Path(folder) / "cache")
            counts: Counter[str] = Counter()
            for copy, (photo, kind) in copies.items():
                counts[f"made {kind}"] += 1
                counts[f"found {kind}"] += copy in group and group[copy] == group.get(photo)
            sizes = Counter(number for name, number in group.items() if name.startswith("train/"))
            for index in range(1, len(photos), 2):
                name = f"train/1/{index:06d}{photos[index].suffix}"
                counts["unrelated"] += 1
                counts["with a copy of another photo only"] += name in group and sizes[group[name]] < 2
                counts["with another photo"] += name in group and sizes[group[name]] > 1
            yield f"round {number}: {len(photos) + len(copies):,} images in {took}", counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="a folder of photos, at any depth")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="leave the folders that were checked here")
    given = parser.parse_args()
    total: Counter[str] = Counter()
    for sentence, counts in rounds(
        photos_below(given.photos), num_rounds=given.rounds, seed=given.seed, keep=given.keep
    ):
        print(sentence, flush=True)
        total += counts
    print(f"\n{'kind':<16}{'copies':>8}{'found':>8}{'share':>9}")
    for kind in KINDS:
        made, found = total[f"made {kind}"], total[f"found {kind}"]
        print(f"{kind:<16}{made:>8}{found:>8}{found / max(made, 1):>9.1%}")
    made, found = (sum(total[f"{what} {kind}"] for kind in KINDS) for what in ("made", "found"))
    print(f"{'all':<16}{made:>8}{found:>8}{found / max(made, 1):>9.1%}")
    for what in ("with a copy of another photo only", "with another photo"):
        print(f"photos without a copy, in a group {what}: {total[what]} of {total['unrelated']}", end=" ")
        print(f"({total[what] / max(total['unrelated'], 1):.2%})")


if __name__ == "__main__":
    main()
