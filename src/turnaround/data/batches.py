"""Decoded pixels -> batches on the device.

Enters: `Pixels` (a memory map), the device, the workers this process hosts.
Leaves: per step one `StepBatch` with the slices of the hosted workers; per evaluation plain batches.

The pixels live where they are read fastest: on the device if they fit, else in host memory, else they stream from the
disk, and where no disk has room for them they are decoded on the way; the choice carries its reason.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch import Tensor

from turnaround.choice import Choice
from turnaround.data.first_read import FirstReads
from turnaround.data.mixing import Labels
from turnaround.data.order import epoch_order, share_bounds, step_bounds, worker_bounds
from turnaround.data.pixels import Pixels
from turnaround.data.reading import DecodedRows, MappedRows, rows_of

T = TypeVar("T", bound="StepBatch | EvaluationBatch")
Residency = Literal["device", "host", "disk", "files"]
"""Home of the pixels: one tensor on the device or in host memory, the cache's file, or undecoded image files."""

# The rest is for the network's activations, and for everybody else on the host.
SHARE_OF_DEVICE_MEMORY = 0.5
SHARE_OF_HOST_MEMORY = 0.5
PREFETCHED_STEPS = 3
"""Enough to ride over one slow read; each holds a batch in memory."""
COPIED_AT_ONCE = 2**28
"""Bytes that are copied to where the pixels live at a time, so that they are never in memory twice."""


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """The input of this process for one step."""

    pixels: Tensor
    """uint8 (M, H, W, 3): the images of the step, or those of the whole data set where it is on the device."""
    rows: Tensor | None = None
    """int64 (N,): rows of `pixels` that are the hosted workers' slices, one after the other; None: all, in order."""
    labels: Labels
    """int64 (N,), or those of mixed images (inputs.py)."""
    ids: Tensor
    """int64 (N,), sample numbers: with seed and epoch they decide the augmentation."""
    worker_sizes: tuple[int, ...]
    """Images of each hosted worker."""
    global_size: int
    """Images of the step over all workers."""
    features: Tensor | None = None
    """(N, features) of a frozen backbone, where they are computed ahead of the step (training/frozen.py)."""

    @property
    def images(self) -> Tensor:
        """uint8 (N, H, W, 3)."""
        return self.pixels if self.rows is None else self.pixels[self.rows]


@dataclass(frozen=True, kw_only=True)
class Slicing:
    """The part of every global batch that is this process's: the slices of the workers it hosts."""

    seed: int
    global_batch: int
    workers: int
    hosted: range


@dataclass(frozen=True, kw_only=True)
class EvaluationBatch:
    """A batch of images that are evaluated without augmentation; its fields are those of `StepBatch`."""

    pixels: Tensor
    rows: Tensor | None = None
    labels: Tensor
    features: Tensor | None = None
    ids: Tensor | None = None
    """(N,): the places of the images in the table."""

    @property
    def images(self) -> Tensor:
        """uint8 (N, H, W, 3)."""
        return self.pixels if self.rows is None else self.pixels[self.rows]


@dataclass(frozen=True, kw_only=True)
class EvaluationIds:
    """Sample numbers of an evaluation, in host memory and on the device."""

    here: npt.NDArray[np.int64]
    """(N,)."""
    on_device: Tensor
    """int64 (N,)."""


def choose_residency(
    *,
    num_bytes: int,
    is_mapped: bool = True,
    device: torch.device,
    processes_on_host: int,
    processes_on_device: int = 1,
) -> Choice[Residency]:
    """Choose by what is free. Every process keeps its own copy, but a memory map is shared."""
    gib = num_bytes / 2**30
    host_free = psutil.virtual_memory().available
    # The processes of a host start together and each sees all of its memory as free, so every copy is counted. A CPU
    # trains from the map itself, one for all; a GPU needs pinned memory, which is a copy for each process.
    copies_on_host = 1 if is_mapped and device.type != "cuda" else processes_on_host
    fits_host = num_bytes * copies_on_host <= host_free * SHARE_OF_HOST_MEMORY
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if num_bytes * processes_on_device <= free * SHARE_OF_DEVICE_MEMORY:
            return Choice("device", f"{gib:.2f} GiB of pixels fit into {free / 2**30:.1f} GiB free on the GPU")
        if fits_host:
            return Choice("host", f"{gib:.2f} GiB do not fit on the GPU but into pinned host memory")
    elif fits_host:
        return Choice("host", f"{gib:.2f} GiB of pixels fit into {host_free / 2**30:.1f} GiB of free memory")
    too_large = f"{gib:.2f} GiB of pixels do not fit into {host_free / 2**30:.1f} GiB of free memory"
    if is_mapped:
        return Choice("disk", too_large)
    return Choice("files", f"{too_large}, and they were not kept on the disk: every epoch decodes them")


class Batches:
    """The batches of one process."""

    def __init__(
        self, pixels: Pixels, *, device: torch.device, residency: Residency, processes_on_host: int = 1
    ) -> None:
        self.pixels, self.device, self.residency = pixels, device, residency
        self._labels = torch.from_numpy(pixels.labels.copy()).to(device)  # (images,)
        self._side_px = _side_px(pixels)
        # The pixels of a step whose features are already there.
        self._nothing = torch.empty((0, 0, 0, 3), dtype=torch.uint8, device=device)
        self._rows: MappedRows | DecodedRows | None = None
        self._resident: Tensor | None = None
        self._first_reads = FirstReads(pixels)
        self._evaluated: dict[tuple[str | int, ...], EvaluationIds] = {}
        # Also where the map is host memory: a disk that fails for a moment while a map is first read is SIGBUS, the end
        # of the process, and a read can be tried again.
        if pixels.images is None or isinstance(pixels.images, np.memmap):
            self._rows = rows_of(pixels, processes_on_host=processes_on_host)
        # On a CPU the memory map itself is host memory: a copy would be a second one for each process.
        if residency == "device" or (residency == "host" and (device.type == "cuda" or pixels.images is None)):
            self._resident = self._copied(device if residency == "device" else torch.device("cpu"))

    def close(self) -> None:
        """End the threads or processes that read."""
        if self._rows is not None:
            self._rows.close()

    @property
    def num_validation(self) -> int:
        return len(self.pixels.labels) - self.pixels.num_train

    def steps(
        self, slicing: Slicing, *, epoch: int, first_step: int = 0, with_pixels: bool = True
    ) -> Iterator[StepBatch]:
        """Yield the training steps of an epoch from `first_step` on, prefetched where reading takes time."""
        workers, hosted = slicing.workers, slicing.hosted
        # (images of the epoch,): every process computes the whole order and takes its slices of it.
        order = epoch_order(seed=slicing.seed, epoch=epoch, num_images=self.pixels.num_train)
        # One copy and one gather an epoch: one a step would make every step wait for the host.
        numbers = self._numbers(order)
        labels = self._labels[numbers]  # (images of the epoch,), in the epoch's order as `numbers`
        bounds = step_bounds(num_images=len(order), global_batch=slicing.global_batch, workers=workers)

        def batch(step: int) -> StepBatch:
            start, stop = bounds[step]
            slices = [worker_bounds(start=start, stop=stop, worker=w, workers=workers) for w in hosted]
            mine = slice(slices[0][0], slices[-1][1])  # hosted workers are neighbours: one slice holds them all
            pixels, rows = self._take(order[mine], numbers[mine]) if with_pixels else (self._nothing, None)
            return StepBatch(
                pixels=pixels,
                rows=rows,
                labels=labels[mine],
                ids=numbers[mine],
                worker_sizes=tuple(b - a for a, b in slices),
                global_size=stop - start,
            )

        steps = range(first_step, len(bounds))
        return self._ahead(batch, steps) if with_pixels else map(batch, steps)

    def training(self, *, rank: int, size: int, batch_size: int) -> Iterator[EvaluationBatch]:
        """Yield this process's share of the training images, without augmentation."""
        start, stop = share_bounds(num_images=self.pixels.num_train, rank=rank, size=size)
        return self._plain(self._ids(np.arange(start, stop)), batch_size)

    def validation(self, *, rank: int, size: int, batch_size: int, parts: int = 1) -> Iterator[EvaluationBatch]:
        """Yield this process's share of the validation images: over all processes each image once."""

        def share() -> npt.NDArray[np.int64]:
            start, stop = share_bounds(num_images=self.num_validation, rank=rank, size=size, parts=parts)
            # Validation images follow the training images in the table (`Pixels`).
            return np.arange(start, stop) + self.pixels.num_train

        return self._plain(self._kept(("validation", rank, size, parts), share), batch_size)

    def train_sample(
        self, *, num_images: int, rank: int, size: int, batch_size: int, parts: int = 1
    ) -> Iterator[EvaluationBatch]:
        """Yield this process's share of a fixed random sample of training images, for accuracy without augmentation."""

        def share() -> npt.NDArray[np.int64]:
            # Seed 0 whatever the recipe's seed: all runs on a data set are measured on the same images.
            sample = epoch_order(seed=0, epoch=0, num_images=self.pixels.num_train)[:num_images]
            start, stop = share_bounds(num_images=len(sample), rank=rank, size=size, parts=parts)
            # Sorted: a count does not depend on the order, and a disk is read forwards.
            return np.sort(sample[start:stop])

        return self._plain(self._kept(("train_sample", num_images, rank, size, parts), share), batch_size)

    def _kept(self, evaluation: tuple[str | int, ...], share: Callable[[], npt.NDArray[np.int64]]) -> EvaluationIds:
        """Return the images of an evaluation, which are the same after every epoch."""
        if evaluation not in self._evaluated:
            self._evaluated[evaluation] = self._ids(share())
        return self._evaluated[evaluation]

    def _ids(self, ids: npt.NDArray[np.int64]) -> EvaluationIds:
        return EvaluationIds(here=ids, on_device=self._numbers(ids))

    def _plain(self, ids: EvaluationIds, batch_size: int) -> Iterator[EvaluationBatch]:
        starts = range(0, len(ids.here), batch_size)

        def batch(i: int) -> EvaluationBatch:
            part = slice(starts[i], starts[i] + batch_size)
            # A part of what is there already: a copy of its own would make every batch wait for the device.
            numbers = ids.on_device[part]
            pixels, rows = self._take(ids.here[part], numbers)
            return EvaluationBatch(pixels=pixels, rows=rows, labels=self._labels[numbers], ids=numbers)

        return self._ahead(batch, range(len(starts)))

    def _numbers(self, ids: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(ids).to(self.device)

    def _take(self, ids: npt.NDArray[np.int64], numbers: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return a tensor on the device that holds the images, and which rows of it they are; None: all, in order."""
        if self._resident is not None and self._resident.device == self.device:
            return self._resident, numbers  # the input kernel gathers the rows
        images = self._empty(len(ids))  # (images, H, W, 3)
        if self._resident is not None:
            torch.index_select(self._resident, 0, torch.from_numpy(ids), out=images)
        else:
            self._read(ids, images)
            self._first_reads.check(ids, images)
        # From pinned memory the copy only starts here; `_prefetched` waits for it before the loop gets the batch.
        return images.to(self.device, non_blocking=True), None

    def _read(self, ids: npt.NDArray[np.int64], out: Tensor) -> None:
        """Fill `out` from the memory map, by many reads at once, or by decoding files."""
        images = self.pixels.images
        is_in_memory = self.residency == "host" and self._first_reads.are_over(ids)
        if images is not None and (is_in_memory or self._rows is None):
            np.take(images, ids, axis=0, out=out.numpy())
        else:
            assert self._rows is not None
            self._rows.take(ids, out.numpy())

    def _empty(self, count: int) -> Tensor:
        """Return memory for so many images, pinned for a GPU: only from there is a copy asynchronous."""
        pin = self.device.type == "cuda"
        return torch.empty((count, self._side_px, self._side_px, 3), dtype=torch.uint8, pin_memory=pin)

    def _copied(self, place: torch.device) -> Tensor:
        """Copy all images into one tensor."""
        count, side_px = len(self.pixels.labels), self._side_px
        pin = place.type == "cpu" and self.device.type == "cuda"
        # (images, H, W, 3)
        copy = torch.empty((count, side_px, side_px, 3), dtype=torch.uint8, device=place, pin_memory=pin)
        rows = max(1, COPIED_AT_ONCE // (side_px * side_px * 3))
        for start in range(0, count, rows):
            ids = np.arange(start, min(start + rows, count))
            part = self._empty(len(ids))
            self._read(ids, part)
            copy[start : start + len(ids)].copy_(part)
            self._first_reads.check(ids, copy[start : start + len(ids)])
        return copy

    def _ahead(self, make: Callable[[int], T], numbers: range) -> Iterator[T]:
        if self.residency == "device":
            return map(make, numbers)  # a gather on the device: nothing to wait for
        return _prefetched(make, numbers, device=self.device)


def _side_px(pixels: Pixels) -> int:
    if pixels.images is not None:
        return int(pixels.images.shape[1])
    assert pixels.undecoded is not None
    return pixels.undecoded.size_px


def _prefetched(make: Callable[[int], T], numbers: range, *, device: torch.device) -> Iterator[T]:
    """Yield make(i) for all numbers, made by a thread a few steps ahead; its exception is raised here."""
    # The bound is the back pressure: without it the thread would read the whole epoch into memory.
    ready: queue.Queue[T | BaseException] = queue.Queue(maxsize=PREFETCHED_STEPS)
    stopped = threading.Event()
    # Copies on a stream of their own run beside the network's kernels instead of between them.
    side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def produce() -> None:
        try:
            with torch.cuda.stream(side) if side else nullcontext():
                for i in numbers:
                    batch = make(i)
                    if side:
                        side.synchronize()  # the copy has arrived before the loop may use it
                    if not _put(ready, batch, stopped):
                        return
        except BaseException as error:  # whatever it is, it belongs to the loop that waits for the batch
            _put(ready, error, stopped)

    thread = threading.Thread(target=produce, name="prefetch", daemon=True)
    thread.start()
    try:
        for _ in numbers:
            item = ready.get()  # no timeout: the thread puts a batch or its exception, whatever happens
            if isinstance(item, BaseException):
                raise item
            if side:  # the allocator must not hand this memory to the side stream while the loop still reads it
                for tensor in vars(item).values():
                    if isinstance(tensor, Tensor):
                        tensor.record_stream(torch.cuda.current_stream(device))
            yield item
    finally:  # also when the loop stops within an epoch: no thread may outlive its epoch
        stopped.set()
        thread.join()


def _put(ready: queue.Queue[T | BaseException], item: T | BaseException, stopped: threading.Event) -> bool:
    """Wait for room; return False when nobody wants the item any more."""
    while not stopped.is_set():
        try:
            # A wait without end would leave the thread at a full queue when the loop has stopped, and `join` with it.
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
