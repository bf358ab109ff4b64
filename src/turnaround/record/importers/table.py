"""A CSV with one row a run. Enters: a Sheet. Leaves: its runs; rows that cannot be taken are named with the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass

from turnaround.errors import InputError
from turnaround.record.importers.cells import UNITS_S, AccuracyScale, CellError, Cells
from turnaround.record.importers.sheet import Sheet, SheetRow, SourceFile, listed
from turnaround.record.importers.values import (
    MAX_EPOCHS,
    MAX_WORKERS,
    TOLD,
    ImportedRun,
    ImportOptions,
    Reading,
    SkippedRow,
)
from turnaround.record.layout import safe_name

REQUIRED = ("name", "workers")
OPTIONAL = (*TOLD, "nodes", "hosts", "images_per_s", "processes", "seed", "model", "precision")
LONGER_EPOCHS, LONGER_JOB = 1.5, 50.0
"""A job may be a little shorter than its epochs, where the epoch that is told is a slow one; or be mostly start-up.
Beyond these factors the two times have different units."""
ACCURACIES = ("train_accuracy", "val_accuracy")
TIMES = ("job_time_s", "epoch_time_s")
TIME_COLUMN = re.compile(r"(job|epoch)[ _-]*(?:time)?[ _-]*[(\[]?([a-z]*)[)\]]?")
"""A time under another name: job_time_h, "epoch time (min)", job_hours, epoch_time."""


@dataclass(frozen=True)
class TimeColumn:
    """The column of the file that holds a time, and its unit."""

    written_as: str
    unit_s: float = 1.0


@dataclass(frozen=True)
class RowsSoFar:
    """The runs, refusals and notes of the rows so far."""

    runs: list[ImportedRun]
    left_out: list[SkippedRow]
    notes: list[str]
    names: dict[str, str]
    """The line that has taken it, by the name of a run's folder."""


def is_table(source: SourceFile) -> bool:
    """Tell whether the CSV has a run in each row. One column that is there is enough: the reader names the missing."""
    # A single column that happens to be called "name" is a list of anything.
    return len(source.columns) > 1 and not {*REQUIRED}.isdisjoint(source.columns)


def import_table(source: SourceFile, options: ImportOptions, *, is_percent: bool = False) -> Reading:
    """Read the runs of a table; InputError for flags, because one value could not be right for all rows."""
    if options.flags():
        flag, _ = options.flags()[0]
        raise InputError(
            f"{flag} is for logs that do not say it; {source.path} is a table. Write it into the table's "
            f"column {flag.removeprefix('--').replace('-', '_')!r}, row by row."
        )
    return read_table(source.sheet, is_percent=is_percent)


def read_table(sheet: Sheet, *, is_percent: bool = False) -> Reading:
    """Read the runs of the table, in its order."""
    times = _time_columns(sheet)
    written = tuple(column.written_as for column in times.values())
    notes = check_columns(sheet, required=REQUIRED, known=(*REQUIRED, *OPTIONAL, *written))
    notes += [
        f"{sheet.source}: {column.written_as!r} was read as {name}, one unit of it being {column.unit_s:g} s."
        for name, column in times.items()
        if column.written_as != name
    ]
    shares = AccuracyScale(is_percent=is_percent, is_curve=False)
    for column in ACCURACIES:
        # Before any row is taken: a column in percent would be left out row by row, each with the same reason.
        shares.check_column(column, (_cells(sheet, row).number(column) for row in sheet.rows), sheet.source)
    so_far = RowsSoFar([], [], notes, {})
    for row in sheet.rows:
        try:
            name = _name(row, so_far)
            so_far.runs.append(_run(sheet, row, name, shares, times))
        except CellError as error:
            so_far.left_out.append(
                SkippedRow(where=row.where, name=safe_name(row.cells.get("name", ""))[:60], reason=str(error))
            )
    return Reading(runs=tuple(so_far.runs), left_out=tuple(so_far.left_out), notes=tuple(so_far.notes))


def check_columns(sheet: Sheet, *, required: tuple[str, ...], known: tuple[str, ...]) -> list[str]:
    """InputError without the required ones; a sentence about those that nobody knows."""
    missing = [column for column in required if column not in sheet.columns]
    if missing:
        raise InputError(
            f"{sheet.path} lacks the column{'s' * (len(missing) > 1)} {listed(missing)}. "
            f"It has {listed([column for column in sheet.columns if column])}. Read are: {', '.join(known)}."
        )
    unknown = [column for column in sheet.columns if column and column not in known]
    return [f"{sheet.source}: columns that are not known were ignored: {listed(unknown)}."] if unknown else []


def _time_columns(sheet: Sheet) -> dict[str, TimeColumn]:
    """Return the columns that hold the times, by the name they have here; InputError where two hold the same one."""
    found: dict[str, list[TimeColumn]] = {name: [] for name in TIMES}
    for column in sheet.columns:
        match = TIME_COLUMN.fullmatch(column)
        unit = match[2] if match is not None else ""
        # These match without the word time, "epochs" as an epoch in seconds: they are a name and counts.
        if match is None or column in ("job", "epoch", "epochs") or (unit and unit not in UNITS_S):
            continue
        found[f"{match[1]}_time_s"].append(TimeColumn(column, UNITS_S.get(unit, 1.0)))
    for name, columns in found.items():
        if len(columns) > 1:
            both = listed([column.written_as for column in columns])
            raise InputError(f"{sheet.path}: {both} all tell {name}. Keep one of them, and remove the others.")
    return {name: columns[0] for name, columns in found.items() if columns}


def _cells(sheet: Sheet, row: SheetRow) -> Cells:
    return Cells(row, sheet.has_decimal_commas)


def _name(row: SheetRow, so_far: RowsSoFar) -> str:
    """Return the run's name, made safe as a folder's, and not taken by an earlier row."""
    written = row.cells.get("name", "")
    name = safe_name(written)
    if not name:
        raise CellError(f"the name {written[:60]!r} cannot be a folder's name" if written else "it has no name")
    if name in so_far.names:
        raise CellError(f"the name {name[:60]!r} is that of {so_far.names[name]} already ({row.where} repeats it)")
    if name != written:
        so_far.notes.append(f"{row.where}: the name {written[:60]!r} was made safe as a folder's name: {name[:60]!r}.")
    so_far.names[name] = row.where
    return name


def _run(sheet: Sheet, row: SheetRow, name: str, shares: AccuracyScale, times: dict[str, TimeColumn]) -> ImportedRun:
    cells = _cells(sheet, row)
    accuracies = {column: cells.number(column) for column in ACCURACIES}
    cells.problems.extend(p for column, value in accuracies.items() if (p := shares.problem(column, value)))

    def time_s(name: str) -> float | None:
        column = times.get(name, TimeColumn(name))
        return cells.time_s(name, written_as=column.written_as, unit_s=column.unit_s)

    if cells.text("workers") is None:
        cells.problems.append("workers is empty")
    run = ImportedRun(
        name=name,
        source=sheet.source,
        format="table",
        where=row.where,
        workers=cells.count("workers", high=MAX_WORKERS) or 1,
        dataset=cells.text("dataset"),
        gpu=cells.text("gpu"),
        processes=cells.count("processes", high=MAX_WORKERS),
        network=cells.text("model"),
        precision=cells.text("precision"),
        nodes=cells.count("nodes", high=MAX_WORKERS) or cells.count("hosts", high=MAX_WORKERS),
        batch_per_worker=cells.count("batch_per_worker"),
        images_per_epoch=cells.count("images_per_epoch"),
        epochs=cells.count("epochs", high=MAX_EPOCHS),
        fine_tune=cells.truth("fine_tune"),
        augment=cells.truth("augment"),
        seed=cells.count("seed", low=0),
        job_time_s=time_s("job_time_s"),
        epoch_time_s=time_s("epoch_time_s"),
        images_per_s=cells.above_zero("images_per_s"),
        epochs_to_stable=cells.above_zero("epochs_to_stable"),
        train_accuracy=shares.fraction(accuracies["train_accuracy"]),
        val_accuracy=shares.fraction(accuracies["val_accuracy"]),
    )
    # A cell that could not be read is None or 1 here: what it contradicts would only confuse.
    if not cells.problems:
        cells.problems.extend(_contradictions(run))
    cells.raise_problems()
    return run


def _contradictions(run: ImportedRun) -> list[str]:
    """Return what no run can do."""
    problems = []
    if run.processes is not None and run.processes > run.workers:
        problems.append(f"{run.processes} processes cannot host {run.workers} workers: one each at least")
    if run.nodes is not None and run.nodes > (run.processes or run.workers):
        problems.append(f"{run.nodes} nodes cannot share {run.processes or run.workers} processes")
    if run.epochs is not None and run.epochs_to_stable is not None and run.epochs_to_stable > run.epochs:
        problems.append(f"epochs_to_stable is {run.epochs_to_stable:g}, after the last of its {run.epochs} epochs")
    if run.epochs is not None and run.epoch_time_s is not None and run.job_time_s is not None:
        training_s = run.epochs * run.epoch_time_s
        if not training_s / LONGER_EPOCHS <= run.job_time_s <= training_s * LONGER_JOB:
            problems.append(
                f"job_time_s is {run.job_time_s:g}, but {run.epochs} epochs of {run.epoch_time_s:g} s take "
                f"{training_s:g} s: give both in seconds (are these minutes, hours or milliseconds?)"
            )
    return problems
