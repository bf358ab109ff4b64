"""Tables of files and labels: CSV, TSV, JSON lines, and the metadata file of a Hugging Face image folder.

    TABLE.csv      a line of headings; one column of files, one of labels, perhaps one of the parts (train, val, test)
    TABLE.tsv      the same with tabs
    TABLE.jsonl    one object a line, with the same names
    FOLDER/metadata.csv, FOLDER/train/metadata.jsonl, ...     as the `datasets` library reads an image folder

The files lie where the table says, seen from its own folder and below it. Parquet tables come through here too, row by
row (parquet.py). Only names, sizes and times are read, no image.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from turnaround.data.folder import VALIDATION_NAMES
from turnaround.data.formats.samples import (
    FILE_COLUMNS,
    LABEL_COLUMNS,
    PART_WORDS,
    SPLIT_COLUMNS,
    UNTOLD,
    Samples,
    part_of,
)
from turnaround.errors import DataError

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl")
METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
MAX_TABLE_BYTES = 256 * 2**20  # two million lines of 128 bytes; more is no table that somebody wrote down
MAX_NAMED = 3
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

Row = tuple[str, Mapping[str, Any]]
"""Where it stands ("line 7"), and its cells by heading."""


def read_table(path: Path, *, allows_outside: bool = False) -> Samples:
    """Read a table whose kind its suffix tells; any other file is taken for CSV.

    Files outside the table's folder are good enough to be evaluated on. What is trained on must have the same name on
    every machine: the hold-out and the fingerprint follow from it.
    """
    rows = _json_lines(path) if path.suffix.lower() == ".jsonl" else _csv_rows(path)
    return samples_of_rows(path, rows, allows_outside=allows_outside)


def samples_of_rows(
    path: Path,
    rows: Iterable[Row],
    *,
    known_labels: Callable[[str, str], str] | None = None,
    allows_outside: bool = False,
) -> Samples:
    """Return the samples that the rows name. `known_labels` turns a cell into the name of a class."""
    samples = Samples(source=path, root=path.parent)
    seen: dict[str, str] = {}
    missing: list[str] = []
    base = os.path.join(path.parent.absolute(), "")
    columns: tuple[str, str, str | None] | None = None
    for place, cells in rows:
        if columns is None:
            columns = columns_of(path, list(cells))
            samples.split = f"column {columns[2]!r}" if columns[2] is not None else ""
        file, label, part = (_text(cells.get(column)) if column is not None else "" for column in columns)
        where = f"{path}, {place}"
        if not file or not label:
            received = ",".join(_text(cell) for cell in cells.values())[:80]
            raise DataError(f"{where}: the file or the label is missing. Received: {received!r}")
        name = _name_below(base, file, where=where, allows_outside=allows_outside)
        if name in seen:
            raise DataError(f"{where}: {name!r} is there already, in {seen[name]}. Name it once.")
        seen[name] = place
        if known_labels is not None:
            label = known_labels(label, where)
        told = part_of(part, where=where) if columns[2] is not None else UNTOLD
        status = _status(os.path.join(base, name))
        if status is None:
            missing.append(f"{name!r} ({place})")
            continue
        samples.add(name, label, part=told, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, where=where)
    if not seen:
        raise DataError(f"{path} names no image: there is nothing below its headings.")
    _refuse_missing(path, missing, num_named=len(seen))
    return samples


def _text(cell: object) -> str:
    """Return a cell as text; a missing one is empty."""
    return "" if cell is None or isinstance(cell, dict | list) else str(cell).strip()


def columns_of(path: Path, headings: Sequence[str]) -> tuple[str, str, str | None]:
    """Return the headings of the files, of the labels and, where there is one, of the parts."""
    plain = {name.strip().lower().replace(" ", "_"): name for name in reversed(headings)}
    found = [next((plain[name] for name in known if name in plain), None) for known in (FILE_COLUMNS, LABEL_COLUMNS)]
    for column, what, known in zip(found, ("files", "labels"), (FILE_COLUMNS, LABEL_COLUMNS), strict=True):
        if column is None:
            received = ", ".join(name.strip() for name in headings)[:120] or "no line at all"
            raise DataError(
                f"{path} has no column for the {what}. Known headings: {', '.join(known)}. Received: {received}."
                + _log_hint(path, plain)
            )
    file, label = found
    assert file is not None
    assert label is not None
    return file, label, next((plain[name] for name in SPLIT_COLUMNS if name in plain), None)


def _log_hint(path: Path, headings: Iterable[str]) -> str:
    """Return what to do with a table that is the log of a training."""
    is_log = not {"epoch", "step", "global_step"}.isdisjoint(headings)
    return f" If it is the log of a training: turnaround import {shlex.quote(str(path))} --out mine" if is_log else ""


def _name_below(base: str, file: str, *, where: str, allows_outside: bool) -> str:
    """Return the file's path below the table's folder: what lies elsewhere has another name on every machine."""
    if _ADDRESS.match(file):
        raise DataError(
            f"{where}: {file[:80]!r} is an address, and nothing is fetched. Download the images, and name the files."
        )
    whole = os.path.normpath(os.path.join(base, file.replace("\\", "/") if "/" not in file else file))
    if not whole.startswith(base) and allows_outside:
        return file
    if not whole.startswith(base):
        raise DataError(
            f"{where}: {file[:80]!r} lies outside the table's folder, {base!r}. Put the table into a folder above all "
            "images, and write their paths as seen from there."
        )
    return whole[len(base) :]


def _status(path: str) -> os.stat_result | None:
    """Return None for what is not there, or no plain file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _refuse_missing(path: Path, missing: Sequence[str], *, num_named: int) -> None:
    if missing:
        more = f" and {len(missing) - MAX_NAMED:,} more" if len(missing) > MAX_NAMED else ""
        raise DataError(
            f"{len(missing):,} of the {num_named:,} files of {path} are not there: {'; '.join(missing[:MAX_NAMED])}"
            f"{more}. Their names are seen from the table's folder, {str(path.parent.absolute())!r}."
        )


# --- text


def _csv_rows(path: Path) -> Iterator[Row]:
    """Yield the lines that hold something, each with its number."""
    text = _table_text(path)
    first = text.partition("\n")[0]
    # The separator that stands in the headings: names and labels below them may hold any of these.
    separator = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=first.count)
    reader = csv.reader(StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    headings: list[str] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if headings is None:
                headings = cells
                columns_of(path, headings)
                continue
            yield f"line {reader.line_num}", dict(zip(headings, cells, strict=False))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: no CSV ({error}). Save the table again.") from error
    if headings is None:
        columns_of(path, [])


def _json_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_table_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: no JSON ({error}). Each line must be one object.") from error
        if not isinstance(cells, dict):
            raise DataError(f"{path}, line {number}: no object. Received: {line[:80]!r}")
        yield f"line {number}", cells


def _table_text(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_TABLE_BYTES:
            raise DataError(f"{path} is no table: it must be a plain file of at most {MAX_TABLE_BYTES // 2**20} MB.")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = _not_text(error) if isinstance(error, UnicodeDecodeError) else error.strerror
        raise DataError(
            f"{path} cannot be read as a table: {reason}. Give a folder of class folders, or a CSV with the columns "
            "file and label."
        ) from error


def _not_text(error: UnicodeDecodeError) -> str:
    """Name the line, for a name with an umlaut that another program has saved in its own way."""
    return f"line {error.object.count(10, 0, error.start) + 1} is not text in UTF-8"


# --- the metadata file of an image folder


def metadata_files(folder: Path) -> list[Path]:
    """Return the metadata files of an image folder: its own, or those of its parts."""
    names = {name.lower(): name for name in os.listdir(folder)}
    parts = [folder / names[part] for part in ("train", *VALIDATION_NAMES) if part in names]
    own, *others = [
        [path for name in METADATA_NAMES if (path := place / name).is_file() and _names_labels(path)][:1]
        for place in (folder, *parts)
    ]
    return own or [path for found in others for path in found]


def _names_labels(path: Path) -> bool:
    """Return whether a metadata file has the columns of a labelled image folder; a file of captions has not."""
    if path.suffix == ".parquet":
        return True
    with open(path, "rb") as file:
        first = file.readline(1 << 16).decode("utf-8-sig", "replace")
    words = {word.lower() for word in re.findall(r"\w+", first)}
    return "file_name" in words and not words.isdisjoint(LABEL_COLUMNS)


def read_image_folder(folder: Path, read: Callable[[Path], Samples]) -> Samples:
    """Read the metadata files; the name of its folder tells the part of an image whose table does not."""
    samples = Samples(source=folder, root=folder, split="folders")
    for path in metadata_files(folder):
        found = read(path)
        below = path.parent.relative_to(folder).as_posix()
        prefix = "" if below == "." else f"{below}/"
        found.files = [prefix + name for name in found.files]
        if found.split:
            samples.split = found.split
        else:
            found.tell_parts([PART_WORDS.get(name.partition("/")[0].lower(), UNTOLD) for name in found.files])
        samples.extend(found)
    if not any(samples.parts()):
        samples.split = ""
    return samples
