"""A table of image files in, decoded uint8 pixels in one memory-mapped file out, shared by all processes.

Decoding is paid once: the result is a cache entry that every process of this run and of later runs maps.

    CACHE/pixels-<key>/images.npy      (N, size_px, size_px, 3) uint8
                       labels.npy      (N,) int64
                       manifest.json   classes, files, split, fingerprint
    CACHE/pixels-<key>.lock            held by the one process that builds; the others wait, then reuse
    CACHE/building-<host>-<pid>-*      unfinished; becomes the entry by one rename, or is removed

The key comes from paths, sizes and times: no image is opened to find an entry. The fingerprint comes from the
contents: it is the same on every machine that has the same files.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from turnaround.data.decode import Progress, Target, decode_into
from turnaround.data.folder import ImageTable
from turnaround.errors import DataError, StorageError

try:
    import fcntl
except ImportError:  # Windows: several processes may then build the same entry, and one rename wins
    fcntl = None  # type: ignore[assignment]

FORMAT_VERSION = 1
_DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError)  # what reading a damaged entry can raise
_LISTED_BAD_IMAGES = 20
_SLACK = 1.05  # of the space needed: the manifest, and what others write meanwhile
_REMEDIES = "Use another directory with --set data.cache=DIR, or smaller images with --set data.size_px=N."


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """Decoded images in the order of the table, training part first, without those that were skipped."""

    images: NDArray[np.uint8]  # (N, size_px, size_px, 3), a read-only memory map
    labels: NDArray[np.int64]
    num_train: int
    classes: tuple[str, ...]
    files: tuple[str, ...]
    fingerprint: str  # sha256 over (path, content digest, part, class) of every image, hex
    skipped: tuple[str, ...]  # "path: reason" of the unreadable images left out on request
    cache_dir: Path
    from_cache: bool
    decode_time_s: float  # what decoding took when the entry was built


def default_cache() -> Path:
    """$TURNAROUND_CACHE, else $XDG_CACHE_HOME/turnaround, else ~/.cache/turnaround."""
    if own := os.environ.get("TURNAROUND_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnaround"


def prepare(
    table: ImageTable, *, size_px: int, cache: Path, skip_bad: bool, on_progress: Progress | None = None
) -> Pixels:
    """Reuse the cache entry of this table, or build it. Any number of processes may call it at once."""
    entry = cache.expanduser().absolute() / f"pixels-{_key(table, size_px=size_px, skip_bad=skip_bad)}"
    if (found := _reuse(entry)) is not None:
        return found
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(entry.parent)
        with _locked(entry.with_name(entry.name + ".lock")):
            if (found := _reuse(entry)) is not None:  # another process built it while we waited
                return found
            return _build(table, entry, size_px=size_px, skip_bad=skip_bad, on_progress=on_progress)
    except BrokenPipeError:
        raise  # from on_progress: whoever read the output has gone, the disk is well
    except OSError as error:
        raise _storage_error(entry.parent, error) from error


def open_pixels(cache_dir: Path) -> Pixels:
    """Open a finished entry by its path: what a worker process does."""
    try:
        return _open(cache_dir)
    except _DAMAGED as error:
        raise StorageError(
            f"The pixel cache {str(cache_dir)!r} is missing or damaged ({error}). Start the run again: "
            "it is rebuilt from the images."
        ) from error


def _open(entry: Path) -> Pixels:
    """Map the entry, or raise what tells that it is not whole."""
    manifest = json.loads((entry / "manifest.json").read_text(encoding="utf-8"))
    if manifest["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format version {manifest['format_version']}, not {FORMAT_VERSION}")
    images = np.load(entry / "images.npy", mmap_mode="r", allow_pickle=False)
    labels = np.load(entry / "labels.npy", allow_pickle=False)
    size_px, num_images, num_train = manifest["size_px"], len(manifest["files"]), manifest["num_train"]
    if images.shape != (num_images, size_px, size_px, 3) or images.dtype != np.uint8:
        raise ValueError(f"images.npy holds {images.dtype} {images.shape}")
    if (entry / "images.npy").stat().st_size != images.offset + images.nbytes:
        raise ValueError("images.npy has the wrong size")
    if labels.shape != (num_images,) or labels.dtype != np.int64 or not 0 < num_train <= num_images:
        raise ValueError(f"labels.npy holds {labels.dtype} {labels.shape}")
    return Pixels(
        images=images,
        labels=labels,
        num_train=num_train,
        classes=tuple(manifest["classes"]),
        files=tuple(manifest["files"]),
        fingerprint=manifest["fingerprint"],
        skipped=tuple(manifest["skipped"]),
        cache_dir=entry,
        from_cache=True,
        decode_time_s=manifest["decode_time_s"],
    )


def _reuse(entry: Path) -> Pixels | None:
    try:
        found = _open(entry)
    except _DAMAGED:
        return None  # not there, or damaged: it is built again
    with contextlib.suppress(OSError):  # a cache shared read-only is as good
        os.utime(entry)  # the last use, for whoever cleans up
    return found


def _key(table: ImageTable, *, size_px: int, skip_bad: bool) -> str:
    """All that decides the entry's contents, as far as it is known without opening a file."""
    digest = hashlib.sha256()
    root = os.path.realpath(table.root)
    settings = [FORMAT_VERSION, root, table.num_train, size_px, skip_bad, table.classes]
    columns = (table.sizes_bytes, table.mtimes_ns, table.labels)
    digest.update(hashlib.sha256(json.dumps(settings).encode()).digest())
    digest.update(hashlib.sha256("\0".join(table.files).encode("utf-8", "surrogateescape")).digest())
    for column in columns:
        digest.update(hashlib.sha256(np.asarray(column, "<i8").tobytes()).digest())
    return digest.hexdigest()[:24]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time. Where there are no file locks several may build: the rename lets one win."""
    descriptor = _lock(path)
    try:
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                path.unlink()  # still locked: whoever waits sees that the file has gone, and starts over
            os.close(descriptor)


def _lock(path: Path) -> int | None:
    while fcntl is not None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, FileNotFoundError):
                continue  # removed by its last holder: take a new one
            if isinstance(error, OSError):
                return None  # some network file systems have no locks
            raise
        os.close(descriptor)
    return None


def _building_prefix() -> str:
    return f"building-{socket.gethostname().replace(os.sep, '_')}-"


def _remove_leftovers(cache: Path) -> None:
    """Remove what killed processes of this host left; other hosts' processes cannot be asked from here."""
    for path in cache.glob("building-*") if fcntl is not None else ():  # os.kill(pid, 0) kills on Windows
        pid, _, rest = path.name.removeprefix(_building_prefix()).partition("-")
        if path.name.startswith(_building_prefix()) and pid.isdecimal() and rest.isalnum():
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                shutil.rmtree(path, ignore_errors=True)
            except (PermissionError, OverflowError):
                pass  # another user's and alive, or no pid at all


def _build(table: ImageTable, entry: Path, *, size_px: int, skip_bad: bool, on_progress: Progress | None) -> Pixels:
    """Decode into a temporary directory beside the entry, then rename: whole or invisible."""
    header = _header(len(table.files), size_px)
    num_bytes = len(header) + len(table.files) * size_px * size_px * 3
    _check_space(entry.parent, num_bytes=num_bytes)
    building = entry.parent / f"{_building_prefix()}{os.getpid()}-{secrets.token_hex(8)}"
    try:
        building.mkdir()
        started_s = time.perf_counter()
        images = building / "images.npy"
        images.write_bytes(header)
        os.truncate(images, num_bytes)
        target = Target(path=images, offset_bytes=len(header), root=table.root.absolute(), size_px=size_px)
        digests, bad = decode_into(target, table.files, on_progress)
        keep = _kept(table, bad, skip_bad=skip_bad)
        if bad:
            _compact(images, keep, size_px=size_px)
        np.save(building / "labels.npy", table.labels[keep].astype(np.int64), allow_pickle=False)
        manifest = {
            "format_version": FORMAT_VERSION,
            "size_px": size_px,
            "num_train": int(np.count_nonzero(keep < table.num_train)),
            "decode_time_s": time.perf_counter() - started_s,
            "fingerprint": _fingerprint(table, keep, digests),
            "classes": table.classes,
            "skipped": [f"{table.files[index]}: {reason}" for index, reason in sorted(bad.items())],
            "files": [table.files[index] for index in keep],
        }
        (building / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        _publish(building, entry)
    finally:
        shutil.rmtree(building, ignore_errors=True)  # after the rename there is nothing left to remove
    return replace(open_pixels(entry), from_cache=False)


def _publish(building: Path, entry: Path) -> None:
    """On the disk first, then under its name: a power cut leaves a whole entry or none."""
    for path in (*building.iterdir(), building):
        _fsync(path)
    try:
        building.rename(entry)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if _reuse(entry) is not None:
            return  # built meanwhile by a process that does not see our lock, with the same content
        shutil.rmtree(entry)  # damaged
        building.rename(entry)
    _fsync(entry.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _header(num_images: int, size_px: int) -> bytes:
    """The head of images.npy; numpy leaves room in it to grow, so its length is the same for any number."""
    header = BytesIO()
    shape = (num_images, size_px, size_px, 3)
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return header.getvalue()


def _compact(images: Path, keep: NDArray[np.int64], *, size_px: int) -> None:
    """Move the kept images down over the holes, in order, then cut the file. None moves up: keep[i] >= i."""
    source = np.load(images, mmap_mode="r", allow_pickle=False)
    with open(images, "r+b") as file:
        file.write(_header(len(keep), size_px))
        assert file.tell() == source.offset
        for first in range(0, len(keep), 32):
            file.write(source[keep[first : first + 32]].data)
        file.truncate()


def _kept(table: ImageTable, bad: dict[int, str], *, skip_bad: bool) -> NDArray[np.int64]:
    """The places of the readable images in the table, when there are enough of them to go on."""
    if bad and not skip_bad:
        listed = [f"    {table.files[index]!r}: {reason}" for index, reason in sorted(bad.items())]
        more = len(listed) - _LISTED_BAD_IMAGES
        listed[_LISTED_BAD_IMAGES:] = [f"    and {more} more"] if more > 0 else []
        raise DataError(
            f"{len(bad)} of {len(table.files)} images in {str(table.root)!r} cannot be read:\n"
            + "\n".join(listed)
            + "\nRemove or repair them, or train without them: --set data.skip_bad=true"
        )
    keep = np.setdiff1d(np.arange(len(table.files)), np.fromiter(bad, np.int64, len(bad)))
    num_by_class = np.bincount(table.labels[keep[keep < table.num_train]], minlength=len(table.classes))
    lost = [name for name, count in zip(table.classes, num_by_class, strict=True) if not count]
    if lost:
        raise DataError(
            f"Without the {len(bad)} unreadable images no training image is left of "
            f"{', '.join(map(repr, lost))} (first: {table.files[min(bad)]!r}: {bad[min(bad)]}). "
            "Repair them, or remove the class folder."
        )
    if len(table.files) > table.num_train and not (keep >= table.num_train).any():
        raise DataError(f"Every validation image in {str(table.root)!r} is unreadable. Repair some of them.")
    return keep


def _fingerprint(table: ImageTable, keep: NDArray[np.int64], digests: NDArray[np.uint8]) -> str:
    fingerprint = hashlib.sha256()
    for index in keep.tolist():
        part = "train" if index < table.num_train else "val"
        label = table.classes[table.labels[index]]
        line = f"{table.files[index]}\0{digests[index].tobytes().hex()}\0{part}\0{label}\0"
        fingerprint.update(line.encode("utf-8", "surrogateescape"))
    return fingerprint.hexdigest()


def _check_space(cache: Path, *, num_bytes: int) -> None:
    needed_gb, free_gb = num_bytes * _SLACK / 1e9, shutil.disk_usage(cache).free / 1e9
    if needed_gb > free_gb:
        raise StorageError(
            f"Not enough space for the decoded images in {str(cache)!r}: {needed_gb:.2f} GB needed, "
            f"{free_gb:.2f} GB free. {_REMEDIES}"
        )


def _storage_error(cache: Path, error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"The disk became full while decoding images into {str(cache)!r}. {_REMEDIES}")
    return StorageError(f"The cache directory {str(cache)!r} cannot be used: {error}. {_REMEDIES}")
