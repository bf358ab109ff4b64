"""One run in a dozen numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from statistics import median
from typing import Any

from turnaround.record.reader import Run
from turnaround.record.schema import EpochRecord


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What a table shows of a run. Times of a rehearsal are those of this machine, not of its workers."""

    directory: str
    name: str
    state: str
    workers: int
    processes: int
    is_rehearsal: bool
    device: str
    global_batch: int
    epochs: int
    epoch_time_s: float | None
    """Median over the steady epochs: all but the first after each start; of a single epoch, that one."""
    images_per_s: float | None
    best_val_accuracy: float | None
    best_epoch: int | None
    final_val_accuracy: float | None
    final_top5_accuracy: float | None
    turnaround_s: float | None
    turnaround_parts_s: dict[str, float]


def summarise(run: Run) -> RunSummary:
    """The numbers of one run, as far as it got."""
    machine, recipe, epochs = run.machine, run.recipe, run.epochs
    steady = steady_epochs(epochs) or epochs
    known = [e for e in epochs if not math.isnan(e.val_accuracy)]
    best = max(known, key=lambda e: e.val_accuracy, default=None)
    parts = run.turnaround_parts()
    return RunSummary(
        directory=str(run.path),
        name=str(recipe.get("name", run.path.name)),
        state=run.status.state,
        workers=machine["workers"],
        processes=machine["processes"],
        is_rehearsal=run.is_rehearsal,
        device=device_name(machine),
        global_batch=_global_batch(recipe),
        epochs=len(epochs),
        epoch_time_s=median(e.epoch_time_s for e in steady) if steady else None,
        images_per_s=median(e.images_per_s for e in steady) if steady else None,
        best_val_accuracy=run.best,
        best_epoch=best.epoch if best else None,
        final_val_accuracy=run.final,
        final_top5_accuracy=run.evaluation.top5 if run.evaluation else None,
        turnaround_s=sum(parts.values()) or None,
        turnaround_parts_s=parts,
    )


def steady_epochs(epochs: list[EpochRecord]) -> list[EpochRecord]:
    """All but the first of every start, which pays for compilation and cold caches."""
    return [now for before, now in itertools.pairwise(epochs) if before.segment == now.segment]


def device_name(machine: dict[str, Any]) -> str:
    """The GPU's name, or the processor's."""
    gpus = machine.get("gpus") or []
    if str(machine.get("device", "")).startswith("cuda") and gpus:
        return str(gpus[0].get("name"))
    return "CPU" if machine.get("device") == "cpu" else str(machine.get("device"))


def _global_batch(recipe: dict[str, Any]) -> int:
    training, workers = recipe["training"], recipe["workers"]
    return int(training["batch_total"] or training["batch_per_worker"] * workers["count"])
