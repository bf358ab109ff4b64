"""The importers, one row each, and the one entrance: any file -> what it is, by its content -> the runs in it.

A new kind of log is a new module with its two functions and a new row in `IMPORTERS`; the list of what can be imported
and the recognition come from the rows. Names lie, headers do not: nothing is recognised by a file's name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from turnaround.errors import InputError
from turnaround.record.importers.curves import METRICS, import_curves, is_curves, read_curves, with_curves
from turnaround.record.importers.epoch_tables import is_timm, is_ultralytics, read_timm, read_ultralytics
from turnaround.record.importers.huggingface import is_huggingface, read_huggingface
from turnaround.record.importers.keras import is_keras, read_keras
from turnaround.record.importers.lightning import is_lightning, read_lightning
from turnaround.record.importers.mllog import is_mllog, read_mllog
from turnaround.record.importers.sheet import SourceFile, as_text, listed
from turnaround.record.importers.table import import_table, is_table
from turnaround.record.importers.tensorboard import is_tensorboard, read_tensorboard
from turnaround.record.importers.trackio import is_trackio, read_trackio
from turnaround.record.importers.values import ImportOptions, Reading, SkippedRow
from turnaround.record.importers.wandb import (
    is_wandb_csv,
    is_wandb_json,
    is_wandb_offline,
    read_wandb_csv,
    read_wandb_json,
    read_wandb_offline,
)
from turnaround.record.layout import RunDirectory

MAX_SHOWN = 10


class RunReader(Protocol):
    """The function of an importer that reads the runs in a source which the importer has recognised."""

    def __call__(self, source: SourceFile, options: ImportOptions, *, is_percent: bool) -> Reading: ...


@dataclass(frozen=True, kw_only=True)
class Importer:
    """What is known about one kind of file or folder."""

    name: str
    """Written into the run directory as its `source_format`: never renamed."""
    reads: str
    """What it reads, in words for the user; empty where another row of the same name says it."""
    recognises: Callable[[SourceFile], bool]
    """Tells by the content whether the source is of this kind; loads no optional package."""
    read: RunReader
    is_csv: bool = False
    """A CSV is recognised by its header, which may stand alone: then there is nothing to read."""


TABLE = Importer(
    name="table",
    reads="a CSV with one row a run: columns name, workers and whatever else is known "
    "(gpu, epoch_time_s, val_accuracy, ...)",
    recognises=is_table,
    read=import_table,
    is_csv=True,
)
CURVES = Importer(
    name="curves",
    reads="a CSV with one row an epoch: columns name, epoch and val_accuracy, train_accuracy, val_loss, train_loss "
    "or time_s",
    recognises=is_curves,
    read=import_curves,
    is_csv=True,
)
# In the order in which the user is told of them. They are tested from the last to the first: a later row is the more
# particular one, and CSV files come last because parsing anything else as a CSV is an error.
IMPORTERS: tuple[Importer, ...] = (
    TABLE,
    CURVES,
    Importer(
        name="keras",
        reads="the file of a Keras CSVLogger: epoch, accuracy, loss, val_accuracy, ...",
        recognises=is_keras,
        read=read_keras,
        is_csv=True,
    ),
    Importer(
        name="lightning",
        reads="the metrics.csv of Lightning's CSVLogger, with hparams.yaml beside it",
        recognises=is_lightning,
        read=read_lightning,
        is_csv=True,
    ),
    Importer(
        name="timm",
        reads="the summary.csv of timm's training script, with args.yaml beside it",
        recognises=is_timm,
        read=read_timm,
        is_csv=True,
    ),
    Importer(
        name="ultralytics",
        reads="the results.csv of an Ultralytics classifier, with args.yaml beside it",
        recognises=is_ultralytics,
        read=read_ultralytics,
        is_csv=True,
    ),
    Importer(
        name="wandb",
        reads="the history of a W&B run, saved as CSV or JSON: _step, _runtime and what was logged",
        recognises=is_wandb_csv,
        read=read_wandb_csv,
        is_csv=True,
    ),
    Importer(
        name="tensorboard",
        reads="a folder of TensorBoard event files (events.out.tfevents...)",
        recognises=is_tensorboard,
        read=read_tensorboard,
    ),
    Importer(name="mllog", reads="an MLPerf log with :::MLLOG lines", recognises=is_mllog, read=read_mllog),
    Importer(
        name="huggingface",
        reads="the trainer_state.json of a Hugging Face Trainer, or the folder it is in",
        recognises=is_huggingface,
        read=read_huggingface,
    ),
    Importer(name="wandb", reads="", recognises=is_wandb_json, read=read_wandb_json),
    Importer(
        name="wandb",
        reads="the folder of a W&B run that was kept offline (wandb/offline-run-...), where wandb is installed",
        recognises=is_wandb_offline,
        read=read_wandb_offline,
    ),
    Importer(
        name="trackio", reads="the database of a trackio project (PROJECT.db)", recognises=is_trackio, read=read_trackio
    ),
)
READABLE = "\n".join(["What can be imported:", *(f"- {importer.reads}" for importer in IMPORTERS if importer.reads)])
# A training program's folder stands for the log in it. The names only say where to look: the content decides.
LOGS_IN_FOLDERS = ("results.csv", "summary.csv", "metrics.csv", "trainer_state.json")
LOGS_BELOW = "checkpoint-*/trainer_state.json"


def read_runs(path: Path, *, curves: Path | None = None, options: ImportOptions, is_percent: bool = False) -> Reading:
    """Read the runs in the file, at least one; InputError with the reasons when there is none."""
    importer, source = recognise(path)
    if importer is not TABLE and curves is not None:
        raise InputError(
            f"--curves adds curves to a table of runs; {path} is none ({importer.name}). Leave --curves out."
        )
    reading = importer.read(source, options, is_percent=is_percent)
    if curves is not None:
        reading = _add_curves(reading, curves, is_percent=is_percent)
    if not reading.runs:
        reasons = "\n".join(f"- {describe(item)}" for item in reading.left_out[:MAX_SHOWN])
        more = len(reading.left_out) - MAX_SHOWN
        reasons += f"\n- and {more:,} more" if more > 0 else ""
        raise InputError(f"Nothing in {path} can be imported:\n{reasons}")
    return reading


def describe(item: SkippedRow) -> str:
    """Name one that was left out, with the reason, in a line."""
    return f"{item.where}{f' ({item.name})' if item.name else ''}: {item.reason}"


def recognise(path: Path) -> tuple[Importer, SourceFile]:
    """Return the importer for the file or folder; InputError lists what can be read and says what was seen."""
    source = _log_of(SourceFile.load(path))
    importer = next((importer for importer in reversed(IMPORTERS) if importer.recognises(source)), None)
    if importer is None:
        _refuse(source)
    if importer.is_csv and not source.sheet.rows:
        raise InputError(f"{path} has a header and no rows: there is nothing to import.")
    return importer, source


def _log_of(source: SourceFile) -> SourceFile:
    """Return the log in a folder of a training program; anything else as it is.

    A log goes before event files beside it: it comes with settings.
    """
    path = source.path
    if source.content is not None or RunDirectory(path).is_run():
        return source
    here = [path / name for name in LOGS_IN_FOLDERS]
    # Of several checkpoints the newest, by its step: its state holds the whole history.
    below = sorted(path.glob(LOGS_BELOW), key=lambda file: (len(file.parent.name), file.parent.name), reverse=True)
    for file in (file for file in (*here, *below) if file.is_file()):
        found = SourceFile.load(file)
        if any(importer.recognises(found) for importer in reversed(IMPORTERS)):
            return found
    return source


def _refuse(source: SourceFile) -> NoReturn:
    """Raise InputError, which says what was seen instead of something that can be imported."""
    path = source.path
    if source.content is not None:
        seen = f"its first line has the columns {listed([column for column in source.columns if column])}"
        if len(source.columns) < 2:
            seen = f"it is no CSV: it begins with {' '.join(as_text(path, source.content[:400]).split())[:60]!r}"
        raise InputError(f"{path} is nothing that can be imported: {seen}.\n{READABLE}")
    if RunDirectory(path).is_run():
        raise InputError(f"{path} is a run directory of turnaround already: it needs no import.")
    try:
        entries = sorted(os.listdir(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    seen = f"there are {listed(entries)} in it" if entries else "it is empty"
    raise InputError(f"{path} is a folder without event files: {seen}.\n{READABLE}")


def _add_curves(table: Reading, path: Path, *, is_percent: bool) -> Reading:
    """Add the curves in the file at `path` to the runs of a table."""
    importer, source = recognise(path)
    if importer is not CURVES:
        raise InputError(
            f"{path} holds no curves for a table ({importer.name}). It needs the columns name, epoch and at least one "
            f"of {', '.join(METRICS)}."
        )
    return with_curves(table, read_curves(source.sheet, is_percent=is_percent), source.sheet.source)
