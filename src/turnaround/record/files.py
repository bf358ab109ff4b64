"""The bytes of a run directory as JSON objects. Enters: a path. Leaves: objects, or an error with the path.

The files are untrusted: torn, damaged, hostile or from a newer turnaround.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from turnaround.errors import RunDirectoryError
from turnaround.record.coding import check_format

MAX_FILE_BYTES = 256 * 2**20  # a confusion matrix of 10,000 classes; larger is not ours
MAX_LINE_BYTES = 2**20  # the longest line, telemetry of 16 GPUs, has 3,000


# Made once: json.loads would make one for each line. NaN and Infinity of careless writers become null.
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)


class LineFile(NamedTuple):
    """The content of a file of lines."""

    objects: list[dict[str, Any]]
    """The whole, readable lines, in the file's order."""
    bad_lines: int
    """Whole lines that hold no JSON object."""
    is_torn: bool
    """Whether an unterminated line at the end was left out."""


def _open(path: Path) -> BinaryIO:
    """The file for reading; RunDirectoryError for whatever is not a plain file."""
    try:
        # No links: a run from somebody else must not lead us to read other files. No wait: it may be a FIFO.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{path} is missing: the run has not come that far, or it was removed.") from error
    except (OSError, ValueError) as error:
        reason = "is a symbolic link; put the file itself there" if os.path.islink(path) else f"cannot be read: {error}"
        raise RunDirectoryError(f"{path} {reason}.") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunDirectoryError(f"{path} is not a plain file.")
    return os.fdopen(descriptor, "rb")


def _parse(content: bytes) -> Any:
    """JSON as `_DECODER` reads it; ValueError for anything else."""
    try:
        return _DECODER.decode(content.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a whole file, without its format version."""
    try:
        with _open(path) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error}.") from error
    if len(content) > MAX_FILE_BYTES:
        raise RunDirectoryError(f"{path} is larger than {MAX_FILE_BYTES // 2**20} MiB: not a file of a run.")
    try:
        payload = _parse(content)
    except ValueError as error:
        raise RunDirectoryError(f"{path} is damaged: not JSON ({error}).") from error
    if not isinstance(payload, dict):
        raise RunDirectoryError(f"{path} is damaged: not a JSON object.")
    try:
        check_format(payload)
    except RunDirectoryError as error:
        raise RunDirectoryError(f"{path}: {error}") from error
    return {key: value for key, value in payload.items() if key != "format"}


def read_lines(path: Path) -> LineFile:
    """The objects in a file of lines; a missing file has none."""
    objects: list[dict[str, Any]] = []
    bad_lines, is_inside_line = 0, False
    if not os.path.lexists(path):
        return LineFile(objects, bad_lines, is_torn=False)
    try:
        with _open(path) as file:
            while piece := file.readline(MAX_LINE_BYTES):
                is_ended = piece.endswith(b"\n")
                payload = _object(piece) if is_ended and not is_inside_line else None
                if payload is not None:
                    objects.append(payload)
                elif is_ended:
                    bad_lines += 1
                is_inside_line = not is_ended
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error}.") from error
    return LineFile(objects, bad_lines, is_torn=is_inside_line)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        payload = _parse(line)
    except ValueError:
        return None
    return payload if isinstance(payload, dict) else None


def own_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of what a file says, for its key `digest`: a flipped bit in it is noticed too."""
    said = {key: value for key, value in content.items() if key not in ("format", "digest")}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
