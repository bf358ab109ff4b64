"""The trainer_state.json that the Trainer of Hugging Face writes beside each checkpoint: one run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from turnaround.errors import InputError
from turnaround.record.importers.cells import AccuracyScale, CellError
from turnaround.record.importers.history import HistoryRow, RunFacts, history_run, numbers_in, parsed_json
from turnaround.record.importers.sheet import SourceFile
from turnaround.record.importers.values import (
    ImportedRun,
    ImportOptions,
    Reading,
    SkippedRow,
    assumed_workers,
    given_name,
)

HISTORY = "log_history"
TOTAL_TIME = "train_runtime"  # in the last entry, which sums up the training


def is_huggingface(source: SourceFile) -> bool:
    """Tell whether the file is a JSON object with a log_history; a file that was cut off is still recognised."""
    content = source.content or b""
    return content.lstrip()[:1] == b"{" and f'"{HISTORY}"'.encode() in content


def read_huggingface(source: SourceFile, options: ImportOptions, *, is_percent: bool = False) -> Reading:
    """Read the run of one Trainer."""
    state = parsed_json(source)
    history = state.get(HISTORY) if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise InputError(f"{source.path}: its {HISTORY} is no list. Is it a trainer_state.json?")
    entries = [entry for entry in history if isinstance(entry, dict)]
    logged = [numbers_in(entry) for entry in entries]
    total = next((entry for entry in reversed(logged) if TOTAL_TIME in entry), {})
    # The sum at the end has a train_loss of its own: the mean over all epochs, which is no point of the curve.
    rows = [_row(number, entry) for number, entry in enumerate(logged, start=1) if TOTAL_TIME not in entry]
    # checkpoint-500/trainer_state.json: the name of the training is that of the folder above.
    folder = source.path.resolve().parent
    folder = folder.parent if folder.name.startswith("checkpoint-") else folder
    name = given_name(options, folder)
    workers, notes = assumed_workers(options)
    run = ImportedRun(name=name, source=source.path.name, format="huggingface", workers=workers)
    batch = state.get("train_batch_size")
    facts = RunFacts(batch_per_worker=batch if isinstance(batch, int) and batch > 0 else None)
    try:
        run, said = history_run(
            rows, facts, run=run, options=options, shares=AccuracyScale(is_percent=is_percent, is_curve=True)
        )
    except CellError as error:
        return Reading(runs=(), left_out=(SkippedRow(where=HISTORY, name=name[:60], reason=str(error)),))
    planned = state.get("num_train_epochs")
    is_whole = not isinstance(planned, int) or (run.epochs or 0) >= planned
    if not total and not is_whole:
        run = replace(
            run, state="interrupted", cause="The log has no sum at the end: it was still running, or ended early."
        )
    return Reading(runs=(_with_total(run, total, options),), notes=(*notes, *(f"{name}: {text}" for text in said)))


def _row(number: int, logged: dict[str, float]) -> HistoryRow:
    epoch = logged.pop("epoch", None)
    return HistoryRow(line=number, values=logged, epoch=epoch if epoch is not None and epoch >= 0 else None)


def _with_total(run: ImportedRun, total: dict[str, float], options: ImportOptions) -> ImportedRun:
    """Return the run with the times of its last entry: of the whole, an epoch as its share, and so the images.

    The Trainer rounds its images a second to three digits: they give the number of images where that is enough.
    """
    time_s, epochs = total.get(TOTAL_TIME, math.nan), total.get("epoch", math.nan)
    if not (time_s > 0 and epochs >= 1):
        return run
    images = total.get("train_samples_per_second", math.nan) * time_s / epochs
    is_exact = 0.0005 * time_s / epochs < 0.25 and images >= 1
    images_per_epoch = run.images_per_epoch or (round(images) if is_exact else None)
    known: dict[str, Any] = {"job_time_s": time_s, "epoch_time_s": time_s / epochs}
    return replace(run, images_per_epoch=options.images_per_epoch or images_per_epoch, **known)
