"""Many image files in, their pixels and digests out, by as many processes as there are cores.

Pixels never travel through a pipe: a decoder writes them to a file, or into memory that it shares with its parent.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Generator
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from turnaround import children
from turnaround.data.decode import DIGEST_BYTES, UnreadableImage, decode_to
from turnaround.errors import DataError

_MIN_FOR_PROCESSES = 64  # below it, starting processes (about 0.3 s) costs more than it saves
_CHUNK_IMAGES, _CHUNK_BYTES = 32, 8 << 20  # the most that one task decodes and holds

Progress = Callable[[int, int], None]  # images done, images in all


class Show(Protocol):
    """Who shows a long task to a person: `what` is done for `total` items, `done` so far."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


def silent(what: str, done: int, total: int) -> None:
    """Shows nothing."""


_Chunk = tuple[int, tuple[str, ...]]  # the place of its first image, and its files


@dataclass(frozen=True, kw_only=True)
class DecodeTarget:
    """Where the pixels of many images go: one file that has its full size already."""

    path: Path | None  # None: nowhere; the files are only checked
    offset_bytes: int  # of the first image in the file
    root: Path  # of the image files; absolute, since a spawned process may start in another directory
    size_px: int


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """What is known of many files once they were decoded."""

    digests: NDArray[np.uint8]  # one row a file
    pixel_digests: NDArray[np.uint8]  # of what was decoded: the same for the same picture in another file format
    bad: dict[int, str]  # index in files: reason; their pixels and digests are zero
    images_per_s: float  # of all processes while they decode; their start is not in it


class Rows(NamedTuple):
    """What one task found out."""

    start: int
    digests: list[bytes]
    bad: dict[int, str]  # by place: the reason
    time_s: float
    pixel_digests: tuple[bytes, ...] = ()  # only where the pixels are decoded to be kept or checked


def decode_into(target: DecodeTarget, files: tuple[str, ...], on_progress: Progress | None = None) -> Decoded:
    """Decode all files in parallel processes, each straight to its place."""
    num_processes = children.num_cpus()
    # Four chunks a process at least, so that a few slow images do not leave the other processes idle.
    most = min(_CHUNK_IMAGES, _CHUNK_BYTES // (target.size_px**2 * 3), len(files) // (4 * num_processes))
    step = max(1, most)
    chunks = [(start, files[start : start + step]) for start in range(0, len(files), step)]
    if len(files) < _MIN_FOR_PROCESSES or not children.can_have_children():
        num_processes = 1
    digests = np.zeros((len(files), DIGEST_BYTES), np.uint8)
    pixel_digests = np.zeros_like(digests)
    bad: dict[int, str] = {}
    num_done, time_s = 0, 0.0
    decoded = _one_by_one(target, chunks) if num_processes == 1 else _in_processes(target, chunks, num_processes)
    with contextlib.closing(decoded):  # the processes have ended before anyone removes the file
        for rows in decoded:
            count = len(rows.digests)
            digests[rows.start : rows.start + count] = as_rows(rows.digests)
            pixel_digests[rows.start : rows.start + count] = as_rows(list(rows.pixel_digests))
            bad |= rows.bad
            num_done += count
            time_s += rows.time_s
            if on_progress is not None:
                on_progress(num_done, len(files))
    rate = num_done * num_processes / max(time_s, 1e-9)
    return Decoded(digests=digests, pixel_digests=pixel_digests, bad=bad, images_per_s=rate)


def as_rows(digests: list[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)


def _one_by_one(target: DecodeTarget, chunks: list[_Chunk]) -> Generator[Rows, None, None]:
    for chunk in chunks:
        yield _decode_chunk(target, chunk)


def _in_processes(target: DecodeTarget, chunks: list[_Chunk], num_processes: int) -> Generator[Rows, None, None]:
    num_processes = min(num_processes, len(chunks))
    with children.pool(num_processes) as pool:
        try:
            with children.starting():
                tasks = [pool.submit(_decode_chunk, target, chunk) for chunk in chunks]
            for task in as_completed(tasks):
                yield task.result()
        except BrokenProcessPool as error:
            raise killed(num_processes) from error
        finally:
            pool.shutdown(cancel_futures=True)


def killed(num_processes: int) -> DataError:
    """The error for a decoder that ended by itself."""
    return DataError(
        "A process that decodes images was killed. The likely cause is memory: the machine, or the "
        f"job's limit, has too little for {num_processes} such processes. Ask for more memory, use "
        "fewer cores (taskset -c 0-3 turnaround ...), or make very large images smaller."
    )


def decode_rows(out: NDArray[np.uint8], root: Path, chunk: _Chunk) -> Rows:
    """Some files into the rows of `out`; a bad one leaves zeros."""
    (start, files), started_s = chunk, time.perf_counter()
    digests = [bytes(DIGEST_BYTES)] * len(files)
    bad: dict[int, str] = {}
    for index, name in enumerate(files):
        try:
            digests[index] = decode_to(out[index], root / name)
        except UnreadableImage as error:
            bad[start + index] = error.reason
            out[index] = 0
    return Rows(start, digests, bad, time.perf_counter() - started_s)


def _decode_chunk(target: DecodeTarget, chunk: _Chunk) -> Rows:
    start, files = chunk
    pixels = np.empty((len(files), target.size_px, target.size_px, 3), np.uint8)
    rows = decode_rows(pixels, target.root, chunk)
    if target.path is not None:
        # Written, not assigned through a memory map: on a full disk that would be SIGBUS, this is an OSError.
        with open(target.path, "r+b") as file:
            file.seek(target.offset_bytes + start * pixels[0].nbytes)
            file.write(pixels.data)
    return rows._replace(pixel_digests=tuple(pixel_digest(picture) for picture in pixels))


def pixel_digest(picture: NDArray[np.uint8]) -> bytes:
    return hashlib.blake2b(picture.data, digest_size=DIGEST_BYTES).digest()
