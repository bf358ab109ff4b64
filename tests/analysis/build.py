"""Run directories as training leaves them, for tests of what is read out of them: all through the record's writer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from turnaround.record.importers.read import read_runs
from turnaround.record.importers.values import ImportOptions
from turnaround.record.importers.write import write_runs
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import (
    ClassResult,
    EpochRecord,
    Evaluation,
    GpuSample,
    JobStatus,
    Span,
    State,
    Status,
    TelemetrySample,
    to_json,
)
from turnaround.record.writer import write_json, write_lines

LAB = """\
name,dataset,gpu,workers,batch_per_worker,images_per_epoch,epochs,fine_tune,augment,job_time_s,epoch_time_s,epochs_to_stable,train_accuracy,val_accuracy
lab9,fruit,T4,1,32,,10,true,true,662,20,,,
model1,fruit,T4,2,32,,10,true,true,319,11,,,0.9563
model2,fruit,T4,4,32,,10,true,true,205,5,,,0.9219
model3,caltech256,T4,2,32,24485,30,false,true,5910,209,15,0.8610,0.6888
model4,caltech256,T4,4,32,24485,30,false,true,2594,81,19,0.8678,0.6760
model5,caltech256,V100,4,32,24485,30,false,true,2502,80,20,0.8713,0.6861
model6,caltech256,V100,8,32,24485,30,false,true,1387,44,25,0.8636,0.6719
"""


def rising(
    level: float = 0.8, *, epochs: int = 20, pace: float = 2.0, noise: float = 0.002, seed: int = 0
) -> tuple[float, ...]:
    """An accuracy that grows to a level and stays there."""
    wiggle = np.random.default_rng(seed).normal(0, noise, epochs)
    return tuple(level * (1 - math.exp(-epoch / pace)) + wiggle[epoch - 1] for epoch in range(1, epochs + 1))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be found in the directory; the rest is what a plain, healthy run leaves."""

    workers: int = 2
    processes: int | None = None
    """As many as workers, unless it is a rehearsal."""
    gpu: str | None = "Tesla T4"
    """None: the processes computed on the CPU."""
    host: str = "node1"
    state: State = "finished"
    cause: str | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Sequence[float] = rising()
    train_accuracy: Sequence[float] | None = None
    """Of the same length, in evaluation mode; None: just above validation."""
    val_loss: Sequence[float] | None = None
    epoch_time_s: float = 10.0
    cold_time_s: float | None = None
    evaluation_time_s: float = 0.5
    time_s: Mapping[str, float] = field(default_factory=dict)
    saves: int | None = None
    segments: int = 1
    submitted_at: str | None = None
    job: JobStatus | None = None
    """The job of a cluster that it was."""
    started_at: str | None = None
    ended_at: str | None = None
    parts_s: Mapping[int, Sequence[float]] | None = None
    """By process: wait, copy, compute, reduce, update of every sampled step."""
    busy_percent: float | None = None
    watts: float | None = None
    """Mean power of each GPU, by its counter: the telemetry and the epochs tell its energy."""
    compute_processes: int | None = None
    """Programs on each GPU, where there is energy."""
    per_class: Mapping[str, int] | None = None
    """Validation images by class; None: no evaluation."""
    top1: float = 0.8
    """Of that evaluation."""
    num_validation: int | None = 2500
    program: str | None = None
    """Somebody else's command, which kept no record of its own."""


def build(path: Path, plan: Plan) -> Path:
    """Writes one run directory."""
    directory = RunDirectory.create(path)
    write_json(directory.recipe, _recipe(path.name, plan))
    write_json(directory.machine, _machine(plan))
    write_json(directory.status, to_json(_status(plan)))
    write_lines(directory.epochs, (to_json(record) for record in _epochs(plan)))
    for rank, parts_s in (plan.parts_s or {}).items():
        write_lines(directory.spans(rank), (to_json(_span(step, parts_s)) for step in range(1, 12)))
    if plan.busy_percent is not None or plan.watts is not None:
        write_lines(directory.telemetry(plan.host), (to_json(sample) for sample in _telemetry(plan)))
    if plan.per_class is not None:
        write_json(directory.evaluation, to_json(_evaluation(plan)))
    return path


def built(path: Path, **options: Any) -> Run:
    return Run.load(build(path, Plan(**options)))


def import_table(text: str, folder: Path) -> Path:
    """The runs of a table as `turnaround import` writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "runs.csv"
    table.write_text(text)
    write_runs(read_runs(table, options=ImportOptions()).runs, folder / "runs")
    return folder / "runs"


def _recipe(name: str, plan: Plan) -> dict[str, Any]:
    training = {
        "epochs": len(plan.accuracy),
        "batch_per_worker": 32,
        "batch_total": None,
        "optimizer": "sgd",
        "learning_rate": 0.05,
        "scaling": "auto",
        "seed": 0,
    }
    images = {
        "fingerprint": "f" * 64,
        "num_train": 10_000,
        "num_validation": plan.num_validation,
        "split": "folders",
        "warnings": [],
    }
    program = {} if plan.program is None else {"program": plan.program}
    return {
        "name": name,
        **program,
        "data": {"source": "photos", "size_px": 64, "holdout": 0.2, "cache": "on"},
        "model": {"name": "small", "weights": "none", "fine_tune": True},
        "training": {**training, **plan.training},
        "augment": {"flip": True},
        "workers": {"count": plan.workers, "engine": "torch"},
        "images": {**images, **plan.images},
    }


def _machine(plan: Plan) -> dict[str, Any]:
    processes = plan.processes or plan.workers
    device = "cpu" if plan.gpu is None else "cuda:0"
    ranks = [
        {
            "host": plan.host,
            "device": device if plan.gpu is None else f"cuda:{rank}",
            "workers": list(range(plan.workers))[rank::processes],
        }
        for rank in range(processes)
    ]
    return {
        "workers": plan.workers,
        "processes": processes,
        "device": device,
        "gpus": [{"name": plan.gpu, "index": rank} for rank in range(processes)] if plan.gpu else [],
        "ranks": ranks,
        "versions": {"torch": "2.8", "turnaround": "0.2"},
        **plan.machine,
    }


def _status(plan: Plan) -> Status:
    count, cold_s = len(plan.accuracy), plan.cold_time_s or plan.epoch_time_s
    time_s: dict[str, float] = {
        "start_up": 1.0,
        "training_cold": cold_s,
        "training_steady": (count - 1) * plan.epoch_time_s,
        "evaluation": count * plan.evaluation_time_s,
        **plan.time_s,
    }
    return Status(
        state=plan.state,
        cause=plan.cause,
        submitted_at=plan.submitted_at,
        started_at=plan.started_at,
        job=plan.job,
        saves=plan.saves,
        segments=plan.segments,
        ended_at=plan.ended_at,
        epochs_done=count,
        time_s={**time_s, "program": sum(time_s.values()) - time_s.get("preloaded", 0.0)},  # type: ignore[arg-type]
    )


def _epochs(plan: Plan) -> list[EpochRecord]:
    train = plan.train_accuracy or [min(1.0, value + 0.005) for value in plan.accuracy]
    losses = plan.val_loss or [1.0 - value for value in plan.accuracy]
    records = []
    for number, (accuracy, train_accuracy, loss) in enumerate(zip(plan.accuracy, train, losses, strict=True), start=1):
        time_s = plan.cold_time_s if number == 1 and plan.cold_time_s else plan.epoch_time_s
        records.append(
            EpochRecord(
                epoch=number,
                train_loss=1.0 - train_accuracy,
                train_accuracy=train_accuracy,
                val_loss=loss,
                val_accuracy=accuracy,
                epoch_time_s=time_s,
                images_per_s=10_000 / time_s,
                learning_rate=0.05,
                steps=10_000 // ((plan.training.get("batch_per_worker") or 32) * plan.workers),
                images=10_000,
                train_eval_accuracy=train_accuracy,
                train_eval_loss=1.0 - train_accuracy,
                evaluation_time_s=plan.evaluation_time_s,
                energy_wh=_wh(plan, time_s + plan.evaluation_time_s),
            )
        )
    return records


def _span(step: int, parts_s: Sequence[float]) -> Span:
    wait, copy, compute, reduce, update = parts_s
    return Span(step=step, epoch=1, wait_s=wait, copy_s=copy, compute_s=compute, reduce_s=reduce, update_s=update)


def _wh(plan: Plan, time_s: float) -> float | None:
    return None if plan.watts is None else (plan.processes or plan.workers) * plan.watts * time_s / 3600


def _telemetry(plan: Plan) -> list[TelemetrySample]:
    # 20 samples a second apart; with energy, over the time of the whole run.
    apart_s = 1.0 if plan.watts is None else _status(plan).time_s["program"] / 19
    at = "2026-03-01T09:00:{:02d}.000+00:00"
    return [
        TelemetrySample(time_s=number * apart_s, at=at.format(number), gpus=_gpus(plan, number * apart_s))
        for number in range(20)
    ]


def _gpus(plan: Plan, time_s: float) -> list[GpuSample]:
    return [
        GpuSample(
            index=rank,
            name=str(plan.gpu),
            utilisation_percent=plan.busy_percent,
            energy_j=None if plan.watts is None else plan.watts * time_s,
            energy_source=None if plan.watts is None else "counter",
            compute_processes=plan.compute_processes,
            run_processes=None if plan.watts is None else 1,
        )
        for rank in range(plan.processes or plan.workers)
    ]


def _evaluation(plan: Plan) -> Evaluation:
    counts = plan.per_class or {}
    return Evaluation(
        epoch=len(plan.accuracy),
        num_images=sum(counts.values()),
        top1=plan.top1,
        top5=None,
        loss=0.5,
        classes=list(counts),
        per_class=[ClassResult(name=name, num_images=count, accuracy=0.8) for name, count in counts.items()],
        confusion=[],
    )


def without_checksums(lines: str) -> str:
    """Lines that somebody edits on purpose: read as those of other programs, which have no checksums."""
    return re.sub(r',"crc":"[0-9a-f]{8}"', "", lines)
