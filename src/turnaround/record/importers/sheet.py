"""The bytes of a CSV as rows of cells. Enters: a path. Leaves: a Sheet, or an error that says what the file is instead.

`SourceFile` is what all importers get: a folder, or a file's bytes, which become a Sheet when one asks for it.

Files come from spreadsheets of all countries: with or without a byte order mark, in UTF-8, UTF-16 or an old Windows
code page, separated by commas, semicolons or tabs, with decimal points or commas.
"""

from __future__ import annotations

import csv
import difflib
import io
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from turnaround.errors import InputError

MAX_FILE_BYTES = 256 * 2**20
SEPARATORS = (",", ";", "\t")
MAX_SHOWN = 12
ZIP = b"PK\x03\x04"  # workbooks are ZIP archives
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # the byte order marks; "Unicode text" of spreadsheets


@dataclass(frozen=True, kw_only=True)
class SheetRow:
    """One line of the file, as text."""

    line: int
    """Counted from 1, as an editor shows it; the row's last line when a quoted cell holds line breaks."""
    cells: dict[str, str]
    """By column; empty cells are empty texts."""
    surplus: int = 0
    """Cells beyond the last column."""
    is_cut: bool = False
    """Whether the file ends within it: fewer cells than columns, and no line end."""

    @property
    def where(self) -> str:
        return f"line {self.line}"


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A header and its rows."""

    path: Path
    columns: tuple[str, ...]
    """In the file's order, in small letters."""
    rows: tuple[SheetRow, ...]
    has_decimal_commas: bool
    """Whether a comma may be a decimal point: where it does not separate the cells."""

    @property
    def source(self) -> str:
        return self.path.name


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """What the user named: a folder, or a file with its content."""

    path: Path
    content: bytes | None
    """None for a folder."""

    @classmethod
    def load(cls, path: Path) -> SourceFile:
        """Read the file, if it is one; InputError where it cannot be read or is empty."""
        # os.path.isdir raises no error for a name that no file system takes; Path.is_dir does.
        return cls(path=path, content=None if os.path.isdir(path) else read_bytes(path))

    @cached_property
    def sheet(self) -> Sheet:
        """The file as a CSV, parsed once for all importers that look at its columns; InputError where it is no text."""
        return read_sheet(self.path, self.content)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the CSV; a folder has none."""
        return () if self.content is None else self.sheet.columns


def read_bytes(path: Path) -> bytes:
    """Return the content of a plain file of bearable size; InputError for everything else."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # before opening: a FIFO would make us wait for ever
            raise InputError(f"{path} is neither a file nor a folder of event files.")
        if os.stat(path).st_size > MAX_FILE_BYTES:
            raise InputError(f"{path} is larger than {MAX_FILE_BYTES // 2**20} MiB: too large for a table or a log.")
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.{_near(path)}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path} cannot be read: {reason}.") from error
    if not content.strip():
        raise InputError(f"{path} is empty: there is nothing to import.")
    return content


def _near(path: Path) -> str:
    try:
        beside = sorted(entry.name for entry in path.parent.iterdir())
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, beside, n=1)
    return f" Did you mean {path.parent / near[0]}?" if near else ""


def read_sheet(path: Path, content: bytes | None = None) -> Sheet:
    """Return the table in the file."""
    text = as_text(path, read_bytes(path) if content is None else content)
    # StringIO without newline translation: csv itself understands all line ends, and those inside quotes are content.
    separator = _separator(text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    columns: tuple[str, ...] = ()
    rows = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not columns:
                columns = _columns(path, cells)
            else:
                rows.append(_row(reader.line_num, columns, cells))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not a CSV file ({error}).") from error
    if rows and len(rows[-1].cells) < len([name for name in columns if name]) and not text.endswith(("\n", "\r")):
        rows[-1] = replace(rows[-1], is_cut=True)
    return Sheet(path=path, columns=columns, rows=tuple(rows), has_decimal_commas=separator != ",")


def is_binary(content: bytes) -> bool:
    """Tell whether the file is no text, by its first bytes: text has no NUL, except in UTF-16."""
    return content.startswith(ZIP) or (b"\x00" in content[:4096] and not content.startswith(UTF_16))


def as_text(path: Path, content: bytes) -> str:
    """Return the file as text; an error that names what it is when it is none."""
    if content.startswith(ZIP):
        raise InputError(
            f"{path} is a workbook or another ZIP archive, not text. Save the table as CSV and import that."
        )
    if content.startswith(UTF_16):
        return content.decode("utf-16", "replace")
    if is_binary(content):
        raise InputError(f"{path} is not text: it begins with {content[:16]!r}. Give a table or a log as text.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")  # what spreadsheets wrote before UTF-8


def _separator(text: str) -> str:
    """Return what stands between the cells of the first line, outside quotes."""
    header = next((line for line in text.splitlines() if line.strip()), "")
    bare = re.sub(r'"[^"]*"', "", header)
    return max(SEPARATORS, key=bare.count)


def _columns(path: Path, cells: list[str]) -> tuple[str, ...]:
    names = tuple(cell.strip().casefold() for cell in cells)
    width = max((place for place, name in enumerate(names, start=1) if name), default=0)
    names = names[:width]  # spreadsheets leave empty columns at the right
    twice = sorted(name for name, count in Counter(names).items() if name and count > 1)
    if twice:
        raise InputError(f"{path}: the header names {listed(twice)} more than once. Rename or remove the others.")
    return names


def _row(line: int, columns: tuple[str, ...], cells: list[str]) -> SheetRow:
    named = {name: cell.strip() for name, cell in zip(columns, cells, strict=False) if name}
    surplus = sum(bool(cell.strip()) for cell in cells[len(columns) :])
    return SheetRow(line=line, cells=named, surplus=surplus)


def listed(names: list[str] | tuple[str, ...]) -> str:
    """Join names in one sentence, the first dozen of them: a header may have thousands of columns."""
    shown = ", ".join(repr(name[:60]) for name in names[:MAX_SHOWN])
    return shown + (f" and {len(names) - MAX_SHOWN:,} more" if len(names) > MAX_SHOWN else "")
