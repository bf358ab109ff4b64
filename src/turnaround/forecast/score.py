"""Forecasts that were saved, held against what was measured later.

`forecasts.jsonl` lies in the folder that was asked about and only grows: a line for each forecast that was saved, with
the question, the answer and the runs that were known. When a real run of that configuration is there that was not known
then, the forecast is scored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.prices import Price
from turnaround.analysis.summary import RunSummary
from turnaround.analysis.workloads import Survey, survey, survey_of
from turnaround.errors import RunDirectoryError
from turnaround.forecast.interval import Interval
from turnaround.forecast.observations import times_by_kind
from turnaround.forecast.predict import measured_figures
from turnaround.forecast.question import FIGURES, Question
from turnaround.record.coding import check_format
from turnaround.record.files import storage_error
from turnaround.record.growing import read_lines
from turnaround.record.layout import RunDirectory, StudyDirectory
from turnaround.record.reader import find_runs
from turnaround.record.schema import FORMAT_VERSION, utc_now
from turnaround.record.writer import Lines

MAX_SAVED_BYTES = 8 * 2**20
"""Largest file of saved forecasts that is read, about two thousand of them: a folder of others may hold any file, and
it is read whole, by a live page whenever a run has finished."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One figure of one forecast, and what was measured."""

    saved_at: str
    job: str
    workers: int
    gpu: str
    figure: str
    """The name that `predict --json` gives it."""
    is_estimate: bool = False
    """Made before there was any run."""
    forecast: Interval
    measured: float
    """The median over the runs that came after the forecast."""
    runs: int
    currency: str | None = None
    """Of a cost, where the price that it was forecast with names one."""

    @property
    def error(self) -> float:
        """Relative error, forecast / measured - 1; above 0 when too much was forecast."""
        return self.forecast.value / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """True where the interval holds the measured value: of many, about 80 % should."""
        return self.forecast.low <= self.measured <= self.forecast.high


def save(folder: Path, question: Question, prediction: dict[str, Any], known: Survey) -> Path:
    """Append the forecast, as `predict --json` prints it, to the folder's file; return its path."""
    path = StudyDirectory(folder).forecasts
    # On the disk before the command ends: a forecast that was told must not be missing when its run is there.
    with Lines(path, sync=True) as lines:
        lines.write(
            {
                "format": FORMAT_VERSION,
                "at": utc_now(),
                "question": asdict(question),
                "prediction": prediction,
                "runs": sorted(
                    _places(
                        (run for job in known.workloads for c in job.configurations for run in c.summaries),
                        folder,
                    )
                ),
            }
        )
    return path


COSTS = ("cost", "cost_to_stable")
"""The figures of a forecast that are money."""
ESTIMATE = "estimate"
"""Origin of a line that no run stood behind."""


def keep_estimates(
    folder: Path,
    estimates: Sequence[dict[str, Any]],
    *,
    source: str,
    prices: Mapping[str, Price | None],
    next_run: str | None = None,
) -> Path:
    """Append estimates from zero runs, as `estimate --json` prints them, to the file of a folder of runs to come.

    `next_run` is the command of the run that would narrow them most.
    """
    path = StudyDirectory(folder).forecasts
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error("write", path, error) from error
    with Lines(path, sync=True) as lines:
        for prediction in estimates:
            price = prices.get(prediction["gpu"])
            question = {
                "origin": ESTIMATE,
                "source": source,
                "price": price.per_hour if price else None,
                "prices": {prediction["gpu"]: asdict(price)} if price else {},
                "next_run": next_run,
            }
            line = {"format": FORMAT_VERSION, "at": utc_now(), "question": question, "prediction": prediction}
            lines.write({**line, "runs": []})
    return path


def runs_in(directories: Sequence[Path]) -> Survey:
    """Return all runs at or below the directories; RunDirectoryError where there are none, which names the estimate
    that was made there and the run that would narrow it most."""
    try:
        return survey_of(directories)
    except RunDirectoryError as error:
        folders = [folder for folder in directories if folder.is_dir()]
        estimated = [(folder, line) for folder in folders for line in saved_in(folder) if line.is_estimate]
        if not estimated or any(map(find_runs, folders)):
            raise
        folder, last = estimated[-1]
        command = last.line["question"].get("next_run")
        narrows = f": what narrows the estimate most is `{command}`" if isinstance(command, str) else ""
        raise RunDirectoryError(
            f"{folder} has an estimate of {last.prediction['job']} and no run yet. Make one there{narrows}."
        ) from error


def scores(paths: Sequence[Path]) -> list[Score]:
    """Return the scores of the saved forecasts that can be scored, in the order in which they were saved."""
    lines = [line for path in paths for line in saved_in(Path(path))]
    return scored(lines, survey(paths)) if lines else []


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One line of a file of forecasts."""

    folder: Path
    line: dict[str, Any]

    @property
    def prediction(self) -> dict[str, Any]:
        prediction: dict[str, Any] = self.line["prediction"]
        return prediction

    @property
    def is_estimate(self) -> bool:
        """True where no run stood behind it."""
        return bool(self.line["question"].get("origin") == ESTIMATE)

    def knew(self, configuration: ConfigurationRuns) -> bool:
        """Return whether a run of this configuration was known when the forecast was made."""
        return bool(_places(configuration.summaries, self.folder) & set(self.line["runs"]))


def saved_in(folder: Path) -> list[Saved]:
    """Return the readable lines of the folder's file; for a run's directory also those of the folder around it."""
    around = [folder.absolute().parent] if RunDirectory(folder).is_run() else []
    found = [
        (place, line)
        for place in (folder, *around)
        if _is_of_our_size(file := StudyDirectory(place).forecasts)
        for line in read_lines(file, dict).records
    ]
    return [Saved(folder=place, line=line) for place, line in found if _is_readable(line)]


def _is_of_our_size(file: Path) -> bool:
    try:
        return file.lstat().st_size <= MAX_SAVED_BYTES
    except OSError:  # missing, or not to be looked at: reading it says which
        return True


def scored(lines: Iterable[Saved], known: Survey) -> list[Score]:
    """Score the forecasts; a question that was asked again before it was measured counts once, with its last one."""
    latest: dict[tuple[Any, ...], tuple[Saved, Workload, ConfigurationRuns]] = {}
    for saved in lines:
        for job, configuration in _configurations(saved, known):
            if not saved.knew(configuration):
                prediction, asked = saved.prediction, saved.is_estimate
                # An estimate from zero runs and a later forecast of the same configuration both count: they are two
                # answers, and the one without runs is to be seen beside what came of it.
                at = (prediction["job"], prediction["workers"], prediction["gpu"], configuration.hosts, asked)
                latest[at] = saved, job, configuration
    return [score for saved, job, configuration in latest.values() for score in _score(saved, job, configuration)]


@dataclass(frozen=True, kw_only=True)
class OtherWork:
    """An estimate that no run scores, since those of its job and hardware were of other epochs or another batch."""

    job: str
    workers: int
    gpu: str
    epochs: int | None
    """Those that were estimated."""
    global_batch: int | None
    runs_epochs: tuple[int, ...]
    runs_global_batch: int | None


def unscored(lines: Iterable[Saved], known: Survey) -> list[OtherWork]:
    """Return the estimates for which there are later runs of the same job and hardware, but none of the same work."""
    found: dict[tuple[Any, ...], OtherWork | None] = {}
    for saved in lines:
        prediction = saved.prediction
        at = (prediction["job"], prediction["workers"], prediction["gpu"])
        for job, c in [(one.name, c) for one in known.workloads for c in one.configurations]:
            if not saved.is_estimate or (job, c.key.workers, c.key.gpu) != at or c.key.is_rehearsal or saved.knew(c):
                continue
            # A run of the very work scores it, whatever else was estimated or run there.
            is_scored = _is_same_work(prediction, c) or (at in found and found[at] is None)
            found[at] = None if is_scored else _other_work(prediction, c)
    return [other for other in found.values() if other is not None]


def _other_work(prediction: dict[str, Any], configuration: ConfigurationRuns) -> OtherWork:
    planned = {run.epochs_planned for run in configuration.summaries if run.epochs_planned is not None}
    return OtherWork(
        job=prediction["job"],
        workers=prediction["workers"],
        gpu=prediction["gpu"],
        epochs=prediction.get("epochs_planned"),
        global_batch=prediction.get("global_batch"),
        runs_epochs=tuple(sorted(planned)),
        runs_global_batch=configuration.global_batch,
    )


def _places(runs: Iterable[RunSummary], folder: Path) -> set[str]:
    """Return the runs' directories relative to the folder: they stay valid when the folder is moved."""
    here = folder.resolve()
    paths = [Path(run.directory).resolve() for run in runs]
    return {path.relative_to(here).as_posix() if path.is_relative_to(here) else path.as_posix() for path in paths}


@dataclass(frozen=True, kw_only=True)
class TrackRecord:
    """Median error and coverage of the saved forecasts."""

    figures: int
    median_error: float
    """Median of the absolute relative errors."""
    inside: int
    """Figures inside their 80 % interval."""


def track_record(each: Sequence[Score]) -> TrackRecord | None:
    """Return how good the forecasts have been; None when none can be scored yet."""
    if not each:
        return None
    return TrackRecord(
        figures=len(each),
        median_error=median(abs(score.error) for score in each),
        inside=sum(score.is_inside for score in each),
    )


def _score(saved: Saved, job: Workload, configuration: ConfigurationRuns) -> Iterator[Score]:
    line, prediction = saved.line, saved.prediction
    times = times_by_kind(job).get(configuration.gpu) if saved.is_estimate else None
    # At the price of the question: with today's, a change of price would be an error of the forecast.
    price = _price_of(saved)
    found = measured_figures(configuration, price, times)
    for figure in FIGURES:
        forecast = _interval(prediction.get(figure))
        # An error is relative, and to 0 there is none.
        if forecast is not None and figure in found and found[figure].value > 0:
            yield Score(
                saved_at=str(line.get("at", "")),
                job=prediction["job"],
                workers=prediction["workers"],
                gpu=prediction["gpu"],
                figure=figure,
                is_estimate=saved.is_estimate,
                forecast=forecast,
                measured=found[figure].value,
                runs=found[figure].count,
                currency=price.currency if price and figure in COSTS else None,
            )


def _price_of(saved: Saved) -> Price | None:
    """Return the price that the forecast was made with; lines of old have no billing unit of an estimate's."""
    question = saved.line["question"]
    plain = _price({"per_hour": question.get("price")})
    prices = question.get("prices")
    whole = _price(prices.get(saved.prediction["gpu"])) if isinstance(prices, dict) else None
    # Of an estimate both are one price; of a prediction `price` is what --price said, which goes before the table.
    return whole or plain if saved.is_estimate else plain or whole


def _price(payload: object) -> Price | None:
    """Return the price of a saved line; None for what is none."""
    if not isinstance(payload, dict):
        return None
    per_hour, billing_s = payload.get("per_hour"), payload.get("billing_s", 1.0)
    if not isinstance(per_hour, int | float) or not isinstance(billing_s, int | float):
        return None
    if not (0 < per_hour < math.inf and 0 < billing_s < math.inf):
        return None
    currency = payload.get("currency")
    return Price(
        per_hour=per_hour, billing_s=billing_s, currency=currency if isinstance(currency, str) and currency else None
    )


def _configurations(saved: Saved, known: Survey) -> Iterator[tuple[Workload, ConfigurationRuns]]:
    """Yield the real runs of the configuration asked about; on any number of hosts where none was asked for."""
    prediction, question = saved.prediction, saved.line["question"]
    hosts = question.get("hosts")
    if any(question.get(key) is not None for key in ("batch_per_worker", "precision", "input_limit")):
        return  # another work than the runs of this job
    named = [job for job in known.workloads if job.name == prediction["job"]]
    for job, configuration in [(one, c) for one in named for c in one.configurations]:
        at = configuration.key
        is_same = (at.workers, at.gpu, at.hosts) == (prediction["workers"], prediction["gpu"], hosts or at.hosts)
        # A forecast was learnt from runs of this job; an estimate knew none, so batch and epochs are compared too.
        is_same = is_same and (not saved.is_estimate or _is_same_work(prediction, configuration))
        if is_same and not at.is_rehearsal:
            yield job, configuration


def _is_same_work(prediction: dict[str, Any], configuration: ConfigurationRuns) -> bool:
    """Return whether runs had the batch and the epochs that an estimate was about: it knew of no others."""
    is_same_batch = configuration.global_batch == prediction.get("global_batch")
    planned = {run.epochs_planned for run in configuration.summaries}
    return is_same_batch and planned == {prediction.get("epochs_planned")}


def _interval(payload: object) -> Interval | None:
    """Return the interval; None for what is none: a NaN fails the comparison."""
    if not isinstance(payload, dict):
        return None
    low, value, high = (payload.get(key) for key in ("low", "value", "high"))
    if not isinstance(low, int | float) or not isinstance(value, int | float) or not isinstance(high, int | float):
        return None
    return Interval(low=low, value=value, high=high) if low <= value <= high else None


def _is_readable(line: dict[str, Any]) -> bool:
    """Return False for lines of a newer format, or of another program."""
    # Others are passed over, not refused: the file only grows, and what is scored must not end at a newer line.
    try:
        check_format(line)
    except RunDirectoryError:
        return False
    prediction, runs = line.get("prediction"), line.get("runs")
    if not isinstance(prediction, dict) or not isinstance(runs, list) or not isinstance(line.get("question"), dict):
        return False
    kinds = {"job": str, "workers": int, "gpu": str}
    return all(isinstance(prediction.get(key), kind) for key, kind in kinds.items()) and all(
        isinstance(name, str) for name in runs
    )
