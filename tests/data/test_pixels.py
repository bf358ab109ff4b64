"""prepare: one whole cache entry whatever happens - other processes, kills, full disks, bad images."""

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from struck import decoders_below
from turnaround.data import entry as entry_module
from turnaround.data import pixels as module
from turnaround.data.changes import changes_since
from turnaround.data.decode import digest_of
from turnaround.data.folder import ImageTable, scan
from turnaround.data.pixels import Pixels, checksum_of, default_cache, open_pixels, prepare
from turnaround.errors import DataError, ProcessFailedError, StorageError

SIZE_PX = 16
SMALL_FILES = ("digests.npy", "labels.npy", "manifest.json", "pixel_digests.npy")  # of every entry
Start = Callable[[Path, Path, float], subprocess.Popen[str]]


def plant(root: Path, per_class: int = 6, classes: str = "ab") -> Path:
    """Images that differ, each of one colour: (class, index, 0)."""
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for index in range(per_class):
            colour = (100 * number, index, 0)
            Image.new("RGB", (20, 18), colour).save(root / name / f"{index:04d}.png")
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return plant(tmp_path / "photos")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def table_of(root: Path) -> ImageTable:
    return scan(root, holdout=0.2, seed=7)


def prepared(root: Path, cache: Path, *, skip_bad: bool = False, size_px: int = SIZE_PX) -> Pixels:
    return prepare(table_of(root), size_px=size_px, cache=cache, skip_bad=skip_bad)


def names_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def assert_consistent(pixels: Pixels) -> None:
    """Every row holds the colour that its file name and its label say."""
    assert len(pixels.images) == len(pixels.labels) == len(pixels.files)
    for image, label, file in zip(pixels.images, pixels.labels, pixels.files, strict=True):
        folder, _, name = file.rpartition("/")
        assert pixels.classes[label] == folder
        assert (image == [100 * label, int(name[:4]), 0]).all(), file


def test_build_then_reuse(photos: Path, cache: Path) -> None:
    seen: list[tuple[int, int]] = []
    table = table_of(photos)
    first = prepare(table, size_px=SIZE_PX, cache=cache, skip_bad=False, on_progress=lambda *state: seen.append(state))
    assert first.images.shape == (12, SIZE_PX, SIZE_PX, 3)
    assert first.images.dtype == np.uint8
    assert isinstance(first.images, np.memmap)
    assert not first.images.flags.writeable
    assert (first.files, first.num_train, first.classes) == (table.files, 10, ("a", "b"))
    assert (first.labels == table.labels).all()
    assert_consistent(first)
    assert not first.from_cache
    assert first.skipped == ()
    assert first.decode_time_s > 0
    assert seen[-1] == (12, 12)
    assert names_in(cache) == [first.cache_dir.name]
    assert sorted(path.name for path in first.cache_dir.iterdir()) == sorted(
        ["images.npy", "pixel_sums.npy", *SMALL_FILES]
    )

    os.utime(first.cache_dir, (0, 0))
    again = prepare(table, size_px=SIZE_PX, cache=cache, skip_bad=False, on_progress=lambda *_: pytest.fail("decoded"))
    assert again.from_cache
    assert again.fingerprint == first.fingerprint
    assert again.decode_time_s == first.decode_time_s
    assert np.array_equal(again.images, first.images)
    assert first.cache_dir.stat().st_mtime > time.time() - 60  # touched: it is in use

    opened = open_pixels(first.cache_dir)
    assert (opened.files, opened.fingerprint, opened.from_cache) == (first.files, first.fingerprint, True)


def test_reuse_opens_no_image(photos: Path, cache: Path) -> None:
    table = table_of(photos)
    built = prepare(table, size_px=SIZE_PX, cache=cache, skip_bad=False)
    shutil.rmtree(photos)
    again = prepare(table, size_px=SIZE_PX, cache=cache, skip_bad=False)
    assert again.from_cache
    assert np.array_equal(again.images, built.images)


def test_what_makes_another_entry(photos: Path, cache: Path) -> None:
    keys = [prepared(photos, cache).cache_dir, prepared(photos, cache, size_px=8).cache_dir]
    keys.append(prepared(photos, cache, skip_bad=True).cache_dir)
    os.utime(photos / "a" / "0000.png", ns=(1, 1))
    keys.append(prepared(photos, cache).cache_dir)
    (photos / "b" / "0000.png").rename(photos / "b" / "0099.png")
    (photos / "b" / "0001.png").rename(photos / "b" / "0000.png")
    keys.append(prepared(photos, cache).cache_dir)
    assert len(set(keys)) == 5


def test_fingerprint_is_of_contents_and_names_only(photos: Path, cache: Path, tmp_path: Path) -> None:
    here = prepared(photos, cache)
    elsewhere = tmp_path / "else where"
    shutil.copytree(photos, elsewhere, copy_function=shutil.copyfile)  # other times, other place
    there = prepared(elsewhere, tmp_path / "other cache", size_px=8)
    assert there.fingerprint == here.fingerprint
    assert len(here.fingerprint) == 64

    changed = elsewhere / "a" / "0003.png"
    changed.write_bytes(changed.read_bytes() + b"\0")  # one byte more: the picture is the same, the file is not
    assert prepared(elsewhere, cache).fingerprint != here.fingerprint
    shutil.copyfile(photos / "a" / "0003.png", changed)
    assert prepared(elsewhere, cache).fingerprint == here.fingerprint
    changed.rename(changed.with_name("9003.png"))
    assert prepared(elsewhere, cache).fingerprint != here.fingerprint
    assert prepare(scan(photos, holdout=0.2, seed=8), size_px=8, cache=cache, skip_bad=False).fingerprint != (
        here.fingerprint
    )


def test_awkward_names(cache: Path, tmp_path: Path) -> None:
    root = plant(tmp_path / "new\nline ü", per_class=3)
    (root / "a" / "0000.png").rename(root / "a" / ("0000" + "ü" * 120 + "\n.png"))
    raw = os.fsencode(root / "a" / "0001") + b"\xff.png"
    try:
        os.rename(root / "a" / "0001.png", raw)
    except OSError:
        pytest.skip("this file system takes no names that are not UTF-8")
    built = prepared(root, cache)
    assert_consistent(built)
    assert open_pixels(built.cache_dir).files == table_of(root).files


def test_relative_paths_and_many_processes(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path / "many", per_class=50)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    (tmp_path / "many" / "a" / "0007.png").write_bytes(b"")
    built = prepared(Path("many"), Path("cache"), skip_bad=True)
    assert built.cache_dir.is_absolute()
    assert len(built.files) == 99
    assert_consistent(built)
    (tmp_path / "many" / "a" / "0007.png").unlink()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    alone = prepared(Path("many"), Path("cache"))
    assert not alone.from_cache
    assert_consistent(alone)


# Bad images.


def spoil(photos: Path) -> list[str]:
    (photos / "a" / "0001.png").write_bytes(b"")
    (photos / "b" / "0004.png").write_bytes(b"<!DOCTYPE html>")
    whole = (photos / "b" / "0005.png").read_bytes()
    (photos / "b" / "0005.png").write_bytes(whole[: len(whole) // 2])
    return ["a/0001.png", "b/0004.png", "b/0005.png"]


@pytest.mark.fault(40, "all unreadable images of a folder are listed before training")
def test_all_bad_images_are_listed(photos: Path, cache: Path) -> None:
    bad = spoil(photos)
    with pytest.raises(DataError) as caught:
        prepared(photos, cache)
    message = str(caught.value)
    assert "3 of 12 images" in message
    assert all(name in message for name in bad)
    assert "empty file" in message
    assert "<!DOCTYPE" in message
    assert "--set data.skip_bad=true" in message
    assert names_in(cache) == []


def test_long_lists_of_bad_images_are_cut(tmp_path: Path, cache: Path) -> None:
    root = plant(tmp_path / "photos", per_class=15)
    for path in root.glob("*/*.png"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="30 of 30 images") as caught:
        prepared(root, cache)
    assert str(caught.value).count("empty file") == 20
    assert "and 10 more" in str(caught.value)


@pytest.mark.fault(40, "left out on request: the same set for every number of processes")
def test_skipped_images_leave_no_hole(photos: Path, cache: Path) -> None:
    bad = spoil(photos)
    table = table_of(photos)
    built = prepared(photos, cache, skip_bad=True)
    assert built.files == tuple(file for file in table.files if file not in bad)
    assert built.num_train == sum(file not in bad for file in table.files[: table.num_train])
    assert_consistent(built)
    assert sorted(file for file, _ in built.skipped) == bad
    assert "empty file" in [reason for _, reason in built.skipped]
    again = prepared(photos, cache, skip_bad=True)
    assert again.from_cache
    assert again.skipped == built.skipped
    # Without the bad files the set is the same set.
    for name in bad:
        (photos / name).unlink()
    split = replace_parts(table_of(photos), built)
    assert prepare(split, size_px=8, cache=cache, skip_bad=False).fingerprint == built.fingerprint


def test_a_reason_is_kept_apart_from_a_file_whose_name_has_a_colon(photos: Path, cache: Path) -> None:
    file = next(photos.glob("*/*.png"))
    odd = file.rename(file.with_name("a: b.png"))
    odd.write_bytes(b"")
    entry = f"{odd.parent.name}/a: b.png"
    built = prepared(photos, cache, skip_bad=True)
    assert built.skipped == ((entry, "empty file"),)
    manifest = json.loads((built.cache_dir / "manifest.json").read_text())
    assert manifest["skipped"] == [f"{entry}: empty file"]
    # As entries of older versions are: without the parts.
    del manifest["unreadable"]
    manifest["skipped"] = ["pears/x.png: broken: at byte 3"]
    manifest["checksum"] = checksum_of(manifest)
    (built.cache_dir / "manifest.json").write_text(json.dumps(manifest))
    assert open_pixels(built.cache_dir).skipped == (("pears/x.png", "broken: at byte 3"),)


def replace_parts(table: ImageTable, like: Pixels) -> ImageTable:
    """The table of these files with the split of `like`: a hold-out would draw other images."""
    order = [table.files.index(file) for file in like.files]
    return ImageTable(
        root=table.root,
        classes=table.classes,
        files=like.files,
        labels=table.labels[order],
        num_train=like.num_train,
        split="folders",
        ignored=(),
        warnings=(),
        sizes_bytes=table.sizes_bytes[order],
        mtimes_ns=table.mtimes_ns[order],
    )


def test_a_class_that_loses_all_its_training_images(photos: Path, cache: Path) -> None:
    for file in table_of(photos).files[: table_of(photos).num_train]:
        if file.startswith("b/"):
            (photos / file).write_bytes(b"")
    with pytest.raises(DataError, match="no training image is left of 'b'") as caught:
        prepared(photos, cache, skip_bad=True)
    assert "empty file" in str(caught.value)
    assert names_in(cache) == []


def test_validation_part_all_bad(photos: Path, cache: Path) -> None:
    table = table_of(photos)
    for file in table.files[table.num_train :]:
        (photos / file).write_bytes(b"")
    with pytest.raises(DataError, match="Every validation image"):
        prepared(photos, cache, skip_bad=True)


# Damage, interruption, other processes.


@pytest.mark.parametrize("damage", ["no images", "short", "long", "no labels", "manifest", "version", "empty npy"])
def test_damaged_entries_are_rebuilt(photos: Path, cache: Path, damage: str) -> None:
    built = prepared(photos, cache)
    wanted = np.array(built.images)
    images, manifest = built.cache_dir / "images.npy", built.cache_dir / "manifest.json"
    del built
    match damage:
        case "no images":
            images.unlink()
        case "short":
            os.truncate(images, images.stat().st_size - 1)
        case "long":
            os.truncate(images, images.stat().st_size + 1)
        case "no labels":
            (images.parent / "labels.npy").unlink()
        case "manifest":
            manifest.write_text(manifest.read_text()[:-5])
        case "version":
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format_version": 0}))
        case "empty npy":
            images.write_bytes(b"")
    with pytest.raises(StorageError, match="missing or damaged"):
        open_pixels(images.parent)
    again = prepared(photos, cache)
    assert not again.from_cache
    assert np.array_equal(again.images, wanted)
    assert names_in(cache) == [images.parent.name]


def test_opening_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Start the run again"):
        open_pixels(tmp_path / "pixels-0")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, BrokenPipeError])
@pytest.mark.parametrize("per_class", [6, 40])
def test_nothing_remains_of_an_interrupted_build(
    tmp_path: Path, cache: Path, error: type[BaseException], per_class: int
) -> None:
    table = table_of(plant(tmp_path / "photos", per_class=per_class))

    def interrupt(*_: int) -> None:
        raise error

    with pytest.raises(error):
        prepare(table, size_px=SIZE_PX, cache=cache, skip_bad=False, on_progress=interrupt)
    assert names_in(cache) == []
    assert decoders_below(psutil.Process()) == []


@pytest.mark.fault(15, "a decoding process is killed: said, with the number of processes and what helps")
def test_a_killed_decoder_is_explained(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(plant(tmp_path / "photos", per_class=200))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)

    def kill(*_: int) -> None:
        for child in decoders_below(psutil.Process()):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    with pytest.raises(ProcessFailedError, match="killed") as caught:
        prepare(table, size_px=224, cache=cache, skip_bad=False, on_progress=kill)
    assert "memory" in str(caught.value)
    assert names_in(cache) == []


SCRIPT = """
import sys, time
from pathlib import Path
from turnaround.data.folder import scan
from turnaround.data.pixels import prepare

def progress(done, total):
    print("building", flush=True)
    time.sleep(float(sys.argv[3]))

# Not guarded by __name__ on purpose: the decoding processes must not run this file again.
pixels = prepare(scan(Path(sys.argv[1]), holdout=0.2, seed=7), size_px=16, cache=Path(sys.argv[2]),
                 skip_bad=False, on_progress=progress)
print("torch" in sys.modules, pixels.from_cache, len(pixels.files), pixels.fingerprint, flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process that prepares photos; it is ended with the test."""
    started: list[subprocess.Popen[str]] = []
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def start_one(photos: Path, cache: Path, pause_s: float) -> subprocess.Popen[str]:
        command = [sys.executable, str(script), str(photos), str(cache), str(pause_s)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start_one
    for process in started:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()  # they hold the pipe that communicate() reads to its end
            process.kill()
        process.communicate(timeout=60)


def test_several_processes_make_one_entry(tmp_path: Path, cache: Path, start: Start) -> None:
    photos = plant(tmp_path / "photos", per_class=40)
    processes = [start(photos, cache, 0.1) for _ in range(4)]
    lines = [process.communicate(timeout=180)[0].splitlines()[-1].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(line[1] for line in lines) == ["False", "True", "True", "True"]
    assert {(line[0], line[2]) for line in lines} == {("False", "80")}  # and torch was never imported
    assert len({line[3] for line in lines}) == 1
    assert len(names_in(cache)) == 1
    assert_consistent(open_pixels(next(cache.iterdir())))


def test_kill_9_then_prepare_again(tmp_path: Path, cache: Path, start: Start) -> None:
    photos = plant(tmp_path / "photos", per_class=40)
    process = start(photos, cache, 60)
    assert process.stdout.readline() == "building\n"
    decoders = decoders_below(psutil.Process(process.pid))
    assert decoders or len(os.sched_getaffinity(0)) == 1
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert any(name.startswith("building-") for name in names_in(cache))
    _, alive = psutil.wait_procs(decoders, timeout=60)
    for decoder in alive:
        decoder.kill()
    assert not alive, "decoding processes outlive their parent"

    built = prepared(photos, cache)
    assert not built.from_cache
    assert_consistent(built)
    assert names_in(cache) == [built.cache_dir.name]


@pytest.mark.parametrize("damage", ["permuted labels", "label 99", "digests", "classes", "pixels", "a pixel, silently"])
def test_an_entry_is_not_believed(photos: Path, cache: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = prepared(photos, cache)
    wanted, entry = np.array(built.images), built.cache_dir
    path = entry / "manifest.json"
    match damage:
        case "permuted labels":
            np.save(entry / "labels.npy", built.labels[::-1].copy())
        case "label 99":
            np.save(entry / "labels.npy", np.full_like(built.labels, 99))
            sums = json.loads(path.read_text())["checksums"]
            edited(entry, checksums=sums | {"labels.npy": digest_of((entry / "labels.npy").read_bytes()).hex()})
        case "digests":
            np.save(entry / "digests.npy", built.digests[::-1].copy())
        case "classes":
            path.write_text(json.dumps(json.loads(path.read_text()) | {"classes": ["b", "a"]}))
        case _:
            before_ns = (entry / "images.npy").stat().st_mtime_ns
            with open(entry / "images.npy", "r+b") as file:
                file.seek(-5, os.SEEK_END)
                file.write(b"\xaa")
            if damage == "pixels":
                monkeypatch.setattr(module, "_SAMPLED_BYTES", 0)  # the time of the file tells, not luck
            else:
                os.utime(entry / "images.npy", ns=(before_ns, before_ns))
    if "pixel" not in damage:
        with pytest.raises(StorageError, match="missing or damaged"):
            open_pixels(entry)
    again = prepared(photos, cache)
    assert not again.from_cache
    assert np.array_equal(again.images, wanted)
    assert again.labels.tolist() == built.labels.tolist()
    assert prepared(photos, cache).from_cache


def test_a_copied_cache_is_compared_once_and_used(photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = prepared(photos, cache).cache_dir / "images.npy"
    written_ns = images.stat().st_mtime_ns
    os.utime(images, (5, 5))
    assert prepared(photos, cache).from_cache
    assert images.stat().st_mtime_ns == written_ns


def test_leftovers_of_the_living_and_of_other_hosts_stay(photos: Path, cache: Path) -> None:
    prefix = f"building-{socket.gethostname()}-"
    stay = [
        f"{prefix}{os.getpid()}-0a",
        "building-another-host-1-0a",
        f"{prefix}notapid-0a",
        f"{prefix}1-2-0a",
    ]
    go = f"{prefix}{2**22 + 1}-0a"  # above the largest pid there can be
    for name in (*stay, go):
        (cache / name).mkdir(parents=True)
    entry = prepared(photos, cache).cache_dir.name
    assert names_in(cache) == sorted([*stay, entry])


def test_leftovers_of_sets_that_were_drawn_or_fetched_go_too(cache: Path) -> None:
    nobody, host = 2**22 + 1, socket.gethostname()
    stay = [
        f".fruitbowl-v1.{host}-{os.getpid()}-0a.unfinished",
        ".fruitbowl-v1-60x32px.0a.unfinished",
        ".own.unfinished",
    ]
    go = [f".fruitbowl-v1-60x32px.{host}-{nobody}-0a.unfinished", ".fruitbowl-v1-9x32px.0a.unfinished"]
    for name in (*stay, *go):
        (cache / name).mkdir(parents=True)
    os.utime(cache / go[1], (1, 1))  # of a version that did not name its process: a day old at least
    (cache / f".split.json.{host}-{nobody}-0a.unfinished").touch()
    entry_module.remove_leftovers(cache)
    assert names_in(cache) == sorted(stay)


def test_without_file_locks(photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_module, "fcntl", None)
    assert_consistent(prepared(photos, cache))


def test_file_system_that_refuses_locks(photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(entry_module.fcntl, "flock", refuse)
    assert_consistent(prepared(photos, cache))


def test_another_process_without_our_lock_was_faster(photos: Path, cache: Path, tmp_path: Path) -> None:
    table = table_of(photos)
    other = prepare(table, size_px=SIZE_PX, cache=tmp_path / "other", skip_bad=False)

    def progress(*_: int) -> None:
        shutil.copytree(other.cache_dir, cache / other.cache_dir.name, dirs_exist_ok=True)

    built = prepare(table, size_px=SIZE_PX, cache=cache, skip_bad=False, on_progress=progress)
    assert_consistent(built)
    assert names_in(cache) == [other.cache_dir.name]


# Disks.


def free_space(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=num_bytes))


def test_without_room_the_files_are_checked_and_the_pixels_not_kept(
    photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = int(12 * SIZE_PX * SIZE_PX * 3 * 1.05)
    free_space(monkeypatch, needed - 1)
    built = prepared(photos, cache)
    assert built.images is None
    assert built.undecoded is not None
    assert (built.undecoded.root, built.undecoded.size_px) == (photos, SIZE_PX)
    assert built.undecoded.digests.shape == (12, 16)
    assert built.num_bytes == 12 * SIZE_PX * SIZE_PX * 3
    assert names_in(built.cache_dir) == sorted(SMALL_FILES)
    manifest = json.loads((built.cache_dir / "manifest.json").read_text())
    assert manifest["decoded"] is False
    assert manifest["decode_images_per_s"] == built.decode_images_per_s > 0

    again = prepared(photos, cache)
    assert again.from_cache
    assert again.fingerprint == built.fingerprint
    free_space(monkeypatch, needed)  # once there is room, the pixels are kept
    kept = prepared(photos, cache)
    assert_consistent(kept)
    assert kept.fingerprint == built.fingerprint
    assert kept.num_bytes == kept.images.nbytes == built.num_bytes
    assert not kept.from_cache
    free_space(monkeypatch, 0)
    assert prepared(photos, cache).images is not None  # and stay: no room is needed to find them


def not_kept(root: Path, cache: Path, *, skip_bad: bool = False) -> Pixels:
    return prepare(table_of(root), size_px=SIZE_PX, cache=cache, skip_bad=skip_bad, keeps_pixels=False)


def test_pixels_that_are_not_wanted_change_nothing_but_themselves(photos: Path, cache: Path) -> None:
    bad = spoil(photos)
    kept, unkept = prepared(photos, cache, skip_bad=True), not_kept(photos, cache, skip_bad=True)
    assert unkept.images is None  # although there are some
    assert open_pixels(unkept.cache_dir).images is None
    for name in ("num_train", "classes", "files", "fingerprint", "skipped", "num_bytes"):
        assert getattr(kept, name) == getattr(unkept, name), name
    assert np.array_equal(kept.labels, unkept.labels)
    assert sorted(file for file, _ in unkept.skipped) == bad
    # One key, two entries: a run may go on with the other, and each finds its own.
    key = kept.cache_dir.name.removeprefix("pixels-")
    assert names_in(cache) == [f"files-{key}", f"pixels-{key}"]
    assert not_kept(photos, cache, skip_bad=True).from_cache
    assert prepared(photos, cache, skip_bad=True).from_cache


def test_bad_images_are_named_when_pixels_are_not_kept(photos: Path, cache: Path) -> None:
    spoil(photos)
    with pytest.raises(DataError, match="3 of 12 images"):
        not_kept(photos, cache)
    assert names_in(cache) == []


@pytest.mark.parametrize("damage", ["no digests", "short", "other"])
def test_damaged_entries_without_pixels_are_rebuilt(photos: Path, cache: Path, damage: str) -> None:
    digests = not_kept(photos, cache).cache_dir / "digests.npy"
    match damage:
        case "no digests":
            digests.unlink()
        case "short":
            os.truncate(digests, digests.stat().st_size - 1)
        case "other":
            np.save(digests, np.zeros((11, 16), np.uint8))
    with pytest.raises(StorageError, match="missing or damaged"):
        open_pixels(digests.parent)
    assert not not_kept(photos, cache).from_cache


def test_entries_without_checksums_are_built_anew(photos: Path, cache: Path) -> None:
    """As early versions wrote them: nobody could tell whether their labels are those of the images."""
    built = prepared(photos, cache)
    path = built.cache_dir / "manifest.json"
    manifest = json.loads(path.read_text())
    np.save(built.cache_dir / "labels.npy", built.labels[::-1].copy())
    for names in (("checksum",), ("decoded", "root", "decode_images_per_s", "checksums", "images_mtime_ns")):
        for name in names:
            manifest.pop(name, None)
        path.write_text(json.dumps(manifest))
        anew = prepared(photos, cache)
        assert (anew.from_cache, "early version" in anew.rebuilt_over) == (False, True)
        assert_consistent(anew)
        assert not prepared(photos, cache).rebuilt_over


def edited(entry: Path, **values: object) -> None:
    """A manifest that says so, and states the right checksum of it."""
    manifest = json.loads((entry / "manifest.json").read_text()) | values
    if isinstance(manifest.get("checksums"), dict):
        manifest["checksum"] = checksum_of(manifest)
    (entry / "manifest.json").write_text(json.dumps(manifest))


def claim_many(entry: Path) -> None:
    path = entry / "labels.npy"
    path.write_bytes(path.read_bytes().replace(b"(12,)", b"(%d,)" % 10**12))
    checksums = json.loads((entry / "manifest.json").read_text())["checksums"]
    edited(entry, checksums=checksums | {"labels.npy": digest_of(path.read_bytes()).hex()})


HOSTILE_ENTRIES: dict[str, Callable[[Path], object]] = {
    "labels are a hole": lambda entry: os.truncate(entry / "labels.npy", 300 << 30),
    "the manifest is a hole": lambda entry: os.truncate(entry / "manifest.json", 300 << 30),
    "a deep manifest": lambda entry: (entry / "manifest.json").write_text("[" * 200_000),
    "checksums are a list": lambda entry: edited(entry, checksums=[1]),
    "a time without end": lambda entry: edited(entry, images_mtime_ns=10**400),
    "a header that claims much": claim_many,
    "classes are none": lambda entry: edited(entry, classes=None),
    "a number that is none": lambda entry: edited(entry, num_train=float("nan")),
    "a manifest in a list": lambda entry: (entry / "manifest.json").write_text("[{}]"),
    "no sums": lambda entry: edited(entry, checksums={}),
    "a pipe": lambda entry: ((entry / "manifest.json").unlink(), os.mkfifo(entry / "manifest.json")),
    "a device": lambda entry: ((entry / "labels.npy").unlink(), (entry / "labels.npy").symlink_to("/dev/zero")),
    "a link": lambda entry: (shutil.move(entry, entry.parent.parent / "moved"), entry.symlink_to(entry.parent / "x")),
    "a file": lambda entry: (shutil.rmtree(entry), entry.write_text("x")),
    "a lock that is a link": lambda entry: (
        (entry / "manifest.json").write_text("x"),
        entry.with_name(entry.name + ".lock").symlink_to(entry.parent.parent / "made"),
    ),
}


@pytest.mark.fault(23, "whatever lies in the cache in place of an entry is built again, and it is said")
@pytest.mark.parametrize("kind", HOSTILE_ENTRIES)
def test_a_hostile_entry_is_built_again(kind: str, photos: Path, cache: Path, tmp_path: Path) -> None:
    built = prepared(photos, cache)
    labels, entry = built.labels.tolist(), built.cache_dir
    HOSTILE_ENTRIES[kind](entry)
    if kind != "a time without end":  # which counts where the pixels are compared
        with pytest.raises(StorageError, match="missing or damaged"):
            open_pixels(entry)
    assert changes_since("0" * 64, replace(built, cache_dir=entry)) == ""
    anew = prepared(photos, cache)
    assert (anew.from_cache, anew.labels.tolist()) == (False, labels)
    assert anew.rebuilt_over
    assert not (tmp_path / "made").exists()
    assert prepared(photos, cache).from_cache


def test_a_folder_by_another_way_is_found(photos: Path, cache: Path, tmp_path: Path) -> None:
    """The files of an entry are where they really are: the way there may go."""
    link = tmp_path / "link"
    link.symlink_to(photos)
    built = not_kept(link, cache)
    assert built.undecoded is not None
    assert built.undecoded.root == photos
    assert not_kept(photos, cache).from_cache


@pytest.mark.fault(26, "a cache that cannot be written: said before training, with what to set")
def test_cache_that_cannot_be_written(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot be used") as caught:
        prepared(photos, tmp_path / "file" / "cache")
    assert "--set data.cache=DIR" in str(caught.value)

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StorageError, match="Permission denied"):
        prepared(photos, tmp_path / "cache")


def test_a_shared_cache_may_be_read_only(photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(photos, cache)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system")

    opened = os.open

    def only_read(path: str, flags: int, *more: int, **named: int) -> int:
        return refuse() if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else opened(path, flags, *more, **named)  # type: ignore[func-returns-value,return-value]

    for name, instead in (("utime", refuse), ("mkdir", refuse), ("open", only_read)):
        monkeypatch.setattr(os, name, instead)
    assert prepared(photos, cache).from_cache


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 kB where we may mount one."""
    where = tmp_path / "tiny"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(where)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield where
    subprocess.run(["umount", str(where)], check=True)


@pytest.mark.parametrize("per_class", [6, 40])
def test_disk_that_fills_up(tmp_path: Path, tiny_disk: Path, per_class: int, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = plant(tmp_path / "photos", per_class=per_class)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)  # others fill it after we looked
    with pytest.raises(StorageError, match="became full") as caught:
        prepared(photos, tiny_disk, size_px=128)
    assert "--set data.cache=DIR" in str(caught.value)
    assert names_in(tiny_disk) == []


def test_disk_that_fills_up_played(photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "decode_into", full)
    with pytest.raises(StorageError, match="became full"):
        prepared(photos, cache)
    assert names_in(cache) == []


def test_default_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNAROUND_CACHE", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    monkeypatch.setenv("HOME", "/three")
    assert default_cache() == Path("/one")
    monkeypatch.delenv("TURNAROUND_CACHE")
    assert default_cache() == Path("/two/turnaround")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path("/three/.cache/turnaround")
