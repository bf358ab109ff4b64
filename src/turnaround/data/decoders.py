"""Many image files in, their pixels and digests out, by as many processes as there are cores.

Pixels never travel through a pipe where there are many: a decoder writes them to a file, or into memory that it shares
with its parent.

A file may be made to take for ever, or all memory, within every limit that its header can be held to. So each decoding
process has limits of its own, set by the kernel: one that spends more than CPU_LIMIT_S on a picture is ended, replaced,
and the picture is named as unreadable. The limit is of computing, not of waiting: a slow network or a busy machine does
not make a good picture bad.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from turnaround import children
from turnaround.children import ChildPool, Death, PoolClosedError
from turnaround.data.decode import (
    DIGEST_BYTES,
    MAX_DECODE_BYTES,
    MAX_FILE_BYTES,
    MachineFailedImage,
    MemoryShortImage,
    UnreadableImage,
    decode_bytes,
    digest_of,
    is_costly,
    read_file,
)
from turnaround.data.formats.members import IN_ORDER
from turnaround.data.sums import sums_of

try:
    import resource
except ImportError:  # Windows has none: the limits that follow from a file's header remain
    resource = None  # type: ignore[assignment]

CPU_LIMIT_S = 30
"""CPU time for one picture: ten times what the slowest honest one, of 50 Mpx, takes on a slow core."""
_MIN_FOR_PROCESSES = 64  # below it, starting processes (about 0.3 s) costs more than it saves
_CHUNK_IMAGES, _CHUNK_BYTES = 32, 8 << 20  # the most that one task decodes and holds
# A decoder that ends in one of these has stumbled over the picture, not over the machine.
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL))

Progress = Callable[[int, int], None]  # images done, images in all


class Show(Protocol):
    """Shows a long task to a person: `what` is done for `total` items, `done` so far."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


def silent(what: str, done: int, total: int) -> None:
    """Show nothing."""


@dataclass(frozen=True, kw_only=True)
class DecodeTarget:
    """The destination of the pixels of many images: one file that has its full size already."""

    path: Path | None  # None: nowhere; the files are only checked
    offset_bytes: int  # of the first image in the file
    root: Path  # of the image files; absolute, since a spawned process may start in another directory
    size_px: int


@dataclass(frozen=True, kw_only=True)
class DecodeResult:
    """Digests, unreadable files and the decoding rate of many files."""

    digests: NDArray[np.uint8]  # (N, 16), of the files' bytes
    pixel_digests: NDArray[np.uint8]  # (N, 16), of the pixels: the same for the same picture in another file format
    pixel_sums: NDArray[np.uint64]  # (N,), of the pixels (sums.py)
    bad: dict[int, str]  # index in files: reason; their pixels and digests are zero
    images_per_s: float  # of all processes while they decode; their start is not in it


@dataclass(frozen=True, kw_only=True)
class DecodeTask:
    """A few files that one process decodes in one go."""

    start: int  # the place of the first file among all
    files: tuple[str, ...]
    rows: tuple[int, ...] = ()  # of the pixels in their file, where they do not follow one another from `start`
    refused: dict[int, str] = field(default_factory=dict)  # place in `files`: why a decoder ended over it

    def without(self, place: int, reason: str) -> DecodeTask:
        return replace(self, refused=self.refused | {place: reason})


class ChunkResult(NamedTuple):
    """The result of one task."""

    start: int
    digests: list[bytes]
    bad: dict[int, str]  # by place among all files: the reason
    time_s: float
    pixel_digests: tuple[bytes, ...] = ()  # only where the pixels are decoded to be kept or checked
    pixel_sums: tuple[int, ...] = ()


def decode_into(target: DecodeTarget, files: tuple[str, ...], on_progress: Progress | None = None) -> DecodeResult:
    """Decode all files in parallel processes, each straight to its place."""
    num_processes = children.num_helpers()
    # Four chunks a process at least, so that a few slow images do not leave the other processes idle.
    most = min(_CHUNK_IMAGES, _CHUNK_BYTES // (target.size_px**2 * 3), len(files) // (4 * num_processes))
    step = max(1, most)
    order = _reading_order(files)
    tasks = [_task(files, order, start, step) for start in range(0, len(files), step)]
    if len(files) < _MIN_FOR_PROCESSES or not children.can_have_children():
        num_processes = 1
    digests = np.zeros((len(files), DIGEST_BYTES), np.uint8)
    pixel_digests = np.zeros_like(digests)
    pixel_sums = np.zeros(len(files), np.uint64)
    bad: dict[int, str] = {}
    num_done, time_s = 0, 0.0
    decoded = _in_this_process(target, tasks) if num_processes == 1 else _in_processes(target, tasks, num_processes)
    with contextlib.closing(decoded):  # the processes have ended before anyone removes the file
        for chunk in decoded:
            count = len(chunk.digests)
            rows = (
                slice(chunk.start, chunk.start + count) if order is None else order[chunk.start : chunk.start + count]
            )
            digests[rows] = as_rows(chunk.digests)
            pixel_digests[rows] = as_rows(list(chunk.pixel_digests))
            pixel_sums[rows] = chunk.pixel_sums
            bad |= {place if order is None else int(order[place]): reason for place, reason in chunk.bad.items()}
            num_done += count
            time_s += chunk.time_s
            if on_progress is not None:
                on_progress(num_done, len(files))
    # time_s adds up over processes that ran side by side.
    rate = num_done * num_processes / max(time_s, 1e-9)
    return DecodeResult(digests=digests, pixel_digests=pixel_digests, pixel_sums=pixel_sums, bad=bad, images_per_s=rate)


def _reading_order(files: tuple[str, ...]) -> NDArray[np.int64] | None:
    """Return the places of the files in the order in which they are read: by name where they lie in a container that
    can only be read forwards. None: as they come.
    """
    if not any(mark in name for name in files for mark in IN_ORDER):
        return None
    return np.array(sorted(range(len(files)), key=files.__getitem__), np.int64)


def _task(files: tuple[str, ...], order: NDArray[np.int64] | None, start: int, step: int) -> DecodeTask:
    if order is None:
        return DecodeTask(start=start, files=files[start : start + step])
    rows = tuple(order[start : start + step].tolist())
    return DecodeTask(start=start, files=tuple(files[row] for row in rows), rows=rows)


def as_rows(digests: list[bytes]) -> NDArray[np.uint8]:
    """Return digests as an array of (N, 16)."""
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)


def _in_this_process(target: DecodeTarget, tasks: list[DecodeTask]) -> Generator[ChunkResult, None, None]:
    with GuardedDecoder(cpu_limit_s=CPU_LIMIT_S) as decoder:
        for task in tasks:
            yield _decode_chunk(target, task, decoder.decode)


def _in_processes(
    target: DecodeTarget, tasks: list[DecodeTask], num_processes: int
) -> Generator[ChunkResult, None, None]:
    num_processes = min(num_processes, len(tasks))
    with ChildPool[DecodeTask, ChunkResult](
        _decode_for_parent, num_processes, begin=_begin, begin_with=(target, CPU_LIMIT_S), looks_ahead=True
    ) as pool:
        pool.submit(*tasks)
        while pool.num_unfinished:
            outcome = pool.take()
            if outcome.result is not None:
                yield outcome.result
            elif outcome.death is not None:  # the task goes on without its culprit; ChildPool has replaced the process
                culprit = blame(outcome.death, num_processes=num_processes, cpu_limit_s=CPU_LIMIT_S)
                pool.submit(outcome.task.without(*culprit))


def blame(death: Death, *, num_processes: int, cpu_limit_s: int) -> tuple[int, str]:
    """Return the place of the file that a decoder died of, and the reason; raise ProcessFailedError if it was none."""
    if death.mark < 0:  # it died before its first picture
        raise children.died(death, num_processes, "decodes images")
    if death.signal == getattr(signal, "SIGXCPU", None):
        return death.mark, f"takes more than {cpu_limit_s} s of computing to decode"
    if death.signal in _CRASHES:
        return death.mark, f"the decoder crashed on it (signal {death.signal})"
    raise children.died(death, num_processes, "decodes images")


Decode = Callable[..., NDArray[np.uint8]]
"""(data, *, size_px, path) -> pixels, as decode.decode_bytes."""


def decode_rows(
    out: NDArray[np.uint8],
    root: Path,
    task: DecodeTask,
    decode: Decode = decode_bytes,
    limits: DecoderLimits | None = None,
) -> ChunkResult:
    """Decode the files of a task into the rows of `out`; a bad one leaves zeros."""
    started_s = time.perf_counter()
    digests = [bytes(DIGEST_BYTES)] * len(task.files)
    bad: dict[int, str] = {}
    for index, name in enumerate(task.files):
        try:
            if index in task.refused:
                raise UnreadableImage(root / name, task.refused[index])
            if limits is not None:
                limits.begin_picture(index)
            data = read_file(root / name)
            out[index] = decode(data, size_px=len(out[index]), path=root / name)
            digests[index] = digest_of(data)
        except MachineFailedImage as error:
            # Left out, it would be so for good: what is decoded is kept.
            if not _is_own_fault(error, limits):
                raise error.of_the_machine() from error
            bad[task.start + index] = error.reason
            out[index] = 0
        except UnreadableImage as error:
            bad[task.start + index] = error.reason
            out[index] = 0
    return ChunkResult(task.start, digests, bad, time.perf_counter() - started_s)


def _is_own_fault(error: MachineFailedImage, limits: DecoderLimits | None) -> bool:
    """Return whether a picture has taken more memory than any may: this process had as much as that."""
    return isinstance(error, MemoryShortImage) and limits is not None and limits.has_room


def _decode_chunk(
    target: DecodeTarget, task: DecodeTask, decode: Decode = decode_bytes, limits: DecoderLimits | None = None
) -> ChunkResult:
    pixels = np.empty((len(task.files), target.size_px, target.size_px, 3), np.uint8)
    chunk = decode_rows(pixels, target.root, task, decode, limits)
    if target.path is not None:
        # Written, not assigned through a memory map: on a full disk that would be SIGBUS, this is an OSError.
        with open(target.path, "r+b") as file:
            if not task.rows:
                file.seek(target.offset_bytes + task.start * pixels[0].nbytes)
                file.write(pixels.data)
            for row, picture in zip(task.rows, pixels, strict=False):
                file.seek(target.offset_bytes + row * picture.nbytes)
                file.write(picture.data)
    return chunk._replace(
        pixel_digests=tuple(digest_of(picture.data) for picture in pixels), pixel_sums=tuple(sums_of(pixels).tolist())
    )


# --- one picture at a time, from any thread


class GuardedDecoder:
    """Decodes cheap pictures where it is called, and costly ones in a child process with limits.

    Any number of threads may call it; each gets a child of its own. With `trusts_none` cheap pictures go there too:
    Pillow's Python would hold up the threads of a server, and a hole in a decoder would be one in the server.
    """

    def __init__(self, *, cpu_limit_s: int = CPU_LIMIT_S, trusts_none: bool = False) -> None:
        self._cpu_limit_s, self._trusts_none = cpu_limit_s, trusts_none
        self._lock = threading.Lock()
        self._idle: list[ChildPool[_Picture, NDArray[np.uint8]]] = []
        self._busy: set[ChildPool[_Picture, NDArray[np.uint8]]] = set()
        self._is_closed = False

    def decode(self, data: bytes, *, size_px: int, path: Path) -> NDArray[np.uint8]:
        """Do as decode.decode_bytes; UnreadableImage also for a picture that a decoder ended over."""
        # Most photos are cheap: they need no child, whose start takes 0.3 s.
        if not children.can_have_children() or not (self._trusts_none or is_costly(data)):
            return decode_bytes(data, size_px=size_px, path=path)
        try:
            with self._child() as child:
                child.submit(_Picture(data=data, size_px=size_px, path=path))
                outcome = child.take()
        except PoolClosedError:
            raise UnreadableImage(path, "the decoder was closed") from None
        if outcome.result is not None:
            return outcome.result
        assert outcome.death is not None
        raise UnreadableImage(path, blame(outcome.death, num_processes=1, cpu_limit_s=self._cpu_limit_s)[1])

    def start(self, num_children: int) -> None:
        """Start children before there is a picture for them."""
        with self._lock:
            if children.can_have_children() and not self._is_closed:
                self._idle += [self._new_child() for _ in range(num_children - len(self._idle))]

    def _new_child(self) -> ChildPool[_Picture, NDArray[np.uint8]]:
        return ChildPool(_decode_picture, 1, begin=_begin, begin_with=(None, self._cpu_limit_s))

    @contextlib.contextmanager
    def _child(self) -> Generator[ChildPool[_Picture, NDArray[np.uint8]], None, None]:
        with self._lock:
            if self._is_closed:
                raise PoolClosedError
            child = self._idle.pop() if self._idle else self._new_child()
            self._busy.add(child)
        try:
            yield child
        finally:
            with self._lock:
                self._busy.discard(child)
                self._idle.append(child)

    def close(self) -> None:
        """End the children, in the middle of a picture too."""
        with self._lock:
            self._is_closed = True
            for child in (*self._idle, *self._busy):
                child.close()

    def __enter__(self) -> GuardedDecoder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Picture(NamedTuple):
    data: bytes
    size_px: int
    path: Path


# --- in a process that decodes


class DecoderLimits:
    """Resource limits of this process, kept by the kernel: memory once and for all, CPU time anew for each picture."""

    def __init__(self, cpu_limit_s: int) -> None:
        self._cpu_limit_s = cpu_limit_s
        self._renew_at_s = 0.0
        self.has_room = False
        """Whether this process may have all the memory that a picture is promised, and no more."""
        if resource is None:
            return
        _lower(resource.RLIMIT_CORE, 0)  # a decoder that is ended need not leave its memory on the disk
        with contextlib.suppress(OSError, ValueError):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            # Some more than is promised: the heap has gaps, and the decoders' libraries are loaded when first needed.
            allowed = MAX_DECODE_BYTES + MAX_FILE_BYTES + (256 << 20)
            self.has_room = _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + allowed)

    def begin_picture(self, index: int) -> None:
        """Mark which picture comes, for the parent to blame, and renew the CPU limit."""
        children.mark(index)
        # Renewed once a second at most: system calls for each of a million small pictures would be felt. This thread
        # computes alone here, so no more than a second was used since.
        now_s = time.perf_counter()
        if resource is not None and now_s >= self._renew_at_s:
            self._renew_at_s = now_s + 1.0
            # RLIMIT_CPU counts whole seconds of the process since its start; one more for the second without renewal.
            _lower(resource.RLIMIT_CPU, math.ceil(time.process_time()) + self._cpu_limit_s + 1)


def _lower(limit: int, value: int) -> bool:
    """Set the soft limit, which may rise again, to at most what the job itself has been given; true for all of it."""
    hard = resource.getrlimit(limit)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
        return hard == resource.RLIM_INFINITY or value <= hard
    return False


_own: list[tuple[DecodeTarget | None, DecoderLimits]] = []
"""State of a decoding process, one entry: the destination of its pixels, and its limits."""


def _begin(target: DecodeTarget | None, cpu_limit_s: int) -> None:
    _own.append((target, DecoderLimits(cpu_limit_s)))


def _decode_for_parent(task: DecodeTask) -> ChunkResult:
    target, limits = _own[0]
    assert target is not None
    return _decode_chunk(target, task, limits=limits)


def _decode_picture(picture: _Picture) -> NDArray[np.uint8]:
    _own[0][1].begin_picture(0)
    try:
        return decode_bytes(picture.data, size_px=picture.size_px, path=picture.path)
    except MachineFailedImage as error:
        if not _is_own_fault(error, _own[0][1]):
            raise
        raise UnreadableImage(picture.path, error.reason) from None
