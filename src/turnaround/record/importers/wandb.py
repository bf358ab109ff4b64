"""A run of Weights & Biases: its history as it is exported (CSV or JSON), or the folder of a run that was kept offline.

`run.history()` gives a table of `_step`, `_runtime` or `_timestamp` and whatever was logged; people save it with
`to_csv` or `to_json`, and `scan_history` as lines of JSON. An offline folder holds the same rows as messages, which
W&B's own definitions decode; the file around them is a log of LevelDB's format, with a checksum for each piece.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnaround.errors import InputError, MissingPartError
from turnaround.record.importers.cells import AccuracyScale, CellError, Cells
from turnaround.record.importers.history import (
    HistoryRow,
    RunFacts,
    epoch_in,
    facts_in,
    history_run,
    is_read,
    numbers_in,
    parsed_json,
)
from turnaround.record.importers.sheet import SourceFile, as_text, read_bytes
from turnaround.record.importers.values import (
    ImportedRun,
    ImportOptions,
    Reading,
    SkippedRow,
    assumed_workers,
    given_name,
)

STEP = "_step"
CLOCKS = ("_runtime", "_timestamp")
OFFLINE_FILE = "run-*.wandb"
HEADER = b":W&B\xe1\xbe\x00"
BLOCK_BYTES = 32 * 1024
PIECE = struct.Struct("<IHB")  # checksum, length, kind
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def is_wandb_csv(source: SourceFile) -> bool:
    """Tell whether the CSV has W&B's own columns."""
    return STEP in source.columns and any(clock in source.columns for clock in CLOCKS)


def is_wandb_json(source: SourceFile) -> bool:
    """Tell whether the file is JSON with W&B's own keys; one that was cut off is still recognised."""
    content = source.content or b""
    has_keys = b'"_step"' in content and any(f'"{clock}"'.encode() in content for clock in CLOCKS)
    return content.lstrip()[:1] in (b"{", b"[") and has_keys


def is_wandb_offline(source: SourceFile) -> bool:
    """Tell whether it is a run's file as W&B keeps it, or a folder with one in it."""
    if source.content is not None:
        return source.content.startswith(HEADER[:4])
    return _offline_file(source.path) is not None


def _offline_file(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob(OFFLINE_FILE))), None)


def read_wandb_csv(source: SourceFile, options: ImportOptions, *, is_percent: bool = False) -> Reading:
    """Read the run in a history that was saved as CSV."""
    sheet = source.sheet
    rows: list[HistoryRow] = []
    left_out = []
    for row in sheet.rows:
        cells = Cells(row, sheet.has_decimal_commas).expect_whole()
        values = {name: cells.number(name) for name in sheet.columns if _is_told(name)}
        try:
            cells.raise_problems()
            known = {name: value for name, value in values.items() if value is not None}
            rows.append(_row(row.line, known))
        except CellError as error:
            left_out.append(SkippedRow(where=row.where, name="", reason=str(error)))
    return _reading(rows, RunFacts(), source, options, is_percent=is_percent, left_out=left_out)


def _is_told(name: str) -> bool:
    return name in CLOCKS or name.split("/")[-1] in ("epoch", "current_epoch") or is_read(name)


def read_wandb_json(source: SourceFile, options: ImportOptions, *, is_percent: bool = False) -> Reading:
    """Read the run in a history that was saved as JSON: a list of rows, one row a line, or columns as of pandas."""
    rows = [_row(line, numbers_in(entry)) for line, entry in _entries(source)]
    return _reading(rows, RunFacts(), source, options, is_percent=is_percent)


def _entries(source: SourceFile) -> list[tuple[int, dict[str, Any]]]:
    text = as_text(source.path, source.content or b"")
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    # Several lines that all begin an object are JSON lines; an indented document has lines of other kinds.
    if len(lines) > 1 and all(line.lstrip().startswith("{") for _, line in lines):
        return [(number, _line(source, number, line)) for number, line in lines]
    content = parsed_json(source)
    if isinstance(content, list):
        return [(number, row) for number, row in enumerate(content, start=1) if isinstance(row, dict)]
    if all(isinstance(column, dict) for column in content.values()):
        # Columns as of pandas: {name: {row: value}}. A column may lack rows, so all of them are asked.
        places = list(dict.fromkeys(place for column in content.values() for place in column))
        return [
            (number, {name: column[place] for name, column in content.items() if column.get(place) is not None})
            for number, place in enumerate(places, start=1)
        ]
    return [(1, content)]


def _line(source: SourceFile, number: int, line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{source.path}, line {number}: not whole JSON. Was the file cut off? Copy it again."
        ) from error
    return entry if isinstance(entry, dict) else {}


def _row(line: int, values: dict[str, float]) -> HistoryRow:
    clock_s = next((values[clock] for clock in CLOCKS if clock in values), None)
    epoch = epoch_in(values)
    return HistoryRow(
        line=line, epoch=epoch, clock_s=clock_s, values={n: v for n, v in values.items() if not n.startswith("_")}
    )


def _reading(
    rows: list[HistoryRow],
    facts: RunFacts,
    source: SourceFile,
    options: ImportOptions,
    *,
    is_percent: bool,
    left_out: list[SkippedRow] | None = None,
    name: str | None = None,
) -> Reading:
    name = given_name(options, Path(name) if name else source.path)
    workers, notes = assumed_workers(options, facts.workers)
    run = ImportedRun(name=name, source=source.path.name, format="wandb", workers=workers)
    skipped = list(left_out or ())
    try:
        run, said = history_run(
            rows, facts, run=run, options=options, shares=AccuracyScale(is_percent=is_percent, is_curve=True)
        )
    except CellError as error:
        skipped.append(SkippedRow(where=source.path.name, name=name[:60], reason=str(error)))
        return Reading(runs=(), left_out=tuple(skipped), notes=tuple(notes))
    return Reading(runs=(run,), left_out=tuple(skipped), notes=(*notes, *(f"{name}: {text}" for text in said)))


def read_wandb_offline(source: SourceFile, options: ImportOptions, *, is_percent: bool = False) -> Reading:
    """Read the run that was kept offline; its messages are decoded by the wandb that is installed."""
    file = source.path if source.content is not None else _offline_file(source.path)
    assert file is not None  # `is_wandb_offline` has seen it
    content = source.content if source.content is not None else read_bytes(file)
    record_type = _record_type(file)
    settings: dict[str, Any] = {}
    rows: list[HistoryRow] = []
    name = None
    for number, message in enumerate(_messages(file, content), start=1):
        record = record_type()
        try:
            record.ParseFromString(message)
        except Exception as error:  # protobuf's DecodeError, which is not ours to import
            raise InputError(f"{file}, record {number}: W&B cannot decode it ({error}).") from error
        kind = record.WhichOneof("record_type")
        if kind == "run":
            name = record.run.display_name or name
            settings |= _items(record.run.config.update)
        elif kind == "config":
            settings |= _items(record.config.update)
        elif kind == "history":
            rows.append(_row(number, numbers_in(_items(record.history.item))))
    found = SourceFile(path=file, content=content)
    return _reading(rows, facts_in(settings), found, options, is_percent=is_percent, name=name)


def _record_type(file: Path) -> Any:
    try:
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError as error:
        raise MissingPartError(
            f"{file} is a run of W&B that was kept offline, which W&B's own package must decode: "
            f"pip install 'turnaround[wandb]' ({error})."
        ) from error
    return Record


def _items(items: Any) -> dict[str, Any]:
    """Return the keys of a message with their values, which are JSON; a value that is none is left out."""
    found = {}
    for item in items:
        try:
            found[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        except (ValueError, RecursionError):
            continue
    return found


def _messages(file: Path, content: bytes) -> Iterator[bytes]:
    """Yield the messages of the file. One that was not written to its end, as after a crash, ends it."""
    if not content.startswith(HEADER):
        raise InputError(f"{file}: its first bytes, {content[:7]!r}, are not those of a run of W&B that can be read.")
    place = len(HEADER)
    parts: list[bytes] = []
    while place + PIECE.size <= len(content):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < PIECE.size:  # the rest of a block is filled with zeros
            place += left
            continue
        checksum, length, kind = PIECE.unpack_from(content, place)
        start = place + PIECE.size
        piece = content[start : start + length]
        # Zeros are room that was allotted and never written: the file ends here, as after a crash.
        if len(piece) < length or kind == 0:
            return
        # W&B sums kind and content by zlib's CRC-32, where LevelDB has a masked CRC-32C.
        if zlib.crc32(piece, zlib.crc32(bytes([kind]))) != checksum or kind > LAST:
            raise InputError(f"{file}: damaged at byte {place:,} (its checksum does not fit). Copy it again.")
        place = start + length
        # A message longer than what is left of a block comes in pieces: first, middle ones, last.
        parts = [piece] if kind in (WHOLE, FIRST) else [*parts, piece]
        if kind in (WHOLE, LAST):
            yield b"".join(parts)
