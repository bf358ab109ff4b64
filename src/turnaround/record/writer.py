"""JSON into a run directory. Enters: JSON objects. Leaves: files that are whole after any crash.

A whole file is written under a temporary name in its own folder, synced, and renamed. A file of lines only
grows, by whole lines; a kill can leave one unterminated line at its end, which readers ignore and the next
writer removes.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from turnaround.errors import StorageError
from turnaround.patience import PASSING, patiently
from turnaround.record.coding import CRC, FORMAT_VERSION, crc_of, parse_line, plain
from turnaround.record.files import (
    is_temporary,
    names_in,
    open_for_appending,
    read_bytes,
    remove_file,
    replace_file,
    storage_error,
    write_all,
)
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import Status, to_json

# From the end backwards: the last newline is almost always in the first block, however long the file is.
SCAN_BLOCK_BYTES = 64 * 1024


def write_json(path: Path, payload: Mapping[str, Any], below: Path | None = None, *, is_synced: bool = True) -> None:
    """Write or replace a whole file; a reader sees the old content or the new one, never a part.

    Adds the format version and a checksum. One top-level key a line: readable, and a confusion matrix stays compact.
    `below` is the run directory of a file that lies deeper in it (files.py). Without `is_synced` a crash of the machine
    may lose it.
    """
    content = {"format": FORMAT_VERSION, **plain(dict(payload))}
    lines = (f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items())
    body = ("{\n" + ",\n".join(lines)).encode()
    seal = f',\n "{CRC}": "{crc_of(body)}"' if "digest" not in content else ""  # a manifest has a digest of its own
    replace_file(path, body + seal.encode() + b"\n}\n", below, is_synced=is_synced)


def write_status(directory: RunDirectory, status: Status) -> None:
    """Write or replace the state of a run."""
    write_json(directory.status, to_json(status))


def remove_leftovers(run: Path, *folders: Path) -> None:
    """Remove temporary files of writers that were killed; only the holder of the run's lock calls this, at a start."""
    for folder in folders:
        for name in filter(is_temporary, names_in(folder, run)):
            remove_file(folder / name, run)


def write_lines(path: Path, payloads: Iterable[Mapping[str, Any]], *, is_synced: bool = True) -> None:
    """Write or replace a whole file of lines, of something that is over; what still grows goes through Lines."""
    replace_file(path, b"".join(_line(payload) for payload in payloads), is_synced=is_synced)


def _line(payload: Mapping[str, Any]) -> bytes:
    """Return the object in one line, with the checksum of all that stands before it as its last key."""
    body = json.dumps(plain(dict(payload)), allow_nan=False, separators=(",", ":")).encode().removesuffix(b"}")
    return body + f',"{CRC}":"{crc_of(body)}"}}\n'.encode()


class Lines:
    """Appends JSON objects, one a line, to a file that nobody else writes.

    With `sync`, each line is on the disk when `write` returns, and a failure raises StorageError. Without it,
    lines are collected and handed to the operating system when there are `max_lines` of them or the oldest is
    `max_age_s` old (looked at when the next line comes), never synced; a failure loses those lines and is kept in
    `failure`, not raised: measuring must not stop the training it measures.
    """

    def __init__(self, path: Path, *, sync: bool, max_lines: int = 100, max_age_s: float = 1.0) -> None:
        self.path = path
        self.failure: StorageError | None = None
        self._sync = sync
        # A line that is to be safe when `write` returns cannot wait for others.
        self._max_lines = 1 if sync else max_lines
        self._max_age_s = max_age_s
        self._waiting: list[bytes] = []
        self._oldest_s = 0.0
        try:
            descriptor = open_for_appending(path)
            try:
                self._size = _drop_torn_line(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor: int | None = descriptor
            self._is_stale = False
        except OSError as error:
            raise storage_error("open", path, error) from error

    def write(self, payload: Mapping[str, Any]) -> None:
        """Append one object."""
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed")
        line = _line(payload)
        if not self._waiting:
            self._oldest_s = time.monotonic()
        self._waiting.append(line)
        if len(self._waiting) >= self._max_lines or time.monotonic() - self._oldest_s >= self._max_age_s:
            self.flush()

    def flush(self) -> None:
        """Hand what waits to the operating system, as one write of whole lines."""
        if not self._waiting or self._descriptor is None:
            return
        # Taken out before the write: lines that fail are lost, not kept, or a full disk would fill the memory too.
        content, self._waiting = b"".join(self._waiting), []
        try:
            if self._sync:
                patiently(lambda: self._append(content))
            else:
                self._append(content)  # who measures does not wait: the next lines may find the file system well
        except OSError as error:
            self.failure = storage_error("append to", self.path, error)
            if self._sync:
                raise self.failure from error

    def _append(self, content: bytes) -> None:
        if self._is_stale:
            self._open_again()
        assert self._descriptor is not None, "closed files are not written"
        try:
            # The size of now is the place to return to: nobody else writes this file.
            self._size = os.fstat(self._descriptor).st_size
            write_all(self._descriptor, content)
            if self._sync:
                os.fsync(self._descriptor)
            self._size += len(content)
        except BaseException as error:
            # A full disk takes a part of a line: take it back, so that the file ends with a whole one.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            self._is_stale = isinstance(error, OSError) and error.errno in PASSING
            raise

    def _open_again(self) -> None:
        """Take a new descriptor: a server that has forgotten ours (ESTALE) will never know it again."""
        descriptor, before = open_for_appending(self.path), self._descriptor
        self._descriptor = descriptor
        if before is not None:
            with contextlib.suppress(OSError):
                os.close(before)
        # Nobody else writes this file: what lies behind our last whole line is a part of what failed.
        if os.fstat(descriptor).st_size > self._size:
            os.ftruncate(descriptor, self._size)
        self._is_stale = False

    def close(self) -> None:
        """Flush and close; closing twice is fine."""
        if self._descriptor is None:
            return
        try:
            self.flush()
        finally:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _drop_torn_line(descriptor: int) -> int:
    """Cut the file after its last newline; return its size."""
    size = end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - SCAN_BLOCK_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)
    return end


def truncate_epochs(path: Path, keep_through_epoch: int) -> int:
    """Drop the lines of later epochs, in one atomic step; returns how many went.

    For resume, before the file is opened with Lines: training repeats those epochs. A torn last line goes
    too; a line that cannot be read stays, as evidence.
    """
    if not os.path.lexists(path):
        return 0
    *lines, torn = read_bytes(path).split(b"\n")
    # `not >` and not `<=`: an epoch that is NaN compares false with everything, and stays as evidence.
    kept = [line for line in lines if not _epoch_of(line) > keep_through_epoch]
    if torn or len(kept) < len(lines):
        # Whole and by rename: a kill in the midst of a cut in place could lose epochs that are to be kept.
        replace_file(path, b"".join(line + b"\n" for line in kept))
    return len(lines) - len(kept)


def _epoch_of(line: bytes) -> float:
    try:
        epoch = parse_line(line)["epoch"]
    except (ValueError, KeyError):
        return 0
    return epoch if isinstance(epoch, (int, float)) else 0
