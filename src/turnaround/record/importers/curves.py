"""A CSV with one row an epoch. Enters: a Sheet. Leaves: the curve of each run, to add to a table's runs or alone.

`time_s` is the time that the epoch took. Where it grows from row to row as a running clock does, the differences are
taken, and said.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise

from turnaround.errors import InputError
from turnaround.record.importers.cells import AccuracyScale, CellError, Cells
from turnaround.record.importers.sheet import Sheet, SheetRow, SourceFile
from turnaround.record.importers.table import check_columns
from turnaround.record.importers.values import (
    MAX_EPOCHS,
    ImportedRun,
    ImportOptions,
    Reading,
    SkippedRow,
    assumed_workers,
    epoch_record,
    last_known,
)
from turnaround.record.layout import safe_name
from turnaround.record.schema import EpochRecord

REQUIRED = ("name", "epoch")
METRICS = ("val_accuracy", "train_accuracy", "val_loss", "train_loss")
ACCURACIES = ("val_accuracy", "train_accuracy")
SAME_ACCURACY = 0.001
"""Tables round."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One row: an epoch as it is numbered in the file, and what was measured after it; NaN where nothing was."""

    line: int
    epoch: int
    val_accuracy: float = math.nan
    train_accuracy: float = math.nan
    val_loss: float = math.nan
    train_loss: float = math.nan
    time_s: float = math.nan
    learning_rate: float = math.nan

    def record(self, images: int | None) -> EpochRecord:
        return epoch_record(
            self.epoch,
            accuracy=(self.train_accuracy, self.val_accuracy),
            loss=(self.train_loss, self.val_loss),
            time_s=self.time_s,
            images=images,
            learning_rate=self.learning_rate,
        )


@dataclass(frozen=True, kw_only=True)
class Curves:
    """By run, in the order of the file."""

    points: dict[str, tuple[CurvePoint, ...]]
    left_out: tuple[SkippedRow, ...]
    notes: tuple[str, ...]


def is_curves(source: SourceFile) -> bool:
    """Tell whether the CSV has an epoch in each row, and the name of its run."""
    return {*REQUIRED} <= {*source.columns}


def import_curves(source: SourceFile, options: ImportOptions, *, is_percent: bool = False) -> Reading:
    """Read curves without a table: each is a run, all of the configuration that the flags give."""
    curves, name = read_curves(source.sheet, is_percent=is_percent), source.sheet.source
    if options.name is not None:
        raise InputError(f"--name is for a file of one run; {name} has a column 'name'. Leave --name out.")
    workers, notes = assumed_workers(options)
    runs = [
        run_of(points, name=run, source=name, format_="curves", options=options, workers=workers)
        for run, points in curves.points.items()
    ]
    return Reading(runs=tuple(runs), left_out=curves.left_out, notes=(*curves.notes, *notes))


def read_curves(sheet: Sheet, *, is_percent: bool = False) -> Curves:
    """Read the curves in the file, by run."""
    notes = check_columns(sheet, required=REQUIRED, known=(*REQUIRED, *METRICS, "time_s"))
    if not set(METRICS) & set(sheet.columns):
        raise InputError(f"{sheet.path} has no curve in it: add at least one of the columns {', '.join(METRICS)}.")
    shares = AccuracyScale(is_percent=is_percent, is_curve=True)
    # As wholes before row by row: percent or fraction is a question to the column, and one row cannot tell.
    check_accuracies(sheet, {column: column for column in ACCURACIES}, shares)
    left_out: list[SkippedRow] = []
    rows: dict[str, dict[int, CurvePoint]] = defaultdict(dict)
    for row in sheet.rows:
        name = safe_name(row.cells.get("name", ""))
        try:
            if not name:
                raise CellError("it has no name")
            point = read_point(row, Cells(row, sheet.has_decimal_commas), {c: c for c in METRICS}, shares)
            add_point(point, rows[name])
        except CellError as error:
            left_out.append(SkippedRow(where=row.where, name=name[:60], reason=str(error)))
    points = {}
    for name, read in rows.items():
        if read:
            points[name], said = in_order(list(read.values()))
            notes += [f"{name}: {sentence}" for sentence in said]
    return Curves(points=points, left_out=tuple(left_out), notes=tuple(notes))


def check_accuracies(sheet: Sheet, columns: dict[str, str], shares: AccuracyScale) -> None:
    """Check the accuracy columns as wholes; `columns` maps what we call them to what the file calls them."""
    for ours in ACCURACIES:
        theirs = columns.get(ours, "")
        values = (Cells(row, sheet.has_decimal_commas).number(theirs) for row in sheet.rows)
        shares.check_column(theirs, values, sheet.source)


def read_point(row: SheetRow, cells: Cells, columns: dict[str, str], shares: AccuracyScale) -> CurvePoint:
    """Return one row; CellError with everything that is wrong with it."""
    epoch = cells.count("epoch", low=0, high=MAX_EPOCHS)
    if cells.text("epoch") is None:
        cells.problems.append("epoch is empty")
    # All cells are read before any problem is raised: a message names everything that is wrong with the row.
    values = {ours: cells.number(theirs) for ours, theirs in columns.items()}
    for ours, theirs in columns.items():
        if ours in ACCURACIES and (problem := shares.problem(theirs, values[ours])):
            cells.problems.append(problem)
    time_s = cells.above_zero("time_s")
    if not cells.problems and all(value is None for value in values.values()):
        cells.problems.append("nothing was measured: all its cells are empty")
    cells.raise_problems()
    fractions = {ours: shares.fraction(value) if ours in ACCURACIES else value for ours, value in values.items()}
    known = {ours: value for ours, value in fractions.items() if value is not None}
    return CurvePoint(line=row.line, epoch=epoch or 0, time_s=math.nan if time_s is None else time_s, **known)


def add_point(point: CurvePoint, by_epoch: dict[int, CurvePoint]) -> None:
    """Nobody knows which of two lines counts: the first stays, the second is refused."""
    first = by_epoch.setdefault(point.epoch, point)
    if first is not point:
        raise CellError(f"epoch {point.epoch} stands in line {first.line} already (line {point.line} repeats it)")


def in_order(points: list[CurvePoint]) -> tuple[tuple[CurvePoint, ...], list[str]]:
    """By epoch, counted from 1, with times of epochs; and what was changed for that."""
    notes = []
    # Rows come as they were written down: nobody promises an order.
    points = sorted(points, key=lambda point: point.epoch)
    if points[0].epoch == 0:
        points = [replace(point, epoch=point.epoch + 1) for point in points]
        notes.append("its epochs are counted from 0; here from 1.")
    if _is_running_clock(points):
        # The first epoch began when the clock did; zip ends with the points, so the last reading is nobody's start.
        before = [0.0, *(point.time_s for point in points)]
        points = [replace(point, time_s=point.time_s - earlier) for point, earlier in zip(points, before, strict=False)]
        notes.append("time_s grows like a clock; an epoch's time is the difference to the one before.")
    return tuple(points), notes


def _is_running_clock(points: list[CurvePoint]) -> bool:
    """Tell whether the times are those since the start: always larger, the last at least half of n times the first.

    Epochs of equal length give n times the first; no training slows down to that extent, always, from epoch to epoch.
    """
    times = [point.time_s for point in points]
    # Two epochs, the second longer, are as likely a slow epoch as a clock.
    if len(times) < 3 or any(math.isnan(time_s) for time_s in times):
        return False
    return all(a < b for a, b in pairwise(times)) and times[-1] >= 0.5 * len(times) * times[0]


def with_curves(table: Reading, curves: Curves, source: str) -> Reading:
    """Return the table's runs, each with its curve; curves that no run of the table has are named."""
    names = {run.name for run in table.runs}
    unknown = [
        SkippedRow(
            where=f"{source}, line {points[0].line}", name=name[:60], reason="a curve of a run that was not imported"
        )
        for name, points in curves.points.items()
        if name not in names
    ]
    dropped = [replace(item, where=f"{source}, {item.where}") for item in curves.left_out]
    runs, notes = [], []
    for run in table.runs:
        points = curves.points.get(run.name, ())
        runs.append(replace(run, curve=tuple(point.record(run.images_per_epoch) for point in points)))
        if points and run.epochs is not None and points[-1].epoch != run.epochs:
            notes.append(
                f"{run.name}: the table says {run.epochs} epochs, its curve ends with epoch {points[-1].epoch}."
            )
        notes += _other_ends(run, points)
    return Reading(
        runs=tuple(runs),
        left_out=(*table.left_out, *dropped, *unknown),
        notes=(*table.notes, *curves.notes, *notes),
    )


def _other_ends(run: ImportedRun, points: tuple[CurvePoint, ...]) -> list[str]:
    """Final accuracies of the table that the curve does not end with: readers of the run take the curve's."""
    said = []
    for column in ACCURACIES if points else ():
        stated, drawn = getattr(run, column), getattr(points[-1], column)
        if stated is not None and abs(stated - drawn) > SAME_ACCURACY:  # False for NaN
            said.append(f"{run.name}: the table says {column} {stated:g}, its curve ends with {drawn:g}, which counts.")
    return said


def run_of(
    points: tuple[CurvePoint, ...], *, name: str, source: str, format_: str, options: ImportOptions, workers: int
) -> ImportedRun:
    """Return a run of which only a curve is known."""
    return ImportedRun(
        name=name,
        source=source,
        format=format_,
        workers=workers,
        dataset=options.dataset,
        gpu=options.gpu,
        nodes=options.nodes,
        batch_per_worker=options.batch_per_worker,
        images_per_epoch=options.images_per_epoch,
        epochs=points[-1].epoch,
        train_accuracy=last_known([point.train_accuracy for point in points]),
        val_accuracy=last_known([point.val_accuracy for point in points]),
        curve=tuple(point.record(options.images_per_epoch) for point in points),
    )
