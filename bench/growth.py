"""Does the input path grow with the number of images, or faster? Scan, cache and epoch order from 1,000 to 1,000,000.

    python bench/growth.py [--images 1000,10000,100000,1000000] [--classes 10,100,1000,10000]
                           [--sizes 32,64,128,224,448] [--folder /tmp]

Three tables, each taken in one run; every row is measured in a process of its own, so that its peak memory is its own.

    by images    100 classes
    by classes   the number of images in the middle of --images, and as many images as classes at least
    by size      bytes and decode time of one JPEG photo of 500 x 375 px

Figures are per image: microseconds of CPU time, because others may use the machine, and bytes of peak memory above that
of an idle process; `wall` is the elapsed time of a start from the cache: scan, key and open. The last column is the
CPU time of such a start per image, divided by that of the first row: near 1, or falling, means linear growth.

The files are hard links to a few tiny PNGs. A million of them are not decoded: the cache entry is built by the real
functions around a stand-in for the decoding, with a sparse images.npy of 8 px.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from turnaround.data import pixels as pixels_module
from turnaround.data.decode import DIGEST_BYTES, decode_to
from turnaround.data.decoders import DecodeResult, DecodeTarget, Progress
from turnaround.data.folder import ImageTable, scan
from turnaround.data.order import epoch_order, step_bounds

T = TypeVar("T")
SIZE_PX = 8
LINKS_PER_FILE = 50_000
"""ext4 allows 65,000 names for a file."""
GLOBAL_BATCH = 256
PHOTOS = 100
PARTS = ("scan", "key", "open", "order")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=numbers, default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--classes", type=numbers, default=[10, 100, 1_000, 10_000])
    parser.add_argument("--sizes", type=numbers, default=[32, 64, 128, 224, 448])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--measure", nargs=2, metavar=("PART", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure[0], Path(options.measure[1]))))
        return
    middle = options.images[len(options.images) // 2]
    by_images = [(count, min(100, count // 10)) for count in options.images]
    by_classes = [(max(middle, 2 * count), count) for count in options.classes]
    with tempfile.TemporaryDirectory(prefix="growth-", dir=options.folder) as place:
        for title, rows in (("by images", by_images), ("by classes", by_classes)):
            print_growth(title, [(images, classes, row(Path(place), images, classes)) for images, classes in rows])
        print_sizes(Path(place), options.sizes)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def row(place: Path, num_images: int, num_classes: int) -> dict[str, dict[str, float]]:
    """All parts of one number of images, each in a fresh process, which finds the folder already listed once."""
    folder = place / f"{num_images}-{num_classes}"
    try:
        plant(folder / "images", num_images, num_classes)
        parts = {}
        for part in ("idle", "build", *PARTS):
            command = [sys.executable, __file__, "--measure", part, str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            parts[part] = json.loads(done.stdout)
        return parts
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def plant(root: Path, num_images: int, num_classes: int) -> None:
    """Distinct names for a few real files, spread over the classes."""
    source = Path()
    for number in range(num_images):
        folder = root / f"class_{number % num_classes:05d}"
        if number < num_classes:
            folder.mkdir(parents=True)
        path = f"{folder}/photo_{number:07d}.png"
        if number % LINKS_PER_FILE == 0:
            source = Path(path)
            Image.new("RGB", (SIZE_PX, SIZE_PX), (number // LINKS_PER_FILE, 0, 0)).save(source)
        else:
            os.link(source, path)


def measured(part: str, folder: Path) -> dict[str, float]:
    """One part, alone in this process: CPU and elapsed seconds, and peak memory in bytes."""
    if part == "idle":
        return timed(lambda: None)[1]
    if part in ("scan", "build", "key"):
        table, figures = timed(lambda: scan(folder / "images", holdout=0.2, seed=0))
        if part == "key":
            figures = timed(lambda: pixels_module._key(table, size_px=SIZE_PX, skip_bad=False))[1]
        if part == "build":
            pixels_module.decode_into = not_decoded  # type: ignore[attr-defined]
            figures = timed(lambda: build(table, folder))[1]
        return figures
    entry = next((folder / "cache").glob("pixels-*"))
    if part == "open":
        return timed(lambda: pixels_module.open_pixels(entry))[1]
    num_images = len(np.load(entry / "labels.npy", mmap_mode="r", allow_pickle=False))
    return timed(lambda: order_and_steps(num_images))[1]


def timed(task: Callable[[], T]) -> tuple[T, dict[str, float]]:
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    result = task()
    return result, {
        "cpu_s": time.process_time() - cpu_s,
        "wall_s": time.perf_counter() - wall_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def not_decoded(target: DecodeTarget, files: tuple[str, ...], on_progress: Progress | None = None) -> DecodeResult:
    """In place of the decoding: the pixels stay a hole in the file."""
    digests = np.zeros((len(files), DIGEST_BYTES), np.uint8)
    return DecodeResult(digests=digests, pixel_digests=digests, bad={}, images_per_s=1.0)


def build(table: ImageTable, folder: Path) -> None:
    pixels_module.prepare(table, size_px=SIZE_PX, cache=folder / "cache", skip_bad=False)


def order_and_steps(num_images: int) -> None:
    epoch_order(seed=0, epoch=1, num_images=num_images)
    step_bounds(num_images=num_images, global_batch=GLOBAL_BATCH, workers=4)


def print_growth(title: str, rows: list[tuple[int, int, dict[str, dict[str, float]]]]) -> None:
    heads = [f"{part} {unit}" for part in PARTS for unit in ("us", "B")]
    print(
        f"\n{title}: per image\n" + " ".join(f"{head:>9}" for head in ("images", "classes", *heads, "wall s", "ratio"))
    )
    first_us = 0.0
    for images, classes, parts in rows:
        figures = []
        for part in PARTS:
            extra_bytes = max(0.0, parts[part]["peak_bytes"] - parts["idle"]["peak_bytes"])
            figures += [f"{1e6 * parts[part]['cpu_s'] / images:9.2f}", f"{extra_bytes / images:9.0f}"]
        start = [parts[part] for part in ("scan", "key", "open")]
        start_us = sum(part["cpu_s"] for part in start) / images
        first_us = first_us or start_us
        wall_s = sum(part["wall_s"] for part in start)
        print(f"{images:9} {classes:9} {' '.join(figures)} {wall_s:9.2f} {start_us / first_us:9.2f}", flush=True)


def print_sizes(place: Path, sizes_px: list[int]) -> None:
    rng = np.random.default_rng(0)
    photos = [place / f"{number}.jpg" for number in range(PHOTOS)]
    for photo in photos:  # coarse noise made smooth: about as many bytes as a photo
        noise = Image.fromarray(rng.integers(0, 256, (47, 63, 3), dtype=np.uint8))
        noise.resize((500, 375), Image.Resampling.BICUBIC).save(photo, quality=90)
    mean_bytes = sum(photo.stat().st_size for photo in photos) / PHOTOS
    heads = ("size px", "bytes", "decode us", "images/cpu-s", "ratio")
    print(f"\nby size: JPEG of 500 x 375 px, {mean_bytes:,.0f} bytes\n" + " ".join(f"{head:>12}" for head in heads))
    first_us = 0.0
    for size_px in sizes_px:
        out = np.zeros((size_px, size_px, 3), np.uint8)
        cost_us = 1e6 / PHOTOS * min(timed(lambda out=out: decoded(out, photos))[1]["cpu_s"] for _ in range(3))  # type: ignore[misc]
        first_us = first_us or cost_us
        print(f"{size_px:12} {out.nbytes:12,} {cost_us:12.0f} {1e6 / cost_us:12.0f} {cost_us / first_us:12.2f}")


def decoded(out: np.ndarray[tuple[int, int, int], np.dtype[np.uint8]], photos: list[Path]) -> None:
    for photo in photos:
        decode_to(out, photo)


if __name__ == "__main__":
    main()
