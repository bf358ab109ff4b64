"""Files that grow or are replaced while we look, of a record that nobody vouches for.

A name is opened below a folder that is held open, without following a link, and only when it is a plain file. What was
read is not read again: a file of lines goes on behind its last whole line, a small file is read when it has changed.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from turnaround.errors import RunDirectoryError
from turnaround.record.coding import NewerFormatError, check_format

Record = TypeVar("Record")

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # no wait: it may be a FIFO
CHUNK_BYTES = 2**16
MAX_LINE_BYTES = 2**18  # the longest of ours, telemetry of 16 GPUs, has 3,000
MAX_KEPT_BYTES = 8 * 2**20  # of a file's lines; as values they take ten times as much
MAX_FILE_BYTES = 2**30
ANCHOR_BYTES = 64
NUM_LATEST = 100
LATE_S = 60.0
"""A network file system may show a file's length before its content, which then reads as zeros."""

_DECODER = json.JSONDecoder(parse_constant=lambda _: None)  # NaN and Infinity of careless writers


@contextmanager
def folder_below(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """A descriptor of root/part/part; OSError where a part is not there, or is a link."""
    descriptor = os.open(root, FOLDER)
    try:
        for part in parts:
            deeper = os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class FileStamp:
    """By what a file is known to be as it was."""

    device: int
    inode: int
    size: int
    changed_ns: int
    is_plain: bool
    """Whether it may be opened: no link, no FIFO, no folder."""

    @classmethod
    def of(cls, found: os.stat_result) -> FileStamp:
        is_plain = stat.S_ISREG(found.st_mode)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, is_plain)


def mark_of(folder: int, name: str) -> FileStamp | None:
    """None when there is nothing of that name."""
    try:
        return FileStamp.of(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except (OSError, ValueError):
        return None


def plain_mark(folder: int, name: str) -> FileStamp | None:
    """None when there is no plain file of that name."""
    mark = mark_of(folder, name)
    return mark if mark is not None and mark.is_plain else None


@contextmanager
def _opened(folder: int, name: str) -> Iterator[tuple[int, FileStamp]]:
    """OSError for whatever is not a plain file."""
    descriptor = os.open(name, PLAIN, dir_fd=folder)
    try:
        mark = FileStamp.of(os.fstat(descriptor))
        if not mark.is_plain:
            raise OSError(f"{name} is not a plain file")
        yield descriptor, mark
    finally:
        os.close(descriptor)


class JsonFile:
    """A small file that is replaced as a whole."""

    def __init__(self, name: str, *, most_bytes: int) -> None:
        self.name, self.most_bytes = name, most_bytes
        self.content: dict[str, Any] | RunDirectoryError | None = None
        """None while there is no such file."""
        self._mark: FileStamp | None = None

    def look(self, folder: int) -> bool:
        """Whether it has changed since the last look."""
        mark = mark_of(folder, self.name)
        if mark == self._mark:
            return False
        if mark is not None and not mark.is_plain:
            self.content = RunDirectoryError(f"{self.name} is not a plain file; links are not followed.")
        else:
            try:
                self.content = self._read(folder) if mark is not None else None
            except OSError:  # it was replaced just now: at the next look
                return False
        self._mark = mark
        return True

    def _read(self, folder: int) -> dict[str, Any] | RunDirectoryError:
        with _opened(folder, self.name) as (descriptor, mark):
            if mark.size > self.most_bytes:
                return RunDirectoryError(f"{self.name} is larger than {self.most_bytes // 2**20} MiB.")
            pieces: list[bytes] = []
            while len(pieces) * CHUNK_BYTES <= self.most_bytes and (piece := os.read(descriptor, CHUNK_BYTES)):
                pieces.append(piece)
        payload = _object(b"".join(pieces))
        if payload is None:
            return RunDirectoryError(f"{self.name} is damaged: not a JSON object.")
        try:
            check_format(payload)
        except RunDirectoryError as error:
            return RunDirectoryError(f"{self.name}: {error}")
        return {key: value for key, value in payload.items() if key != "format"}


class LinesFile(Generic[Record]):
    """A file of lines that grows; of more than `most` records every second one goes, and `stride` says how often."""

    def __init__(self, name: str, read: Callable[[dict[str, Any]], Record | None], *, most: int) -> None:
        self.name, self._record, self.most = name, read, most
        self._now_s: Callable[[], float] = time.monotonic
        self._seen: FileStamp | None = None
        self._inode = (0, 0)
        self.has_more = False
        """Whether the last look did not come to the end of what was there."""
        self.revision = 0
        """Grows with every change."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.revision += 1
        self.records: list[Record] = []
        self.latest: deque[Record] = deque(maxlen=NUM_LATEST)
        """The last ones, of which none is left out."""
        self.bad_lines = 0
        self.stride = 1
        self.is_torn = False
        self.is_too_large = False
        self.failure: RunDirectoryError | None = None
        """Set by a line that a newer turnaround has written: passing over such lines would hide the whole run."""
        self._number = self._kept_bytes = 0
        self._offset = 0
        self._anchor = b""
        self._is_inside_long_line = False
        self._hole: tuple[int, float] | None = None

    def look(self, folder: int, budget_bytes: int) -> int:
        """Reads on, at most so much; returns how much that was. OSError counts as nothing new."""
        mark = plain_mark(folder, self.name)
        if mark is not None and mark == self._seen:
            return 0
        if mark is None:
            if self._offset or self.records:
                self._begin_anew()
            self._seen, self.has_more = None, False
            return 0
        self.has_more = budget_bytes <= 0
        if self.has_more:
            return 0
        try:
            with _opened(folder, self.name) as (descriptor, now):
                return self._read_on(descriptor, now, budget_bytes)
        except OSError:
            return 0

    def _read_on(self, descriptor: int, now: FileStamp, budget_bytes: int) -> int:
        if not self._goes_on(descriptor, now):
            self._begin_anew()
        self._inode = (now.device, now.inode)
        begun_at, end = self._offset, min(now.size, MAX_FILE_BYTES)
        self.is_too_large = now.size > MAX_FILE_BYTES
        is_stuck = False
        while self._offset < end and self._offset - begun_at < budget_bytes and not is_stuck:
            # A line that is longer than a chunk is fetched whole, up to the longest that we take.
            piece = os.pread(descriptor, min(CHUNK_BYTES, end - self._offset), self._offset)
            if b"\n" not in piece and len(piece) == CHUNK_BYTES:
                piece = os.pread(descriptor, min(MAX_LINE_BYTES, end - self._offset), self._offset)
            is_stuck = self._take(self._visible(piece)) == 0
        # What waits for its end, or for its content, is looked at again when the file has changed.
        is_done = self._offset >= end or (is_stuck and self._hole is None)
        self._seen = now if is_done else None
        self.has_more = not is_done and not is_stuck
        self._anchor = os.pread(descriptor, min(ANCHOR_BYTES, self._offset), max(0, self._offset - ANCHOR_BYTES))
        return self._offset - begun_at

    def _goes_on(self, descriptor: int, now: FileStamp) -> bool:
        """Whether what was read is still there: not cut, not replaced, not written anew."""
        if (now.device, now.inode) != self._inode or now.size < self._offset:
            return False
        anchor = os.pread(descriptor, len(self._anchor), self._offset - len(self._anchor))
        return anchor == self._anchor

    def _visible(self, piece: bytes) -> bytes:
        """Up to the first zero; after a while zeros are damage like any other."""
        hole = piece.find(b"\0")
        if hole < 0:
            self._hole = None
            return piece
        where = self._offset + hole
        if self._hole is None or self._hole[0] != where:
            self._hole = (where, self._now_s())
        if self._now_s() - self._hole[1] < LATE_S:
            return piece[:hole]
        self._hole = None
        return piece

    def _take(self, piece: bytes) -> int:
        """The whole lines of the piece; returns how many bytes are behind us."""
        whole = piece.rfind(b"\n") + 1
        if whole == 0 and len(piece) >= MAX_LINE_BYTES:  # too long to be ours: passed over up to its end
            self._is_inside_long_line, whole = True, len(piece)
            self._offset += whole
            return whole
        self.is_torn = whole < len(piece)
        lines = piece[:whole].split(b"\n")[:-1] if whole else []
        self.revision += bool(lines)
        for line in lines:
            if self._is_inside_long_line:
                self._is_inside_long_line = False
                self.bad_lines += 1
            else:
                self._add(line)
        self._offset += whole
        return whole

    def _add(self, line: bytes) -> None:
        payload = _object(line)
        try:
            record = self._record(payload) if payload is not None else None
        except NewerFormatError as error:
            self.failure = RunDirectoryError(f"{self.name}: {error}")
            return
        except RunDirectoryError:
            record = None
        if record is None:
            self.bad_lines += 1
            return
        self.latest.append(record)
        if self._number % self.stride == 0:
            self.records.append(record)
            self._kept_bytes += len(line)
        self._number += 1
        if len(self.records) > self.most or (self._kept_bytes > MAX_KEPT_BYTES and len(self.records) > 1):
            self.records = self.records[::2]
            self._kept_bytes //= 2
            self.stride *= 2


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        payload = _DECODER.decode(content.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return payload if isinstance(payload, dict) else None
