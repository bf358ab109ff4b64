"""Files of a run as values, read whole or read on while they grow. Enters: a folder that is open. Leaves: records.

One decoder and one set of limits for everybody who reads a run: `Run` reads each file once, whole; whoever follows a
run keeps these objects and looks again. What was read is not read again: a file of lines goes on behind its last whole
line, a small file is read when it has changed. Files are opened as files.py does: no links, only regular files.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from turnaround.errors import RunDirectoryError
from turnaround.record.coding import NewerFormatError, parse_line
from turnaround.record.files import MAX_FILE_BYTES, decode_file, folder_of, open_in, refusal

Record = TypeVar("Record")

CHUNK_BYTES = 2**16
MAX_LINE_BYTES = 2**20  # the longest line of ours, telemetry of 16 GPUs, has 3,000
MAX_LINES_BYTES = 2**30  # ten years of telemetry, one sample a second, of one GPU
MAX_KEPT_BYTES = 8 * 2**20  # of a followed file's lines; as values they take ten times as much
ANCHOR_BYTES = 64  # enough to tell another line from the one before: every line has a number of its own
NUM_LATEST = 100
LATE_S = 60.0
"""A network file system may show a file's length before its content, which then reads as zeros."""


@dataclass(frozen=True)
class FileStamp:
    """Identity, size and time of a file: equal stamps mean that it has not changed."""

    device: int
    inode: int
    size: int
    changed_ns: int
    is_plain: bool
    """True for a regular file, which may be opened: no link, no FIFO, no folder."""

    @classmethod
    def of(cls, status: os.stat_result) -> FileStamp:
        """Return the stamp of what os.stat has found."""
        is_plain = stat.S_ISREG(status.st_mode)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, is_plain)


def stamp_of(folder: int, name: str) -> FileStamp | None:
    """Return the stamp of what bears the name; None when there is nothing."""
    try:
        return FileStamp.of(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except (OSError, ValueError):
        return None


@contextmanager
def _opened(folder: int, name: str) -> Iterator[tuple[int, FileStamp]]:
    """Yield a descriptor of the file and its stamp; OSError for whatever is not a plain file."""
    descriptor = open_in(folder, name)
    try:
        yield descriptor, FileStamp.of(os.fstat(descriptor))
    finally:
        os.close(descriptor)


class JsonFile:
    """A file that is replaced as a whole."""

    def __init__(self, name: str, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        self.name, self.max_bytes = name, max_bytes
        self.content: dict[str, Any] | RunDirectoryError | None = None
        """None while there is no such file."""
        self._stamp: FileStamp | None = None

    def look(self, folder: int) -> bool:
        """Read the file where it has changed since the last look; return whether it has."""
        stamp = stamp_of(folder, self.name)
        if stamp == self._stamp:
            return False
        try:
            # The stamp is older than the content: what is replaced in between differs again at the next look.
            self.content = self._read(folder) if stamp is not None else None
        except OSError as error:
            if stamp is not None and stamp.is_plain:  # it was replaced just now: at the next look
                return False
            self.content = refusal(self.name, error)
        self._stamp = stamp
        return True

    def _read(self, folder: int) -> dict[str, Any] | RunDirectoryError:
        with _opened(folder, self.name) as (descriptor, stamp):
            if stamp.size > self.max_bytes:
                return RunDirectoryError(f"{self.name} is larger than {self.max_bytes / 2**20:.3g} MiB.")
            pieces: list[bytes] = []
            # Counted again while it is read: the file may have grown since.
            while len(pieces) * CHUNK_BYTES <= self.max_bytes and (piece := os.read(descriptor, CHUNK_BYTES)):
                pieces.append(piece)
        try:
            return decode_file(b"".join(pieces), self.name)
        except RunDirectoryError as error:
            return error


@dataclass(frozen=True, kw_only=True)
class LinesContent(Generic[Record]):
    """The content of a file of lines at one instant."""

    records: tuple[Record, ...] = ()
    """The whole, readable lines, in the file's order."""
    bad_lines: int = 0
    """Whole lines that hold no such record."""
    is_torn: bool = False
    """True when an unterminated line at the end was left out."""
    failure: RunDirectoryError | None = None
    """Why its lines must not be believed, or cannot be read."""


class LinesFile(Generic[Record]):
    """A file of lines that grows.

    With `max_records`, every second record goes when there are more, and `stride` says how often that was. `late_s` is
    how long zeros may be content that has not arrived; a whole read takes them for damage at once. `label` is the name
    of the file in messages. With `tail_bytes` a file that is longer when it is first seen is read from its last lines.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[dict[str, Any]], Record],
        *,
        label: str | None = None,
        max_records: int | None = None,
        tail_bytes: int = MAX_LINES_BYTES,
        late_s: float = LATE_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self._record, self.max_records, self._tail_bytes = name, read, max_records, tail_bytes
        self._label = label or name
        self._late_s, self._now_s = late_s, now_s
        self._seen: FileStamp | None = None
        self._inode = (0, 0)
        self.has_more = False
        """True when the last look did not reach the end of the file."""
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
        """Set by a link in its place, and by a line of a newer turnaround: passing over it would hide the whole run."""
        self._number = self._kept_bytes = 0
        self._offset = 0
        self._anchor = b""
        self._is_inside_long_line = False
        self._hole: tuple[int, float] | None = None

    @property
    def content(self) -> LinesContent[Record]:
        """The records read so far, as a value that does not change."""
        return LinesContent(
            records=tuple(self.records), bad_lines=self.bad_lines, is_torn=self.is_torn, failure=self.failure
        )

    def look(self, folder: int, budget_bytes: int = MAX_LINES_BYTES) -> int:
        """Read on, at most so much; return how much that was. A file that cannot be opened just now has no news."""
        stamp = stamp_of(folder, self.name)
        # Nothing new costs one stat: a study of hundreds of runs is looked at every second.
        if stamp is not None and stamp == self._seen:
            return 0
        if stamp is None or not stamp.is_plain:
            self._nothing_to_read(folder, stamp)
            return 0
        # Other files have used the budget up: this one waits for the next look, and says so.
        self.has_more = budget_bytes <= 0
        if self.has_more:
            return 0
        try:
            with _opened(folder, self.name) as (descriptor, now):
                return self._read_on(descriptor, now, budget_bytes)
        except OSError:
            return 0

    def _nothing_to_read(self, folder: int, stamp: FileStamp | None) -> None:
        if self._offset or self.records or self.failure:
            self._begin_anew()
        self._seen, self.has_more = stamp, False
        if stamp is not None:
            self.revision += 1
            try:
                # Only for its refusal, which tells a link from a FIFO or a folder.
                os.close(open_in(folder, self.name))
            except OSError as error:
                self.failure = refusal(self._label, error)

    def _read_on(self, descriptor: int, now: FileStamp, budget_bytes: int) -> int:
        if not self._goes_on(descriptor, now):
            self._begin_anew()
            self._offset = self._first_of_tail(descriptor, now)
        self._inode = (now.device, now.inode)
        # `end` is the size when the file was opened: what a writer appends meanwhile is left to the next look.
        begun_at, end = self._offset, min(now.size, MAX_LINES_BYTES)
        self.is_too_large = now.size > MAX_LINES_BYTES
        is_stuck = False
        while self._offset < end and self._offset - begun_at < budget_bytes and not is_stuck:
            # A line that is longer than a chunk is fetched whole, up to the longest that we take.
            piece = os.pread(descriptor, min(CHUNK_BYTES, end - self._offset), self._offset)
            if b"\n" not in piece and len(piece) == CHUNK_BYTES:
                piece = os.pread(descriptor, min(MAX_LINE_BYTES, end - self._offset), self._offset)
            is_stuck = self._take(self._visible(piece)) == 0
        # A torn line is looked at again when the file has changed; zeros at every look, since their content may come
        # without another size or time, and `late_s` must run out.
        is_done = self._offset >= end or (is_stuck and self._hole is None)
        self._seen = now if is_done else None
        self.has_more = not is_done and not is_stuck
        # The last bytes of what was read, for `_goes_on`: up to ANCHOR_BYTES that end at the offset.
        self._anchor = os.pread(descriptor, min(ANCHOR_BYTES, self._offset), max(0, self._offset - ANCHOR_BYTES))
        return self._offset - begun_at

    def _first_of_tail(self, descriptor: int, now: FileStamp) -> int:
        """Return where the first whole line of the last `tail_bytes` begins; 0 in a shorter file."""
        if now.size <= self._tail_bytes:
            return 0
        begin = now.size - self._tail_bytes
        return begin + os.pread(descriptor, self._tail_bytes, begin).find(b"\n") + 1

    def _goes_on(self, descriptor: int, now: FileStamp) -> bool:
        """Return whether what was read is still there: not cut, not replaced, not written anew."""
        if (now.device, now.inode) != self._inode or now.size < self._offset:
            return False
        # Inode numbers are used again, and a file that was cut may have grown past our offset: the bytes before decide.
        anchor = os.pread(descriptor, len(self._anchor), self._offset - len(self._anchor))
        return anchor == self._anchor

    def _visible(self, piece: bytes) -> bytes:
        """Return the piece up to the first zero; after a while zeros are damage like any other."""
        hole = piece.find(b"\0")
        if hole < 0:
            self._hole = None
            return piece
        # The clock starts anew when the hole moves: then content is arriving.
        where = self._offset + hole
        if self._hole is None or self._hole[0] != where:
            self._hole = (where, self._now_s())
        if self._now_s() - self._hole[1] < self._late_s:
            return piece[:hole]
        self._hole = None
        return piece

    def _take(self, piece: bytes) -> int:
        """Read the whole lines of the piece; return how many bytes are behind us."""
        # A torn line stays in the file: the offset stops before it, and it is read once its newline is there.
        whole = piece.rfind(b"\n") + 1
        self.is_torn = whole < len(piece)
        if whole == 0 and len(piece) >= MAX_LINE_BYTES:  # too long to be ours: passed over up to its end
            self._is_inside_long_line, whole = True, len(piece)
            self._offset += whole
            return whole
        lines = piece[:whole].split(b"\n")[:-1] if whole else []
        self.revision += bool(lines)
        for line in lines:
            if self._is_inside_long_line or len(line) >= MAX_LINE_BYTES:
                self._is_inside_long_line = False
                self.bad_lines += 1
            else:
                self._add(line)
        self._offset += whole
        return whole

    def _add(self, line: bytes) -> None:
        try:
            record = self._record(parse_line(line))
        except NewerFormatError as error:
            # Kept, and not a bad line: whoever asks for the records gets this error instead of half of them.
            self.failure = RunDirectoryError(f"{self._label}: {error}")
            return
        except (ValueError, RunDirectoryError):
            self.bad_lines += 1
            return
        self.latest.append(record)
        # Kept are the records 0, stride, 2 stride, ... of the file: every second one of these, as below, is the same
        # rule with twice the stride.
        if self._number % self.stride == 0:
            self.records.append(record)
            self._kept_bytes += len(line)
        self._number += 1
        if self.max_records is None or len(self.records) <= 1:
            return
        if len(self.records) > self.max_records or self._kept_bytes > MAX_KEPT_BYTES:
            # Every second one, not the oldest: a curve keeps its whole length and loses only detail.
            self.records = self.records[::2]
            self._kept_bytes //= 2
            self.stride *= 2


def read_lines(path: Path, read: Callable[[dict[str, Any]], Record]) -> LinesContent[Record]:
    """Return the records of a whole file of lines; a missing file has none, and a failure names the path."""
    file = LinesFile(path.name, read, label=str(path), late_s=0.0)
    try:
        with folder_of(path) as (folder, name):
            if stamp_of(folder, name) is None:
                return LinesContent()
            with _opened(folder, name) as (descriptor, stamp):
                # Not through `look`, which takes an error of the open for "no news": here it must be raised.
                file._read_on(descriptor, stamp, MAX_LINES_BYTES)
    except FileNotFoundError:
        return LinesContent()
    except (OSError, ValueError) as error:
        raise refusal(str(path), error) from error
    if file.failure is not None:
        raise file.failure
    return file.content
