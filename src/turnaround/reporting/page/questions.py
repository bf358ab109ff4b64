"""The questions that everybody asks of a scaling study, one after the other, each answered or told what is missing.

Enters: a job, its figures and what can be forecast of it. Leaves: questions with answers, and where the page has more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnaround.analysis.configurations import Workload
from turnaround.findings.forecasts import interval_text
from turnaround.forecast.predict import Forecaster
from turnaround.forecast.question import Prediction
from turnaround.reporting.comparison_table import stable_text
from turnaround.reporting.page.fig_common import Figure, series_of
from turnaround.reporting.page.fig_scaling import EPOCH_TIME
from turnaround.reporting.page.fig_time import times_to_stable
from turnaround.words import accuracy, duration, hardware

MAX_NAMED = 6
"""Configurations that an answer names; the tables have all."""
CURVES_MISSING = (
    "No curves were recorded, only what the runs came to. Import the curves too: turnaround import TABLE --curves "
    "CURVES --out DIR."
)
CURVES_TO_COME = "No curves yet: they begin with the second epoch."
USAGE_MISSING = (
    "Not recorded. turnaround train records it by itself; in a training loop of your own turnaround.Recorder does."
)
USAGE_TO_COME = "No samples yet: there is one a second as soon as the training has begun."


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion:
    """One question with its answer."""

    text: str
    answer: str
    figure: str = ""
    """The id of the figure that shows it; empty where none does."""
    is_missing: bool = False
    """True where nothing is known: the answer says what would help."""


def questions_of(
    job: Workload, figures: Sequence[Figure], forecasters: Sequence[Forecaster]
) -> tuple[AnsweredQuestion, ...]:
    """Return the questions in the order in which a report answers them."""
    shown = {figure.id for figure in figures}
    usage = next((name for name in sorted(shown) if name.startswith("usage-")), "")
    curves, hardware_use = missing_curves(job, figures), missing_usage(job, figures)
    return (
        AnsweredQuestion(
            text="How accurate, epoch by epoch?",
            answer=curves or _final(job),
            figure="final-accuracy" if curves and "final-accuracy" in shown else "" if curves else "accuracy",
            is_missing=bool(curves),
        ),
        AnsweredQuestion(
            text="How busy was the hardware?",
            answer=hardware_use or "Load, memory and power over time are drawn.",
            figure=usage,
            is_missing=bool(hardware_use),
        ),
        _turnaround(job),
        _stable_epochs(job, shown),
        *([_stable_first(job, shown)] if len(job.configurations) > 1 else []),
        *_twice_as_many(forecasters, shown),
    )


def missing_curves(job: Workload, figures: Sequence[Figure]) -> str:
    """Say why there is no accuracy by epoch; nothing where there is one."""
    if any(figure.id == "accuracy" for figure in figures):
        return ""
    return CURVES_TO_COME if _is_under_way(job) else CURVES_MISSING


def missing_usage(job: Workload, figures: Sequence[Figure]) -> str:
    """Say why no hardware utilization is drawn; nothing where there is some."""
    if any(figure.id.startswith("usage-") for figure in figures):
        return ""
    return USAGE_TO_COME if _is_under_way(job) else USAGE_MISSING


def _is_under_way(job: Workload) -> bool:
    return any(run.state in ("queued", "running") for c in job.configurations for run in c.summaries)


def _unknown(job: Workload, missing: str) -> str:
    return "Not known yet: training goes on." if _is_under_way(job) else missing


def _final(job: Workload) -> str:
    ended = [
        (series.name, series.configuration.final_val_accuracy)
        for series in series_of(job)
        if series.configuration.final_val_accuracy is not None
    ]
    return _listed([f"{name} {accuracy(spread.value)}" for name, spread in ended if spread], "Final accuracy: ")


def _turnaround(job: Workload) -> AnsweredQuestion:
    timed = [
        f"{series.name} {duration(series.configuration.job_time_s.value)}"
        for series in series_of(job)
        if series.configuration.job_time_s is not None
    ]
    missing = "Not known: no job has finished, or only rehearsals have, whose times are nobody's."
    return AnsweredQuestion(
        text="How long did each job take, from submit to finish?",
        answer=_listed(timed) if timed else _unknown(job, missing),
        is_missing=not timed,
    )


def _stable_epochs(job: Workload, shown: set[str]) -> AnsweredQuestion:
    known = [series for series in series_of(job) if series.configuration.stable.epoch is not None]
    missing = (
        "Not known: it takes the curve of a training that has reached its plateau, or the column epochs_to_stable."
    )
    return AnsweredQuestion(
        text="How many epochs until the accuracy is stable?",
        answer=_listed([f"{s.name} {stable_text(s.configuration.stable)}" for s in known])
        if known
        else _unknown(job, missing),
        figure="epochs-to-stable" if "epochs-to-stable" in shown else "",
        is_missing=not known,
    )


def _stable_first(job: Workload, shown: set[str]) -> AnsweredQuestion:
    names = {id(series.configuration): series.name for series in series_of(job)}
    goal = times_to_stable(job)
    reached = (
        sorted((one for one in goal.reached if not one.is_lower_bound), key=lambda one: one.value_s) if goal else []
    )
    missing = "Not known: it takes an epoch time and a stable epoch of the same configuration."
    told = [f"{names[id(one.configuration)]} after {duration(one.value_s)}" for one in reached]
    return AnsweredQuestion(
        text="Which is stable first?",
        answer=_listed(told) if told else _unknown(job, missing),
        figure="time-to-stable" if "time-to-stable" in shown else "",
        is_missing=not told,
    )


def _twice_as_many(forecasters: Sequence[Forecaster], shown: set[str]) -> Iterator[AnsweredQuestion]:
    """Yield a question for each kind of GPU: what would twice the most workers that were timed do?"""
    for forecaster in forecasters:
        times = forecaster.laws.times
        if times is None or forecaster.laws.is_carried_over:
            continue
        p = forecaster.predict(2 * max(times.counts))
        answer = "; ".join(_predicted(p))
        if answer:
            figure = EPOCH_TIME if EPOCH_TIME in shown else ""
            named = hardware(p.workers, p.gpu, hosts=p.hosts)
            yield AnsweredQuestion(text=f"What would {named} do?", answer=f"{answer}.", figure=figure)


def _predicted(p: Prediction) -> Iterator[str]:
    if p.job_time_s is not None:
        yield f"about {interval_text(p.job_time_s)} for {p.epochs_planned} epochs"
    if p.epoch_time_s is not None:
        yield f"{interval_text(p.epoch_time_s)} an epoch"
    if (epochs := p.epochs_to_stable) is not None:
        yield f"{epochs.value:.0f} epochs to stable ({epochs.low:.0f} to {epochs.high:.0f}){_enough(p)}"
    if p.val_accuracy is not None:
        low, high = accuracy(p.val_accuracy.low), accuracy(p.val_accuracy.high)
        yield f"final accuracy {accuracy(p.val_accuracy.value)} ({low} to {high})"


def _enough(p: Prediction) -> str:
    verdicts = {
        "yes": "are enough",
        "probably": "are probably enough",
        "open": "may or may not be enough",
        "probably not": "are probably not enough",
        "no": "are not enough",
    }
    return f", so {p.epochs_planned} epochs {verdicts[p.stable_by_end]}" if p.stable_by_end is not None else ""


def _listed(told: Sequence[str], before: str = "") -> str:
    more = f" and {len(told) - MAX_NAMED} more" if len(told) > MAX_NAMED else ""
    return f"{before}{', '.join(told[:MAX_NAMED])}{more}." if told else "As far as the runs have come."
