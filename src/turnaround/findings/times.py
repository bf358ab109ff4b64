"""Findings about the turnaround: what of it was not training, and times that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.shares import lost_s
from turnaround.analysis.summary import RunSummary
from turnaround.analysis.times_in_doubt import ImpossibleSpeed, epochs_longer_than_job, impossible_speed
from turnaround.findings.finding import Draft, Evidence, who
from turnaround.findings.labels import label_of
from turnaround.words import counted, duration, durations, listed, percent

MIN_LOST_S = 60.0
"""Time outside steady epochs from which it is worth a word: nobody would train for longer to save the seconds that
starting costs a first run on a few hundred photos."""
LOST_SHARE = 0.25
"""A judgement, of the turnaround: a quarter lost is worth a change."""

# In the order in which they come, which is that of a figure's legend.
PART_NAMES = {
    "queue": "the queue",
    "start_up": "starting up",
    "import": "importing torch",
    "decode": "decoding",
    "training_cold": "the cold first epoch",
    "training_steady": "other epochs",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
    "lost": "work done twice after a stop",
    "other": "overhead",
    "preloaded": "loading code, shared with other runs",
}
"""The parts of a turnaround, as sentences, tables and figures call them."""
_REMEDY = {
    "queue": "Ask for fewer or other GPUs, or for less time: shorter jobs wait less.",
    "start_up": "Train longer in one job: starting up is paid once.",
    "decode": "Keep the decoded pixels (data.cache=on): the next run does not pay again.",
    "training_cold": "Train longer in one job: the cold epoch is paid once at each start.",
    "evaluation": "Evaluate fewer validation images.",
    "checkpoint": "Save less often (training.checkpoint_every_s), or to a faster disk.",
    "lost": "Save more often (training.checkpoint_every_s): what lies behind the last checkpoint is done again.",
    "preloaded": "Train longer in one job: starting up is paid once.",
    "other": "Have the next run timed by turnaround, which tells queue, start-up, cold epoch and evaluation apart.",
}


def time_lost_outside_training(job: Workload) -> Iterator[Draft]:
    """Report one finding: the configuration that loses the largest share of its turnaround, and the others."""
    losing = [(share, c) for c in job.configurations if (share := _lost_share(c)) > LOST_SHARE and _loses_minutes(c)]
    if not losing:
        return
    losing.sort(key=lambda pair: -pair[0])
    # One run tells the parts, since they add up there; medians of parts over the repeats do not.
    worst = max(_timed(losing[0][1]), key=_share)
    lost = lost_s(worst)
    part, part_s = max(lost.items(), key=lambda item: item[1])
    others = [label_of(configuration) for _, configuration in losing[1:]]
    # Exact: where one part alone is above 0, the sum is that part to the last bit.
    whole_s = sum(lost.values())
    how_much = "all" if part_s == whole_s else "most" if part_s > whole_s / 2 else "the largest part"
    text = (
        f"Of the turnaround of {label_of(losing[0][1])} ({duration(worst.job_time_s or 0.0)}), "
        f"{duration(sum(lost.values()))} ({percent(_share(worst))}) were not steady epochs, {how_much} of it "
        f"{PART_NAMES.get(part, part)} ({duration(part_s)}){f'; likewise of {listed(others)}' if others else ''}."
    )
    evidence = [
        Evidence(run=who(c), what="share of the turnaround outside steady epochs", value=share, unit="share")
        for share, c in losing
    ]
    yield Draft(
        text=text,
        evidence=(*evidence, *_parts(worst.name, lost)),
        advice=_REMEDY.get(part, _REMEDY["other"]),
    )


def _parts(name: str, lost: dict[str, float]) -> Iterator[Evidence]:
    for part, time_s in lost.items():
        if time_s > 0:
            yield Evidence(run=name, what=PART_NAMES.get(part, part), value=time_s, unit="s")


def _timed(configuration: ConfigurationRuns) -> list[RunSummary]:
    return [run for run in configuration.finished if run.job_time_s and lost_s(run)]


def _share(run: RunSummary) -> float:
    # The queue is in both: a job's time runs from its submission, as its parts do.
    return sum(lost_s(run).values()) / run.job_time_s if run.job_time_s else 0.0


def _loses_minutes(configuration: ConfigurationRuns) -> bool:
    return any(sum(lost_s(run).values()) >= MIN_LOST_S for run in _timed(configuration))


def _lost_share(configuration: ConfigurationRuns) -> float:
    """Return the median over the repeats; nothing for rehearsals, whose turnaround nobody else has."""
    shares = [] if configuration.is_rehearsal else [_share(run) for run in _timed(configuration)]
    return median(shares) if shares else 0.0


def times_contradict(job: Workload) -> Iterator[Draft]:
    """Report a table whose epochs take longer than the job that they are in."""
    for configuration in job.configurations:
        for run in configuration.finished:
            together_s = epochs_longer_than_job(run)
            if together_s is not None and run.epoch_time_s and run.job_time_s:
                each, at_most = durations(run.epoch_time_s, run.job_time_s / run.epochs)
                text = (
                    f"{run.name} ({label_of(configuration)}) contradicts itself: {run.epochs} epochs of {each} are "
                    f"{together_s:,.0f} s, more than its whole job of {run.job_time_s:,.0f} s, so an epoch took at "
                    f"most {at_most} on average."
                )
                yield Draft(
                    text=text,
                    evidence=(
                        Evidence(run=run.name, what="epoch time", value=run.epoch_time_s, unit="s"),
                        Evidence(run=run.name, what="job time", value=run.job_time_s, unit="s"),
                    ),
                    advice="Take the epoch time from the log again: a slow epoch was probably taken for a typical one.",
                )


def impossible_speeds(job: Workload) -> Iterator[Draft]:
    """Report a table whose times cannot be in seconds."""
    runs = [run for configuration in job.configurations for run in configuration.summaries]
    found = [one for run in runs if (one := impossible_speed(run)) is not None]
    if found:
        yield Draft(
            text=impossible_speed_text(found),
            evidence=tuple(
                Evidence(run=one.run.name, what="epoch time", value=one.run.epoch_time_s or 0.0, unit="s")
                for one in found
            ),
            advice="Look at the unit of the table: name it in the column (epoch_time_h, job_time_min) or in the cells "
            "(0.5 h), and import it again.",
        )


def impossible_speed_text(found: Sequence[ImpossibleSpeed]) -> str:
    """Name the first run, how many others there are, and the unit that would explain it."""
    first = found[0]
    others = f" ({counted(len(found) - 1, 'other run')} likewise)" if len(found) > 1 else ""
    unit = "its times are probably hours or minutes, taken for seconds"
    if first.images_per_s_each is None or first.limit is None:
        return (
            f"{first.run.name}{others} would have finished {first.run.epochs} epochs in "
            f"{duration(first.run.job_time_s or 0.0)}, start-up and all: {unit}."
        )
    return (
        f"{first.run.name}{others} would train {first.images_per_s_each:,.0f} images/s on each {_device(first.run)}, "
        f"where {first.limit:,.0f} are beyond any network: {unit}."
    )


def _device(run: RunSummary) -> str:
    return "GPU" if run.gpu in ("unknown", "") else run.gpu


def rehearsal_times(job: Workload) -> Iterator[Draft]:
    """Report that rehearsals have accuracies here and no times."""
    rehearsed = [configuration for configuration in job.configurations if configuration.is_rehearsal]
    if rehearsed:
        runs = [run for c in rehearsed for run in c.summaries]
        yield Draft(
            text=f"The times of {counted(len(runs), 'rehearsal')} ({listed([label_of(c) for c in rehearsed])}) are "
            "left out: the accuracy of a rehearsal is that of its workers, its times are those of one machine.",
            evidence=tuple(Evidence(run=run.name, what="workers rehearsed", value=run.workers) for run in runs),
            advice="Forecast the times from real runs (turnaround predict), and take the accuracy from the rehearsal.",
        )
