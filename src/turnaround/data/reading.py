"""Sample numbers in, rows of pixels out, for pixels that memory does not hold: read from a disk, or decoded.

    MappedRows    rows of images.npy, by many positioned reads at once: a disk or a network that is asked for one row
                  after the other is idle most of the time
    DecodedRows   every image decoded when it is needed, by processes: for pixels that no disk has room for

Both fill an array of the caller's, so that nothing is copied twice, and both count: `images_per_s`. No torch.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnaround import children
from turnaround.children import ChildPool
from turnaround.data.decoders import CPU_LIMIT_S, ChunkResult, DecoderLimits, DecodeTask, as_rows, blame, decode_rows
from turnaround.data.pixels import Pixels
from turnaround.errors import DataError, StorageError
from turnaround.patience import patiently

# Images/s of 64 and of 224 px, random rows of a cold file (2 cores, docs/LOG.md, 2026-11-15): 72,256 and 14,704 with
# one thread, 64,687 and 21,168 with 8, 30,421 and 19,866 with 32.
READ_THREADS = 8  # more cost small rows more than they gain large ones
_RUN_BYTES, _RUN_ROWS = 4 << 20, 1024  # the most that one read asks for; Linux takes 1024 buffers at once
_CHUNK_IMAGES, _CHUNK_BYTES = 16, 2 << 20  # the most that one task decodes
_SLOTS_PER_PROCESS = 3  # one is filled, one waits to be filled, one is emptied


class _Rows(ABC):
    """A source of rows that measures its own rate."""

    def __init__(self, num_rows: int, size_px: int) -> None:
        self.num_rows, self.size_px = num_rows, size_px
        self.num_taken = 0
        self.take_time_s = 0.0
        self._lock = threading.Lock()

    def take(self, ids: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Fill out[i] with image ids[i]. One call at a time: a second waits."""
        shape = (len(ids), self.size_px, self.size_px, 3)
        if out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous or not out.flags.writeable:
            raise ValueError(f"out must be a writable contiguous uint8 array of {shape}, not {out.dtype} {out.shape}")
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.num_rows:
            raise IndexError(f"ids {ids.min()}..{ids.max()} of {self.num_rows} images")
        # A ChildPool takes one thread at a time, and two calls at once would count the same second twice.
        with self._lock:
            started_s = time.perf_counter()
            self._fill(ids, out)
            self.num_taken += len(ids)
            self.take_time_s += time.perf_counter() - started_s

    @property
    def images_per_s(self) -> float:
        """Rate over all calls of `take`, while they lasted; 0 before the first."""
        return self.num_taken / self.take_time_s if self.take_time_s else 0.0

    @abstractmethod
    def _fill(self, ids: NDArray[np.int64], out: NDArray[np.uint8]) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """End threads and processes; nothing can be taken afterwards."""


class MappedRows(_Rows):
    """Rows of images.npy: read, not mapped, so that many reads are under way and no thread holds the interpreter."""

    def __init__(self, pixels: Pixels, *, num_threads: int = READ_THREADS) -> None:
        images = pixels.images
        assert isinstance(images, np.memmap)
        super().__init__(len(images), images.shape[1])
        self._images, self._path = images, Path(str(images.filename))
        self._row_bytes = int(images[0].nbytes)
        self._run_rows = max(1, min(_RUN_ROWS, _RUN_BYTES // self._row_bytes))
        try:
            self._file = patiently(self._open)
        except OSError as error:
            raise self._broken(error) from error
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="read-rows")

    def _open(self) -> int:
        descriptor = os.open(self._path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        if hasattr(os, "posix_fadvise"):  # what follows a row in the file is not what is needed next
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return descriptor

    def _fill(self, ids: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        if not hasattr(os, "preadv"):  # Windows has none
            out[...] = self._images[ids]
            return
        # In the order of the file, neighbours in one read; `order` leads back to the rows of `out`.
        order = np.argsort(ids, kind="stable")
        runs = _runs(ids[order], self._run_rows)
        # Dealt out in turn, so that every thread has about as many and goes through the file forwards.
        num_tasks = min(self._num_threads, len(runs))
        tasks = [self._pool.submit(self._read, runs[i::num_tasks], ids, order, out) for i in range(num_tasks)]
        wait(tasks)  # all of them, also after an error: nobody writes into `out` once this has returned
        for task in tasks:
            task.result()

    def _read(
        self,
        runs: list[tuple[int, int]],
        ids: NDArray[np.int64],
        order: NDArray[np.intp],
        out: NDArray[np.uint8],
    ) -> None:
        """Read some runs: each is one stretch of the file, scattered over its rows of `out` by one call."""
        places = [self._images.offset + int(ids[order[start]]) * self._row_bytes for start, _ in runs]
        try:
            if hasattr(os, "posix_fadvise"):  # all are asked for before the first is waited for
                for (start, stop), at in zip(runs, places, strict=True):
                    os.posix_fadvise(self._file, at, (stop - start) * self._row_bytes, os.POSIX_FADV_WILLNEED)
            for (start, stop), at in zip(runs, places, strict=True):
                # Views of (H, W, 3): the system writes each row to its place in `out`, and nothing is copied here.
                rows = [out[row] for row in order[start:stop].tolist()]
                patiently(partial(self._read_run, rows, at))
        except OSError as error:
            raise self._broken(error) from error

    def _read_run(self, rows: list[Any], at: int) -> None:
        """Read one stretch; whole again when it is tried again."""
        try:
            num_read = os.preadv(self._file, rows, at)
            while num_read < len(rows) * self._row_bytes:  # the system may give less than was asked for
                num_read += self._read_on(rows, at, num_read)
        except OSError as error:
            if error.errno == errno.ESTALE:  # a file server has forgotten this descriptor, not the file
                descriptor = self._open()
                os.dup2(descriptor, self._file, inheritable=False)  # its number stays: other threads are using it
                os.close(descriptor)
            raise

    def _read_on(self, rows: list[NDArray[np.uint8]], at: int, num_read: int) -> int:
        """Read the rest of a row that was read in part, then as many more as come; return the bytes read."""
        index, inside = divmod(num_read, self._row_bytes)
        rest = [rows[index].reshape(-1)[inside:], *rows[index + 1 :]]
        more = os.preadv(self._file, rest, at + num_read)  # type: ignore[arg-type]
        if not more:
            raise OSError(errno.ENODATA, f"it ends before byte {at + num_read + 1}")
        return more

    def _broken(self, error: OSError) -> StorageError:
        return StorageError(
            f"The decoded images in {str(self._path)!r} cannot be read: {error.strerror or error}. Check the disk, "
            "then go on with `turnaround resume`: a damaged cache is rebuilt from the images."
        )

    def close(self) -> None:
        # The threads first: the number of a closed descriptor may be another file's the next moment.
        self._pool.shutdown()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _runs(ascending: NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    """Return start and stop of stretches of neighbours, each of at most `most` rows."""
    if not len(ascending):
        return []
    # A stretch ends where the next number is not the following one: at a gap, and where one number comes twice.
    edges = [0, *(np.flatnonzero(np.diff(ascending) != 1) + 1).tolist(), len(ascending)]
    return [
        (start, min(start + most, stop))
        for begin, stop in itertools.pairwise(edges)
        for start in range(begin, stop, most)
    ]


class DecodedRows(_Rows):
    """Images decoded from their files by processes that write into memory shared with this one."""

    def __init__(self, pixels: Pixels, *, num_processes: int | None = None) -> None:
        source = pixels.undecoded
        assert source is not None
        super().__init__(len(pixels.files), source.size_px)
        self._files, self._source = pixels.files, source
        self._chunk_images = max(1, min(_CHUNK_IMAGES, _CHUNK_BYTES // (self.size_px**2 * 3)))
        self.num_processes = max(1, num_processes or children.num_helpers())
        self._pool: ChildPool[_SlotTask, ChunkResult] | None = None
        if children.can_have_children():  # else this process does it alone
            self._slots, self._pool = self._start()

    def _start(self) -> tuple[NDArray[np.uint8], ChildPool[_SlotTask, ChunkResult]]:
        # The memory is an unlinked file: nothing is left of it after a kill.
        shape = (self.num_processes * _SLOTS_PER_PROCESS, self._chunk_images, self.size_px, self.size_px, 3)
        try:
            # Without a lock: `_fill` gives a slot to one task at a time.
            memory = children.SPAWN.RawArray(ctypes.c_uint8, int(np.prod(shape)))
        except OSError as error:
            raise StorageError(
                f"There is no room for {np.prod(shape) / 1e6:.0f} MB of shared memory, in /dev/shm or, where that is "
                f"full, in the folder for temporary files ({error.strerror or error}). Free some of it, or name "
                "another folder: TMPDIR=DIR turnaround ..."
            ) from error
        pool = ChildPool[_SlotTask, ChunkResult](
            _fill_slot,
            self.num_processes,
            begin=_begin_rows,
            begin_with=(memory, shape, self._source.root, CPU_LIMIT_S),
            looks_ahead=True,
        )
        return _as_slots(memory, shape), pool

    def _fill(self, ids: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        if self._pool is None:
            task = DecodeTask(start=0, files=self._names(ids))
            self._check(ids, decode_rows(out, self._source.root, task))
            return
        # Four chunks a process, so that a slow image does not leave the other processes idle for long.
        step = max(1, min(self._chunk_images, len(ids) // (4 * self.num_processes)))
        waiting = deque(range(0, len(ids), step))
        free = deque(range(len(self._slots)))
        try:
            while waiting or self._pool.num_unfinished:
                while waiting and free:
                    start = waiting.popleft()
                    names = self._names(ids[start : start + step])
                    self._pool.submit(_SlotTask(slot=free.popleft(), files=DecodeTask(start=start, files=names)))
                outcome = self._pool.take()
                slot, start = outcome.task.slot, outcome.task.files.start
                mine = ids[start : start + step]
                if outcome.result is None:
                    assert outcome.death is not None
                    place, reason = blame(outcome.death, num_processes=self.num_processes, cpu_limit_s=CPU_LIMIT_S)
                    raise self._changed(int(mine[place]), reason)
                self._check(mine, outcome.result)
                # Copied out of shared memory before the slot is free again: the next task writes into it.
                out[start : start + step] = self._slots[slot, : len(mine)]
                free.append(slot)
        finally:
            self._pool.drop()  # a slot is used again only when nobody writes into it

    def _names(self, ids: NDArray[np.int64]) -> tuple[str, ...]:
        return tuple(self._files[number] for number in ids.tolist())

    def _check(self, ids: NDArray[np.int64], chunk: ChunkResult) -> None:
        """Raise DataError that names the first file that is not the one that was checked before the run."""
        # (images of the chunk,): a file that cannot be read has a digest of zeros, which is another one as well.
        changed = (as_rows(chunk.digests) != self._source.digests[ids]).any(axis=1)
        for index in np.flatnonzero(changed).tolist():
            raise self._changed(int(ids[index]), chunk.bad.get(chunk.start + index))

    def _changed(self, number: int, reason: str | None) -> DataError:
        path = self._source.root / self._files[number]
        what = f"can no longer be read ({reason})" if reason else "is not the file that was checked before the run"
        return DataError(
            f"{str(path)!r} {what}. Images are decoded when they are needed here, so they must stay as they were: "
            "put the file back, then go on with `turnaround resume`."
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


def rows_of(pixels: Pixels, *, processes_on_host: int = 1) -> MappedRows | DecodedRows:
    """Return the reader of an entry's rows, mapped or decoded; the cores are shared by the host's processes."""
    if pixels.images is not None:
        return MappedRows(pixels)
    return DecodedRows(pixels, num_processes=max(1, children.num_helpers() // processes_on_host))


# In a process that decodes: the slots that it shares with its parent, where the files are, and its limits.
_shared: list[tuple[NDArray[np.uint8], Path, DecoderLimits]] = []


class _SlotTask(NamedTuple):
    slot: int
    files: DecodeTask


def _begin_rows(memory: Any, shape: tuple[int, ...], root: Path, cpu_limit_s: int) -> None:
    _shared.append((_as_slots(memory, shape), root, DecoderLimits(cpu_limit_s)))


def _as_slots(memory: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    return np.frombuffer(memory, np.uint8).reshape(shape)


def _fill_slot(task: _SlotTask) -> ChunkResult:
    slots, root, limits = _shared[0]
    return decode_rows(slots[task.slot], root, task.files, limits=limits)
