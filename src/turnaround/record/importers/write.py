"""Imported runs to run directories. All are made under a temporary name and then renamed: all appear, or none."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnaround.errors import RunDirectoryError
from turnaround.record.files import remove_folder, storage_error
from turnaround.record.importers.values import ImportedRun
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import Imported, Status, TimePart, to_json
from turnaround.record.writer import write_json, write_lines

MAX_SYNCED_RUNS = 20
"""Runs whose files are synced one by one; of more, the disk is synced once, before any of them gets its name."""


def write_runs(runs: Sequence[ImportedRun], out: Path) -> list[Path]:
    """out/NAME for each run; an existing one is never touched."""
    targets = [out / run.name for run in runs]
    _refuse_if_taken(targets, out)
    is_new = not out.exists()
    # Hidden, and with the ending of a leftover: nobody takes it for a run.
    workshop = out / f".import.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    done: list[Path] = []
    try:
        workshop.mkdir(parents=True)
        for run in runs:
            write_run(run, workshop / run.name, is_synced=len(runs) <= MAX_SYNCED_RUNS)
        if len(runs) > MAX_SYNCED_RUNS:
            os.sync()
        for target in targets:
            _refuse_if_taken([target], out)  # a rename would replace an empty folder that came meanwhile
            os.rename(workshop / target.name, target)
            done.append(target)
    except BaseException as error:
        for target in done:
            remove_folder(target)
        remove_folder(workshop)
        if is_new:
            with suppress(OSError):  # not empty: another import has put its runs there meanwhile
                out.rmdir()
        if isinstance(error, (OSError, ValueError)):
            raise storage_error("import into", out, error) from error
        raise
    workshop.rmdir()
    return targets


def _refuse_if_taken(targets: list[Path], out: Path) -> None:
    taken = [target for target in targets if os.path.lexists(target)]
    if taken:
        them = (
            f"{taken[0]} already exists" if len(taken) == 1 else f"{taken[0]} and {len(taken) - 1:,} more already exist"
        )
        raise RunDirectoryError(f"{them}. Choose another --out, or remove what is there.")
    if os.path.lexists(out) and not out.is_dir():
        raise RunDirectoryError(f"{out} is a file, not a folder. Choose another --out.")
    inside = next((path for path in (out, *out.absolute().parents) if RunDirectory(path).is_run()), None)
    if inside is not None:
        raise RunDirectoryError(f"{inside} is a run itself; runs are not found inside a run. Choose another --out.")


def write_run(run: ImportedRun, path: Path, *, is_synced: bool = True) -> None:
    """Write one run directory, in a folder that does not exist yet."""
    path.mkdir()
    directory = RunDirectory(path)
    write_json(directory.machine, machine_of(run), is_synced=is_synced)
    write_json(directory.status, to_json(_status(run)), is_synced=is_synced)
    write_json(directory.imported, to_json(_imported(run)), is_synced=is_synced)
    if run.curve:
        write_lines(directory.epochs, (to_json(record) for record in run.curve), is_synced=is_synced)
    write_json(directory.recipe, recipe_of(run), is_synced=is_synced)  # the last: it makes the folder a run


def recipe_of(run: ImportedRun) -> dict[str, Any]:
    """Return what was trained, in the shape of a recipe, with null for what is not known."""
    return {
        "name": run.name,
        "data": {"source": run.dataset},
        "model": {"name": run.network, "fine_tune": run.fine_tune},
        "training": {
            "epochs": run.epochs,
            "batch_per_worker": run.batch_per_worker,
            "batch_total": run.batch_total,
            **({} if run.seed is None else {"seed": run.seed}),
        },
        "augment": {} if run.augment is None else {"given": run.augment},
        "workers": {"count": run.workers},
        "images": {"num_train": run.images_per_epoch, "num_validation": run.num_validation},
    }


def machine_of(run: ImportedRun) -> dict[str, Any]:
    """Return what it ran on; a device that is not known is null."""
    is_cpu = run.gpu is not None and run.gpu.casefold() == "cpu"
    processes = run.processes or run.workers
    has_gpus = run.gpu is not None and not is_cpu
    return {
        "workers": run.workers,
        "processes": processes,
        "hosts": run.nodes,
        "device": "cpu" if is_cpu else "cuda" if has_gpus else None,
        "gpus": [{"name": run.gpu, "index": index} for index in range(processes)] if has_gpus else [],
        "launch": "imported",
        "engine": run.engine,
        **({} if run.precision is None else {"choices": {"precision": {"value": run.precision, "reason": "imported"}}}),
    }


def _status(run: ImportedRun) -> Status:
    known: dict[TimePart, float | None] = {"start_up": run.start_up_s, "program": run.job_time_s}
    return Status(
        state=run.state,
        cause=run.cause,
        epochs_done=run.epochs or len(run.curve),
        time_s={part: time_s for part, time_s in known.items() if time_s is not None},
    )


def _imported(run: ImportedRun) -> Imported:
    return Imported(
        source=run.source,
        format=run.format,
        epochs=run.epochs,
        job_time_s=run.job_time_s,
        epoch_time_s=run.epoch_time_s,
        images_per_s=run.images_per_s,
        epochs_to_stable=run.epochs_to_stable,
        train_accuracy=run.train_accuracy,
        val_accuracy=run.val_accuracy,
        missing=run.missing(),
    )
