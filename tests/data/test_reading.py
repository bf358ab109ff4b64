"""Rows read from the disk, and rows decoded when needed, are those of the memory map; every damage is named."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from turnaround import patience
from turnaround.data import reading as module
from turnaround.data.folder import scan
from turnaround.data.pixels import Pixels, open_pixels, prepare
from turnaround.data.reading import DecodedRows, MappedRows, rows_of
from turnaround.errors import DataError, ProcessFailedError, StorageError

SIZE_PX = 16
NUM_IMAGES = 60
IDS = {
    "sorted": np.arange(NUM_IMAGES),
    "reversed": np.arange(NUM_IMAGES)[::-1].copy(),
    "random": np.random.default_rng(0).permutation(NUM_IMAGES),
    "duplicates": np.array([7, 7, 8, 3, 7, 9, 59, 0, 0]),
    "stretches": np.array([10, 11, 12, 50, 13, 51, 40]),
    "one": np.array([NUM_IMAGES - 1]),
    "none": np.zeros(0, np.int64),
}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    for index in range(NUM_IMAGES):
        path = tmp_path / "photos" / "ab"[index % 2] / f"{index:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


def pixels_of(photos: Path, *, keeps_pixels: bool) -> Pixels:
    table = scan(photos, holdout=0.2, seed=0)
    cache = photos.parent / "cache"
    return prepare(table, size_px=SIZE_PX, cache=cache, skip_bad=False, keeps_pixels=keeps_pixels)


@pytest.fixture
def kept(photos: Path) -> Pixels:
    return pixels_of(photos, keeps_pixels=True)


@pytest.fixture
def unkept(photos: Path) -> Pixels:
    return pixels_of(photos, keeps_pixels=False)


@pytest.fixture
def decoded(unkept: Pixels) -> Iterator[DecodedRows]:
    rows = DecodedRows(unkept, num_processes=2)
    yield rows
    rows.close()


@pytest.fixture(autouse=True)
def no_stray_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def taken(rows: MappedRows | DecodedRows, ids: np.ndarray) -> np.ndarray:
    out = np.full((len(ids), SIZE_PX, SIZE_PX, 3), 99, np.uint8)
    rows.take(ids, out)
    return out


def drop_from_memory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@pytest.mark.parametrize("num_threads", [1, 3, 16])
@pytest.mark.parametrize("most", [1, 2, 1024])
def test_read_rows_are_those_of_the_memory_map(
    kept: Pixels, num_threads: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RUN_ROWS", most)
    rows = MappedRows(kept, num_threads=num_threads)
    for name, ids in IDS.items():
        drop_from_memory(kept.cache_dir / "images.npy")
        assert np.array_equal(taken(rows, ids), kept.images[ids]), f"{name}, cold"
        assert np.array_equal(taken(rows, ids), kept.images[ids]), f"{name}, warm"
    rows.close()


def test_stretches_of_neighbours() -> None:
    ids = np.array([3, 4, 5, 6, 6, 9, 10])
    assert module._runs(ids, 1024) == [(0, 4), (4, 5), (5, 7)]
    assert module._runs(ids, 3) == [(0, 3), (3, 4), (4, 5), (5, 7)]
    assert module._runs(ids[:0], 3) == []


def test_neighbours_are_read_at_once(kept: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, preadv = [], os.preadv

    def counted(file: int, buffers: list[np.ndarray], at: int) -> int:
        calls.append(len(buffers))
        return preadv(file, buffers, at)

    monkeypatch.setattr(os, "preadv", counted)
    rows = MappedRows(kept)
    assert np.array_equal(taken(rows, IDS["stretches"]), kept.images[IDS["stretches"]])
    rows.close()
    assert sorted(calls) == [1, 2, 4]


@pytest.mark.parametrize("most_bytes", [1, 100, 768, 1000])
def test_a_system_that_gives_less_than_asked_for(
    kept: Pixels, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def short(file: int, buffers: list[np.ndarray], at: int) -> int:
        return preadv(file, [buffers[0].reshape(-1)[:most_bytes]], at)

    monkeypatch.setattr(os, "preadv", short)
    rows = MappedRows(kept)
    assert np.array_equal(taken(rows, IDS["stretches"]), kept.images[IDS["stretches"]])
    rows.close()


def test_a_system_without_positioned_reads(kept: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "preadv")
    monkeypatch.delattr(os, "posix_fadvise")
    rows = MappedRows(kept)
    assert np.array_equal(taken(rows, IDS["random"]), kept.images[IDS["random"]])
    rows.close()


@pytest.mark.parametrize("left_rows", [0, 30.5, 59])
def test_a_truncated_file_is_named(kept: Pixels, left_rows: float) -> None:
    path = kept.cache_dir / "images.npy"
    rows = MappedRows(kept)
    os.truncate(path, kept.images.offset + int(left_rows * kept.images[0].nbytes))
    with pytest.raises(StorageError) as caught:
        taken(rows, IDS["random"])
    rows.close()
    assert f"'{path}' cannot be read: it ends before byte" in str(caught.value)
    assert "turnaround resume" in str(caught.value)


def test_without_room_for_shared_memory_that_is_what_is_named(
    fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = scan(fruit_folder, holdout=0.2, seed=0)
    pixels = prepare(table, size_px=SIZE_PX, cache=tmp_path, skip_bad=False, keeps_pixels=False)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.children.SPAWN, "RawArray", refuse)
    with pytest.raises(StorageError, match=r"no room for .* of shared memory, in /dev/shm .*TMPDIR=DIR turnaround"):
        DecodedRows(pixels, num_processes=1)


@pytest.mark.fault(26, "a file server fails for a moment while pixels are read from the cache: read again")
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_disk_that_fails_for_a_moment(kept: Pixels, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PAUSES_S", (0.0, 0.0, 0.0))
    preadv, failures = os.preadv, [number] * 3

    def flaky(file: int, buffers: list[np.ndarray], at: int) -> int:
        if failures:
            raise OSError(failures.pop(), "for a moment")
        return preadv(file, buffers, at)

    monkeypatch.setattr(os, "preadv", flaky)
    rows, num_open = MappedRows(kept), len(os.listdir("/proc/self/fd"))
    assert np.array_equal(taken(rows, IDS["one"]), kept.images[IDS["one"]])
    assert failures == []
    # Fewer, when a file that an earlier test has dropped is collected meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= num_open
    failures += [number] * 4
    with pytest.raises(StorageError, match="for a moment"):
        taken(rows, IDS["one"])
    rows.close()


def test_a_disk_that_fails_and_a_file_that_has_gone(kept: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept.cache_dir / "images.npy"
    rows = MappedRows(kept)
    rows._file, whole = (
        os.open(kept.cache_dir, os.O_RDONLY),
        rows._file,
    )  # reading a directory is an error of the system
    with pytest.raises(StorageError, match="Is a directory") as caught:
        taken(rows, IDS["one"])
    assert str(path) in str(caught.value)
    rows.close()
    os.close(whole)
    path.unlink()
    with pytest.raises(StorageError, match="No such file"):
        MappedRows(kept)


def test_what_cannot_be_filled_is_refused(kept: Pixels) -> None:
    rows = MappedRows(kept)
    good = np.zeros((2, SIZE_PX, SIZE_PX, 3), np.uint8)
    for out in (good[:1], good.astype(np.int8), good[:, ::-1], np.broadcast_to(good[:1], good.shape)):
        with pytest.raises(ValueError, match="out must be"):
            rows.take(np.array([0, 1]), out)
    for ids in ([-1, 0], [0, NUM_IMAGES]):
        with pytest.raises(IndexError, match="of 60 images"):
            rows.take(np.array(ids), good)
    rows.close()


def test_the_rate_is_counted(kept: Pixels) -> None:
    rows = MappedRows(kept)
    assert rows.images_per_s == 0.0
    started_s = time.perf_counter()
    taken(rows, IDS["random"])
    taken(rows, IDS["one"])
    assert rows.num_taken == NUM_IMAGES + 1
    assert 0 < rows.take_time_s <= time.perf_counter() - started_s
    assert rows.images_per_s == rows.num_taken / rows.take_time_s
    rows.close()
    rows.close()  # twice is once


# Decoded when they are needed.


def test_decoded_rows_are_those_of_the_memory_map(kept: Pixels, decoded: DecodedRows) -> None:
    for name, ids in IDS.items():
        assert np.array_equal(taken(decoded, ids), kept.images[ids]), name
    assert decoded.num_taken == sum(map(len, IDS.values()))
    assert decoded.images_per_s > 0


def test_large_batches_go_through_few_slots(kept: Pixels, unkept: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_IMAGES", 3)
    rows = DecodedRows(unkept, num_processes=2)
    ids = np.random.default_rng(2).integers(0, NUM_IMAGES, 500)
    assert np.array_equal(taken(rows, ids), kept.images[ids])
    rows.close()


def test_the_source_of_rows_follows_the_entry(kept: Pixels, unkept: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)), raising=False)
    sources = [rows_of(kept), rows_of(open_pixels(unkept.cache_dir)), rows_of(unkept, processes_on_host=8)]
    assert isinstance(sources[0], MappedRows)
    assert [rows.num_processes for rows in sources[1:]] == [3, 1]
    for rows in sources:
        assert np.array_equal(taken(rows, IDS["one"]), kept.images[IDS["one"]])
        rows.close()


@pytest.mark.fault(30, "an image that changes while the training reads it: named")
@pytest.mark.parametrize("damage", ["gone", "empty", "other image", "other bytes"])
def test_a_file_that_has_changed_since_the_check_is_named(
    kept: Pixels, unkept: Pixels, decoded: DecodedRows, photos: Path, damage: str
) -> None:
    path = photos / unkept.files[33]
    before = path.read_bytes()
    match damage:
        case "gone":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "other image":
            Image.new("RGB", (20, 24)).save(path)
        case "other bytes":
            path.write_bytes(before + b"\0")
    with pytest.raises(DataError) as caught:
        taken(decoded, IDS["random"])
    assert str(path) in str(caught.value)
    said = {"gone": "no such file", "empty": "(empty file)"}.get(damage, "is not the file that was checked")
    assert said in str(caught.value)
    assert "turnaround resume" in str(caught.value)
    path.write_bytes(before)
    assert np.array_equal(taken(decoded, IDS["random"]), kept.images[IDS["random"]])


@pytest.mark.fault(15, "killed while it decodes for the training: the same")
def test_a_killed_decoder_is_explained(kept: Pixels, decoded: DecodedRows) -> None:
    taken(decoded, IDS["random"])
    psutil.Process(decoded._pool.pids[0]).kill()
    ids = np.random.default_rng(3).integers(0, NUM_IMAGES, 20_000)
    with pytest.raises(ProcessFailedError, match="was killed") as caught:
        taken(decoded, ids)
    assert "memory" in str(caught.value)
    assert np.array_equal(taken(decoded, IDS["random"]), kept.images[IDS["random"]])  # by the one in its place


SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from turnaround.data.pixels import open_pixels
from turnaround.data.reading import rows_of

# Not guarded by __name__ on purpose: the decoding processes must not run this file again.
rows = rows_of(open_pixels(Path(sys.argv[1])))
out = np.zeros((60, 16, 16, 3), np.uint8)
rows.take(np.arange(60), out)
found = {"sum": int(out.sum()), "pids": rows._pool.pids, "torch": "torch" in sys.modules}
print(json.dumps(found), flush=True)
if len(sys.argv) > 2:
    sys.stdin.read()
rows.close()
"""


def started(unkept: Pixels, tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(unkept.cache_dir), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def test_a_script_is_not_run_again_by_its_decoders(kept: Pixels, unkept: Pixels, tmp_path: Path) -> None:
    output, _ = started(unkept, tmp_path).communicate(timeout=180)
    lines = [json.loads(line) for line in output.splitlines()]
    assert [(line["sum"], line["torch"]) for line in lines] == [(int(kept.images.sum(dtype=np.int64)), False)]


@pytest.mark.fault(5, "decoding processes end with their parent")
def test_decoders_end_with_their_parent(unkept: Pixels, tmp_path: Path) -> None:
    process = started(unkept, tmp_path, "stay")
    decoders = [psutil.Process(pid) for pid in json.loads(process.stdout.readline())["pids"]]
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(decoders, timeout=180)
    for decoder in alive:
        decoder.kill()
    assert not alive


def test_a_process_that_may_have_no_children_decodes_alone(
    kept: Pixels, unkept: Pixels, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.children, "can_have_children", lambda: False)
    rows = rows_of(unkept)
    assert not multiprocessing.active_children()
    assert np.array_equal(taken(rows, IDS["duplicates"]), kept.images[IDS["duplicates"]])
    (photos / unkept.files[7]).unlink()
    with pytest.raises(DataError, match="can no longer be read"):
        taken(rows, IDS["duplicates"])
    rows.close()
