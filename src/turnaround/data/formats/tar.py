"""Tar shards as WebDataset writes them: the members of one sample share a key and stand beside each other.

    0001.jpg, 0001.cls      the label as text: a number or a name
    0001.jpg, 0001.json     an object with a label (or class, target, category ...)

A shard is gone through header by header: 512 bytes for each member, and the few bytes of its label; no image is read.
The name of a sample is that of its shard and of its member, 'train-0003.tar/0001.jpg'.

The headers are read here and not by `tarfile`, which takes ten times as long for each of a million members.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnaround.children import in_children
from turnaround.data.decode import MAX_FILE_BYTES, digest_of
from turnaround.data.folder import IMAGE_EXTENSIONS
from turnaround.data.formats.samples import LABEL_COLUMNS, Samples, part_in_name
from turnaround.errors import DataError
from turnaround.words import counted

SUFFIX = ".tar"
CLASS_LISTS = ("classnames.txt", "classes.txt")
"""Names of the classes, one a line, for labels that are their places: as CLIP's benchmark writes them beside shards."""
_BLOCK = 512
_MAX_LABEL_BYTES = 1 << 20
_MAX_NAME_BYTES = 1 << 16
_REGULAR, _LONG_NAME, _EXTENDED = b"0\0", b"L", b"x"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class TarMember(NamedTuple):
    """A regular file in a shard."""

    name: str
    start: int
    num_bytes: int


class DamagedShardError(DataError):
    """A shard is not a whole tar file."""


def members(path: Path) -> Iterator[TarMember]:
    """Yield the regular files of a shard, in order; raise DamagedShardError where it is cut off or no tar."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not be waited for
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise DamagedShardError(f"{path} is not a plain file.")
        yield from _members(path, descriptor, status.st_size)
    finally:
        os.close(descriptor)


def _members(path: Path, descriptor: int, num_bytes: int) -> Iterator[TarMember]:
    at, long_name, long_size = 0, "", -1
    while at < num_bytes:
        header = os.pread(descriptor, _BLOCK, at)
        if not header.strip(b"\0"):
            return  # the end: blocks of zeros
        kind, size = _checked(path, header, at), _octal(header[124:136])
        if long_size >= 0 and header[156:157] in _REGULAR:
            size = long_size
        start = at + _BLOCK
        at = start + -(-size // _BLOCK) * _BLOCK
        if size < 0 or start + size > num_bytes:
            raise DamagedShardError(
                f"{path} is cut off: the member at byte {start - _BLOCK:,} needs {size:,} bytes, and the file ends "
                f"after {num_bytes - start:,}. Copy or write the shard again."
            )
        if kind in (_LONG_NAME, _EXTENDED):
            content = os.pread(descriptor, min(size, _MAX_NAME_BYTES), start)
            told = _extended(content) if kind == _EXTENDED else {"path": content.rstrip(b"\0")}
            long_name = told.get("path", long_name.encode()).decode("utf-8", "surrogateescape")
            long_size = int(told.get("size", b"-1"))
            continue
        if kind in _REGULAR and kind:
            yield TarMember(long_name or _name(header), start, size)
        long_name, long_size = "", -1
    raise DamagedShardError(
        f"{path} is cut off: it lacks the two empty blocks that end a tar file. Copy it again, or close the program "
        "that writes it."
    )


def _checked(path: Path, header: bytes, at: int) -> bytes:
    """Return the kind of member that a header is of; its checksum tells whether it is one."""
    # The checksum is taken with blanks in its own place.
    total = sum(header) - sum(header[148:156]) + 8 * 32
    if len(header) == _BLOCK and total == _octal(header[148:156]):
        return header[156:157]
    compression = next((name for magic, name in _COMPRESSED.items() if not at and header.startswith(magic)), None)
    if compression:
        raise DamagedShardError(
            f"{path} is compressed ({compression}), so no image in it can be read alone. Unpack it to a plain .tar: "
            "JPEGs do not get smaller by it."
        )
    if at and len(header) < _BLOCK:
        raise DamagedShardError(f"{path} is cut off at byte {at + len(header):,}. Copy or write the shard again.")
    raise DamagedShardError(
        f"{path} is damaged or no tar file: there is no header of a member at byte {at:,}. Copy or write the shard "
        "again."
    )


def _octal(field: bytes) -> int:
    if field[:1] == b"\x80":  # GNU's form for large numbers: binary
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        return -1


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0" and (prefix := header[345:500].partition(b"\0")[0]):
        name = prefix + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _extended(content: bytes) -> dict[str, bytes]:
    """Return the records of a pax header: "27 path=some/long/name\n"."""
    found: dict[str, bytes] = {}
    while content:
        length, _, rest = content.partition(b" ")
        if not length.isdigit() or int(length) <= len(length) + 1:
            break
        key, _, value = rest[: int(length) - len(length) - 2].partition(b"=")
        found[key.decode("ascii", "replace")] = value
        content = content[int(length) :]
    return found


# --- samples


def read_shards(source: Path, root: Path, shards: Sequence[Path]) -> Samples:
    """Return the samples of all shards, read by child processes where there are several."""
    samples = Samples(source=source, root=root, split="names of the shards")
    tasks = [(number, root, shard) for number, shard in enumerate(shards)]
    read = dict(in_children(_read_for_parent, tasks, purpose="reads tar shards"))
    problems = [problem for _, problem in (read[number] for number in sorted(read)) if problem is not None]
    if problems:
        raise DataError(problems[0])
    for number in sorted(read):
        found = read.pop(number)[0]
        assert found is not None
        samples.extend(found)
    if not any(samples.parts()):
        samples.split = ""
    _name_classes(samples, root)
    return samples


def _read_for_parent(task: tuple[int, Path, Path]) -> tuple[int, tuple[Samples | None, str | None]]:
    """Return the samples of one shard or what is wrong with it: an exception would end the process with a trace."""
    number, root, shard = task
    try:
        return number, (_read_shard(root, shard), None)
    except DataError as error:
        return number, (None, str(error))
    except OSError as error:
        return number, (None, f"{shard} cannot be read: {error.strerror}. Check the disk, and whose file it is.")


def _read_shard(root: Path, shard: Path) -> Samples:
    samples = Samples(source=shard, root=root)
    prefix, mtime_ns = shard.relative_to(root).as_posix(), shard.stat().st_mtime_ns
    part = part_in_name(prefix)
    seen: set[str] = set()
    for key, group in _groups(members(shard)):
        images = [member for extension, member in group.items() if extension in IMAGE_EXTENSIONS]
        if not images:
            continue  # a sample of another kind, or a file about the shard
        if key in seen:
            raise DataError(f"{shard}: the key {key!r} is there twice, apart from each other. Write the shard again.")
        seen.add(key)
        label = _label(shard, key, group)
        samples.add(
            f"{prefix}/{images[0].name}",
            label,
            part=part,
            size_bytes=images[0].num_bytes,
            mtime_ns=mtime_ns,
            where=f"{shard}, member {key!r}",
        )
    if not seen:
        raise DataError(
            f"{shard} holds no image. Looked for members that end in {', '.join(sorted(IMAGE_EXTENSIONS))}."
        )
    return samples


def _groups(every: Iterator[TarMember]) -> Iterator[tuple[str, dict[str, TarMember]]]:
    """Yield the members of each sample by extension: neighbours of the same key, which ends at the first dot."""
    key, group = "", dict[str, TarMember]()
    for member in every:
        folder, slash, name = member.name.rpartition("/")
        stem, _, extension = name.partition(".")
        if (mine := f"{folder}{slash}{stem}") != key:
            if group:
                yield key, group
            key, group = mine, {}
        group.setdefault(extension.lower(), member)
    if group:
        yield key, group


def _label(shard: Path, key: str, group: dict[str, TarMember]) -> str:
    if "cls" in group:
        label = _content(shard, group["cls"]).decode("utf-8", "replace").strip()
    elif "json" in group:
        label = _json_label(shard, group["json"])
    else:
        raise DataError(
            f"{shard}, member {key!r}: no label beside the image: '{key}.cls' (text) or '{key}.json' (with \"label\"). "
            "If this is an archive of class folders, unpack it, and give the folder."
        )
    if not label or len(label) > 200 or not label.isprintable():
        raise DataError(f"{shard}, member {key!r}: the label is no name and no number. Received: {label[:80]!r}")
    return label


def _json_label(shard: Path, member: TarMember) -> str:
    try:
        content = json.loads(_content(shard, member))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{shard}, member {member.name!r}: no JSON ({error}).") from error
    known = content if isinstance(content, dict) else {}
    label = next((known[name] for name in LABEL_COLUMNS if name in known), None)
    if label is None or isinstance(label, dict | list | bool):
        raise DataError(
            f"{shard}, member {member.name!r}: no label in it. Known names: {', '.join(LABEL_COLUMNS)}. Received: "
            f"{', '.join(map(str, known))[:80] or str(content)[:80]}."
        )
    return str(label).strip()


def _content(shard: Path, member: TarMember) -> bytes:
    if member.num_bytes > _MAX_LABEL_BYTES:
        raise DataError(f"{shard}, member {member.name!r}: {member.num_bytes:,} bytes are no label.")
    return _read_at(shard, member.start, member.num_bytes)


def _name_classes(samples: Samples, root: Path) -> None:
    """Take the names of the classes from a list beside the shards, where the labels are places in it."""
    path = next((root / name for name in CLASS_LISTS if (root / name).is_file()), None)
    numbers = samples.classes()
    if path is None or not all(label.isdigit() for label in numbers):
        return
    names = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    if len(names) != len(set(names)) or int(numbers[-1]) >= len(names):
        raise DataError(
            f"{path} names {counted(len(names), 'class')}, each of which must be there once; the shards have labels up "
            f"to {numbers[-1]}. Correct the list, or remove it: the classes are then called by their numbers."
        )
    samples.rename_classes({str(place): name for place, name in enumerate(names)})


# --- one member


@cache
def _index(shard: Path, mtime_ns: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the images of a shard by a digest of their names: 24 bytes each, so a process may keep all shards.

    `mtime_ns` is part of the key: a shard that was written anew is read anew.
    """
    images = [member for member in members(shard) if member.name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS]
    keys = np.array([_hash(member.name) for member in images], np.uint64)
    places = np.array([(member.start, member.num_bytes) for member in images], np.int64).reshape(-1, 2)
    order = np.argsort(keys, kind="stable")
    return keys[order], places[order]


def _hash(name: str) -> int:
    # 64 bits of 128: two of a shard's 100,000 members agree by chance with a probability below 1e-9.
    return int.from_bytes(digest_of(name.encode("utf-8", "surrogateescape"))[:8], "little")


def read_tar_member(shard: Path, name: str) -> bytes:
    """Return the bytes of an image in a shard; OSError where it is not there."""
    try:
        keys, places = _index(shard, shard.stat().st_mtime_ns)
    except DataError as error:
        raise OSError(str(error)) from error
    row = int(np.searchsorted(keys, np.uint64(_hash(name))))
    if row == len(keys) or keys[row] != _hash(name):
        raise FileNotFoundError(2, "no such member of the shard")
    start, num_bytes = places[row].tolist()
    if num_bytes > MAX_FILE_BYTES:
        raise OSError(f"larger than {MAX_FILE_BYTES / 1e9:.1f} GB")
    return _read_at(shard, start, num_bytes)


def _read_at(shard: Path, start: int, num_bytes: int) -> bytes:
    descriptor = os.open(shard, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        content = os.pread(descriptor, num_bytes, start)
        while len(content) < num_bytes:  # the system may give less than was asked for, 2 GiB at most
            more = os.pread(descriptor, num_bytes - len(content), start + len(content))
            if not more:
                raise OSError(f"it ends before byte {start + num_bytes:,}")
            content += more
        return content
    finally:
        os.close(descriptor)
