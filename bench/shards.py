"""What do many images in tar shards take? Tiny shards are made, scanned, split, ordered and read, with peak memory.

    python bench/shards.py [--images 1000000] [--in-shard 10000] [--decode-images 20000] [--classes 1000] [--at DIR]

Every step is a process of its own: the peak of the main process, and of the largest child, which is an upper limit: the
system counts what its parent held when it was started. Building an entry scans first, so its peak is never below the
scan's; the steps after it open the entry, as a training process does. Seconds and CPU seconds are of the step alone.
`--at` keeps the shards, and takes them when they are there; the cache is always made anew.

The images are 16 px, and a few hundred JPEGs take turns under names of their own: encoding a million would take most of
the time. Decoding is timed on `--decode-images` of them. The cache entry of all is built from what the decoders would
have told (the digests of the few hundred), so that the memory of everything around them is measured at full size.
Nearly all images are copies of others, so what the search for copies takes is not that of an honest set.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from turnaround.check.copies import find_copies
from turnaround.data import decoders
from turnaround.data.decode import decode_bytes, digest_of
from turnaround.data.decoders import ChunkResult, DecodeTarget, DecodeTask
from turnaround.data.folder import ImageTable
from turnaround.data.formats import scan
from turnaround.data.order import epoch_order
from turnaround.data.pixels import Pixels, open_pixels, prepare
from turnaround.data.reading import rows_of
from turnaround.data.sums import sums_of

BLOCK = 512
DISTINCT = 251  # a prime: every class meets every picture
SIZE_PX = 16
BATCH, NUM_BATCHES = 256, 50
BUILT, OPENED = "entry without pixels", "opened by a process"
OF_ENTRY = ("order of an epoch", "copies", "first batches")
WHOLE = ("imports", "scan, split", BUILT, OPENED, *OF_ENTRY)
KEPT, NOT_KEPT = "decode once, kept", "decode once, not kept"


def member(name: str, content: bytes) -> bytes:
    """One file of a tar, header and padding; `tarfile` would take most of the benchmark's time."""
    header = bytearray(BLOCK)
    header[: len(name)] = name.encode()
    header[100:108], header[124:136] = b"0000644\0", f"{len(content):011o}\0".encode()
    header[148:156], header[156:157], header[257:265] = b" " * 8, b"0", b"ustar\x0000"
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + content + bytes(-len(content) % BLOCK)


def pictures() -> list[bytes]:
    """The JPEGs that take turns: image k is the k-th of them, counted around."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(DISTINCT):
        data = BytesIO()
        Image.fromarray(rng.integers(0, 255, (SIZE_PX, SIZE_PX, 3), np.uint8)).save(data, "JPEG", quality=50)
        made.append(data.getvalue())
    return made


def make(folder: Path, *, num_images: int, in_shard: int, num_classes: int) -> None:
    """Write the shards, or find them written."""
    if (folder / "whole").exists():
        return
    folder.mkdir(parents=True)
    contents = pictures()
    for shard, first in enumerate(range(0, num_images, in_shard)):
        with (folder / f"{shard:05}.tar").open("wb") as file:
            for k in range(first, min(first + in_shard, num_images)):
                file.write(member(f"{k:08}.jpg", contents[k % DISTINCT]))
                file.write(member(f"{k:08}.cls", str(k % num_classes).encode()))
            file.write(bytes(2 * BLOCK))
    (folder / "whole").touch()


def told_at_once() -> None:
    """From here on the decoding processes of decoders.py are not started: what they would tell is known."""
    contents = pictures()
    digests = [digest_of(content) for content in contents]
    decoded = [decode_bytes(content, size_px=SIZE_PX, path=Path("x.jpg")) for content in contents]
    pixel_digests = [digest_of(pixels.data) for pixels in decoded]
    pixel_sums = sums_of(np.stack(decoded)).tolist()

    def tell(target: DecodeTarget, tasks: list[DecodeTask], num_processes: int) -> Iterator[ChunkResult]:
        for task in tasks:
            which = [int(name[-12:-4]) % DISTINCT for name in task.files]
            yield ChunkResult(
                start=task.start,
                digests=[digests[k] for k in which],
                bad={},
                time_s=1e-3,
                pixel_digests=tuple(pixel_digests[k] for k in which),
                pixel_sums=tuple(pixel_sums[k] for k in which),
            )

    decoders._in_processes = tell  # type: ignore[assignment]


def cache_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-cache")


def build(table: ImageTable, folder: Path, *, keeps_pixels: bool) -> None:
    """Build the entry; one that is there already would be no measurement."""
    pixels = prepare(table, size_px=SIZE_PX, cache=cache_of(folder), skip_bad=False, keeps_pixels=keeps_pixels)
    assert not pixels.from_cache


def opened(folder: Path) -> Pixels:
    (entry,) = cache_of(folder).glob("files-*")
    return open_pixels(entry)


def read_first_batches(pixels: Pixels) -> None:
    rows = rows_of(pixels)
    order = epoch_order(num_images=pixels.num_train, seed=0, epoch=1)
    out = np.empty((BATCH, SIZE_PX, SIZE_PX, 3), np.uint8)
    for first in range(0, min(NUM_BATCHES * BATCH, len(order) - BATCH + 1), BATCH):
        rows.take(order[first : first + BATCH], out)
    rows.close()


def cpu_s() -> float:
    """Of this process and of its children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in both)


def step(what: str, folder: Path) -> dict[str, float]:
    """Do one step, and return its seconds, CPU seconds, and peaks in MB."""
    table = scan(folder, holdout=0.1, seed=0) if what in (BUILT, KEPT, NOT_KEPT) else None
    pixels = opened(folder) if what in OF_ENTRY else None
    if what == BUILT:
        told_at_once()
    started_s, started_cpu_s = time.perf_counter(), cpu_s()
    if table is not None:
        build(table, folder, keeps_pixels=what == KEPT)
    elif what == "scan, split":
        scan(folder, holdout=0.1, seed=0)
    elif what == OPENED:
        opened(folder)
    elif pixels is not None and what == "order of an epoch":
        epoch_order(num_images=pixels.num_train, seed=0, epoch=1)
    elif pixels is not None:
        (find_copies if what == "copies" else read_first_batches)(pixels)
    peaks = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    used = (time.perf_counter() - started_s, cpu_s() - started_cpu_s, *peaks)
    return dict(zip(("seconds", "cpu_seconds", "peak_mb", "largest_child_mb"), used, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--in-shard", type=int, default=10_000)
    parser.add_argument("--decode-images", type=int, default=20_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--at", type=Path, help="where the shards and the cache are kept; a temporary folder otherwise")
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        print(json.dumps(step(given.step[0], Path(given.step[1]))))
        return
    with tempfile.TemporaryDirectory() as place:
        for num_images, steps in ((given.images, WHOLE), (given.decode_images, (KEPT, NOT_KEPT))):
            if not num_images:
                continue
            folder = (given.at or Path(place)) / str(num_images)
            make(folder, num_images=num_images, in_shard=given.in_shard, num_classes=given.classes)
            shutil.rmtree(cache_of(folder), ignore_errors=True)
            for what in steps:
                command = [sys.executable, __file__, "--step", what, str(folder)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found = {name: round(value, 1) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}
                print(f"{num_images:>9,} images  {what:<24} {found}", flush=True)


if __name__ == "__main__":
    main()
