"""turnaround from Python: the same things as the command line, as typed functions.

    import turnaround as ta

    run = ta.train("fruitbowl", settings={"training.epochs": 3})   what `turnaround train` does
    run = ta.load("runs/fruit")                                    a run that is there already
    run.classify("apple.jpg")                                      [Guess(name='fresh_apple', probability=0.97), ...]
    run.export("onnx")                                             a file for other programs, checked
    ta.evaluate("runs/fruit", "new_photos/").accuracy              its network on other images
    ta.report("runs/").findings                                    what stands out among runs
    ta.estimate("photos/", gpus=["t4", "a100"]).of("t4", 4)        from zero runs: time, memory, cost, with intervals
    ta.predict("runs/", workers=16).epoch_time_s                   what nobody has run yet
    ta.table("runs/")                                              a row for each run: a DataFrame where pandas is here
    ta.resume("runs/fruit", epochs=20)                             go on, or train for longer
    ta.check_images("photos/").is_serious                          copies, leaks and odd files
    ta.run_study("photos/", workers=[1, 2], rehearse=[4, 8])       many configurations, then their report
    with ta.fork_server(): ...                                     many short trainings: their code is loaded once
    with ta.Recorder("runs/mine") as rec: ...                      a training loop of your own, recorded

What goes wrong raises an error of turnaround.errors, with the sentence that the command line would print. Importing
this imports no torch; classify and export do, when they are called.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from turnaround.recorder import Recorder
from turnaround.results import AnyPath, EvaluationReport, Report, TrainedRun

if TYPE_CHECKING:
    from turnaround.check.dataset import Check
    from turnaround.findings.forecasts import Answer
    from turnaround.study.estimate import EstimateAsked, EstimateReport

__all__ = [
    "EvaluationReport",
    "Recorder",
    "Report",
    "TrainedRun",
    "check_images",
    "estimate",
    "evaluate",
    "fork_server",
    "load",
    "predict",
    "report",
    "resume",
    "run_study",
    "table",
    "train",
]

Setting = str | int | float | bool | None


def load(path: AnyPath, *, device: str = "auto", weights: str = "best") -> TrainedRun:
    """Load the run in a directory. `device` is where its network will compute: auto, cpu, cuda or mps.

    `weights` are those of the epoch with the best validation accuracy, or `last`: of the newest checkpoint.
    """
    from turnaround.record.reader import Run

    return TrainedRun(Run.load(Path(path)), device=device, weights=weights)


def evaluate(
    run: AnyPath, images: AnyPath, *, against: AnyPath | None = None, device: str = "auto", weights: str = "best"
) -> EvaluationReport:
    """Evaluate a run's network on class folders, or on a table (CSV) of files and labels: `turnaround evaluate`."""
    from turnaround.data.labelled import labelled_images
    from turnaround.use.evaluate import evaluate_run
    from turnaround.use.predictor import Predictor

    labelled = labelled_images(Path(images), run=Path(run))
    first, *rest = (
        evaluate_run(Predictor.load(Path(path), device=device, weights=weights), labelled)
        for path in (run, against)
        if path is not None
    )
    return EvaluationReport(source=Path(images), run=first, against=rest[0] if rest else None)


def train(
    source: AnyPath,
    *,
    workers: int | None = None,
    processes: int | None = None,
    device: str = "auto",
    out: AnyPath | None = None,
    settings: Mapping[str, Setting] | None = None,
    shows_progress: bool = False,
) -> TrainedRun:
    """Train on a folder of images, a recipe file or a built-in recipe, in processes of their own.

    `settings` are keys of the recipe, as `--set` takes them: {"training.epochs": 3, "model.name": "resnet18"}.
    """
    from turnaround import recipes
    from turnaround.launch.contract import checked_device
    from turnaround.launch.lifecycle import Request, start
    from turnaround.record.layout import default_run_path
    from turnaround.reporting.terminal import err, preparation

    chosen = {**(settings or {}), **({"workers.count": workers} if workers is not None else {})}
    recipe = recipes.find(os.fspath(source), recipes.overrides_of(chosen))
    target = Path(out) if out is not None else default_run_path(Path("runs"), f"{recipe.name}-{recipe.workers.count}w")
    with preparation(err()) if shows_progress else nullcontext(_silent) as show:
        request = Request(
            out=target,
            show=show,
            processes=processes,
            device=checked_device(device),
            shows_progress=shows_progress,
        )
        return TrainedRun(start(recipe, request), device=device)


def fork_server() -> AbstractContextManager[None]:
    """Load the code of trainings once (3 to 10 s): those started within are forked from it, and record that. Linux."""
    from turnaround.launch.forked import forking_here
    from turnaround.launch.process_settings import process_settings

    return forking_here(process_settings(1))


def resume(
    path: AnyPath,
    *,
    epochs: int | None = None,
    processes: int | None = None,
    device: str | None = None,
    shows_progress: bool = False,
) -> TrainedRun:
    """Go on with a run from its last checkpoint; `epochs` in all gives it more, also when it has finished.

    `processes` and `device` are as before unless they are given. A job of a cluster goes on by `turnaround resume`.
    """
    from turnaround.launch.clusters.submission import refuse_if_queued
    from turnaround.launch.contract import checked_device
    from turnaround.launch.lifecycle import Request
    from turnaround.launch.lifecycle import resume as go_on
    from turnaround.record.layout import RunDirectory
    from turnaround.reporting.terminal import err, preparation

    refuse_if_queued(RunDirectory(Path(path)))
    with preparation(err()) if shows_progress else nullcontext(_silent) as show:
        request = Request(
            out=Path(path),
            show=show,
            epochs=epochs,
            processes=processes,
            device=None if device is None else checked_device(device),
            shows_progress=shows_progress,
        )
        return TrainedRun(go_on(request), device=device or "auto")


def check_images(folder: AnyPath, *, holdout: float = 0.2, seed: int = 0) -> Check:
    """Find copies, leaks, unreadable and odd images: `turnaround check`. `payload()` is what its --json prints."""
    from turnaround.check.dataset import check_folder

    return check_folder(Path(folder), holdout=holdout, seed=seed)


def run_study(
    source: AnyPath,
    *,
    workers: Sequence[int] = (),
    rehearse: Sequence[int] = (),
    repeat: int = 1,
    device: str = "auto",
    out: AnyPath | None = None,
    settings: Mapping[str, Setting] | None = None,
) -> Report:
    """Run what is missing of a study on this machine and compare it: `turnaround study`, which the same call goes on.

    `workers` are trained with for real, `rehearse` on one device; `repeat` seeds of each. What has failed is left out
    of the report, which says so.
    """
    from turnaround import recipes
    from turnaround.launch.contract import checked_device
    from turnaround.study.lifecycle import Conductor
    from turnaround.study.subject import StudyAsked, gpus_here, of_recipe, run_here

    device = checked_device(device)
    asked = StudyAsked(
        workers=workers,
        rehearse=rehearse,
        repeat=repeat,
        device=device,
        settings=tuple(recipes.overrides_of(settings or {})),
        gpus=gpus_here(device),
    )
    subject = of_recipe(os.fspath(source), asked)
    work = subject.work(asked, out=None if out is None else Path(out))
    run_here(Conductor(work, subject.planned), subject, preparing=nullcontext(_silent), running=nullcontext())
    return report(work.folder)


def table(directories: AnyPath | Iterable[AnyPath]) -> Any:
    """Return a row for each run below folders: a pandas DataFrame where pandas is installed, else a list of dicts."""
    return report(directories).table()


def report(directories: AnyPath | Iterable[AnyPath], *, job: str | None = None) -> Report:
    """Compare runs, or all runs below folders: `turnaround report`. One path, or several."""
    from turnaround.analysis.workloads import filter_jobs
    from turnaround.findings import find_all
    from turnaround.forecast.score import runs_in

    survey = runs_in(_paths(directories))
    if job is not None:
        survey = filter_jobs(survey, job)
    return Report(survey=survey, findings=tuple(find_all(survey)))


class AskedBesides(TypedDict, total=False):
    """What a forecast may be asked for besides; what is left out is as in the runs."""

    batch_per_worker: int
    precision: str
    """amp, fp16, bf16, tf32 or fp32."""
    input_limit: float
    """Images per second that the input path of one host gives at most."""
    gpus_per_host: int
    network: float
    """GB/s that an all-reduce gets between hosts."""
    interruptions_per_h: float
    """How often one host is taken away."""
    electricity: float
    """Price of one kWh."""
    grid: float
    """kg of CO2e emitted for one kWh."""


def predict(
    directories: AnyPath | Iterable[AnyPath],
    *,
    workers: int,
    gpu: str | None = None,
    hosts: int | None = None,
    price: float | None = None,
    job: str | None = None,
    target: float | None = None,
    **asked: Unpack[AskedBesides],
) -> Answer:
    """Forecast a configuration that nobody has run: `turnaround predict`. A figure has value, low and high (80 %)."""
    from dataclasses import replace

    from turnaround.findings.forecasts import Answer
    from turnaround.forecast.next_run import next_run
    from turnaround.forecast.predict import fit_forecaster
    from turnaround.forecast.question import Question
    from turnaround.forecast.score import runs_in

    question = Question(
        workers=workers,
        gpu=gpu,
        hosts=hosts,
        price=price,
        job=job,
        target=target,
        **asked,
    )
    forecaster = fit_forecaster(runs_in(_paths(directories)), question)
    prediction = forecaster.predict(workers)
    return Answer.of(replace(prediction, next_run=next_run(forecaster, prediction)))


def estimate(source: AnyPath, **asked: Unpack[EstimateAsked]) -> EstimateReport:
    """Estimate time, memory and cost from zero runs: `turnaround estimate`. A figure has value, low and high (80 %)."""
    from turnaround.study import estimate as zero_runs

    return zero_runs.estimate(source, **asked)


def _paths(directories: AnyPath | Iterable[AnyPath]) -> list[Path]:
    """Return a list of paths; a text is one path, not the letters of it."""
    several = [directories] if isinstance(directories, str | os.PathLike) else directories
    return [Path(directory) for directory in several]


def _silent(what: str, done: int, total: int) -> None:
    pass
