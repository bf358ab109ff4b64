"""The answer in one sentence: which configuration is there first, and what twice as many workers would do.

Enters: a job and what can be forecast of it. Leaves: an Answer. It ranks as `analysis.goals` does: by the time
to one common accuracy where there are curves, else by the time of the job, else by that of an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.goals import TimeRanking, time_ranking
from turnaround.findings import Finding, Severity
from turnaround.findings.finding import who
from turnaround.findings.forecasts import interval_text
from turnaround.findings.labels import hardware_label, label_of, settings_label
from turnaround.forecast.predict import Forecaster
from turnaround.forecast.question import Prediction
from turnaround.reporting.comparison_table import epoch_text
from turnaround.reporting.forecast_words import decision
from turnaround.words import accuracy, duration, listed


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The answer for somebody who reads no further about one job."""

    job: str
    sentences: tuple[str, ...]
    """One or two; the first is read by everybody."""
    basis: str = ""
    """A sentence that says what was compared; empty where there was nothing to compare."""
    mind: str = ""
    """The problem or caution that makes the answer doubtful, where there is one."""
    severity: Severity = "problem"
    """How severe it is."""

    @property
    def sentence(self) -> str:
        """Return the first sentence, which is read by everybody."""
        return self.sentences[0]

    @property
    def rest(self) -> str:
        """Return the sentences after the first; empty where there are none."""
        return " ".join(self.sentences[1:])

    @property
    def text(self) -> str:
        """Return all sentences."""
        return " ".join(self.sentences)


DOUBTS = ("more-than-linear", "ran-together", "times-contradict")
"""Cautions that make a comparison of times doubtful: the answer that rests on one must not be said without them."""


def answer_of(job: Workload, forecasters: Sequence[Forecaster] = (), findings: Sequence[Finding] = ()) -> Headline:
    """One sentence of what was measured, and of what would be where that can be forecast."""
    ranked = time_ranking(job)
    measured, best = _ranked(ranked) if ranked else _told(job)
    of_job = [finding for finding in findings if finding.job == job.name]
    doubts = [one for one in of_job if ranked and one.id in DOUBTS and _is_about(one, best)]
    minded = next(iter([finding for finding in of_job if finding.severity == "problem"] + doubts), None)
    is_useful = best.finished and not best.is_at_chance and not doubts
    ahead, bought = _ahead(best, ranked, forecasters) if is_useful else ("", ())
    return Headline(
        job=job.name,
        sentences=(f"{_reservation(best, is_doubtful=bool(doubts))}{measured}{ahead}.", *bought),
        basis=_basis(ranked) if ranked else "",
        mind=minded.text if minded else "",
        severity=minded.severity if minded else "problem",
    )


def _is_about(finding: Finding, configuration: ConfigurationRuns) -> bool:
    """Tell whether the evidence of a finding names the configuration, or one of its runs."""
    names = {who(configuration), label_of(configuration), *(run.name for run in configuration.summaries)}
    return any(names & {item.run, *item.run.split(", ")} for item in finding.evidence)


def _reservation(best: ConfigurationRuns, *, is_doubtful: bool) -> str:
    """Say first what the answer must not be read without: that it is worth nothing, or that times do not compare."""
    if best.is_at_chance:
        return f"No better than guessing the largest class ({accuracy(best.guessing_accuracy)}): "
    return "As far as these times compare: " if is_doubtful else ""


# --- what was measured


def _ranked(ranked: TimeRanking) -> tuple[str, ConfigurationRuns]:
    """The first of those that were timed; all that are as fast as it."""
    as_fast, time_s = ranked.fastest()
    best = as_fast[0]
    names = listed([_name(configuration) for configuration in as_fast])
    is_one = len(as_fast) == 1 and best.workers == 1
    tie = "equally fast" if len(as_fast) > 1 else "first"
    in_time = f"in {duration(time_s)}"
    if ranked.basis == "target":
        reach = f"{'reaches' if is_one else 'reach'} {accuracy(ranked.target or 0.0)} accuracy"
        text = f"{names} {reach} {tie}, {in_time} of training"
    elif ranked.basis == "job":
        ends = "finishes" if is_one else "finish"
        text = f"{names} {ends} {_epochs(best)} {tie}, {in_time}{_with_accuracy(best)}"
    else:
        text = f"{names} {'has' if is_one else 'have'} the shortest epochs, {duration(time_s)} each"
    return text, best


def _basis(ranked: TimeRanking) -> str:
    if ranked.basis == "target":
        return (
            f"Compared by the training time to {accuracy(ranked.target or 0.0)} validation accuracy, which every "
            "finished configuration has reached."
        )
    time = "the time from submit to finish" if ranked.basis == "job" else "the time of an epoch"
    return f"Compared by {time}: without curves, the time to one accuracy is not known."


def _name(configuration: ConfigurationRuns) -> str:
    """Return the configuration, its settings in brackets: a sentence goes on after it."""
    settings = f" ({settings_label(configuration)})" if configuration.settings else ""
    return f"{hardware_label(configuration)}{settings}"


def _epochs(configuration: ConfigurationRuns) -> str:
    epochs = next((run.epochs for run in configuration.finished if run.epochs), None)
    return f"{epochs} epochs" if epochs else "the job"


def _with_accuracy(configuration: ConfigurationRuns) -> str:
    return (
        f" with {accuracy(configuration.final_val_accuracy.value)} accuracy" if configuration.final_val_accuracy else ""
    )


def _told(job: Workload) -> tuple[str, ConfigurationRuns]:
    """Nothing to rank: the most accurate of those that have ended, else the one that is farthest."""
    ended = [c for c in job.configurations if c.final_val_accuracy is not None]
    if not ended:
        configuration = max(job.configurations, key=lambda c: max(run.epochs for run in c.summaries))
        return _under_way(configuration), configuration
    configuration = max(ended, key=lambda c: c.final_val_accuracy.value if c.final_val_accuracy else 0.0)
    return _alone(configuration), configuration


def _alone(configuration: ConfigurationRuns) -> str:
    verb = "reaches" if configuration.workers == 1 else "reach"
    assert configuration.final_val_accuracy is not None, "chosen because it has one"
    level = accuracy(configuration.final_val_accuracy.value)
    text = f"{_name(configuration)} {verb} {level} accuracy after {_epochs(configuration)}"
    if configuration.job_time_s is not None:
        text += f", in {duration(configuration.job_time_s.value)}"
    if configuration.stable.status == "stable" and configuration.stable.epoch is not None:
        return f"{text}, stable from epoch {epoch_text(configuration.stable.epoch)}"
    return f"{text}, not yet stable by then" if configuration.stable.status == "not yet stable" else text


def _under_way(configuration: ConfigurationRuns) -> str:
    """A run that has not come to its end: how far it is, and why it is no farther."""
    run, record = max(configuration.members, key=lambda member: member.summary.epochs)
    planned = f" of {run.epochs_planned}" if run.epochs_planned else ""
    level = "" if run.final_val_accuracy is None else f", with {accuracy(run.final_val_accuracy)} accuracy so far"
    text = f"{_name(configuration)}: {run.epochs}{planned} epochs done{level}"
    if run.state in ("queued", "running"):
        return text
    if run.state == "interrupted":  # the banner below has the command that goes on with it
        return f"{text}; the run was interrupted"
    cause = f" ({record.status.cause.rstrip('.')})" if record.status.cause else ""
    return f"{text}; the run {run.state}{cause}"


# --- what would be


def _ahead(
    best: ConfigurationRuns, ranked: TimeRanking | None, forecasters: Sequence[Forecaster]
) -> tuple[str, tuple[str, ...]]:
    """Say what twice the most workers of the same kind of GPU that were timed would need: how the first sentence goes
    on, and the sentences after it."""
    kind = best.gpu
    forecaster = next((one for one in forecasters if one.laws.gpu == kind and one.laws.times is not None), None)
    if forecaster is None or forecaster.laws.times is None:
        return "", ()
    p = forecaster.predict(2 * max(forecaster.laws.times.counts))
    counted = (
        str(p.workers) if kind not in ("CPU", "unknown") else f"{p.workers} {'processes' * (kind == 'CPU')}".strip()
    )
    if ranked is not None and ranked.basis == "target":
        time_s = p.training_to_target_s
        return f"; {counted} would need about {interval_text(time_s)}{_reaching(p)}" if time_s else "", ()
    if p.job_time_s is not None:
        bought = (decision(p, p.against),) if p.against is not None else ()
        needed = f"{interval_text(p.job_time_s)} for {p.epochs_planned} epochs{_stable(p)}"
        return f"; {counted} would need about {needed}", bought
    if p.epoch_time_s is not None:
        return f"; {counted} would need about {interval_text(p.epoch_time_s)} an epoch", ()
    return "", ()


def _reaching(p: Prediction) -> str:
    return " if they get there, which is doubtful" if p.reaches_target is False else ""


def _stable(p: Prediction) -> str:
    if p.stable_by_end is None:
        return ""
    if p.stable_by_end == "open":
        return ", and may or may not be stable by then"
    probably = "probably " if p.stable_by_end in ("probably", "probably not") else ""
    return f" and would {probably}{'' if p.reaches_stable else 'not '}be stable by then"
