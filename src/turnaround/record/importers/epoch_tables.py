"""The tables of two training programs, one row an epoch, with the settings beside them in args.yaml.

Ultralytics writes results.csv, timm's training script summary.csv. Both know their own columns, so nothing has to be
guessed: timm's accuracies are percent, the times of Ultralytics go on from the start of the training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from turnaround.errors import InputError
from turnaround.record.importers.cells import AccuracyScale, CellError, Cells
from turnaround.record.importers.curves import CurvePoint, add_point, check_accuracies, in_order, read_point
from turnaround.record.importers.history import RunFacts, facts_in, settings_beside, with_facts
from turnaround.record.importers.sheet import SourceFile, listed
from turnaround.record.importers.values import (
    ImportedRun,
    ImportOptions,
    Reading,
    SkippedRow,
    assumed_workers,
    given_name,
)

SETTINGS = "args.yaml"


@dataclass(frozen=True, kw_only=True)
class EpochTable:
    """What one program calls its columns."""

    format: str
    metrics: dict[str, str]
    """Our names to the file's."""
    rate: str
    clock: str = ""
    """Seconds since the start of the training, where the table has them."""
    is_percent: bool = False
    facts: Callable[[dict[str, Any]], RunFacts]


def _ultralytics_facts(settings: dict[str, Any]) -> RunFacts:
    """`batch` is that of all GPUs together, and `workers` are processes that load images: not what we call so."""
    device = settings.get("device")
    devices = device if isinstance(device, list) else [part for part in str(device or "").split(",") if part.strip()]
    # An empty device is the first GPU, or the CPU where there is none: it says nothing.
    workers = max(1, len(devices)) if device is not None else None
    batch = settings.get("batch")
    total = (
        batch if isinstance(batch, int) and not isinstance(batch, bool) and batch > 0 else None
    )  # -1: found by itself
    is_shared = total is not None and workers is not None and total % workers == 0
    network = settings.get("model")
    return replace(
        facts_in({"data": settings.get("data"), "seed": settings.get("seed")}),
        workers=workers,
        network=Path(network).stem if isinstance(network, str) and network else None,
        batch_per_worker=total // workers if total is not None and workers is not None and is_shared else None,
        batch_total=total,
        gpu="cpu" if device == "cpu" else None,
    )


def _timm_facts(settings: dict[str, Any]) -> RunFacts:
    """`batch_size` is that of one process; how many there were is the launcher's secret."""
    # `dataset` is empty for a plain folder, whose path is `data_dir` (or `data`).
    told = {name: value for name, value in settings.items() if name != "dataset" or value}
    dtype = str(settings.get("amp_dtype", "float16"))
    precision = {"float16": "fp16", "bfloat16": "bf16"}.get(dtype) if settings.get("amp") is True else None
    return replace(facts_in(told), precision=precision)


ULTRALYTICS = EpochTable(
    format="ultralytics",
    metrics={"val_accuracy": "metrics/accuracy_top1", "train_loss": "train/loss", "val_loss": "val/loss"},
    rate="lr/pg0",
    clock="time",
    facts=_ultralytics_facts,
)
TIMM = EpochTable(
    format="timm",
    metrics={"val_accuracy": "eval_top1", "train_loss": "train_loss", "val_loss": "eval_loss"},
    rate="lr",
    is_percent=True,
    facts=_timm_facts,
)


def is_ultralytics(source: SourceFile) -> bool:
    """Tell whether the CSV has epochs, and metrics and rates as Ultralytics names them, of whatever task."""
    columns = source.columns
    return "epoch" in columns and "lr/pg0" in columns and any(name.startswith("metrics/") for name in columns)


def is_timm(source: SourceFile) -> bool:
    """Tell whether the CSV is a summary of timm's training script."""
    return {"epoch", "train_loss", "eval_top1"} <= {*source.columns}


def read_ultralytics(source: SourceFile, options: ImportOptions, *, is_percent: bool = False) -> Reading:
    """Read the run in a results.csv; a run of another task than classification has no accuracy and is refused."""
    if ULTRALYTICS.metrics["val_accuracy"] not in source.columns:
        seen = [name for name in source.columns if name.startswith("metrics/")]
        task = settings_beside(source.path, SETTINGS).get("task")
        raise InputError(
            f"{source.path} is a run of Ultralytics{f' of the task {task!r}' if isinstance(task, str) else ''}, not of "
            f"classification: it has {listed(seen)} and no metrics/accuracy_top1. Only image classifiers are imported."
        )
    return _read(source, options, ULTRALYTICS, is_percent=is_percent)


def read_timm(source: SourceFile, options: ImportOptions, *, is_percent: bool = False) -> Reading:
    """Read the run in a summary.csv. Its accuracies are percent, whether --percent says so or not."""
    return _read(source, options, TIMM, is_percent=is_percent)


def _read(source: SourceFile, options: ImportOptions, table: EpochTable, *, is_percent: bool) -> Reading:
    sheet = source.sheet
    columns = {ours: theirs for ours, theirs in table.metrics.items() if theirs in sheet.columns}
    shares = AccuracyScale(is_percent=is_percent or table.is_percent, is_curve=True)
    if not table.is_percent:  # what a program always writes as percent needs no guess, even where all is below 1
        check_accuracies(sheet, columns, shares)
    # The folder's name says more than "results" and "summary".
    name = given_name(options, sheet.path.resolve().parent)
    points: dict[int, CurvePoint] = {}
    clocks_s: dict[int, float] = {}
    left_out = []
    for row in sheet.rows:
        cells = Cells(row, sheet.has_decimal_commas).expect_whole()
        try:
            rate, clock_s = cells.number(table.rate), cells.number(table.clock)
            point = read_point(row, cells, columns, shares)
            add_point(replace(point, learning_rate=math.nan if rate is None else rate), points)
            clocks_s[point.epoch] = math.nan if clock_s is None else clock_s
        except CellError as error:
            left_out.append(SkippedRow(where=row.where, name=name[:60], reason=str(error)))
    settings = settings_beside(sheet.path, SETTINGS)
    facts = table.facts(settings)
    workers, notes = assumed_workers(options, facts.workers)
    if not settings:
        notes.append(f"There is no {SETTINGS} beside {sheet.source}: network, data and batch are not known.")
    if not points:
        return Reading(runs=(), left_out=tuple(left_out), notes=tuple(notes))
    timed = [replace(points[epoch], time_s=time_s) for epoch, time_s in _times(clocks_s).items()]
    ordered, _ = in_order(timed)  # timm counts from 0: nothing to say about that
    run = ImportedRun(name=name, source=sheet.source, format=table.format, workers=workers)
    return Reading(runs=(with_facts(run, ordered, facts, options),), left_out=tuple(left_out), notes=tuple(notes))


def _times(clocks_s: dict[int, float]) -> dict[int, float]:
    """Return seconds by epoch from a clock that starts with the training; a resumed one starts again from 0."""
    epochs = sorted(clocks_s)
    found = {epochs[0]: clocks_s[epochs[0]] if epochs[0] <= 1 else math.nan}
    for before, epoch in pairwise(epochs):
        passed_s = clocks_s[epoch] - clocks_s[before]
        found[epoch] = passed_s if passed_s > 0 and epoch == before + 1 else math.nan
    return found
