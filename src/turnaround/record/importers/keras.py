"""The file of a Keras CSVLogger: one run, one row an epoch, metrics named as the model was compiled."""

from __future__ import annotations

import math
from dataclasses import replace

from turnaround.record.importers.accuracy_scale import AccuracyScale
from turnaround.record.importers.cells import CellError, Cells
from turnaround.record.importers.curves import CurvePoint, add_point, check_accuracies, in_order, read_point, run_of
from turnaround.record.importers.sheet import Sheet, listed
from turnaround.record.importers.values import ImportOptions, Reading, SkippedRow, assumed_workers, given_name

# The first one that is there counts.
ACCURACY = ("accuracy", "acc", "categorical_accuracy", "sparse_categorical_accuracy", "binary_accuracy")
LEARNING_RATE = ("learning_rate", "lr")


def metric_columns(columns: tuple[str, ...]) -> dict[str, str]:
    """Our names to the file's, for what is there."""
    wanted = {
        "train_accuracy": ACCURACY,
        "val_accuracy": tuple(f"val_{name}" for name in ACCURACY),
        "train_loss": ("loss",),
        "val_loss": ("val_loss",),
    }
    found = {ours: next((name for name in names if name in columns), None) for ours, names in wanted.items()}
    return {ours: name for ours, name in found.items() if name is not None}


def read_keras(sheet: Sheet, given: ImportOptions, *, is_percent: bool = False) -> Reading:
    """The run in the log, with the configuration that the flags give."""
    columns, shares = metric_columns(sheet.columns), AccuracyScale(is_percent=is_percent, is_curve=True)
    check_accuracies(sheet, columns, shares)
    rate = next((name for name in LEARNING_RATE if name in sheet.columns), "")
    name = given_name(given, sheet.path)
    points: dict[int, CurvePoint] = {}
    left_out = []
    for row in sheet.rows:
        cells = Cells(row, sheet.has_decimal_commas)
        try:
            learning_rate = cells.number(rate)
            point = read_point(row, cells, columns, shares)
            add_point(replace(point, learning_rate=math.nan if learning_rate is None else learning_rate), points)
        except CellError as error:
            left_out.append(SkippedRow(where=row.where, name=name[:60], reason=str(error)))
    workers, notes = assumed_workers(given)
    read = {"epoch", "time_s", rate, *columns.values()}
    unknown = [column for column in sheet.columns if column and column not in read]
    notes += [f"{sheet.source}: columns that are not known were ignored: {listed(unknown)}."] if unknown else []
    if not points:
        return Reading(runs=(), left_out=tuple(left_out), notes=tuple(notes))
    ordered, _ = in_order(list(points.values()))  # a CSVLogger always counts from 0: nothing to say about that
    run = run_of(ordered, name=name, source=sheet.source, format_="keras", given=given, workers=workers)
    return Reading(runs=(run,), left_out=tuple(left_out), notes=tuple(notes))
