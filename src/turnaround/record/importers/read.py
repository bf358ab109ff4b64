"""The one entrance: any file -> the runs in it."""

from __future__ import annotations

from pathlib import Path

from turnaround.errors import InputError
from turnaround.record.importers.curves import alone, read_curves, with_curves
from turnaround.record.importers.keras import read_keras
from turnaround.record.importers.mllog import read_mllog
from turnaround.record.importers.recognise import Recognised, recognise
from turnaround.record.importers.table import read_table
from turnaround.record.importers.tensorboard import read_tensorboard
from turnaround.record.importers.values import ImportOptions, Reading, SkippedRow

MAX_SHOWN = 10


def read_runs(path: Path, *, curves: Path | None = None, given: ImportOptions, is_percent: bool = False) -> Reading:
    """The runs in the file, at least one; InputError with the reasons when there is none."""
    found = recognise(path)
    if found.format != "table" and curves is not None:
        raise InputError(
            f"--curves adds curves to a table of runs; {path} is none ({found.format}). Leave --curves out."
        )
    reading = _table(found, curves, given, is_percent) if found.format == "table" else _log(found, given, is_percent)
    if not reading.runs:
        reasons = "\n".join(f"- {describe(item)}" for item in reading.left_out[:MAX_SHOWN])
        more = len(reading.left_out) - MAX_SHOWN
        reasons += f"\n- and {more:,} more" if more > 0 else ""
        raise InputError(f"Nothing in {path} can be imported:\n{reasons}")
    return reading


def describe(item: SkippedRow) -> str:
    """One that was left out, in a line."""
    return f"{item.where}{f' ({item.name})' if item.name else ''}: {item.reason}"


def _table(found: Recognised, curves: Path | None, given: ImportOptions, is_percent: bool) -> Reading:
    assert found.sheet is not None
    if given.flags():
        flag, _ = given.flags()[0]
        raise InputError(
            f"{flag} is for logs that do not say it; {found.path} is a table. Write it into the table's "
            f"column {flag.removeprefix('--').replace('-', '_')!r}, row by row."
        )
    table = read_table(found.sheet, is_percent=is_percent)
    if curves is None:
        return table
    other = recognise(curves)
    if other.format != "curves" or other.sheet is None:
        raise InputError(
            f"{curves} holds no curves for a table ({other.format}). It needs the columns name, epoch and at least one "
            "of val_accuracy, train_accuracy, val_loss, train_loss."
        )
    return with_curves(table, read_curves(other.sheet, is_percent=is_percent), other.sheet.source)


def _log(found: Recognised, given: ImportOptions, is_percent: bool) -> Reading:
    if found.format == "tensorboard":
        return read_tensorboard(found.path, given, is_percent=is_percent)
    if found.format == "mllog":
        return read_mllog(found.path, found.content, given, is_percent=is_percent)
    assert found.sheet is not None
    if found.format == "keras":
        return read_keras(found.sheet, given, is_percent=is_percent)
    return alone(read_curves(found.sheet, is_percent=is_percent), given, found.sheet.source)
