"""The file of a Keras CSVLogger: one run, one row an epoch, metrics named as the model was compiled."""

from __future__ import annotations

import math
from dataclasses import replace

from turnaround.record.importers.cells import AccuracyScale, CellError, Cells
from turnaround.record.importers.curves import CurvePoint, add_point, check_accuracies, in_order, read_point, run_of
from turnaround.record.importers.sheet import SourceFile, listed
from turnaround.record.importers.values import ImportOptions, Reading, SkippedRow, assumed_workers, given_name
from turnaround.record.metric_names import KERAS_ACCURACY, LEARNING_RATE, LOSS

# Our names to those that a CSVLogger may use: Keras puts "val_" before a metric, and nothing for training.
COLUMNS = {
    "train_accuracy": KERAS_ACCURACY,
    "val_accuracy": tuple(f"val_{name}" for name in KERAS_ACCURACY),
    "train_loss": (LOSS,),
    "val_loss": (f"val_{LOSS}",),
}


def is_keras(source: SourceFile) -> bool:
    """Tell whether the CSV has an epoch in each row and Keras's metrics; with names of runs it would be curves."""
    return "epoch" in source.columns and "name" not in source.columns and bool(metric_columns(source.columns))


def metric_columns(columns: tuple[str, ...]) -> dict[str, str]:
    """Map our names to the file's, for the metrics that are there; the first alias that is there counts."""
    found = {ours: next((name for name in names if name in columns), None) for ours, names in COLUMNS.items()}
    return {ours: name for ours, name in found.items() if name is not None}


def read_keras(source: SourceFile, options: ImportOptions, *, is_percent: bool = False) -> Reading:
    """Read the run in the log, with the configuration that the flags give."""
    sheet = source.sheet
    columns, shares = metric_columns(sheet.columns), AccuracyScale(is_percent=is_percent, is_curve=True)
    check_accuracies(sheet, columns, shares)
    rate = next((name for name in LEARNING_RATE if name in sheet.columns), "")
    name = given_name(options, sheet.path)
    points: dict[int, CurvePoint] = {}
    left_out = []
    for row in sheet.rows:
        cells = Cells(row, sheet.has_decimal_commas).expect_whole()
        try:
            learning_rate = cells.number(rate)
            point = read_point(row, cells, columns, shares)
            add_point(replace(point, learning_rate=math.nan if learning_rate is None else learning_rate), points)
        except CellError as error:
            left_out.append(SkippedRow(where=row.where, name=name[:60], reason=str(error)))
    workers, notes = assumed_workers(options)
    read = {"epoch", "time_s", rate, *columns.values()}
    unknown = [column for column in sheet.columns if column and column not in read]
    notes += [f"{sheet.source}: columns that are not known were ignored: {listed(unknown)}."] if unknown else []
    if not points:
        return Reading(runs=(), left_out=tuple(left_out), notes=tuple(notes))
    ordered, _ = in_order(list(points.values()))  # a CSVLogger always counts from 0: nothing to say about that
    run = run_of(ordered, name=name, source=sheet.source, format_="keras", options=options, workers=workers)
    return Reading(runs=(run,), left_out=tuple(left_out), notes=tuple(notes))
