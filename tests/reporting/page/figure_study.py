"""A study with everything that pictures show: repeats, a rehearsal, a run under way, spans, telemetry, confusion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from analysis.build import Plan, build, rising
from turnaround.analysis.configurations import Workload
from turnaround.analysis.workloads import survey
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import ClassResult, Evaluation, GpuSample, TelemetrySample, to_json
from turnaround.record.writer import write_json, write_lines
from turnaround.reporting.page.fig_common import Figure

EVIL = "<img src=x onerror=alert(1)>"
TIMES_S = {1: 400.0, 2: 210.0, 4: 115.0}


def study_job(folder: Path) -> Workload:
    """1, 2 and 4 T4 with two seeds each, 8 workers rehearsed, and a third run of 2 T4 that is still running."""
    for workers, time_s in TIMES_S.items():
        for seed in range(2):
            one_run(folder / f"{workers}gpu-seed{seed}", workers=workers, time_s=time_s * (1 + 0.04 * seed), seed=seed)
    rehearsed = rising(0.7, epochs=30, pace=8, noise=0.005, seed=9)
    build(folder / "rehearsed", Plan(workers=8, processes=1, accuracy=rehearsed, epoch_time_s=999.0))
    short = rising(0.75, epochs=8, pace=3, noise=0.005, seed=5)
    training = {"seed": 7, "epochs": 30}
    build(folder / "going", Plan(workers=2, accuracy=short, state="running", epoch_time_s=210.0, training=training))
    return job_in(folder)


def one_run(path: Path, *, workers: int, time_s: float, seed: int) -> Path:
    """A run that learns its training images by heart."""
    accuracy = rising(0.76, epochs=30, pace=2 + workers / 2, noise=0.005, seed=10 * workers + seed)
    plan = Plan(
        workers=workers,
        accuracy=accuracy,
        train_accuracy=[min(0.999, a + 0.2 * (1 - math.exp(-e / 8))) for e, a in enumerate(accuracy)],
        epoch_time_s=time_s,
        cold_time_s=1.5 * time_s,
        training={"seed": seed},
        time_s={"decode": 12.0, "checkpoint": 30.0},
        parts_s=dict.fromkeys(range(workers), (0.01, 0.004, 0.11, 0.006, 0.003)),
    )
    build(path, plan)
    with_telemetry(path, gpus=workers)
    with_evaluation(path, [EVIL, "fresh apple", "rotten apple"], [[8, 2, 0], [0, 9, 1], [0, 3, 7]])
    with_noise_scale(path, 100.0 * workers)
    return path


def job_in(folder: Path) -> Workload:
    (job,) = survey([folder]).workloads
    return job


def with_telemetry(path: Path, *, gpus: int, count: int = 700, host: str = "node1") -> None:
    """A sample a second: GPU n is busy 90 - 10 n %, except the last one, which does not tell its power."""
    start = datetime(2026, 3, 1, 9, tzinfo=UTC)
    samples = [
        TelemetrySample(
            time_s=float(second),
            at=(start + timedelta(seconds=second)).isoformat(),
            cpu_percent=35.0,
            memory_used_gib=12.0,
            gpus=[
                GpuSample(
                    index=index,
                    name="Tesla T4",
                    utilisation_percent=90.0 - 10 * index,
                    memory_used_gib=8.0,
                    power_w=65.0 if index < gpus - 1 else None,
                )
                for index in range(gpus)
            ],
        )
        for second in range(count)
    ]
    write_lines(RunDirectory(path).telemetry(host), (to_json(sample) for sample in samples))


def with_evaluation(path: Path, classes: Sequence[str], confusion: Sequence[Sequence[int]]) -> None:
    total = sum(map(sum, confusion))
    right = sum(row[place] for place, row in enumerate(confusion))
    results = [
        ClassResult(name=name, num_images=sum(row), accuracy=row[place] / sum(row) if sum(row) else None)
        for place, (name, row) in enumerate(zip(classes, confusion, strict=True))
    ]
    evaluation = Evaluation(
        epoch=30,
        num_images=total,
        top1=right / total,
        top5=None,
        loss=0.5,
        classes=list(classes),
        per_class=results,
        confusion=[list(row) for row in confusion],
    )
    write_json(RunDirectory(path).evaluation, to_json(evaluation))


def with_noise_scale(path: Path, scale: float) -> None:
    """From the third epoch on; without an upper end at the fourth."""
    directory = RunDirectory(path)
    epochs = [
        record
        if record.epoch < 3
        else replace(
            record,
            learning_rate=0.05 / record.epoch,
            noise_scale=scale * record.epoch,
            noise_scale_low=scale * record.epoch / 2,
            noise_scale_high=None if record.epoch == 4 else scale * record.epoch * 2,
        )
        for record in Run.load(path).epochs
    ]
    directory.epochs.unlink()
    write_lines(directory.epochs, (to_json(record) for record in epochs))


def figure(figures: Sequence[Figure], id: str) -> Figure:
    (found,) = [one for one in figures if one.id == id]
    return found


def traces(shown: Figure, role: str) -> list[dict[str, Any]]:
    return [trace for trace in shown.data if trace["meta"]["role"] == role]
