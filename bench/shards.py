"""What do many images in tar shards take? Tiny shards are made, scanned, split, ordered and read, with peak memory.

    python bench/shards.py [--images 1000000] [--in-shard 10000] [--epoch-images 20000] [--classes 1000]

Every step is a process of its own, so that its peak is its own: the peak of the main process, and of the largest child.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from turnaround.data.formats import scan
from turnaround.data.order import epoch_order
from turnaround.data.pixels import prepare
from turnaround.data.reading import rows_of

BLOCK = 512


def member(name: str, content: bytes) -> bytes:
    """One file of a tar, header and padding; `tarfile` would take most of the benchmark's time."""
    header = bytearray(BLOCK)
    header[: len(name)] = name.encode()
    header[100:108], header[124:136] = b"0000644\0", f"{len(content):011o}\0".encode()
    header[148:156], header[156:157], header[257:265] = b" " * 8, b"0", b"ustar\x0000"
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + content + bytes(-len(content) % BLOCK)


def make(folder: Path, *, num_images: int, in_shard: int, num_classes: int) -> None:
    """Write shards of JPEGs of 16 px; their first pixels differ, so that no two are copies."""
    rng = np.random.default_rng(0)
    for shard, first in enumerate(range(0, num_images, in_shard)):
        with (folder / f"{shard:05}.tar").open("wb") as file:
            for k in range(first, min(first + in_shard, num_images)):
                data = BytesIO()
                Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(data, "JPEG", quality=50)
                file.write(
                    member(f"{k:08}.jpg", data.getvalue()) + member(f"{k:08}.cls", str(k % num_classes).encode())
                )
            file.write(bytes(2 * BLOCK))


def step(what: str, folder: Path) -> dict[str, float]:
    """Do one step, and return its seconds and peaks in MB."""
    started_s = time.perf_counter()
    if what == "imports":
        pass
    elif what == "scan, split":
        scan(folder, holdout=0.1, seed=0)
    elif what == "order of an epoch":
        table = scan(folder, holdout=0.1, seed=0)
        started_s = time.perf_counter()
        epoch_order(num_images=table.num_train, seed=0, epoch=1)
    else:
        table = scan(folder, holdout=0.1, seed=0)
        started_s = time.perf_counter()
        keeps = what == "decode once, kept"
        pixels = prepare(table, size_px=16, cache=folder.with_name("cache"), skip_bad=False, keeps_pixels=keeps)
        if what == "epoch, decoded when needed":
            started_s = time.perf_counter()
            rows = rows_of(pixels)
            order = np.random.default_rng(0).permutation(table.num_train)
            out = np.empty((256, 16, 16, 3), np.uint8)
            for first in range(0, len(order) - 255, 256):
                rows.take(order[first : first + 256], out)
            rows.close()
    peaks = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return dict(zip(("seconds", "peak_mb", "largest_child_mb"), (time.perf_counter() - started_s, *peaks), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--in-shard", type=int, default=10_000)
    parser.add_argument("--epoch-images", type=int, default=20_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        print(json.dumps(step(given.step[0], Path(given.step[1]))))
        return
    whole, epoch = ("imports", "scan, split", "order of an epoch"), ("decode once, kept", "epoch, decoded when needed")
    for num_images, steps in ((given.images, whole), (given.epoch_images, epoch)):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "shards"
            folder.mkdir()
            make(folder, num_images=num_images, in_shard=given.in_shard, num_classes=given.classes)
            for what in steps:
                command = [sys.executable, __file__, "--step", what, str(folder)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                print(f"{num_images:>9,} images  {what:<28} {json.loads(done.stdout.splitlines()[-1])}", flush=True)


if __name__ == "__main__":
    main()
