"""Do the files of a run belong together, and is one of them gone? Enters: a run. Leaves: what is wrong, by file.

Checksums find what has changed; a file or a line that is gone, or that of another run, has a right one. What must be
there follows from status.json. Said of runs of `turnaround train` alone, from the version on that wrote checksums:
earlier ones, imported runs and those of other programs promise less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from turnaround.errors import RunDirectoryError, StorageError
from turnaround.record.coding import CRC, own_digest, parse_object
from turnaround.record.files import kind_of, read_bytes, read_json_or_nothing
from turnaround.record.growing import read_lines
from turnaround.record.layout import CheckpointName, RunDirectory
from turnaround.record.reader import read_epoch, status_of
from turnaround.record.recipe_changes import CHANGES, refuse_changes
from turnaround.record.schema import EpochRecord, Status

RESTING = ("finished", "interrupted", "failed", "diverged")


class Discrepancy(NamedTuple):
    """A file that is gone, incomplete, or that of another run."""

    path: Path
    reason: Literal["missing", "epochs", "other_run"]
    detail: str


def discrepancies_of(directory: RunDirectory) -> Iterator[Discrepancy]:
    """Yield what is gone and what does not belong here; nothing where the run does not promise it."""
    recipe = _recipe(directory)
    if recipe is None:
        return
    # Before the lines: a run that is under way writes an epoch's line first, and counts it then.
    status = status_of(directory)
    if status is None:
        if kind_of(directory.status) is None:
            yield Discrepancy(directory.status, "missing", "every run has one")
        return
    has_trained = status.epochs_done > 0 or status.first_step_at is not None
    if has_trained and kind_of(directory.machine) is None:
        yield Discrepancy(directory.machine, "missing", "the training has begun")
    if status.state == "finished" and kind_of(directory.evaluation) is None:
        yield Discrepancy(directory.evaluation, "missing", "the training has finished")
    yield from _epochs(directory, status)
    yield from _checkpoints(directory, status, recipe)


def _recipe(directory: RunDirectory) -> dict[str, Any] | None:
    """Return the recipe of a run that is held to all of this."""
    try:
        recipe = parse_object(read_bytes(directory.recipe))
    except (ValueError, RunDirectoryError):
        return None
    is_ours = not any(key in recipe for key in ("recorded_by", "program")) and kind_of(directory.imported) is None
    return recipe if is_ours and CRC in recipe else None


def _epochs(directory: RunDirectory, status: Status) -> Iterator[Discrepancy]:
    if kind_of(directory.epochs) is None:
        if status.epochs_done > 0:
            yield Discrepancy(directory.epochs, "missing", f"{status.epochs_done} epochs were done")
        return
    try:
        found = read_lines(directory.epochs, read_epoch)
    except (OSError, RunDirectoryError, StorageError):
        return  # said of the file itself
    if found.bad_lines:
        return
    records: list[EpochRecord] = list(found.records)
    # A resume cuts the lines back to its checkpoint, so no epoch stands there twice, in any number of starts.
    wrong = next((place for place, record in enumerate(records, 1) if record.epoch != place), None)
    if wrong is not None:
        yield Discrepancy(directory.epochs, "epochs", f"line {wrong} is of epoch {records[wrong - 1].epoch}")
    elif len(records) < status.epochs_done:
        yield Discrepancy(
            directory.epochs, "epochs", f"{len(records)} lines, and {status.epochs_done} epochs were done"
        )
    elif status.state in RESTING and (best := status.best) is not None and 0 < best.epoch <= len(records):
        measured = records[best.epoch - 1].val_accuracy
        # What was not a number there is none here: nothing to compare.
        if measured != best.val_accuracy and not math.isnan(measured) and not math.isnan(best.val_accuracy):
            detail = f"epoch {best.epoch} has accuracy {measured:.6g} there, and {best.val_accuracy:.6g} in the status"
            yield Discrepancy(directory.epochs, "other_run", detail)


def _checkpoints(directory: RunDirectory, status: Status, recipe: dict[str, Any]) -> Iterator[Discrepancy]:
    try:
        checkpoints = directory.checkpoints()
    except StorageError:
        return
    newest = max((files.name for files in checkpoints if files.name is not None), default=None)
    if status.epochs_done > 0 and (newest is None or newest < CheckpointName(status.epochs_done)):
        expected = CheckpointName(status.epochs_done)
        yield Discrepancy(directory.checkpoint / str(expected), "missing", "this checkpoint, or a later one, was saved")
    manifests = {}
    for files in checkpoints:
        manifest = read_json_or_nothing(files.manifest, directory.path)
        if isinstance(manifest.get("recipe"), dict) and manifest.get("digest") == own_digest(manifest):
            manifests[files.manifest] = _difference(manifest["recipe"], recipe, directory.path)
    others = {path: text for path, text in manifests.items() if text is not None}
    if others and len(others) == len(manifests):  # then it is the recipe that does not belong here
        yield Discrepancy(directory.recipe, "other_run", next(iter(others.values())))
        return
    for path, text in others.items():
        yield Discrepancy(path, "other_run", text)


def _difference(saved: dict[str, Any], recipe: dict[str, Any], run: Path) -> str | None:
    """Return the keys of the recipe that the checkpoint was not trained with, in words."""
    changes = recipe.get(CHANGES)
    try:
        refuse_changes(saved, recipe, run, changes=changes if isinstance(changes, list) else [])
    except RunDirectoryError as error:
        return str(error).partition("the run began: ")[2].partition(". Put it back")[0][:200]
    except (KeyError, TypeError, ValueError):
        return None  # no whole recipe: whoever reads it says so
    return None
