"""A set of JPEGs to measure with: sides and file sizes as in Caltech-256, classes that can be learned, no download.

    python bench/jpeg_set.py FOLDER [--images 24000] [--classes 257] [--width-px 400] [--height-px 350] [--seed 0]

Writes FOLDER/class-017/00274.jpg and, last, FOLDER/jpeg_set.json with the parameters; a complete folder is kept.
Sides vary by 30 % either way; at quality 90 a file has 33 kB on average, most of them 20 to 40.

An image is a smooth field of random colours, fine texture, and the waves of its class: their direction and colour tell
the class, and survive small rotations, zooms and shifts. It depends on the seed and its own number alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from io import BytesIO
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

VERSION = 1
"""Rises whenever a pixel changes: figures taken on two versions are not comparable."""
QUALITY = 90
SIDE_VARIATION = 0.3
WAVES_PER_WIDTH = 8
TILE_PX = 1024
OCTAVES = {1: 0.02, 2: 0.045, 4: 0.11, 8: 0.2}
"""Size of a grain in pixels: its weight. Finer or stronger grains make larger files."""
DIRECTIONS = 16
CHUNK_IMAGES = 64

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class JpegSet:
    """What decides every byte of a set."""

    images: int = 24_000
    classes: int = 257
    width_px: int = 400
    """Mean width; single images vary by SIDE_VARIATION."""
    height_px: int = 350
    seed: int = 0
    version: int = VERSION

    def path(self, number: int) -> str:
        """Of one image, below the set's folder."""
        return f"{class_name(number % self.classes)}/{number:05d}.jpg"


def class_name(label: int) -> str:
    return f"class-{label:03d}"


def draw(wanted: JpegSet, number: int) -> bytes:
    """One image as the bytes of its file."""
    random = np.random.default_rng([wanted.seed, number])
    width_px, height_px = (
        max(16, round(mean * random.uniform(1 - SIDE_VARIATION, 1 + SIDE_VARIATION)))
        for mean in (wanted.width_px, wanted.height_px)
    )
    coarse = Image.fromarray(random.integers(0, 256, (6, 7, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width_px, height_px), Image.Resampling.BICUBIC), dtype=np.float32)
    shades = texture(wanted.seed, height_px, width_px, random)[..., None]
    period_px = wanted.width_px / WAVES_PER_WIDTH
    pixels = 50 + 0.6 * smooth + shades + waves(number % wanted.classes, smooth.shape[:2], period_px, random)
    file = BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def texture(seed: int, height_px: int, width_px: int, random: np.random.Generator) -> Floats:
    """A piece of one large tile, weak or strong: a tile of its own for each image would take most of the time."""
    tile = _tile(seed)
    top, left = random.integers(0, tile.shape[0] - height_px), random.integers(0, tile.shape[1] - width_px)
    return tile[top : top + height_px, left : left + width_px] * np.float32(random.uniform(0.6, 1.2))


@cache
def _tile(seed: int) -> Floats:
    random = np.random.default_rng(seed)
    total = np.zeros((TILE_PX, TILE_PX), dtype=np.float32)
    for grain_px, weight in OCTAVES.items():
        grains = Image.fromarray(random.integers(0, 256, (TILE_PX // grain_px,) * 2, dtype=np.uint8))
        total += weight * (np.asarray(grains.resize((TILE_PX, TILE_PX), Image.Resampling.BICUBIC), np.float32) - 127.5)
    return total


def waves(label: int, shape: tuple[int, ...], period_px: float, random: np.random.Generator) -> Floats:
    """(height, width, 3): the direction is the class's number modulo 16, the colour the rest of it."""
    direction = math.pi * (label % DIRECTIONS) / DIRECTIONS
    hue = 2 * math.pi * (label // DIRECTIONS) / 17  # 17 colours in 16 directions: 272 classes before any repeats
    colour = 35 * np.cos(hue + np.array([0, 2, 4]) * math.pi / 3).astype(np.float32)
    down, across = (np.arange(side, dtype=np.float32) * np.float32(2 * math.pi / period_px) for side in shape)
    down = down * np.float32(math.sin(direction)) + np.float32(random.uniform(0, 2 * math.pi))
    across = across * np.float32(math.cos(direction))
    # cos(a + b) by outer products: a cosine for each side instead of one for each pixel.
    wave = np.outer(np.cos(down), np.cos(across)) - np.outer(np.sin(down), np.sin(across))
    return wave[..., None] * colour


def write(folder: Path, wanted: JpegSet, numbers: tuple[int, ...]) -> int:
    """Draws some of the images into their folders; how many bytes they have."""
    num_bytes = 0
    for number in numbers:
        data = draw(wanted, number)
        (folder / wanted.path(number)).write_bytes(data)
        num_bytes += len(data)
    return num_bytes


def make(folder: Path, wanted: JpegSet, *, processes: int | None = None) -> Path:
    """The set in `folder`: at once when it is complete, else drawn on all cores; it appears whole or not at all."""
    if max(wanted.width_px, wanted.height_px) * (1 + SIDE_VARIATION) >= TILE_PX:
        raise SystemExit(f"Sides of up to {TILE_PX / (1 + SIDE_VARIATION) - 1:.0f} px on average can be drawn.")
    parameters = folder / "jpeg_set.json"
    if folder.exists():
        if parameters.is_file() and json.loads(parameters.read_text()) == asdict(wanted):
            return folder
        raise SystemExit(f"{folder} exists and is not the set that was asked for. Remove it, or name another folder.")
    unfinished = folder.absolute().with_name(f".{folder.name}.{os.getpid()}.unfinished")
    try:
        for label in range(wanted.classes):
            (unfinished / class_name(label)).mkdir(parents=True)
        starts = range(0, wanted.images, CHUNK_IMAGES)
        chunks = [tuple(range(i, min(i + CHUNK_IMAGES, wanted.images))) for i in starts]
        with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0))) as pool:
            for _ in pool.map(write, repeat(unfinished), repeat(wanted), chunks):
                pass
        (unfinished / parameters.name).write_text(json.dumps(asdict(wanted), indent=2) + "\n")
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def main() -> None:
    defaults = JpegSet()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name in ("images", "classes", "width_px", "height_px", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(defaults, name))
    options = vars(parser.parse_args())
    folder = options.pop("folder")
    start = time.perf_counter()
    make(folder, JpegSet(**options))
    sizes = [file.stat().st_size for file in folder.glob("*/*.jpg")]
    print(f"{folder}: {len(sizes):,} JPEGs, {np.mean(sizes) / 1000:.1f} kB each, {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
