"""Parquet: tables of files and labels, and tables that hold the images' bytes, as the `datasets` library writes them.

    image: struct<bytes, path>, label: int64      bytes; the names of the classes stand in the schema's metadata
    image: struct<bytes, path> without bytes      files by their paths: what `to_parquet` makes of an image folder
    jpg: binary, label: string                    bytes in any binary column
    file: string, label: string, split: string    a table of files, read as a CSV is (tables.py)

Labels alone are read to list the samples; their names are the file and the row, 'train-00000.parquet/0000012'. Bytes
can only be read in the order of the rows, so pixels are decoded in that order, whatever the order of the table
(`decoders.decode_into`), and each process holds a few rows at a time. Needs pyarrow.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnaround.data.formats.samples import (
    LABEL_COLUMNS,
    SPLIT_COLUMNS,
    UNTOLD,
    Samples,
    part_in_name,
    part_of,
)
from turnaround.data.formats.tables import Row, samples_of_rows
from turnaround.errors import DataError, MissingPartError

SUFFIX = ".parquet"
_ROWS_AT_ONCE = 16  # of bytes, held by each process
_LABELS_AT_ONCE = 1 << 16
EMBEDDED = "set.with_format('arrow').map(datasets.table.embed_table_storage, batched=True).with_format(None)"
"""How a set of the `datasets` library takes the bytes of its files in."""
_BUFFER_BYTES = 1 << 20  # read at once, instead of a whole column of a row group, which may be gigabytes


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPartError(
            "Parquet is read with pyarrow, which is not installed. Run: pip install 'turnaround[parquet]'"
        ) from error
    return pyarrow.parquet


def _open(path: Path) -> Any:
    """Open a file, or say what is wrong with it."""
    parquet = _parquet()
    try:
        return parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except Exception as error:  # ArrowInvalid and others, by version; OSError without a number is damage too
        if isinstance(error, OSError) and error.errno:
            raise
        raise DataError(
            f"{path} is cut off, damaged or no Parquet ({_short(error)}). Copy or write the file again."
        ) from error


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160].rstrip(".")


@dataclass(frozen=True)
class _Columns:
    """What the columns of a file are for."""

    image: str  # the column of the bytes as pyarrow names it: 'image.bytes' of a struct; empty: a table of files
    label: str
    split: str | None


def read_parquet(path: Path) -> Samples:
    """Return the samples of one file alone."""
    return read_files(path, path.parent, [path])


def read_files(source: Path, root: Path, paths: Sequence[Path]) -> Samples:
    """Return the samples of all files; where they hold bytes, their names may tell the parts."""
    samples = Samples(source=source, root=root, split="names of the files")
    for path in paths:
        found = _read_file(root, path)
        if found.split:
            samples.split = found.split
        samples.extend(found)
    if not any(samples.parts()):
        samples.split = ""
    return samples


def _read_file(root: Path, path: Path) -> Samples:
    with contextlib.closing(_open(path)) as file:
        schema = file.schema_arrow
        columns = _columns(path, schema)
        named = _class_names(schema, columns.label)
        if columns.image and _has_bytes(path, file, columns.image):
            return _rows_with_bytes(root, path, file, columns, named)
        if columns.image:
            found = _rows_of_paths(path, file, columns, named)
        else:
            found = samples_of_rows(path, _rows(path, file, list(schema.names)), known_labels=named)
        prefix = path.parent.relative_to(root).as_posix()
        found.files = found.files if prefix == "." else [f"{prefix}/{name}" for name in found.files]
        return found


def _has_bytes(path: Path, file: Any, image: str) -> bool:
    """Return whether the first row holds the bytes of its image; a struct may hold a path instead."""
    outer, _, inner = image.partition(".")
    if not inner or file.schema_arrow.field(outer).type.get_field_index("path") < 0:
        return True
    _, first = next(_rows(path, file, [image], at_once=1), ("", {outer: {inner: b""}}))
    return first[outer] is not None and first[outer][inner] is not None


def _rows_of_paths(path: Path, file: Any, columns: _Columns, named: Callable[[str, str], str] | None) -> Samples:
    """Return the samples of a table whose images lie outside it, named by the paths of its structs."""
    outer = columns.image.partition(".")[0]
    wanted = [f"{outer}.path", columns.label, *([columns.split] if columns.split else [])]
    rows = ((place, {**cells, "file": (cells[outer] or {}).get("path")}) for place, cells in _rows(path, file, wanted))
    try:
        return samples_of_rows(path, rows, known_labels=named)
    except DataError as error:
        raise DataError(
            f"{error} The rows name files and hold no bytes of images. `datasets` puts the bytes in with "
            f"{EMBEDDED}.to_parquet(...): such a file needs no others."
        ) from error


def _rows_with_bytes(
    root: Path, path: Path, file: Any, columns: _Columns, named: Callable[[str, str], str] | None
) -> Samples:
    samples = Samples(source=path, root=root, split=f"column {columns.split!r}" if columns.split else "")
    prefix, mtime_ns = path.relative_to(root).as_posix(), path.stat().st_mtime_ns
    part = part_in_name(prefix)
    wanted = [columns.label, *([columns.split] if columns.split else [])]
    for number, (place, cells) in enumerate(_rows(path, file, wanted)):
        where = f"{path}, {place}"
        label = cells[columns.label]
        if label is None or not str(label).strip():
            raise DataError(f"{where}: the label is missing. Write it, or leave the row out.")
        text = str(label).strip()
        if columns.split is not None:
            part = part_of(str(cells[columns.split]), where=where)
        name = named(text, where) if named is not None else text
        # Seven digits: names sort as the rows do, up to ten million rows in a file.
        samples.add(f"{prefix}/{number:07d}", name, part=part or UNTOLD, size_bytes=0, mtime_ns=mtime_ns, where=where)
    if not samples.files:
        raise DataError(f"{path} holds no row.")
    return samples


def _rows(path: Path, file: Any, columns: list[str], *, at_once: int = _LABELS_AT_ONCE) -> Iterator[Row]:
    """Yield the rows of some columns, counted from 0."""
    number = 0
    try:
        for batch in file.iter_batches(batch_size=at_once, columns=columns, use_threads=False):
            for cells in batch.to_pylist():
                yield f"row {number}", cells
                number += 1
    except DataError:
        raise
    except Exception as error:  # a damaged page can raise anything
        raise DataError(
            f"{path}, row {number} or later: damaged ({_short(error)}). Copy or write the file again."
        ) from error


def _columns(path: Path, schema: Any) -> _Columns:
    import pyarrow

    plain = {name.strip().lower().replace(" ", "_"): name for name in reversed(schema.names)}
    label = next((plain[name] for name in LABEL_COLUMNS if name in plain), None)
    if label is None:
        raise DataError(
            f"{path} has no column for the labels. Known headings: {', '.join(LABEL_COLUMNS)}. Received: "
            f"{', '.join(schema.names)[:120]}."
        )
    image = ""
    for column in schema:
        if pyarrow.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
            image = f"{column.name}.bytes"
        elif pyarrow.types.is_binary(column.type) or pyarrow.types.is_large_binary(column.type):
            image = column.name
        if image:
            break
    return _Columns(image, label, next((plain[name] for name in SPLIT_COLUMNS if name in plain), None))


def _class_names(schema: Any, label: str) -> Callable[[str, str], str] | None:
    """Return how a number becomes a name, where the `datasets` library has left the names in the schema's metadata."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        names = features[label]["names"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None

    def named(cell: str, where: str) -> str:
        number = int(cell) if cell.lstrip("-").isdigit() else None
        if number is None:
            return cell  # the name itself
        if not 0 <= number < len(names):
            raise DataError(
                f"{where}: the label {number} is none of the {len(names)} classes that the file names. Images without "
                "a label (-1) must be left out: name the files that have labels."
            )
        return str(names[number])

    return named


# --- one row


class _Cursor:
    """Reads the bytes of rows in ascending order, a few at a time; an earlier row begins its row group again."""

    def __init__(self, path: Path) -> None:
        self._file = _open(path)
        self._column = _columns(path, self._file.schema_arrow).image
        sizes = [self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        self._bounds = [sum(sizes[:group]) for group in range(len(sizes) + 1)]
        self._group, self._start, self._held = -1, 0, list[Any]()
        self._batches: Iterator[Any] = iter(())

    def read(self, row: int) -> bytes:
        group = next((g for g in range(len(self._bounds) - 1) if row < self._bounds[g + 1]), None)
        if group is None:
            raise FileNotFoundError(2, f"the file has {self._bounds[-1]:,} rows")
        if group != self._group or row < self._start:
            self._group, self._start, self._held = group, self._bounds[group], []
            self._batches = self._file.iter_batches(
                batch_size=_ROWS_AT_ONCE, row_groups=[group], columns=[self._column], use_threads=False
            )
        while row >= self._start + len(self._held):
            self._start += len(self._held)
            column = next(self._batches).column(0)
            self._held = (column.field("bytes") if "." in self._column else column).to_pylist()
        content = self._held[row - self._start]
        if content is None:
            raise OSError("the row has no bytes")
        return bytes(content)

    def close(self) -> None:
        self._file.close()


_open_cursors: dict[tuple[Path, int], _Cursor] = {}
"""Open files of this process, by path and time of change: one at a time, since rows come in order."""


def read_parquet_cell(path: Path, name: str) -> bytes:
    """Return the bytes of an image in a row; OSError where it has none."""
    key = (path, path.stat().st_mtime_ns)
    try:
        if key not in _open_cursors:
            for old in list(_open_cursors.values()):
                old.close()
            _open_cursors.clear()
            _open_cursors[key] = _Cursor(path)
        return _open_cursors[key].read(int(name))
    except FileNotFoundError:
        raise
    except Exception as error:
        _open_cursors.clear()  # what is half read is of no use: the next row begins anew
        raise OSError(_short(error)) from error
