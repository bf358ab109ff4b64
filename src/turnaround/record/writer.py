"""The only way into a run directory. Enters: JSON objects. Leaves: files that are whole after any crash.

A whole file is written under a temporary name in its own folder, synced, and renamed. A file of lines only
grows, by whole lines; a kill can leave one unterminated line at its end, which readers ignore and the next
writer removes.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from turnaround.errors import DiskFullError, StorageError
from turnaround.record.coding import FORMAT_VERSION, plain

SCAN_BLOCK_BYTES = 64 * 1024


def storage_error(action: str, path: Path, error: Exception) -> StorageError:
    """The message for a disk that refuses: what was tried, why it failed, what to do."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        full = f"the disk or your quota is full ({_free_text(path)}). Free some space"
        return DiskFullError(f"Cannot {action} {path}: {full}.")
    if number == errno.EROFS:
        reason = "the file system is read-only. Choose a writable directory with --out"
    elif number in (errno.EACCES, errno.EPERM):
        reason = "permission denied. Choose a writable directory with --out"
    elif number == errno.ENOENT:
        reason = "its folder is not there (any more). Restore it, or choose another with --out"
    else:
        text = error.strerror if isinstance(error, OSError) else str(error)
        reason = f"{text}. Choose another directory with --out"
    return StorageError(f"Cannot {action} {path}: {reason}.")


def _free_text(path: Path) -> str:
    try:
        return f"{shutil.disk_usage(path if path.is_dir() else path.parent).free / 2**30:.2f} GiB free"
    except (OSError, ValueError):
        return "free space unknown"


def write_json(path: Path, payload: Mapping[str, Any]) -> None:
    """Write or replace a whole file; a reader sees the old content or the new one, never a part.

    Adds the format version. One top-level key a line: readable, and a confusion matrix stays compact.
    """
    content = {"format": FORMAT_VERSION, **plain(dict(payload))}
    lines = (f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items())
    replace_file(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def write_lines(path: Path, payloads: Iterable[Mapping[str, Any]]) -> None:
    """Write or replace a whole file of lines, of something that is over; what still grows goes through Lines."""
    replace_file(path, b"".join(_line(payload) for payload in payloads))


def _line(payload: Mapping[str, Any]) -> bytes:
    return json.dumps(plain(dict(payload)), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` under a temporary name beside `path`, sync, rename, sync the folder."""
    try:
        temporary = write_temporary(path, content)
        try:
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise storage_error("write", path, error) from error


def write_temporary(path: Path, content: bytes) -> Path:
    """A synced file with `content` beside `path`; nothing is left behind when that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            _write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:  # also an interrupt: the temporary file must go
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def is_temporary(name: str) -> bool:
    """Whether a file of this name was left by a writer that was killed."""
    return re.fullmatch(r"\..+\.[0-9]+-[0-9a-f]{8}\.tmp", name) is not None


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder last; some network file systems cannot, and need not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


class Lines:
    """Appends JSON objects, one a line, to a file that nobody else writes.

    With `sync`, each line is on the disk when `write` returns, and a failure raises StorageError. Without it,
    lines are collected and handed to the operating system when there are `max_lines` of them or the oldest is
    `max_age_s` old (looked at when the next line comes), never synced; a failure loses those lines, counted
    in `lost_lines`; it is kept in `failure`, not raised: measuring must not stop the training it measures.
    """

    def __init__(self, path: Path, *, sync: bool, max_lines: int = 100, max_age_s: float = 1.0) -> None:
        self.path = path
        self.lost_lines = 0
        self.failure: StorageError | None = None
        self._sync = sync
        self._max_lines = 1 if sync else max_lines
        self._max_age_s = max_age_s
        self._waiting: list[bytes] = []
        self._oldest_s = 0.0
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o666)
            try:
                self._is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
                if self._is_regular:
                    _drop_torn_line(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor: int | None = descriptor
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
        lines, self._waiting = self._waiting, []
        try:
            self._append(self._descriptor, b"".join(lines))
        except OSError as error:
            self.lost_lines += len(lines)
            self.failure = storage_error("append to", self.path, error)
            if self._sync:
                raise self.failure from error

    def _append(self, descriptor: int, content: bytes) -> None:
        size_before = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, content)
            if self._sync:
                os.fsync(descriptor)
        except BaseException:
            # A full disk takes a part of a line: take it back, so that the file ends with a whole one.
            if self._is_regular:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size_before)
            raise

    def close(self) -> None:
        """Flush and close; closing twice is fine."""
        if self._descriptor is None:
            return
        try:
            self.flush()
        finally:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _drop_torn_line(descriptor: int) -> None:
    """Cut the file after its last newline."""
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


def truncate_epochs(path: Path, keep_through_epoch: int) -> int:
    """Drop the lines of later epochs, in one atomic step; returns how many went.

    For resume, before the file is opened with Lines: training repeats those epochs. A torn last line goes
    too; a line that cannot be read stays, as evidence.
    """
    try:
        *lines, torn = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise storage_error("read", path, error) from error
    kept = [line for line in lines if not _epoch_of(line) > keep_through_epoch]
    if torn or len(kept) < len(lines):
        replace_file(path, b"".join(line + b"\n" for line in kept))
    return len(lines) - len(kept)


def _epoch_of(line: bytes) -> float:
    try:
        epoch = json.loads(line)["epoch"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0
    return epoch if isinstance(epoch, (int, float)) else 0
