"""The metrics.csv of Lightning's CSVLogger: one run, several rows an epoch, names of the user's choice."""

from __future__ import annotations

from turnaround.record.importers.cells import AccuracyScale, CellError, Cells
from turnaround.record.importers.history import HistoryRow, facts_in, history_run, is_read, settings_beside
from turnaround.record.importers.sheet import Sheet, SheetRow, SourceFile
from turnaround.record.importers.values import (
    MAX_EPOCHS,
    ImportedRun,
    ImportOptions,
    Reading,
    SkippedRow,
    assumed_workers,
    given_name,
)

COUNTERS = ("epoch", "step")
SETTINGS = "hparams.yaml"


def is_lightning(source: SourceFile) -> bool:
    """Tell whether the CSV has an epoch and a step in each row, and an accuracy or a loss; no names of runs."""
    columns = source.columns
    has_metric = any(is_read(name) for name in columns)
    return {*COUNTERS} <= {*columns} and "name" not in columns and has_metric


def read_lightning(source: SourceFile, options: ImportOptions, *, is_percent: bool = False) -> Reading:
    """Read the run in the log; hparams.yaml beside it tells what `save_hyperparameters` kept."""
    sheet = source.sheet
    # CSVLogger's folders are NAME/version_0: the version alone would be the name of every run.
    folder = sheet.path.resolve().parent
    is_version = folder.name.startswith("version_") and bool(folder.parent.name)
    name = given_name(options, folder.parent / f"{folder.parent.name}-{folder.name}" if is_version else folder)
    rows: list[HistoryRow] = []
    left_out = []
    for row in sheet.rows:
        try:
            rows.append(_row(sheet, row))
        except CellError as error:
            left_out.append(SkippedRow(where=row.where, name=name[:60], reason=str(error)))
    facts = facts_in(settings_beside(sheet.path, SETTINGS))
    workers, notes = assumed_workers(options, facts.workers)
    run = ImportedRun(name=name, source=sheet.source, format="lightning", workers=workers)
    shares = AccuracyScale(is_percent=is_percent, is_curve=True)
    try:
        run, said = history_run(rows, facts, run=run, options=options, shares=shares)
    except CellError as error:
        left_out.append(SkippedRow(where=sheet.source, name=name[:60], reason=str(error)))
        return Reading(runs=(), left_out=tuple(left_out), notes=tuple(notes))
    notes += [f"{name}: {text}" for text in said]
    return Reading(runs=(run,), left_out=tuple(left_out), notes=tuple(notes))


def _row(sheet: Sheet, row: SheetRow) -> HistoryRow:
    """Return the row's numbers; its learning rate's row has no epoch of its own."""
    cells = Cells(row, sheet.has_decimal_commas).expect_whole()
    epoch = cells.count("epoch", low=0, high=MAX_EPOCHS)
    values = {name: cells.number(name) for name in sheet.columns if is_read(name)}
    cells.raise_problems()
    return HistoryRow(
        line=row.line, epoch=epoch, values={name: value for name, value in values.items() if value is not None}
    )
