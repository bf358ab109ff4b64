"""What a file is, by looking into it: names lie, headers do not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from turnaround.errors import InputError
from turnaround.record.importers.keras import metric_columns
from turnaround.record.importers.mllog import is_mllog
from turnaround.record.importers.sheet import Sheet, as_text, listed, read_bytes, read_sheet
from turnaround.record.importers.tensorboard import event_folders
from turnaround.record.importers.values import Format
from turnaround.record.layout import RunDirectory

READABLE = """What can be imported:
- a CSV with one row a run: columns name, workers and whatever else is known (gpu, epoch_time_s, val_accuracy, ...)
- a CSV with one row an epoch: columns name, epoch and val_accuracy, train_accuracy, val_loss, train_loss or time_s
- the file of a Keras CSVLogger: epoch, accuracy, loss, val_accuracy, ...
- a folder of TensorBoard event files (events.out.tfevents...)
- an MLPerf log with :::MLLOG lines"""


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """What a file is, and as much of it as was read to know."""

    path: Path
    format: Format
    content: bytes = b""
    sheet: Sheet | None = None


def recognise(path: Path) -> Recognised:
    """The kind of the file; InputError lists what can be read and says what was seen."""
    if os.path.isdir(path):  # no error for a name that no file system takes
        return _folder(path)
    content = read_bytes(path)
    if content[8:64].find(b"brain.Event:") >= 0:  # the first record of every event file
        return Recognised(path=path, format="tensorboard")
    if b":::MLLOG" in content and is_mllog(as_text(path, content)):
        return Recognised(path=path, format="mllog", content=content)
    sheet = read_sheet(path, content)
    kind = _sheet_kind(sheet)
    if kind is None:
        seen = f"its first line has the columns {listed([column for column in sheet.columns if column])}"
        if len(sheet.columns) < 2:
            seen = f"it is no CSV: it begins with {' '.join(as_text(path, content[:400]).split())[:60]!r}"
        raise InputError(f"{path} is nothing that can be imported: {seen}.\n{READABLE}")
    if not sheet.rows:
        raise InputError(f"{path} has a header and no rows: there is nothing to import.")
    return Recognised(path=path, format=kind, sheet=sheet)


def _folder(path: Path) -> Recognised:
    if next(event_folders(path), None) is not None:
        return Recognised(path=path, format="tensorboard")
    if RunDirectory(path).is_run():
        raise InputError(f"{path} is a run directory of turnaround already: it needs no import.")
    try:
        there = sorted(os.listdir(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    seen = f"there are {listed(there)} in it" if there else "it is empty"
    raise InputError(f"{path} is a folder without event files: {seen}.\n{READABLE}")


def _sheet_kind(sheet: Sheet) -> Format | None:
    """By the columns: a table has runs as rows, curves have epochs, a Keras log has them without a name."""
    columns = set(sheet.columns)
    if "epoch" in columns and "name" in columns:
        return "curves"
    if "epoch" in columns and metric_columns(sheet.columns):
        return "keras"
    return "table" if len(sheet.columns) > 1 and columns & {"name", "workers"} else None
