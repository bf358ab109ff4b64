"""One plain file of a cache, or one that a recipe names, opened safely and read with a limit.

A record or a cache may be somebody else's: a FIFO would be waited for, a device read without end, a hole of 300 GB
would fill the memory, a deep JSON the stack. Files of runs have an opener of their own (record/files.py).
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from io import BytesIO
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

MAX_HEADER_BYTES = 4_096  # of an array; numpy pads it to 128
Number = TypeVar("Number", bound=np.generic)
Array = np.ndarray[tuple[Any, ...], np.dtype[Number]]


def open_plain(path: Path, *, follows_link: bool) -> int:
    """Return a descriptor for reading; OSError for whatever is no plain file."""
    # NONBLOCK lets the open of a FIFO return, so that fstat can refuse it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags | (0 if follows_link else getattr(os, "O_NOFOLLOW", 0)))
    # Of what is open, not of the name: the file may have been swapped since.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return descriptor


def read_plain(path: Path, *, most_bytes: int, follows_link: bool = False) -> bytes:
    """Return the content of a plain file; OSError for whatever is none, ValueError for a larger one."""
    with os.fdopen(open_plain(path, follows_link=follows_link), "rb") as file:
        # Asked first: a sparse file of any size costs nothing to make.
        if os.fstat(file.fileno()).st_size > most_bytes:
            raise ValueError(f"{path.name} is larger than {most_bytes:,} bytes")
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:  # it has grown meanwhile
        raise ValueError(f"{path.name} is larger than {most_bytes:,} bytes")
    return content


def parsed_object(text: str | bytes) -> dict[str, Any]:
    """Return the object in a JSON text; ValueError for anything else, a nesting that fills the stack among it."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__}, not an object")
    return content


# --- arrays


def array_of(content: bytes, name: str, shape: tuple[int, ...], kind: type[Number]) -> Array[Number]:
    """Return the array in the bytes of a .npy file; ValueError for one of another shape."""
    file = BytesIO(content)
    _require_header(file, name, shape, kind)
    return np.frombuffer(content, kind, offset=file.tell()).reshape(shape).copy()  # torch wants to own what it takes


def map_array(path: Path, shape: tuple[int, ...], kind: type[Number]) -> Array[Number]:
    """Map a .npy file, read-only; ValueError for one of another shape or size."""
    # Opened by a name, which readers of single rows ask the map for (reading.py).
    with open(path, "rb", opener=lambda name, _: open_plain(Path(name), follows_link=False)) as file:
        _require_header(file, path.name, shape, kind)
        if os.fstat(file.fileno()).st_size != file.tell() + math.prod(shape) * np.dtype(kind).itemsize:
            raise ValueError(f"{path.name} has the wrong size")
        return np.memmap(file, kind, mode="r", offset=file.tell(), shape=shape)


def _require_header(file: IO[bytes], name: str, shape: tuple[int, ...], kind: type[Number]) -> None:
    """Read the header of an array, and refuse any other: what it claims would be set aside before it is read."""
    np.lib.format.read_magic(file)
    found, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if found != shape or is_fortran or dtype != np.dtype(kind):
        raise ValueError(f"{name} holds {dtype} {found}")
