"""A table of image files in, decoded uint8 pixels in one memory-mapped file out, shared by all processes.

Decoding is paid once: the result is a cache entry that every process of this run and of later runs maps.

    CACHE/pixels-<key>/images.npy      (N, size_px, size_px, 3) uint8
                       labels.npy      (N,) int64
                       digests.npy     (N, 16) uint8, of the files' bytes as they were then
                       pixel_digests.npy   the same of the pixels: equal for one picture in two formats
                       pixel_sums.npy  (N,) uint64, checksums of the pixels, quick enough for every first read
                       manifest.json   classes, files, split, fingerprint, decode rate, checksums
    CACHE/files-<key>/                 the same without images.npy, when pixels are not kept: every file was decoded
                                       once and checked

The key comes from paths, sizes and times: no image is opened to find an entry. The fingerprint comes from the
contents: it is the same on every machine that has the same files, and the same whether the pixels are kept or not, so a
run may be resumed with another cache. How an entry becomes visible as a whole is in entry.py.

An entry is not believed: labels, digests and the manifest are held to their checksums whenever it is opened, and one
without them, as early versions wrote it, is built anew. Nothing in it is opened that is no plain file. The pixels
are too many for that; before a run they are all compared with their digests when images.npy was written to or copied
since, and otherwise a few of them, others each time. A process that trains compares each when it first reads it
(first_read.py).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import time
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnaround.data.decode import DIGEST_BYTES, digest_of
from turnaround.data.decoders import DecodeResult, DecodeTarget, Progress, decode_into
from turnaround.data.entry import building, locked, publish, remove_leftovers
from turnaround.data.folder import ImageTable
from turnaround.data.plain import MAX_HEADER_BYTES, Number, array_of, map_array, parsed_object, read_plain
from turnaround.errors import DataError, StorageError
from turnaround.patience import patiently

FORMAT_VERSION = 1
# What reading an entry can raise, whatever lies there: numbers and lists where others belong, nesting without end.
DAMAGED = (
    *(OSError, EOFError, MemoryError, RecursionError),
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
)
_LISTED_BAD_IMAGES = 20
MANIFEST, PIXELS = "manifest.json", "images.npy"
ARRAYS = ("labels.npy", "digests.npy", "pixel_digests.npy")  # small enough to be read as a whole
SUMS = "pixel_sums.npy"  # as small; entries of older versions have none, nor do those without pixels
MAX_MANIFEST_BYTES = 1 << 30  # ten million files; the sizes of the arrays follow from it
_SAMPLED_BYTES = 8 << 20  # of pixels, compared with their digests before every run: about 10 ms
_SLACK = 1.05  # of the space needed: the manifest, and what others write meanwhile
_REMEDIES = "Use another directory with --set data.cache=DIR, or smaller images with --set data.size_px=N."


@dataclass(frozen=True, kw_only=True)
class Undecoded:
    """The values that decoding on demand needs."""

    root: Path
    size_px: int
    digests: NDArray[np.uint8]  # (N, 16) of the files' bytes when they were checked


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """Decoded images in the order of the table, training part first, without those that were skipped."""

    images: NDArray[np.uint8] | None  # (N, size_px, size_px, 3), a read-only memory map; None: see `undecoded`
    labels: NDArray[np.int64]
    num_train: int
    classes: tuple[str, ...]
    files: tuple[str, ...]
    fingerprint: str  # sha256 over (path, content digest, part, class) of every image, hex
    skipped: tuple[tuple[str, str], ...]  # (file, reason) of the unreadable images left out on request
    cache_dir: Path
    from_cache: bool
    decode_time_s: float  # what decoding took when the entry was built
    decode_images_per_s: float | None = None  # of all cores of the machine that built it; old entries do not know
    undecoded: Undecoded | None = None  # when the pixels were not kept
    digests: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, DIGEST_BYTES), np.uint8))
    """(N, 16) of the files' bytes when they were decoded."""
    pixel_digests: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, DIGEST_BYTES), np.uint8))
    """(N, 16) of the pixels."""
    pixel_sums: NDArray[np.uint64] | None = None
    """(N,) of the pixels (sums.py); old entries do not have them."""
    rebuilt_over: str = ""
    """What was wrong with the entry that was there before; empty where there was none."""

    @property
    def is_of_cache(self) -> bool:
        """Whether the pixels come from a file, which may have changed since it was written."""
        return self.images is not None and len(self.pixel_digests) == len(self.labels)

    @property
    def num_bytes(self) -> int:
        """Bytes of all pixels once they are decoded."""
        if self.images is not None:
            return self.images.nbytes
        assert self.undecoded is not None
        return num_bytes_of(len(self.labels), self.undecoded.size_px)


def num_bytes_of(num_images: int, size_px: int) -> int:
    return num_images * size_px * size_px * 3


def space_needed_bytes(num_bytes: int) -> int:
    """Return the bytes that must be free on the disk before so many bytes of pixels are written to it."""
    return int(num_bytes * _SLACK)


def default_cache() -> Path:
    """$TURNAROUND_CACHE, else $XDG_CACHE_HOME/turnaround, else ~/.cache/turnaround."""
    if own := os.environ.get("TURNAROUND_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnaround"


def prepare(
    table: ImageTable,
    *,
    size_px: int,
    cache: Path,
    skip_bad: bool | None,
    keeps_pixels: bool = True,
    on_progress: Progress | None = None,
) -> Pixels:
    """Reuse the cache entry of this table, or build it. Any number of processes may call it at once.

    Pixels that are not wanted, or that the disk has no room for, are not kept: they are None in what is returned.
    skip_bad = None leaves unreadable images out even when nothing is left of a class: enough for a check.
    """
    cache, key = cache.expanduser().absolute(), key_of(table, size_px=size_px, skip_bad=skip_bad)
    if keeps_pixels and (found := _reuse(cache / f"pixels-{key}")) is not None:
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # Asked again every time: once there is room, the pixels are kept.
        keeps_pixels = keeps_pixels and _has_room(cache, num_bytes=num_bytes_of(len(table.files), size_px))
        entry = cache / f"{'pixels' if keeps_pixels else 'files'}-{key}"
        if not keeps_pixels and (found := _reuse(entry)) is not None:
            return found
        remove_leftovers(cache)
        with locked(entry):
            there = _looked_at(entry)
            if isinstance(there, Pixels):  # another process built it while we waited
                return there
            build = _Build(table=table, size_px=size_px, skip_bad=skip_bad, keeps_pixels=keeps_pixels)
            return replace(build.run(entry, on_progress), rebuilt_over=there)
    except BrokenPipeError:
        raise  # from on_progress: whoever read the output has gone, the disk is well
    except OSError as error:
        raise _storage_error(cache, error) from error


def open_pixels(cache_dir: Path) -> Pixels:
    """Open a finished entry by its path: what a worker process does."""
    try:
        return patiently(lambda: _open(cache_dir))
    except DAMAGED as error:
        raise StorageError(
            f"The pixel cache {str(cache_dir)!r} is missing or damaged ({error}). Start the run again: "
            "it is rebuilt from the images."
        ) from error


def _open(entry: Path) -> Pixels:
    """Map the entry, or raise what tells that it is not whole."""
    manifest = read_manifest(entry)
    if manifest["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format version {manifest['format_version']}, not {FORMAT_VERSION}")
    if manifest.get("checksum") != checksum_of(manifest):
        raise ValueError("manifest.json was changed, or is that of an early version")
    num_images, num_train = len(manifest["files"]), manifest["num_train"]
    labels = _load(entry, "labels.npy", manifest, (num_images,), np.int64)
    if not 0 < num_train <= num_images:
        raise ValueError(f"{num_train} of {num_images} images to train on")
    if not 0 <= labels.min() <= labels.max() < len(manifest["classes"]):
        raise ValueError(f"labels.npy holds {labels.min()} to {labels.max()} for {len(manifest['classes'])} classes")
    is_decoded = manifest.get("decoded", True)
    digests = _load(entry, "digests.npy", manifest, (num_images, DIGEST_BYTES), np.uint8)
    return Pixels(
        images=open_images(entry, manifest) if is_decoded else None,
        labels=labels,
        num_train=num_train,
        classes=tuple(manifest["classes"]),
        files=tuple(manifest["files"]),
        fingerprint=manifest["fingerprint"],
        skipped=_skipped(manifest),
        digests=digests,
        pixel_digests=_load(entry, "pixel_digests.npy", manifest, (num_images, DIGEST_BYTES), np.uint8),
        pixel_sums=_load(entry, SUMS, manifest, (num_images,), np.uint64)
        if is_decoded and SUMS in manifest["checksums"]
        else None,
        cache_dir=entry,
        from_cache=True,
        decode_time_s=float(manifest["decode_time_s"]),
        decode_images_per_s=manifest.get("decode_images_per_s") if is_decoded else manifest["decode_images_per_s"],
        undecoded=None
        if is_decoded
        else Undecoded(root=Path(manifest["root"]), size_px=manifest["size_px"], digests=digests),
    )


def _skipped(manifest: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return file and reason of each image that was left out, in the order of the table."""
    if "unreadable" in manifest:
        return tuple((file, reason) for file, reason in manifest["unreadable"])
    # Older entries have the joined text alone: a colon in the name of a file is rarer than one in a reason.
    return tuple((file, reason) for file, _, reason in (text.partition(": ") for text in manifest["skipped"]))


def read_manifest(entry: Path) -> dict[str, Any]:
    """Return the manifest of an entry; one of DAMAGED for anything else."""
    return parsed_object(read_plain(entry / MANIFEST, most_bytes=MAX_MANIFEST_BYTES))


def open_images(entry: Path, manifest: dict[str, Any]) -> NDArray[np.uint8]:
    """Map the pixels of an entry, if the file is as large and of the shape that the manifest makes it."""
    size_px = manifest["size_px"]
    return map_array(entry / PIXELS, (len(manifest["files"]), size_px, size_px, 3), np.uint8)


def _load(
    entry: Path, name: str, manifest: dict[str, Any], shape: tuple[int, ...], kind: type[Number]
) -> np.ndarray[tuple[Any, ...], np.dtype[Number]]:
    most_bytes = math.prod(shape) * np.dtype(kind).itemsize + MAX_HEADER_BYTES
    content = read_plain(entry / name, most_bytes=most_bytes)
    if manifest["checksums"][name] != digest_of(content).hex():
        raise ValueError(f"{name} was changed")
    return array_of(content, name, shape, kind)


def checksum_of(manifest: dict[str, Any]) -> str:
    """Return the checksum that a manifest must state of everything else in it."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    return digest_of(json.dumps(rest, sort_keys=True).encode()).hex()


def _check_pixels(pixels: Pixels) -> None:
    """Raise ValueError when pixels are not those that were decoded: all are compared where the file was touched."""
    if pixels.images is None:
        return
    path = pixels.cache_dir / PIXELS
    manifest = read_manifest(pixels.cache_dir)
    written_ns, num_images = manifest.get("images_mtime_ns"), len(pixels.images)
    is_touched = written_ns is not None and path.stat().st_mtime_ns != written_ns
    num_sampled = min(num_images, max(1, _SAMPLED_BYTES // int(pixels.images[0].nbytes)))
    # Any rows: each start looks at others, so that damage is found in the end wherever it is.
    rows = range(num_images) if is_touched else np.random.default_rng().choice(num_images, num_sampled, replace=False)
    for row in rows:
        if digest_of(pixels.images[row].data) != pixels.pixel_digests[row].tobytes():
            raise ValueError(f"the pixels of {pixels.files[row]!r} were changed")
    if is_touched and written_ns is not None:  # a copy of the cache: true, and not to be compared as a whole again
        with contextlib.suppress(OSError):
            os.utime(path, ns=(written_ns, written_ns))


def _reuse(entry: Path) -> Pixels | None:
    """Return the entry; None where it is not there, or damaged: then it is built again."""
    found = _looked_at(entry)
    return found if isinstance(found, Pixels) else None


def _looked_at(entry: Path) -> Pixels | str:
    """Return the entry, or what is wrong with it; nothing is wrong where there is none, or it was given up before."""
    try:
        found = patiently(lambda: _open(entry))
        _check_pixels(found)
    except DAMAGED as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        is_there = os.path.lexists(entry / MANIFEST) or (os.path.lexists(entry) and not entry.is_dir())
        return (reason or type(error).__name__) if is_there else ""
    with contextlib.suppress(OSError):  # a cache shared read-only is as good
        os.utime(entry)  # the last use, for whoever cleans up
    return found


def give_up(entry: Path) -> bool:
    """Make an entry invisible, so that it is built again; processes that have mapped it keep what they have.

    Return False where that is not ours to do: a cache that is shared read-only.
    """
    try:
        (entry / MANIFEST).unlink(missing_ok=True)
    except OSError:
        return False
    return True


def key_of(table: ImageTable, *, size_px: int, skip_bad: bool | None) -> str:
    """Return a digest of all that decides the entry's contents, as far as it is known without opening a file."""
    # Every field is hashed by itself first: joined bytes could be divided in another way and give the same digest.
    digest = hashlib.sha256()
    root = os.path.realpath(table.root)
    settings = [FORMAT_VERSION, root, table.num_train, size_px, skip_bad, table.classes]
    columns = (table.sizes_bytes, table.mtimes_ns, table.labels)
    digest.update(hashlib.sha256(json.dumps(settings).encode()).digest())
    digest.update(hashlib.sha256("\0".join(table.files).encode("utf-8", "surrogateescape")).digest())
    for column in columns:
        digest.update(hashlib.sha256(np.asarray(column, "<i8").tobytes()).digest())
    return digest.hexdigest()[:24]


@dataclass(frozen=True, kw_only=True)
class _Build:
    """Decodes a table into a temporary directory beside the entry, then renames: whole or invisible."""

    table: ImageTable
    size_px: int
    skip_bad: bool | None
    keeps_pixels: bool

    def run(self, entry: Path, on_progress: Progress | None) -> Pixels:
        table, started_s = self.table, time.perf_counter()
        with building(entry.parent) as place:
            images = self._make_room(place / PIXELS) if self.keeps_pixels else None
            target = DecodeTarget(
                path=images,
                offset_bytes=len(self._header(len(table.files))),
                root=table.root.absolute(),
                size_px=self.size_px,
            )
            decoded = decode_into(target, table.files, on_progress)
            keep = _kept(table, decoded.bad, skip_bad=self.skip_bad)
            if decoded.bad and images is not None:
                self._compact(images, keep)
            np.save(place / "labels.npy", table.labels[keep].astype(np.int64), allow_pickle=False)
            np.save(place / "digests.npy", decoded.digests[keep], allow_pickle=False)
            np.save(place / "pixel_digests.npy", decoded.pixel_digests[keep], allow_pickle=False)
            if images is not None:
                np.save(place / SUMS, decoded.pixel_sums[keep], allow_pickle=False)
            names = ARRAYS if images is None else (*ARRAYS, SUMS)
            manifest = self._manifest(decoded, keep, decode_time_s=time.perf_counter() - started_s)
            manifest["checksums"] = {name: digest_of((place / name).read_bytes()).hex() for name in names}
            manifest["images_mtime_ns"] = images.stat().st_mtime_ns if images is not None else None
            # As it will be read back: JSON makes lists of tuples.
            manifest["checksum"] = checksum_of(json.loads(json.dumps(manifest)))
            (place / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
            publish(place, entry, is_whole=lambda other: _reuse(other) is not None)
        return replace(open_pixels(entry), from_cache=False)

    def _manifest(self, decoded: DecodeResult, keep: NDArray[np.int64], *, decode_time_s: float) -> dict[str, Any]:
        table = self.table
        return {
            "format_version": FORMAT_VERSION,
            "decoded": self.keeps_pixels,
            "root": os.path.realpath(table.root),
            "size_px": self.size_px,
            "num_train": int(np.count_nonzero(keep < table.num_train)),
            "decode_time_s": decode_time_s,
            "decode_images_per_s": decoded.images_per_s,
            "fingerprint": _fingerprint(table, keep, decoded.digests),
            "classes": table.classes,
            # Joined, as older versions read it, and in two parts: the name of a file may hold what joins them.
            "skipped": [f"{table.files[index]}: {reason}" for index, reason in sorted(decoded.bad.items())],
            "unreadable": [(table.files[index], reason) for index, reason in sorted(decoded.bad.items())],
            "files": [table.files[index] for index in keep.tolist()],
        }

    def _make_room(self, images: Path) -> Path:
        header = self._header(len(self.table.files))
        images.write_bytes(header)
        # A sparse file of the final size: every process that decodes writes its own rows at their places.
        os.truncate(images, len(header) + num_bytes_of(len(self.table.files), self.size_px))
        return images

    def _header(self, num_images: int) -> bytes:
        """Return the header of images.npy; numpy pads it for growth, so its length is the same for any number."""
        header = BytesIO()
        shape = (num_images, self.size_px, self.size_px, 3)
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
        return header.getvalue()

    def _compact(self, images: Path, keep: NDArray[np.int64]) -> None:
        """Move the kept images down over the holes, in order, then cut the file. None moves up: keep[i] >= i."""
        source = np.load(images, mmap_mode="r", allow_pickle=False)
        with open(images, "r+b") as file:
            file.write(self._header(len(keep)))
            assert file.tell() == source.offset
            for first in range(0, len(keep), 32):
                file.write(source[keep[first : first + 32]].data)
            file.truncate()


def _kept(table: ImageTable, bad: dict[int, str], *, skip_bad: bool | None) -> NDArray[np.int64]:
    """Return the indices of the readable images in the table; raise DataError when too few of them are left."""
    if bad and skip_bad is False:
        listed = [f"    {table.files[index]!r}: {reason}" for index, reason in sorted(bad.items())]
        more = len(listed) - _LISTED_BAD_IMAGES
        listed[_LISTED_BAD_IMAGES:] = [f"    and {more} more"] if more > 0 else []
        raise DataError(
            f"{len(bad)} of {len(table.files)} images in {str(table.root)!r} cannot be read:\n"
            + "\n".join(listed)
            + "\nRemove or repair them, or train without them: --set data.skip_bad=true"
        )
    keep = np.setdiff1d(np.arange(len(table.files)), np.fromiter(bad, np.int64, len(bad)))
    if skip_bad is None and (keep < table.num_train).any():
        return keep
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


def _has_room(cache: Path, *, num_bytes: int) -> bool:
    return space_needed_bytes(num_bytes) <= shutil.disk_usage(cache).free


def _storage_error(cache: Path, error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"The disk became full while decoding images into {str(cache)!r}. {_REMEDIES}")
    return StorageError(f"The cache directory {str(cache)!r} cannot be used: {error}. {_REMEDIES}")
