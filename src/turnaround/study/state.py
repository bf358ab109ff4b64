"""The state of a study: read from its run directories every time, never remembered.

STUDY/study.json           what was asked for; the same command goes on with it; and the runs that were planned
STUDY/NAME/                a run, one for each PlannedRun
STUDY/NAME.log             what the run's command printed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from turnaround.errors import InputError, RunDirectoryError
from turnaround.record import places
from turnaround.record.files import folder_below, read_json
from turnaround.record.growing import JsonFile
from turnaround.record.layout import RunDirectory, StudyDirectory
from turnaround.record.lock import is_held
from turnaround.record.reader import Run
from turnaround.record.writer import write_json
from turnaround.study.plan import PlannedRun

Standing = Literal["missing", "queued", "starting", "running", "finished", "diverged", "failed", "interrupted"]
MAX_WATCHED_BYTES = 2**22
"""The largest study.json that is read, every second: 50 bytes for each of 80,000 planned runs."""
DONE: frozenset[Standing] = frozenset({"finished", "diverged"})
"""A run that diverged is a result: the same settings would diverge again."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """One planned run and how far it is."""

    planned: PlannedRun
    directory: Path
    standing: Standing
    cause: str | None = None
    epochs_done: int = 0
    epochs: int | None = None
    val_accuracy: float | None = None
    program_s: float | None = None
    """Time that its program took so far, over all starts."""

    @property
    def is_done(self) -> bool:
        return self.standing in DONE

    @property
    def is_alive(self) -> bool:
        """True while it starts or runs, or waits in the queue of a cluster."""
        return self.standing in ("queued", "starting", "running")


def state_of(planned: PlannedRun, folder: Path) -> RunState:
    """Return the state of a planned run from its own files; `running` when a live process holds it."""
    path = folder / planned.name
    directory = RunDirectory(path)
    if not directory.is_run():
        return _unborn(planned, directory)
    try:
        run = Run.load(path)
        status, epochs = run.status, run.epochs
        planned_epochs = run.recipe.get("training", {}).get("epochs")
    except RunDirectoryError as error:
        if not directory.status.exists() and is_held(directory.lock):  # somebody else's program, in its first moments
            return RunState(planned=planned, directory=path, standing="starting")
        return RunState(planned=planned, directory=path, standing="failed", cause=str(error))
    standing: Standing
    match status.state:
        case "queued" | "running":  # without a live process it was killed
            standing = "running" if is_held(directory.lock) else "interrupted"
        case other:
            standing = other
    return RunState(
        planned=planned,
        directory=path,
        standing=standing,
        cause=status.cause,
        epochs_done=len(epochs),
        epochs=status.epochs_planned or (planned_epochs if isinstance(planned_epochs, int) else None),
        val_accuracy=run.final,
        program_s=status.time_s.get("program"),
    )


def _unborn(planned: PlannedRun, directory: RunDirectory) -> RunState:
    """No run yet: nothing at all, or a job of a cluster that has not come to it, or never will."""
    try:
        status = Run(directory).status
    except RunDirectoryError:
        status = None
    if status is None or status.job is None:
        # The lock comes first, the recipe when the images are decoded.
        born: Standing = "starting" if is_held(directory.lock) else "missing"
        return RunState(planned=planned, directory=directory.path, standing=born)
    standing: Standing = "running" if status.job.starts and status.state == "queued" else status.state
    return RunState(planned=planned, directory=directory.path, standing=standing, cause=status.cause)


def log_of(planned: PlannedRun, folder: Path) -> Path:
    """Return the file for what its command prints."""
    return StudyDirectory(folder).log(planned.name)


def agree_with_before(folder: Path, asked: dict[str, Any], planned: Sequence[PlannedRun] = ()) -> None:
    """A study goes on with the recipe it began with; other configurations may join it."""
    file, before, told = StudyDirectory(folder).study, {}, places.without_folders(asked)
    if file.exists():
        before = read_json(file)
        for what, value in asked.items():
            if before.get(what) not in (value, told[what]):
                raise InputError(
                    f"{str(folder)!r} holds a study with another {what}: {before.get(what)!r} then, {value!r} now. Its "
                    "runs could not be compared; choose another --out."
                )
    folder.mkdir(parents=True, exist_ok=True)
    names = {run.name: run.label for run in planned}
    write_json(file, {**told, "planned": {**_planned_before(before), **names}})


class PlanFollower:
    """The plan of a study that somebody watches: read again only when its file has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = JsonFile(StudyDirectory(folder).study.name, max_bytes=MAX_WATCHED_BYTES)

    def to_come(self) -> list[str]:
        """Return the labels of the runs that were planned and have not begun; none where there is no study."""
        try:
            with folder_below(self.folder, ()) as folder:
                self._file.look(folder)
        except OSError:
            return []
        study = self._file.content
        planned = _planned_before(study) if isinstance(study, dict) else {}
        return [label for name, label in planned.items() if not RunDirectory(self.folder / name).status.exists()]


def _planned_before(study: dict[str, Any]) -> dict[str, str]:
    """Whatever the file holds: names of folders, and what people call them."""
    found = study.get("planned")
    items = found.items() if isinstance(found, dict) else ()
    return {name: label for name, label in items if isinstance(label, str) and Path(name).name == name}
