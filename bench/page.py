"""How large is the page of many runs, how long does it take to make, and when is its first text on the screen?

    python bench/page.py [--runs 200] [--epochs 100] [--seeds 10] [--opened 5] [--folder DIR]

It builds run directories as training leaves them: configurations of 1, 2, 4, ... workers, each with its repeats, with
curves, spans, telemetry and an evaluation of 20 classes. The page is made as `turnaround report --out` makes it and
opened in Chromium from its file, in a new browser each time. With --folder the runs and the page stay there.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from turnaround.record.layout import RunDirectory
from turnaround.record.schema import (
    ClassResult,
    EpochRecord,
    Evaluation,
    GpuSample,
    Span,
    Status,
    TelemetrySample,
    to_json,
)
from turnaround.record.writer import write_json, write_lines

NUM_CLASSES = 20
NUM_TRAIN, NUM_VALIDATION = 24_000, 6_000
BROWSER_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=10, help="Repeats of each configuration.")
    parser.add_argument("--opened", type=int, default=5, help="How often the page is opened; the median counts.")
    parser.add_argument("--folder", type=Path, help="Keep the runs and the page here.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        build_runs(folder / "runs", runs=options.runs, epochs=options.epochs, seeds=options.seeds)
        measure(folder / "runs", folder / "page.html", opened=options.opened)


def measure(runs: Path, page: Path, *, opened: int) -> None:
    """Prints the figures."""
    from turnaround.analysis.workloads import survey_of
    from turnaround.reporting.page.build import page_html, page_view

    begun_s = time.process_time()  # of the processor: others may use the machine
    view = page_view(survey_of([runs]), [runs], out=page)
    read_s = time.process_time() - begun_s
    text = page_html(view)
    made_s = time.process_time() - begun_s - read_s
    page.write_text(text, encoding="utf-8", errors="replace")
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"runs                      {sum(len(c.summaries) for j in view.survey.workloads for c in j.configurations)}")
    print(f"page                      {page.stat().st_size / 1e6:.2f} MB")
    print(f"read, judged, forecast    {read_s:.1f} s of CPU time")
    print(f"figures and html          {made_s:.1f} s of CPU time")
    print(f"peak memory               {peak_gib:.2f} GiB")
    times_s = [open_page(page) for _ in range(opened)]
    for name in times_s[0]:
        values = [one[name] for one in times_s]
        print(f"{name:<26}{median(values):.2f} s ({min(values):.2f} to {max(values):.2f})")


def open_page(page: Path) -> dict[str, float]:
    """Seconds from the request to the first text, and to the last figure."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(BROWSER_ARGUMENTS))
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        begun_s = time.perf_counter()
        tab.goto(page.absolute().as_uri())
        # Figures that are folded away are drawn when they are opened.
        shown = tab.locator("figure.plotted:visible").count()
        while tab.locator(".plot.drawn:visible").count() < shown:
            tab.wait_for_timeout(100)
        drawn_s = time.perf_counter() - begun_s
        paint = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
        found = {"first paint": tab.evaluate(paint) / 1000, "all figures drawn": drawn_s}
        browser.close()
    return found


# --- the runs


def build_runs(folder: Path, *, runs: int, epochs: int, seeds: int) -> None:
    """Configurations of ever more workers, on two kinds of GPU and with two batches, each repeated."""
    for number in range(runs):
        place, seed = divmod(number, seeds)
        gpu, workers = ("Tesla T4", "Tesla V100-SXM2-16GB")[place % 2], 2 ** (place // 2 % 6)
        per_worker = (32, 64)[place // 12 % 2]
        build_run(folder / f"run-{number:03d}", workers, gpu=gpu, epochs=epochs, seed=seed, per_worker=per_worker)


def build_run(path: Path, workers: int, *, gpu: str, epochs: int, seed: int, per_worker: int) -> None:
    rng = np.random.default_rng([workers, seed, per_worker, len(gpu)])
    directory = RunDirectory.create(path)
    epoch_s = (200 if "T4" in gpu else 80) / workers**0.9 * rng.normal(1, 0.02)
    write_json(directory.recipe, recipe_of(path.name, workers, epochs=epochs, seed=seed, per_worker=per_worker))
    write_json(directory.machine, machine_of(workers, gpu))
    write_lines(directory.epochs, (to_json(one) for one in curve(rng, workers, epochs=epochs, epoch_s=epoch_s)))
    write_json(directory.status, to_json(status_of(epochs, epoch_s)))
    write_json(directory.evaluation, to_json(evaluation_of(rng, epochs)))
    for rank in range(workers):
        write_lines(directory.spans(rank), (to_json(span(rng, step)) for step in range(1, 201, 2)))
    write_lines(directory.telemetry("node1"), (to_json(sample(rng, second, workers, gpu)) for second in range(600)))


def recipe_of(name: str, workers: int, *, epochs: int, seed: int, per_worker: int) -> dict[str, Any]:
    return {
        "name": name,
        "data": {"source": "photos", "size_px": 224, "holdout": 0.2, "cache": "on"},
        "model": {"name": "resnet50", "weights": "imagenet", "fine_tune": False},
        "training": {
            "epochs": epochs,
            "batch_per_worker": per_worker,
            "batch_total": None,
            "optimizer": "sgd",
            "learning_rate": 0.05,
            "scaling": "auto",
            "schedule": "cosine",
            "seed": seed,
        },
        "augment": {"flip": True, "rotation_degrees": 5.0},
        "workers": {"count": workers, "engine": "torch"},
        "command": ["turnaround", "train", "photos", "--workers", str(workers), "--set", f"training.seed={seed}"],
        "images": {
            "fingerprint": "f" * 64,
            "num_train": NUM_TRAIN,
            "num_validation": NUM_VALIDATION,
            "split": "folders",
            "classes": [f"class {number}" for number in range(NUM_CLASSES)],
        },
    }


def machine_of(workers: int, gpu: str) -> dict[str, Any]:
    return {
        "workers": workers,
        "processes": workers,
        "device": "cuda:0",
        "hostname": "node1",
        "cores": 32,
        "gpus": [{"name": gpu, "index": rank} for rank in range(workers)],
        "ranks": [{"host": "node1", "device": f"cuda:{rank}", "workers": [rank]} for rank in range(workers)],
        "versions": {"torch": "2.8", "turnaround": "0.2"},
    }


def curve(rng: np.random.Generator, workers: int, *, epochs: int, epoch_s: float) -> list[EpochRecord]:
    pace, level = 6 + workers / 2, 0.7 - 0.002 * workers
    known = level * (1 - np.exp(-np.arange(1, epochs + 1) / pace)) + rng.normal(0, 0.004, epochs)
    return [
        EpochRecord(
            epoch=number,
            train_loss=1.2 - accuracy,
            train_accuracy=accuracy + 0.1,
            val_loss=1.5 - accuracy,
            val_accuracy=accuracy,
            epoch_time_s=epoch_s * rng.normal(1, 0.01),
            images_per_s=NUM_TRAIN / epoch_s,
            learning_rate=0.05 * workers * (1 - number / epochs),
            steps=NUM_TRAIN // (32 * workers),
            images=NUM_TRAIN,
            train_eval_accuracy=accuracy + 0.12,
            train_eval_loss=1.1 - accuracy,
            evaluation_time_s=3.0 / workers,
            noise_scale=400.0 + 10 * number,
            noise_scale_low=300.0,
            noise_scale_high=900.0,
        )
        for number, accuracy in enumerate(known.tolist(), start=1)
    ]


def status_of(epochs: int, epoch_s: float) -> Status:
    parts: dict[Any, float] = {"start_up": 12.0, "training_cold": 1.3 * epoch_s, "training_steady": epochs * epoch_s}
    parts |= {"evaluation": 2.0 * epochs, "checkpoint": 4.0}
    return Status(state="finished", epochs_done=epochs, time_s={**parts, "program": sum(parts.values()) + 3.0})


def evaluation_of(rng: np.random.Generator, epochs: int) -> Evaluation:
    names, each = [f"class {number}" for number in range(NUM_CLASSES)], NUM_VALIDATION // NUM_CLASSES
    confusion = rng.multinomial(each, [1 / NUM_CLASSES] * NUM_CLASSES, NUM_CLASSES) // 3
    np.fill_diagonal(confusion, 0)
    np.fill_diagonal(confusion, each - confusion.sum(axis=1))
    return Evaluation(
        epoch=epochs,
        num_images=NUM_VALIDATION,
        top1=float(confusion.trace() / confusion.sum()),
        top5=0.9,
        loss=0.9,
        classes=names,
        per_class=[
            ClassResult(name=name, num_images=each, accuracy=float(row[place] / each))
            for place, (name, row) in enumerate(zip(names, confusion, strict=True))
        ],
        confusion=confusion.tolist(),
    )


def span(rng: np.random.Generator, step: int) -> Span:
    wait, copy, compute, reduce, update = (rng.normal(1, 0.05, 5) * [0.002, 0.001, 0.05, 0.006, 0.003]).tolist()
    return Span(step=step, epoch=1, wait_s=wait, copy_s=copy, compute_s=compute, reduce_s=reduce, update_s=update)


def sample(rng: np.random.Generator, second: int, workers: int, gpu: str) -> TelemetrySample:
    busy = np.clip(rng.normal(90, 6, workers), 0, 100).tolist()
    gpus = [
        GpuSample(index=i, name=gpu, utilisation_percent=busy[i], memory_used_gib=9.5, power_w=120.0 + busy[i])
        for i in range(workers)
    ]
    at = f"2026-03-01T09:{second // 60:02d}:{second % 60:02d}.000+00:00"
    return TelemetrySample(time_s=float(second), at=at, cpu_percent=40.0, memory_used_gib=30.0, gpus=gpus)


if __name__ == "__main__":
    main()
