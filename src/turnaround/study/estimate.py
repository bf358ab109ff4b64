"""An estimate from zero runs: a trial of seconds on this machine, then forecast/estimate.py. Nothing is trained.

Enters: SOURCE with its overrides, the question, and a cluster whose queue is to be asked. Leaves: an `EstimateReport`;
what it says may be kept beside the runs that will score it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from turnaround import recipes
from turnaround.analysis.energy import EnergyRates
from turnaround.analysis.gpu_kinds import kind_of
from turnaround.analysis.prices import PriceTable, price_table
from turnaround.analysis.workloads import Survey, survey_of
from turnaround.errors import InputError, RunDirectoryError, StorageError
from turnaround.findings.estimates import (
    energy_sentence,
    left_out_sentences,
    memory_sentences,
    narrowing_command,
    narrowing_text,
    trial_sentences,
)
from turnaround.findings.forecasts import Answer
from turnaround.findings.queue import absent_kinds, queue_notes
from turnaround.forecast.estimate import (
    Choices,
    Estimate,
    EstimateQuestion,
    TrialFacts,
    choices,
    estimate_all,
)
from turnaround.forecast.narrowing import NarrowingRun, narrowing_run
from turnaround.forecast.question import Prediction
from turnaround.forecast.queue import ready_first
from turnaround.forecast.score import keep_estimates
from turnaround.launch.clusters import cluster_named
from turnaround.launch.clusters.contract import Cluster, Wishes
from turnaround.launch.prepare import Show
from turnaround.recipe import Recipe
from turnaround.study.cluster_queue import ClusterQueue
from turnaround.study.trial import choose, try_here

USUAL_KINDS = ("t4", "l4", "v100", "a100", "h100")
USUAL_COUNTS = (1, 2, 4, 8, 16, 32, 64)
TRIAL_S = 2.0
"""Seconds for each part of the trial: with decoding and start-up the whole answer takes about a minute."""


@dataclass(frozen=True, kw_only=True)
class AskedCluster:
    """A cluster that was asked when jobs would start, or why it does not tell: then there is an estimate without it."""

    title: str
    queue: ClusterQueue | None
    why_silent: str | None = None

    @classmethod
    def ask(cls, cluster: Cluster, wishes: Wishes) -> AskedCluster:
        """Ask what the cluster has. MissingPartError where it cannot be asked from here."""
        # Outside the try: without its commands nobody can ask; a cluster that gives no answer costs the queue alone.
        cluster.require()
        try:
            return cls(title=cluster.title, queue=ClusterQueue.ask(cluster, wishes))
        except InputError as error:
            return cls(title=cluster.title, queue=None, why_silent=str(error))


@dataclass(frozen=True, kw_only=True)
class EstimateReport:
    """What can be said of a training that nobody has run."""

    source: str
    trial: TrialFacts
    estimates: tuple[Estimate, ...]
    choices: Choices | None
    next_run: NarrowingRun | None
    currency: str | None = None
    settings: tuple[str, ...] = ()
    """Keys of the recipe that were set, each as SECTION.KEY=VALUE."""
    pinned: tuple[str, ...] = ()
    """Those that were chosen here, and that another machine might choose otherwise."""
    chosen: tuple[str, ...] = ()
    """What was chosen, with its reason."""
    workers: tuple[int, ...] = ()
    """The numbers of workers that were asked about, also those for which there are too few images."""
    cluster: AskedCluster | None = None
    """None where no cluster was asked for its queue."""

    @property
    def queued(self) -> list[Prediction]:
        """The predictions that the cluster was asked about and whose step fits; empty without a queue."""
        fitting = (e.prediction for e in self.estimates if e.memory.fits != "no")
        return [prediction for prediction in fitting if prediction.queue is not None]

    @property
    def queue_notes(self) -> list[str]:
        """What the waits rest on, and for which kinds and numbers of workers there is none; empty without a queue."""
        if self.cluster is None or self.cluster.why_silent is not None:
            return []
        predictions = [e.prediction for e in self.estimates]
        asked = {p.gpu for p in predictions if p.queue is not None}
        absent = [gpu for gpu in dict.fromkeys(p.gpu for p in predictions) if gpu not in {*asked, self.trial.device}]
        title = self.cluster.title
        return [*queue_notes([p for p in predictions if p.gpu in asked], title), *absent_kinds(absent, title)]

    @property
    def command(self) -> str | None:
        """The command of the run that would narrow the estimate most."""
        chosen = {each.partition("=")[0] for each in self.pinned}
        asked = [each for each in self.settings if each.partition("=")[0] not in chosen]  # it was "auto"
        return None if self.next_run is None else narrowing_command(self.next_run, self.source, [*asked, *self.pinned])

    @property
    def notes(self) -> list[str]:
        """What was chosen, what the figures rest on, and what to mind."""
        return [*self.chosen, *self.left_out, *self.basis]

    @property
    def left_out(self) -> list[str]:
        """What was asked about and has no estimate."""
        return list(left_out_sentences(self.workers, self.trial))

    @property
    def basis(self) -> list[str]:
        """What the figures rest on, and what to mind."""
        cluster = self.cluster.title if self.cluster is not None and self.queued else None
        told = [*trial_sentences(self.trial, cluster), *memory_sentences(self.estimates, self.trial)]
        return [*told, energy_sentence(self.estimates, self.trial)]

    def of(self, gpu: str, workers: int) -> Estimate | None:
        """Return one estimate by its kind, in any spelling, and its number of workers."""
        found = (e for e in self.estimates if (e.prediction.gpu, e.prediction.workers) == (kind_of(gpu), workers))
        return next(found, None)

    def as_json(self) -> dict[str, Any]:
        """Return what `estimate --json` prints."""

        def named(one: Estimate | None) -> dict[str, Any] | None:
            return None if one is None else {"gpu": one.prediction.gpu, "workers": one.prediction.workers}

        best, run, ready = self.choices, self.next_run, ready_first(self.queued)
        return {
            "source": self.source,
            "trial": asdict(self.trial),
            "currency": self.currency,
            "estimates": [estimate_json(one) for one in self.estimates],
            "best": None
            if best is None
            else {
                "fastest": named(best.fastest),
                "cheapest": named(best.cheapest),
                "cheapest_within_10_percent_of_fastest": named(best.near_fastest),
            },
            "next_run": None
            if run is None
            else {
                "command": self.command,
                "why": narrowing_text(run),
                "gpu": run.gpu,
                "workers": run.workers,
                "time_s": asdict(run.time_s),
                "cost": run.cost,
                "width_before": run.width_before,
                "width_after": run.width_after,
            },
            "notes": self.notes,
            "queue": None
            if self.cluster is None
            else {
                "cluster": self.cluster.title,
                "ready_first": None if ready is None else {"gpu": ready.first.gpu, "workers": ready.first.workers},
                "why_left_out": self.cluster.why_silent,
                "notes": self.queue_notes,
            },
        }


def estimate_json(one: Estimate) -> dict[str, Any]:
    """Return the figures of one estimate as `predict --json` names them, and its memory."""
    memory = {
        "need_bytes": asdict(one.memory.need_bytes),
        "fits": one.memory.fits,
        "largest_batch": one.memory.largest_batch,
    }
    return {**Answer.of(one.prediction).as_json(), "memory": memory}


class EstimateAsked(TypedDict, total=False):
    """What may be asked besides SOURCE."""

    gpus: Sequence[str]
    """Kinds of GPU; this machine's own device is always among them. Default: the cluster's, else USUAL_KINDS."""
    workers: Sequence[int]
    """Default: powers of two up to 64."""
    settings: Mapping[str, Any]
    """Keys of the recipe."""
    prices: PriceTable | str | os.PathLike[str]
    """A table or its file. Default: the user's own."""
    electricity: float
    """Price of one kWh."""
    grid: float
    """Kilograms of CO2 equivalents emitted for one kWh."""
    device: str
    out: str | os.PathLike[str]
    """The folder of the runs to come: the estimate is kept there and scored by them."""
    on: str
    """The cluster to ask when such jobs would start, "slurm"; what it does not tell is left out, and said."""
    partition: str
    account: str
    time: str


def estimate(source: str | os.PathLike[str], **asked: Unpack[EstimateAsked]) -> EstimateReport:
    """Estimate time, memory and cost of a training from zero runs, as `turnaround estimate` does."""
    prices = asked.get("prices")
    table = prices if isinstance(prices, PriceTable) else price_table(None if prices is None else Path(prices))
    wishes = Wishes(partition=asked.get("partition"), account=asked.get("account"), time=asked.get("time"))
    cluster = AskedCluster.ask(cluster_named(asked["on"]), wishes) if "on" in asked else None
    question = EstimateQuestion(
        gpus=tuple(asked.get("gpus") or usual_kinds(cluster)),
        workers=tuple(sorted(set(asked.get("workers", USUAL_COUNTS)))),
        prices=table,
        rates=EnergyRates(electricity=asked.get("electricity"), grid=asked.get("grid")),
    )
    overrides = recipes.overrides_of(asked.get("settings", {}))
    # Last, so that it counts: the trial is one worker's, and the laws tell what several would do.
    recipe = recipes.find(str(source), [*overrides, "workers.count=1"])
    # Before the trial: a cluster that would start none of these jobs is told at once, not after a minute.
    question = placed(question, cluster)
    runs = Path(asked["out"]) if "out" in asked else None
    report = estimate_recipe(str(source), recipe, question, device=asked.get("device", "auto"), runs=runs)
    report = replace(with_queue(report, cluster, question, asked.get("out")), settings=tuple(overrides))
    if "out" in asked:
        try:
            keep(report, Path(asked["out"]))
        except StorageError as error:  # the answer of the trial is not lost with it
            warnings.warn(str(error), stacklevel=2)
    return report


def estimate_recipe(
    source: str,
    recipe: Recipe,
    question: EstimateQuestion,
    *,
    device: str = "auto",
    trial_s: float = TRIAL_S,
    show: Show = lambda what, done, total: None,
    runs: Path | None = None,
) -> EstimateReport:
    """Measure a recipe of one worker on this machine, and estimate the kinds and counts of the question.

    `runs` is the folder with earlier runs, from which the batch is chosen where that is left to us.
    """
    training = choose(recipe, question, device=device, runs=runs)
    trial = try_here(training.recipe, workers=question.workers, device=device, trial_s=trial_s, show=show)
    # This machine is always among them: its figures are measured, and show what the others are derived from.
    here = replace(question, gpus=tuple(dict.fromkeys([trial.device, *map(kind_of, question.gpus)])))
    estimates = estimate_all(trial, here)
    best = choices(estimates)
    # Narrowed is what most would choose: the cheapest of those within 10 % of the fastest.
    about = None if best is None else best.near_fastest
    return EstimateReport(
        source=source,
        trial=trial,
        estimates=tuple(estimates),
        choices=best,
        next_run=None if about is None else narrowing_run(trial, here, about),
        currency=question.prices.currency,
        workers=question.workers,
        pinned=training.pinned,
        chosen=training.notes,
    )


def usual_kinds(cluster: AskedCluster | None) -> tuple[str, ...]:
    """Return the kinds to estimate where the user names none: those of the cluster, else USUAL_KINDS."""
    return (cluster.queue.kinds if cluster is not None and cluster.queue is not None else ()) or USUAL_KINDS


def placed(question: EstimateQuestion, cluster: AskedCluster | None) -> EstimateQuestion:
    """Return the question as the cluster places its workers; InputError where it could start none of these jobs."""
    return question if cluster is None or cluster.queue is None else cluster.queue.placed_estimate(question)


def with_queue(
    report: EstimateReport,
    cluster: AskedCluster | None,
    question: EstimateQuestion,
    folder: str | os.PathLike[str] | None,
) -> EstimateReport:
    """Return the report with the queue of each kind that the cluster has; runs in the folder tell how far it is off.

    The trial is never lost: where the cluster has no answer, the report is as it was, with the reason.
    """
    if cluster is None or cluster.queue is None:
        return replace(report, cluster=cluster)
    asked = [e.prediction for e in report.estimates if e.prediction.gpu in question.queued_gpus]
    try:
        answered = cluster.queue.with_queue(asked, _runs_in(folder))
    except InputError as error:
        return replace(report, cluster=replace(cluster, why_silent=str(error)))
    by_configuration = {(p.gpu, p.workers): p for p in answered}
    waiting = tuple(
        replace(e, prediction=by_configuration.get((e.prediction.gpu, e.prediction.workers), e.prediction))
        for e in report.estimates
    )
    return replace(report, estimates=waiting, cluster=cluster)


def _runs_in(folder: str | os.PathLike[str] | None) -> Survey | None:
    """Return the runs whose waits are learnt from; None where there are none yet."""
    try:
        return None if folder is None else survey_of([Path(folder)])
    except RunDirectoryError:
        return None


def keep(report: EstimateReport, folder: Path) -> Path:
    """Keep the estimates of powers of two in the folder of the runs that will score them; return the file.

    StorageError where it cannot be written: whoever has the report has the answer all the same.
    """
    # Numbers that people run: a range of 1-64 on five kinds would be 320 lines, and hardly one of them be scored.
    kept = [e for e in report.estimates if e.prediction.workers & (e.prediction.workers - 1) == 0]
    prices = {e.prediction.gpu: e.price for e in kept}
    try:
        lines = [estimate_json(one) for one in kept]
        return keep_estimates(folder, lines, source=report.source, prices=prices, next_run=report.command)
    except StorageError as error:
        raise StorageError(f"The estimate is not kept, so no run will score it. {error}") from error
