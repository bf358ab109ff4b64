"""The bytes of an image inside a container, by a path that leads into it: 'shards/0001.tar/cat7.jpg'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from turnaround.data.formats.parquet import SUFFIX as PARQUET
from turnaround.data.formats.parquet import read_parquet_cell
from turnaround.data.formats.tar import SUFFIX as TAR
from turnaround.data.formats.tar import read_tar_member

CONTAINERS: dict[str, Callable[[Path, str], bytes]] = {TAR: read_tar_member, PARQUET: read_parquet_cell}
"""One row for each kind: (container, name inside) -> bytes, or OSError."""
IN_ORDER = (f"{PARQUET}/",)
"""In the name of a sample: its bytes can only be read in the order of names."""


def is_member(path: Path) -> bool:
    """Return whether a path leads into a container, by its name alone."""
    return any(parent.suffix.lower() in CONTAINERS for parent in path.parents) and not path.exists()


def read_member(path: Path) -> bytes:
    """Return the bytes; OSError where no part of the path is a container, or it has no such member."""
    for container in path.parents:
        read = CONTAINERS.get(container.suffix.lower())
        if read is not None and container.is_file():
            return read(container, path.relative_to(container).as_posix())
    raise NotADirectoryError(20, "not a directory")
