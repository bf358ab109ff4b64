"""The contract of a viewer, and a thread that follows a run directory for it as the directory grows.

Enters: the names of viewers. Leaves: calls to each of them, from one thread. An epoch leaves as named numbers, a
recipe as named settings.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from turnaround.errors import InputError, MissingPartError, RunDirectoryError, one_of
from turnaround.record.files import folder_below
from turnaround.record.growing import LinesFile
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run, in_order, read_epoch
from turnaround.record.schema import METRICS, EpochRecord

LOOK_EVERY_S = 1.0
MAX_END_S = 20.0
"""The end of a run waits at most so long for a server."""
SECTIONS = ("name", "data", "model", "training", "augment", "workers", "images")
MAX_SETTING_LETTERS = 250  # the limit of MLflow 1 for the value of a parameter


class Viewer(Protocol):
    """The contract of a viewer; anything it raises ends it, and nothing else."""

    def begin(self, run: Run) -> set[int]: ...  # the epochs of this run that it has already
    def epoch(self, record: EpochRecord) -> None: ...
    def end(self, run: Run) -> None: ...


def scalars_of(record: EpochRecord) -> dict[str, float]:
    """Return the metrics of an epoch that were measured, by name."""
    values = {name: getattr(record, name) for name in METRICS}
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def settings_of(recipe: dict[str, Any]) -> dict[str, str]:
    """Flatten a recipe: training.learning_rate = 0.1. Lists and what is not set are left out."""
    found: dict[str, str] = {}
    for section in SECTIONS:
        content = recipe.get(section)
        for key, value in content.items() if isinstance(content, dict) else [("", content)]:
            if isinstance(value, str | int | float | bool):
                found[f"{section}.{key}".rstrip(".")] = str(value)[:MAX_SETTING_LETTERS]
    return found


def _tensorboard() -> Viewer:
    from turnaround.record.viewers.tensorboard import TensorBoard

    return TensorBoard()


def _mlflow() -> Viewer:
    from turnaround.record.viewers.mlflow import MLflow

    return MLflow()


def _wandb() -> Viewer:
    from turnaround.record.viewers.trackers import WandB

    return WandB()


def _trackio() -> Viewer:
    from turnaround.record.viewers.trackers import Trackio

    return Trackio()


# One row for each viewer: its name, which is that of its package, and what makes it. Imported when it is asked for.
VIEWERS: dict[str, Callable[[], Viewer]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
    "trackio": _trackio,
}


def chosen(said: Sequence[str]) -> tuple[str, ...]:
    """Return the viewers of `--log`, with commas or repeated; an error for one that is unknown or not installed."""
    names = tuple(dict.fromkeys(name.strip() for word in said for name in word.split(",") if name.strip()))
    if said and not names:
        raise InputError(f"--log names no viewer. Valid: {', '.join(VIEWERS)}.")
    for name in names:
        if name not in VIEWERS:
            raise InputError(one_of("viewer for --log", name, tuple(VIEWERS)))
        if find_spec(name) is None:
            raise MissingPartError(
                f"--log {name} needs {name}, which is not installed: pip install 'turnaround[{name}]', or leave it out."
            )
    return names


@contextmanager
def followed(path: Path, names: Sequence[str], *, tell: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """While the body makes the run at `path`, its epochs go to the viewers; `tell` hears of each that fails, once.

    Forwarding starts when the yielded callable is called: before that the directory may be another's, and ours refused.
    """
    if not names:
        yield lambda: None
        return
    follower = ViewerFeed(RunDirectory(path), names, tell=tell)
    thread = threading.Thread(target=follower.run, name="viewers", daemon=True)
    thread.start()
    try:
        yield follower.is_ours.set
    finally:
        follower.ended.set()
        thread.join(MAX_END_S)
        if thread.is_alive():
            tell(f"{' and '.join(follower.viewers)} did not take the last epochs within {MAX_END_S:.0f} s.")


class ViewerFeed:
    """Looks at the epochs once a second, and hands the new ones to each viewer."""

    def __init__(self, directory: RunDirectory, names: Sequence[str], *, tell: Callable[[str], None]) -> None:
        self.directory, self.tell = directory, tell
        self.is_ours, self.ended = threading.Event(), threading.Event()
        self.viewers: dict[str, Viewer] = {}
        self._names = names
        self._has_begun = False
        self._epochs = LinesFile(directory.epochs.name, read_epoch)
        self._handed_on = 0
        """The revision of the epochs that every viewer has heard of."""
        self._sent: dict[str, set[tuple[int, int]]] = {name: set() for name in names}
        """By viewer: segment and epoch."""

    def run(self) -> None:
        for name in self._names:
            self._try(name, partial(self._make, name))
        is_last = False
        while not is_last and self.viewers:
            is_last = self.ended.wait(LOOK_EVERY_S)
            self.look()
        if self._has_begun:
            run = Run(self.directory)
            for name, viewer in list(self.viewers.items()):
                self._try(name, partial(viewer.end, run))

    def look(self) -> None:
        """Hand on what is new. Of an epoch that was repeated after a restart both are shown, as they were."""
        if not self.is_ours.is_set():
            return
        if not self._has_begun and self.directory.is_run():
            self._has_begun = True
            for name, viewer in list(self.viewers.items()):
                self._try(name, partial(self._begin, name, viewer))
        try:
            with folder_below(self.directory.path, ()) as folder:
                self._epochs.look(folder)
        except OSError:
            return
        is_new = self._epochs.revision != self._handed_on
        if not is_new or not self._has_begun or self._epochs.failure is not None:  # unreadable: the report says so
            return
        self._handed_on = self._epochs.revision
        for record in in_order(self._epochs.records):
            for name, viewer in list(self.viewers.items()):
                if (key := (record.segment, record.epoch)) not in self._sent[name]:
                    # Before the call: a viewer that fails halfway must not get the epoch twice.
                    self._sent[name].add(key)
                    self._try(name, partial(viewer.epoch, record))

    def _begin(self, name: str, viewer: Viewer) -> None:
        """Begin a viewer; for a resumed run it hears what it missed, and what is done again, as after a restart."""
        run = Run(self.directory)
        known = viewer.begin(run)
        with suppress(RunDirectoryError):  # there are no epochs yet
            self._sent[name] |= {(r.segment, r.epoch) for r in run.epochs if r.epoch in known}

    def _make(self, name: str) -> None:
        self.viewers[name] = VIEWERS[name]()

    def _try(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            # A viewer that has failed is not tried again: a server that is down would cost its timeout at every epoch.
            self.viewers.pop(name, None)
            reason = str(error).strip().splitlines()
            said = f"{type(error).__name__}: {reason[0][:300] if reason else ''}"
            self.tell(f"{name} is left out, the training goes on: {said}")
