"""Is every file of a run what was written? Enters: a run or a study. Leaves: one `FileCheck` for each file.

Nothing is repaired, and nothing is believed: a run may be somebody else's, with links, FIFOs and files of any size in
it. Files are listed and opened as files.py does, and what cannot be opened so is damaged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from turnaround.errors import RunDirectoryError, StorageError
from turnaround.record.coding import CRC, is_as_written, own_digest, parse_object
from turnaround.record.completeness import discrepancies_of
from turnaround.record.files import decode_file, is_temporary, kind_of, names_in, read_bytes, sha256_of
from turnaround.record.growing import read_lines
from turnaround.record.layout import CheckpointFiles, CheckpointName, RunDirectory, StudyDirectory
from turnaround.record.reader import find_runs

FileState = Literal["whole", "damaged", "unknown"]
Reason = Literal[
    "as_written",  # its checksum or digest fits
    "torn",  # the same, but for a last line that was being written, or was cut off by a kill
    "no_checksum",  # readable, of an earlier version or of another program
    "not_checked",  # what people read, and what others wrote: logs, pages, scripts
    "leftover",  # of a writer that was killed: the next start removes it
    "checksum",  # readable, and not what was written
    "lines",  # some lines are not what was written
    "digest",  # its SHA-256 is not what its manifest says
    "manifest",  # its manifest is damaged, so that nobody knows what it should be
    "missing",  # named by a manifest, or implied by the state of the run
    "epochs",  # lines of epochs are gone, doubled or out of order
    "other_run",  # each as written, but not of one training
    "link",
    "not_plain",  # a FIFO, a device, a socket
    "unreadable",
    "too_deep",
]
STATES: dict[Reason, FileState] = {
    "as_written": "whole",
    "torn": "whole",
    "no_checksum": "unknown",
    "not_checked": "unknown",
    "leftover": "unknown",
}
"""All other reasons mean damage."""
MAX_DEPTH = 6
"""Folders below a run: checkpoint/epoch-00001 is 2, the viewers' logs 3."""


@dataclass(frozen=True, kw_only=True)
class FileCheck:
    """One file, and whether it is what was written."""

    path: str
    """From the folder that was asked about."""
    reason: Reason
    detail: str = ""
    """The error of the system or of the parser; how many lines are bad."""

    @property
    def state(self) -> FileState:
        """The verdict."""
        return STATES.get(self.reason, "damaged")


def verify_study(path: Path) -> Iterator[FileCheck]:
    """Check the files of a folder of runs, then those of every run below it."""
    study = StudyDirectory(path)
    for file in (study.study, study.forecasts):
        if file.name in names_in(path):
            yield _checked(file, path, path)
    for run in find_runs(path):
        yield from verify_run(run, path)


def verify_run(path: Path, root: Path | None = None) -> Iterator[FileCheck]:
    """Check every file of a run; paths are told from `root`, which is the run itself where none is given."""
    directory, root = RunDirectory(path), path if root is None else root
    found = {
        _label(one.path, root): FileCheck(path=_label(one.path, root), reason=one.reason, detail=one.detail)
        for one in discrepancies_of(directory)
    }
    for check in _files_of(directory, root):
        other = found.pop(check.path, check)
        yield check if check.state == "damaged" else other
    yield from found.values()  # of what is not there


def _files_of(directory: RunDirectory, root: Path) -> Iterator[FileCheck]:
    """Check each file for itself."""
    path = directory.path
    for folder in (directory.checkpoint, directory.best):
        # Only a real folder has manifests to check; a link or a file in its place is judged by `_below`.
        if kind_of(folder, path) == "folder":
            yield from _checkpoints(folder, directory, root)
    checked = {directory.checkpoint, directory.best}
    yield from _below(path, directory, root, passed_over=checked)


def _below(folder: Path, directory: RunDirectory, root: Path, *, passed_over: set[Path]) -> Iterator[FileCheck]:
    for name in names_in(folder, directory.path):
        path = folder / name
        kind = kind_of(path, directory.path)
        if kind == "folder" and path in passed_over:
            continue
        if kind != "folder":
            yield _checked(path, directory.path, root)
        elif len(path.relative_to(directory.path).parts) > MAX_DEPTH:
            yield FileCheck(path=_label(path, root), reason="too_deep")
        else:
            yield from _below(path, directory, root, passed_over=passed_over)


def _checkpoints(folder: Path, directory: RunDirectory, root: Path) -> Iterator[FileCheck]:
    """Check the folders of saved weights: each file against the manifest beside it."""
    for name in names_in(folder, directory.path):
        files = CheckpointFiles(folder / name)
        if kind_of(files.path, directory.path) != "folder":
            yield _checked(files.path, directory.path, root)
        elif CheckpointName.is_leftover(name):
            yield FileCheck(path=_label(files.path, root), reason="leftover")
        else:
            yield from _checkpoint(files, directory, root)


def _checkpoint(files: CheckpointFiles, directory: RunDirectory, root: Path) -> Iterator[FileCheck]:
    manifest, reason, detail = _manifest(files, directory.path)
    yield FileCheck(path=_label(files.manifest, root), reason=reason, detail=detail)
    digests = manifest.get("sha256")
    expected: dict[str, Any] = digests if isinstance(digests, dict) else {}
    there = set(names_in(files.path, directory.path)) - {files.manifest.name}
    # What lies there and what the manifest promises: a file that is gone is damage as well.
    for name in sorted(there | set(filter(_is_name, expected))):
        path = files.path / name
        if is_temporary(name):
            yield FileCheck(path=_label(path, root), reason="leftover")
        else:
            yield _tensors(path, directory.path, root, expected=expected.get(name) if manifest else None)


def _is_name(text: str) -> bool:
    """Return whether a key of a manifest is the name of a file beside it, and no way out of its folder."""
    return text not in ("", ".", "..") and "/" not in text and "\0" not in text


def _manifest(files: CheckpointFiles, run: Path) -> tuple[dict[str, Any], Reason, str]:
    """Return a manifest that can be believed, or nothing, and the verdict on its file."""
    if (problem := _not_a_file(files.manifest, run)) is not None:
        return {}, problem, ""
    try:
        content = decode_file(read_bytes(files.manifest, run), files.manifest.name)
    except RunDirectoryError as error:
        return {}, "unreadable", str(error)
    if "digest" not in content:
        return content, "no_checksum", ""
    # A manifest that is not what was written vouches for nothing: its files count as damaged, whatever is in them.
    return (content, "as_written", "") if content["digest"] == own_digest(content) else ({}, "digest", "")


def _tensors(path: Path, run: Path, root: Path, *, expected: Any) -> FileCheck:
    label = _label(path, root)
    if (problem := _not_a_file(path, run)) is not None:
        return FileCheck(path=label, reason=problem)
    if expected is None:
        # No manifest, or none that names it: nobody knows what the file should be.
        return FileCheck(path=label, reason="manifest")
    try:
        return FileCheck(path=label, reason="as_written" if sha256_of(path, run) == expected else "digest")
    except (OSError, RunDirectoryError) as error:
        return FileCheck(path=label, reason="unreadable", detail=str(error))


def _checked(path: Path, run: Path, root: Path) -> FileCheck:
    """Check a file by its name: lines, a whole JSON file, or one that has no checksum."""
    label = _label(path, root)
    if is_temporary(path.name):
        return FileCheck(path=label, reason="leftover")
    if (problem := _not_a_file(path, run)) is not None:
        return FileCheck(path=label, reason=problem)
    try:
        # Our files of lines lie in the run itself: a deeper one is somebody else's.
        if path.name.endswith(".jsonl") and path.parent == run:
            return _lines(path, label)
        if path.name.endswith(".json"):
            return _whole(path, run, label)
    except (OSError, RunDirectoryError, StorageError) as error:
        return FileCheck(path=label, reason="unreadable", detail=str(error))
    return FileCheck(path=label, reason="not_checked")


def _lines(path: Path, label: str) -> FileCheck:
    num_without = 0

    def read(line: dict[str, Any]) -> None:
        nonlocal num_without
        num_without += CRC not in line

    # A checksum that does not fit makes a bad line there (coding.parse_line); counted here are lines without one.
    found = read_lines(path, read)
    # The worst first: damaged lines, lines that cannot be judged, and then a torn end, which is as written.
    if found.bad_lines:
        total = found.bad_lines + len(found.records)
        return FileCheck(path=label, reason="lines", detail=f"{found.bad_lines} of {total}")
    if num_without:
        return FileCheck(path=label, reason="no_checksum", detail=f"{num_without} of {len(found.records)}")
    return FileCheck(path=label, reason="torn" if found.is_torn else "as_written")


def _whole(path: Path, run: Path, label: str) -> FileCheck:
    content = read_bytes(path, run)
    try:
        payload = parse_object(content)
    except ValueError as error:
        return FileCheck(path=label, reason="unreadable", detail=str(error))
    if CRC not in payload:
        return FileCheck(path=label, reason="no_checksum")
    # Of the bytes, not of the values: the same object, edited and saved in another layout, is not what was written.
    return FileCheck(path=label, reason="as_written" if is_as_written(content) else "checksum")


def _not_a_file(path: Path, run: Path) -> Reason | None:
    """Return why nothing is read from it; None for a plain file."""
    reasons: dict[str | None, Reason] = {None: "missing", "link": "link", "folder": "not_plain", "other": "not_plain"}
    return reasons.get(kind_of(path, run))


def _label(path: Path, root: Path) -> str:
    return str(path.relative_to(root))
