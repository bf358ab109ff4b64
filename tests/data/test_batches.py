"""Batches: the same whichever way the pixels live, every image with its label, and no thread left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from running import host_never_waits
from turnaround.choice import Choice
from turnaround.data import batches as batches_module
from turnaround.data.batches import Batches, Residency, Slicing, StepBatch, choose_residency
from turnaround.data.folder import scan
from turnaround.data.order import epoch_order
from turnaround.data.pixels import Pixels, prepare

CPU = torch.device("cpu")
NUM_TRAIN, NUM_VALIDATION = 90, 37
PLACES = ("device", "host", "disk")
OPENED: list[Batches] = []
GIB = 2**30


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Pixels:
    """A real memory map; every image tells its own number, and its label follows from it."""
    path, count = tmp_path_factory.mktemp("pixels") / "images.npy", NUM_TRAIN + NUM_VALIDATION
    images = np.zeros((count, 8, 8, 3), dtype=np.uint8)
    images[:] = np.arange(count, dtype=np.uint8)[:, None, None, None]
    np.save(path, images)
    return Pixels(
        images=np.load(path, mmap_mode="r"),
        labels=np.arange(count, dtype=np.int64) % 5,
        num_train=NUM_TRAIN,
        classes=tuple("abcde"),
        files=tuple(map(str, range(count))),
        fingerprint="0",
        skipped=(),
        cache_dir=path.parent,
        from_cache=True,
        decode_time_s=0.0,
    )


@pytest.fixture(autouse=True)
def no_stray_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    while OPENED:
        OPENED.pop().close()
    assert set(threading.enumerate()) <= before


def made(pixels: Pixels, place: Residency, device: torch.device = CPU) -> Batches:
    batches = Batches(pixels, device=device, residency=place)
    OPENED.append(batches)
    return batches


def slicing(hosted: range = range(3)) -> Slicing:
    return Slicing(seed=4, global_batch=24, workers=3, hosted=hosted)


def numbers(images: torch.Tensor) -> list[int]:
    """Which images these are, by their pixels."""
    assert bool((images == images[:, :1, :1, :1]).all())
    return images[:, 0, 0, 0].tolist()


def equal(one: StepBatch, other: StepBatch) -> bool:
    names = [f.name for f in fields(StepBatch) if f.name not in ("pixels", "rows")]
    pairs = [(getattr(one, name), getattr(other, name)) for name in (*names, "images")]
    return all(torch.equal(a.cpu(), b.cpu()) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def test_every_place_gives_the_same_batches(pixels: Pixels) -> None:
    steps = {place: list(made(pixels, place).steps(slicing(), epoch=2)) for place in PLACES}
    assert [b.global_size for b in steps["host"]] == [24, 24, 24, 18]
    for place in PLACES:
        assert all(equal(a, b) for a, b in zip(steps[place], steps["host"], strict=True))
        evaluated = list(made(pixels, place).validation(rank=0, size=1, batch_size=10))
        assert [i for b in evaluated for i in numbers(b.images)] == list(range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION))


@pytest.mark.parametrize("place", PLACES)
def test_images_come_in_the_order_of_the_epoch_with_their_labels(pixels: Pixels, place: str) -> None:
    steps = list(made(pixels, place).steps(slicing(), epoch=3))
    ids = [i for b in steps for i in b.ids.tolist()]
    assert ids == epoch_order(seed=4, epoch=3, num_images=NUM_TRAIN).tolist()
    for batch in steps:
        assert numbers(batch.images) == batch.ids.tolist()
        assert batch.labels.tolist() == [i % 5 for i in batch.ids.tolist()]
        assert batch.images.dtype == torch.uint8


def test_processes_together_take_what_one_takes(pixels: Pixels) -> None:
    batches = made(pixels, "host")
    whole = list(batches.steps(slicing(), epoch=1))
    first, second = (list(batches.steps(slicing(h), epoch=1)) for h in (range(1), range(1, 3)))
    for step, a, b in zip(whole, first, second, strict=True):
        assert torch.equal(step.ids, torch.cat([a.ids, b.ids]))
        assert torch.equal(step.images, torch.cat([a.images, b.images]))
        assert step.worker_sizes == a.worker_sizes + b.worker_sizes
        assert step.global_size == a.global_size == b.global_size
        assert sum(step.worker_sizes) == len(step.ids)


@pytest.mark.parametrize("size", [1, 2, 5, 50])
def test_validation_shares_cover_every_image_once(pixels: Pixels, size: int) -> None:
    batches = made(pixels, "host")
    assert batches.num_validation == NUM_VALIDATION
    seen, labels = [], []
    for rank in range(size):
        for batch in batches.validation(rank=rank, size=size, batch_size=8):
            assert 1 <= len(batch.labels) <= 8
            seen += numbers(batch.images)
            labels += batch.labels.tolist()
    assert seen == list(range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION))
    assert labels == [i % 5 for i in seen]


def test_the_training_sample_is_fixed_and_shared_out(pixels: Pixels) -> None:
    batches = made(pixels, "host")

    def sample(size: int) -> list[int]:
        shares = (batches.train_sample(num_images=30, rank=r, size=size, batch_size=8) for r in range(size))
        return sorted(i for share in shares for b in share for i in numbers(b.images))

    assert sample(1) == sample(3) == sample(7)
    assert len(set(sample(1))) == 30
    assert max(sample(1)) < NUM_TRAIN


@pytest.mark.parametrize("place", PLACES)
def test_the_images_of_an_evaluation_are_sent_to_the_device_once(
    place: str, pixels: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at every batch, which would wait for the device each time, nor again after every epoch."""
    sent: list[int] = []
    send = Batches._numbers

    def counted(self: Batches, ids: np.ndarray) -> torch.Tensor:
        sent.append(len(ids))
        return send(self, ids)

    monkeypatch.setattr(Batches, "_numbers", counted)
    batches = made(pixels, place)
    shares = {"rank": 1, "size": 3, "batch_size": 4}
    for _ in range(3):
        ids = [b.ids for b in batches.validation(**shares)]
        assert len(ids) > 1
        sample = [b.ids for b in batches.train_sample(num_images=30, **shares)]
        assert torch.cat(sample).tolist() == sorted(epoch_order(seed=0, epoch=0, num_images=NUM_TRAIN)[:30][10:20])
    assert sent == [len(torch.cat(ids)), 10]
    list(batches.validation(**shares, parts=2))  # more of the workers are hosted here now
    assert len(sent) == 3


@pytest.mark.parametrize("place", ["host", "disk"])
def test_the_thread_ends_with_the_epoch(pixels: Pixels, place: str) -> None:
    many = Slicing(seed=4, global_batch=2, workers=1, hosted=range(1))  # more than are made ahead: it is not done yet
    steps = made(pixels, place).steps(many, epoch=1)
    next(steps)
    assert [t.name for t in threading.enumerate()].count("prefetch") == 1
    list(steps)
    assert "prefetch" not in [t.name for t in threading.enumerate()]


def test_the_thread_ends_when_nobody_wants_more(pixels: Pixels) -> None:
    for consumed in (0, 1, 2):
        steps = made(pixels, "disk").steps(slicing(), epoch=1)
        for _ in range(consumed):
            next(steps)
        time.sleep(0.05)  # lets it fill the queue, where it waits for room
        del steps
        assert "prefetch" not in [t.name for t in threading.enumerate()]


def test_batches_are_made_ahead_but_not_without_bound(pixels: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, taken = made(pixels, "disk"), []
    plain = batches._take
    monkeypatch.setattr(batches, "_take", lambda *what: (taken.append(1), plain(*what))[1])
    steps = batches.steps(Slicing(seed=0, global_batch=2, workers=1, hosted=range(1)), epoch=1)
    next(steps)
    deadline = time.monotonic() + 60
    wanted = batches_module.PREFETCHED_STEPS + 2  # the consumed one, the queue, and one in the thread's hand
    while len(taken) < wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(taken) == wanted


def test_what_goes_wrong_while_fetching_is_raised_in_the_loop(pixels: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, calls = made(pixels, "disk"), []
    plain = batches._take

    def failing(*what: object) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise OSError("the disk went away")
        return plain(*what)

    monkeypatch.setattr(batches, "_take", failing)
    steps = batches.steps(slicing(), epoch=1)
    next(steps)
    next(steps)
    with pytest.raises(OSError, match="the disk went away"):
        next(steps)


def free_memory(monkeypatch: pytest.MonkeyPatch, *, host: float, gpu: float | None = None) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=int(host * GIB)))
    if gpu is not None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(gpu * GIB), int(80 * GIB)))


@pytest.mark.parametrize(
    ("host", "place", "reason"),
    [
        (4.0, "host", "2.00 GiB of pixels fit into 4.0 GiB of free memory"),
        (3.9, "disk", "2.00 GiB of pixels do not fit into 3.9 GiB of free memory"),
    ],
)
def test_residency_on_a_cpu(monkeypatch: pytest.MonkeyPatch, host: float, place: str, reason: str) -> None:
    free_memory(monkeypatch, host=host)
    found = choose_residency(num_bytes=2 * GIB, device=CPU, processes_on_host=4)
    assert found == Choice(place, reason)  # the map is shared: the processes do not count


@pytest.mark.parametrize(
    ("gpu", "host", "place", "words"),
    [
        (4.0, 1.0, "device", "2.00 GiB of pixels fit into 4.0 GiB free on the GPU"),
        (3.0, 16.0, "host", "do not fit on the GPU but into pinned host memory"),
        (3.0, 15.0, "disk", "do not fit into 15.0 GiB of free memory"),  # each of 4 processes pins a copy
    ],
)
def test_residency_on_a_gpu(monkeypatch: pytest.MonkeyPatch, gpu: float, host: float, place: str, words: str) -> None:
    free_memory(monkeypatch, host=host, gpu=gpu)
    found = choose_residency(num_bytes=2 * GIB, device=torch.device("cuda", 0), processes_on_host=4)
    assert found.value == place
    assert words in found.reason


def test_processes_that_share_a_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    free_memory(monkeypatch, host=100.0, gpu=6.0)
    gpu = torch.device("cuda", 0)
    alone = choose_residency(num_bytes=2 * GIB, device=gpu, processes_on_host=2)
    shared = choose_residency(num_bytes=2 * GIB, device=gpu, processes_on_host=2, processes_on_device=2)
    assert (alone.value, shared.value) == ("device", "host")


def test_the_images_of_a_real_folder_match_their_files(fruit_folder: Path, tmp_path: Path) -> None:
    from PIL import Image

    from turnaround.data.folder import scan
    from turnaround.data.pixels import prepare

    table = scan(fruit_folder, holdout=0.2, seed=0)
    batches = made(prepare(table, size_px=32, cache=tmp_path, skip_bad=False), "host")
    batch = next(batches.steps(Slicing(seed=0, global_batch=32, workers=2, hosted=range(2)), epoch=1))
    for image, label, number in zip(batch.images, batch.labels.tolist(), batch.ids.tolist(), strict=True):
        file = fruit_folder / table.files[number]
        assert file.parent.name == table.classes[label]
        with Image.open(file) as opened:
            assert np.array_equal(np.asarray(opened.convert("RGB")), image.numpy())


@pytest.mark.gpu
@pytest.mark.parametrize("place", PLACES)
def test_every_place_gives_a_gpu_the_same_batches(pixels: Pixels, place: str) -> None:
    there = list(made(pixels, place, torch.device("cuda", 0)).steps(slicing(), epoch=2))
    here = list(made(pixels, "host").steps(slicing(), epoch=2))
    assert all(b.images.is_cuda and b.labels.is_cuda and b.ids.is_cuda for b in there)
    assert all(equal(a, b) for a, b in zip(there, here, strict=True))


@pytest.mark.gpu
def test_pixels_that_fit_live_on_the_gpu() -> None:
    found = choose_residency(num_bytes=2**20, device=torch.device("cuda", 0), processes_on_host=1)
    assert found.value == "device"
    assert "free on the GPU" in found.reason


@pytest.mark.gpu
def test_pixels_on_the_gpu_make_no_step_wait_for_the_host(pixels: Pixels) -> None:
    steps = made(pixels, "device", torch.device("cuda", 0)).steps(slicing(), epoch=1)
    next(steps)
    with host_never_waits():
        next(steps)


def test_pixels_without_a_place_on_the_disk_are_decoded(fruit_folder: Path, tmp_path: Path) -> None:
    """In every epoch where memory cannot hold them either, else once: the same batches as from the cache."""
    table = scan(fruit_folder, holdout=0.2, seed=0)
    kept, not_kept = (
        prepare(table, size_px=16, cache=tmp_path, skip_bad=False, keeps_pixels=keeps) for keeps in (True, False)
    )
    assert not_kept.images is None
    wanted = list(made(kept, "host").steps(slicing(), epoch=1))
    for place in ("files", "host", "device"):
        found = list(made(not_kept, place).steps(slicing(), epoch=1))
        assert all(equal(a, b) for a, b in zip(found, wanted, strict=True)), place


def test_what_fits_nowhere_is_decoded_in_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=GIB))
    found = choose_residency(num_bytes=2 * GIB, is_mapped=False, device=CPU, processes_on_host=1)
    assert found.value == "files"
    assert "every epoch decodes them" in found.reason
    small = choose_residency(num_bytes=GIB // 4, is_mapped=False, device=CPU, processes_on_host=1)
    assert small.value == "host"
    shared = choose_residency(num_bytes=GIB // 4, is_mapped=False, device=CPU, processes_on_host=4)
    assert shared.value == "files"  # each process would keep a copy of its own


@pytest.mark.parametrize("place", ["device", "host", "disk"])
@pytest.mark.parametrize("first_step", [0, 2, 100])
def test_an_epoch_may_begin_at_any_step(place: str, first_step: int, pixels: Pixels) -> None:
    batches = made(pixels, place)
    whole = list(batches.steps(slicing(), epoch=2))
    rest = list(batches.steps(slicing(), epoch=2, first_step=first_step))
    assert len(rest) == max(0, len(whole) - first_step)
    assert all(equal(one, other) for one, other in zip(rest, whole[first_step:], strict=True))
    batches.close()
