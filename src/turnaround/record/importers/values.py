"""Values that readers of foreign files hand to the writer of run directories."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path

from turnaround.errors import InputError
from turnaround.record.layout import safe_name
from turnaround.record.schema import EpochRecord, State

# Beyond it a number is a slip, or a batch in the wrong column.
MAX_WORKERS = 65_536
MAX_EPOCHS = 100_000  # as many as a recipe may have; a curve's epoch number beyond it is a slip


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """A run as its source tells it. None is "it does not say"; what decides nothing may stay unknown."""

    name: str
    source: str
    """The file's name, without folders."""
    format: str
    """The name of the importer that read it, as a row of `read.IMPORTERS` has it."""
    workers: int
    where: str = ""
    """Where in the source it stands, for messages: "line 3"."""
    dataset: str | None = None
    network: str | None = None
    precision: str | None = None
    gpu: str | None = None
    processes: int | None = None
    """As many as workers, unless the source says otherwise."""
    nodes: int | None = None
    batch_per_worker: int | None = None
    batch_total: int | None = None
    """The global batch, where the source has that and it is no multiple of the workers."""
    images_per_epoch: int | None = None
    num_validation: int | None = None
    epochs: int | None = None
    fine_tune: bool | None = None
    augment: bool | None = None
    seed: int | None = None
    engine: str | None = None
    job_time_s: float | None = None
    start_up_s: float | None = None
    epoch_time_s: float | None = None
    images_per_s: float | None = None
    epochs_to_stable: float | None = None
    train_accuracy: float | None = None
    val_accuracy: float | None = None
    state: State = "finished"
    cause: str | None = None
    curve: tuple[EpochRecord, ...] = ()

    def missing(self) -> list[str]:
        """Return what a table could have told and this source does not, by the name of its column."""
        return [name for name in TOLD if getattr(self, name) is None]


TOLD = (
    "dataset",
    "gpu",
    "batch_per_worker",
    "images_per_epoch",
    "epochs",
    "fine_tune",
    "augment",
    "job_time_s",
    "epoch_time_s",
    "epochs_to_stable",
    "train_accuracy",
    "val_accuracy",
)


@dataclass(frozen=True, kw_only=True)
class SkippedRow:
    """A row, a curve or a series that did not become part of a run, and why."""

    where: str
    """The line, the tag or the folder."""
    name: str
    """The run's name, as far as it has one."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Reading:
    """All that a source gave."""

    runs: tuple[ImportedRun, ...]
    left_out: tuple[SkippedRow, ...] = ()
    notes: tuple[str, ...] = ()
    """What was assumed, changed or ignored on the way, in sentences."""


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Facts that a log does not hold and the user adds by flags."""

    workers: int | None = None
    gpu: str | None = None
    batch_per_worker: int | None = None
    dataset: str | None = None
    images_per_epoch: int | None = None
    name: str | None = None
    nodes: int | None = None

    def __post_init__(self) -> None:
        for flag, value in self.flags():
            if isinstance(value, int) and value < 1:
                raise InputError(f"{flag} must be 1 or more. Received: {value}.")
            if isinstance(value, str) and not value.strip():
                raise InputError(f"{flag} must not be empty.")
        if self.workers is not None and self.workers > MAX_WORKERS:
            raise InputError(f"--workers must be {MAX_WORKERS:,} or less. Received: {self.workers}.")

    def flags(self) -> list[tuple[str, int | str]]:
        """Return the flags that were given, as the user typed them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return [(f"--{name.replace('_', '-')}", value) for name, value in values.items() if value is not None]


def given_name(options: ImportOptions, path: Path) -> str:
    """Return the run's name: the flag's, else the file's."""
    name = safe_name(options.name or (path.name if path.is_dir() else path.stem))
    if not name:
        raise InputError(f"{options.name or path.name!r} cannot be a folder's name. Give another with --name.")
    return name


def assumed_workers(options: ImportOptions, told: int | None = None) -> tuple[int, list[str]]:
    """Return how many workers, and what to say where nobody said it."""
    workers = options.workers or told
    if workers is not None:
        return workers, []
    return 1, [
        "The log does not say how many workers there were: 1 is assumed. Give --workers N if it was another number."
    ]


def epoch_record(
    epoch: int,
    *,
    accuracy: tuple[float, float] = (math.nan, math.nan),
    loss: tuple[float, float] = (math.nan, math.nan),
    time_s: float = math.nan,
    images: int | None = None,
    learning_rate: float = math.nan,
) -> EpochRecord:
    """Return a line of epochs.jsonl of which little is known; `accuracy` and `loss` are (train, validation)."""
    return EpochRecord(
        epoch=epoch,
        train_loss=loss[0],
        train_accuracy=accuracy[0],
        val_loss=loss[1],
        val_accuracy=accuracy[1],
        epoch_time_s=time_s,
        # Unknown is not a number and never 0: analysis leaves it out, while a 0 would be a measured standstill.
        images_per_s=math.nan if images is None else images / time_s,
        learning_rate=learning_rate,
        images=images,
    )


def last_known(values: list[float]) -> float | None:
    """Return the last one that is a number."""
    return next((value for value in reversed(values) if not math.isnan(value)), None)
