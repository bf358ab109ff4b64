"""The comparison table of one job: a row for each configuration, first its times, then its accuracies.

`COLUMNS` is the one place that knows its columns: the terminal, the page and `--json` are made of them. A new column is
one row there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from turnaround.analysis.configurations import Configuration, ConfigurationRuns, Spread, Workload
from turnaround.analysis.goals import time_to_target_s
from turnaround.analysis.speed import Speedup, job_speedups, speedups
from turnaround.analysis.stable import EpochEstimate
from turnaround.analysis.summary import RunSummary
from turnaround.findings.labels import label_of
from turnaround.reporting.text_layout import Table, TextColumn, clean, tables
from turnaround.words import UNKNOWN, accuracy, duration, energy, number, percent

SortKey = float | str | None
"""A column is sorted by it; None is always last."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One configuration of a job, with what can only be said beside the others."""

    name: str
    configuration: ConfigurationRuns
    speedup: Speedup | None
    """None also for a baseline that no other configuration is held against."""
    job_speedup: Spread | None
    target: float | None
    """The job's common accuracy."""

    @property
    def to_target(self) -> EpochEstimate | None:
        return self.configuration.to_target(self.target)

    @property
    def is_baseline(self) -> bool:
        return self.speedup is not None and self.speedup.baseline == self.configuration.key

    @property
    def unrecorded(self) -> list[RunSummary]:
        """Runs of programs that kept no record of their own: what is known of them was told from outside."""
        return [run for run in self.configuration.summaries if not run.is_recorded]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column, for the terminal, the page and `--json`."""

    heading: str
    """The heading in lines; {target} stands for the job's common accuracy."""
    meaning: str
    """A clause that explains the heading; empty where another column's does."""
    text: Callable[[TableRow], str]
    key: Callable[[TableRow], SortKey]
    figure: str = ""
    """The name in `--json` of the value behind it, an attribute of the configuration's runs; empty for none."""
    group: str = "time"
    """Columns of one group stay together where a terminal is too narrow for all: time or accuracy."""
    applies: Callable[[Workload], bool] = lambda job: True
    """A column that does not apply to the job is not even said to be unknown."""
    is_on_terminal: bool = True

    def heading_for(self, job: Workload) -> str:
        return self.heading.format(target=accuracy(job.target))

    @property
    def word(self) -> str:
        """The heading where its meaning is told: jobs differ in their common accuracy."""
        return self.heading.replace("\n", " ").format(target="N %")


def _value(spread: Spread | None) -> float | None:
    return None if spread is None else spread.value


def has_repeats(job: Workload) -> bool:
    return any(len(configuration.summaries) > 1 for configuration in job.configurations)


def _has_target(job: Workload) -> bool:
    return job.target is not None


def _has_unrecorded(job: Workload) -> bool:
    return any(not run.is_recorded for c in job.configurations for run in c.summaries)


def _has_gpu_records(job: Workload) -> bool:
    """True where a run of ours computed on a GPU: only these can tell their energy."""
    runs = (run for c in job.configurations if not c.is_rehearsal for run in c.summaries)
    return any(not run.is_imported and run.is_recorded and run.gpu not in ("CPU", "unknown") for run in runs)


COLUMNS: tuple[Column, ...] = (
    Column(
        heading="batch",
        meaning="images in one update of the weights, over all workers together",
        text=lambda row: _whole(row.configuration.global_batch),
        key=lambda row: row.configuration.global_batch,
    ),
    Column(
        heading="runs",
        meaning="repeats of the configuration; figures are their median, in brackets the lowest and the highest of "
        "them",
        text=lambda row: str(len(row.configuration.summaries)),
        key=lambda row: len(row.configuration.summaries),
        applies=has_repeats,
    ),
    Column(
        heading="s/epoch",
        meaning="seconds for one pass over the training images; where it is recorded, the first (cold) one is left out",
        text=lambda row: spread_text(row.configuration.epoch_time_s),
        key=lambda row: _value(row.configuration.epoch_time_s),
        figure="epoch_time_s",
    ),
    Column(
        heading="images/s",
        meaning="training images a second, over all workers together",
        text=lambda row: _median(row.configuration.images_per_s, number),
        key=lambda row: _value(row.configuration.images_per_s),
        figure="images_per_s",
    ),
    Column(
        heading="speed-up",
        meaning="how many times faster an epoch is than the baseline's: the fewest workers of the same kind of GPU",
        text=lambda row: _against_baseline(row, lambda up: f"{up.speedup.value:.2f}x"),
        key=lambda row: row.speedup.speedup.value if row.speedup else None,
    ),
    Column(
        heading="efficiency",
        meaning="how much of the added workers becomes speed: the speed-up, divided by how many times as many workers "
        "there are as in the baseline; 100 % is ideal",
        text=lambda row: _against_baseline(row, lambda up: percent(up.efficiency.value)),
        key=lambda row: row.speedup.efficiency.value if row.speedup else None,
    ),
    Column(
        heading="job time",
        meaning="from submit to finish",
        text=lambda row: _median(row.configuration.job_time_s, duration),
        key=lambda row: _value(row.configuration.job_time_s),
        figure="job_time_s",
    ),
    Column(
        heading="job time\nspeed-up",
        meaning="how many times shorter the whole job is than the one with the fewest workers; its start, which no "
        "worker shortens, is in it",
        text=lambda row: _job_speedup(row.job_speedup),
        key=lambda row: _value(row.job_speedup),
        applies=_has_unrecorded,
    ),
    Column(
        heading="exit\ncode",
        meaning="how the program ended: 0 is well, a negative number is the signal that killed it",
        text=lambda row: _exit_codes(row.unrecorded),
        key=lambda row: next((run.exit_code for run in row.unrecorded), None),
        applies=_has_unrecorded,
    ),
    Column(
        heading="energy",
        meaning="of the GPUs over the whole run, each once, by their energy counters or their power over time; not of "
        "processors, memory and cooling",
        text=lambda row: _median(row.configuration.energy_wh, energy),
        key=lambda row: _value(row.configuration.energy_wh),
        figure="energy_wh",
        applies=_has_gpu_records,
    ),
    Column(
        heading="energy\nan epoch",
        meaning="the same from the end of an epoch to the end of the next, with its evaluation",
        text=lambda row: _median(row.configuration.energy_epoch_wh, energy),
        key=lambda row: _value(row.configuration.energy_epoch_wh),
        figure="energy_epoch_wh",
        applies=_has_gpu_records,
        is_on_terminal=False,
    ),
    Column(
        heading="energy\nto stable",
        meaning="the same from the start to the stable epoch",
        text=lambda row: _median(row.configuration.energy_to_stable_wh, energy),
        key=lambda row: _value(row.configuration.energy_to_stable_wh),
        figure="energy_to_stable_wh",
        applies=_has_gpu_records,
    ),
    Column(
        heading="stable\nepoch",
        meaning="the first epoch of the plateau, where validation accuracy stays within a percentage point (or its "
        "noise, if that is larger) of the best level seen",
        text=lambda row: stable_text(row.configuration.stable),
        key=lambda row: row.configuration.stable.epoch,
        figure="stable",
        group="accuracy",
    ),
    Column(
        heading="epochs to\n{target}",
        meaning="epochs until validation accuracy is there, a level that every finished configuration has reached; "
        "times s/epoch it compares configurations fairly",
        text=lambda row: target_text(row.to_target),
        key=lambda row: row.to_target.epoch if row.to_target else None,
        figure="to_target",
        group="accuracy",
        applies=_has_target,
    ),
    Column(
        heading="time to\n{target}",
        meaning="",
        text=lambda row: duration(time_to_target_s(row.configuration, row.target)),
        key=lambda row: time_to_target_s(row.configuration, row.target),
        group="accuracy",
        applies=_has_target,
        is_on_terminal=False,
    ),
    Column(
        heading="validation\naccuracy",
        meaning="share of images recognised after the last epoch, of images that were not trained on",
        text=lambda row: accuracy_text(row.configuration.final_val_accuracy),
        key=lambda row: _value(row.configuration.final_val_accuracy),
        figure="final_val_accuracy",
        group="accuracy",
    ),
    Column(
        heading="training\naccuracy",
        meaning="the same of images that were trained on",
        text=lambda row: accuracy_text(row.configuration.final_train_accuracy),
        key=lambda row: _value(row.configuration.final_train_accuracy),
        figure="final_train_accuracy",
        group="accuracy",
    ),
)
FIGURES_WITHOUT_COLUMN = ("step_time_s", "overfitting")
"""Values of a configuration that only `--json` has."""


# --- the rows, and which columns they fill


def table_rows(job: Workload, ups: Mapping[Configuration, Speedup] | None = None) -> list[TableRow]:
    """Return a row for each configuration, in the job's order."""
    ups = speedups(job) if ups is None else ups
    used, of_jobs = used_baselines(job, ups), job_speedups(job)
    return [
        TableRow(
            name=name,
            configuration=configuration,
            speedup=up if (up := ups.get(configuration.key)) and up.baseline in used else None,
            job_speedup=of_jobs.get(configuration.key),
            target=job.target,
        )
        for name, configuration in zip(configuration_names(job), job.configurations, strict=True)
    ]


def filled_columns(job: Workload, rows: Sequence[TableRow], *, is_filled: bool = True) -> list[Column]:
    """Return the columns of which something is known, or those of which nothing is."""
    columns = [column for column in COLUMNS if column.applies(job)]
    return [column for column in columns if any(column.text(row) != UNKNOWN for row in rows) == is_filled]


def figures(configuration: ConfigurationRuns, target: float | None) -> dict[str, object]:
    """Return the values behind the columns by their names in `--json`; each is None where it is not known."""
    names = [column.figure for column in COLUMNS if column.figure]
    return {
        name: configuration.to_target(target) if name == "to_target" else getattr(configuration, name)
        for name in (*names, *FIGURES_WITHOUT_COLUMN)
    }


def job_tables(job: Workload, ups: Mapping[Configuration, Speedup], width: int) -> list[Table]:
    """Return the tables for the terminal, in lines; columns of which nothing is known are left out."""
    rows = table_rows(job, ups)
    columns = [column for column in filled_columns(job, rows) if column.is_on_terminal]
    names = TextColumn(heading="configuration", cells=tuple(row.name for row in rows), is_left=True)
    groups = [
        [
            TextColumn(heading=column.heading_for(job), cells=tuple(map(column.text, rows)))
            for column in columns
            if column.group == group
        ]
        for group in ("time", "accuracy")
    ]
    return tables(names, groups, width)


def unknown_headings(job: Workload, ups: Mapping[Configuration, Speedup]) -> list[str]:
    """Return the headings on the terminal under which nothing would stand."""
    columns = filled_columns(job, table_rows(job, ups), is_filled=False)
    return [column.heading_for(job).replace("\n", " ") for column in columns if column.is_on_terminal]


def configuration_names(job: Workload) -> list[str]:
    """Return the label of each configuration; where two have the same, with the batch that tells them apart."""
    labels = [clean(label_of(configuration)) for configuration in job.configurations]
    count = Counter(labels)
    return [
        f"{label}, batch {configuration.global_batch or 'unknown'}" if count[label] > 1 else label
        for label, configuration in zip(labels, job.configurations, strict=True)
    ]


def used_baselines(job: Workload, speedups: Mapping[Configuration, Speedup]) -> list[Configuration]:
    """Return the configurations that another one is held against, in the job's order."""
    ups = {configuration.key: speedups.get(configuration.key) for configuration in job.configurations}
    used = {up.baseline for key, up in ups.items() if up and up.baseline != key}
    return [key for key in ups if key in used]


def meanings(jobs: Sequence[Workload], columns: Sequence[Column]) -> list[tuple[str, str]]:
    """Return each heading that is shown, once, with its meaning."""
    shown = [column for column in COLUMNS if column in columns and column.meaning]
    stable = _stable_meaning(jobs)
    return [(column.word, column.meaning + (stable if column.figure == "stable" else "")) for column in shown]


def _stable_meaning(jobs: Sequence[Workload]) -> str:
    """Explain what stands beside the stable epochs of these jobs."""
    stables = [c.stable for job in jobs for c in job.configurations if c.stable.epoch is not None]
    parts = []
    if any(stable.low is not None and stable.method != "stated" for stable in stables):
        parts.append("in brackets the epochs between which it lies with 80 % confidence")
    if any(stable.method == "stated" for stable in stables):
        parts.append('"by eye": as the imported table states it')
    if any(stable.status == "not yet stable" for stable in stables):
        parts.append('"not yet stable": training ended before the plateau was sure, so the epoch is a lower bound')
    return "".join(f"; {part}" for part in parts)


# --- cells


def _whole(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def spread_text(spread: Spread | None) -> str:
    """Return the median, and the range where repeats differ."""
    return _with_range(spread, number, number)


def accuracy_text(spread: Spread | None) -> str:
    """Return the median in percent, and the range where repeats differ."""
    return _with_range(spread, accuracy, lambda value: f"{100 * value:.1f}")


def _median(spread: Spread | None, show: Callable[[float], str]) -> str:
    return UNKNOWN if spread is None or not math.isfinite(spread.value) else show(spread.value)


def _with_range(spread: Spread | None, show: Callable[[float], str], show_end: Callable[[float], str]) -> str:
    text = _median(spread, show)
    if spread is None or text == UNKNOWN or show_end(spread.low) == show_end(spread.high):
        return text
    return f"{text} ({show_end(spread.low)}-{show_end(spread.high)})"


def _against_baseline(row: TableRow, show: Callable[[Speedup], str]) -> str:
    if row.speedup is None:
        return UNKNOWN
    return "baseline" if row.is_baseline else show(row.speedup)


def _job_speedup(speedup: Spread | None) -> str:
    if speedup is None:
        return UNKNOWN
    return "baseline" if speedup.value == speedup.low == speedup.high == 1.0 else f"{speedup.value:.2f}x"


def _exit_codes(runs: Sequence[RunSummary]) -> str:
    """Return the distinct exit codes: of ten repeats that ended well, one 0."""
    codes = dict.fromkeys("none" if run.exit_code is None else str(run.exit_code) for run in runs)
    return ", ".join(codes) or UNKNOWN


def stable_text(stable: EpochEstimate) -> str:
    """Return the stable epoch in a table's cell."""
    if stable.status in ("too short", "too noisy"):
        return {"too short": "too few epochs", "too noisy": "too noisy"}[stable.status]
    if stable.epoch is None:
        return UNKNOWN
    if stable.status == "not yet stable":
        return f"not yet stable (>= {epoch_text(stable.epoch)})"
    return f"{epoch_text(stable.epoch)}{_interval(stable)}"


def target_text(reached: EpochEstimate | None) -> str:
    """Return the epoch at which the job's common target was reached, in a table's cell."""
    if reached is None or reached.status in ("unknown", "too short"):
        return UNKNOWN
    if reached.status == "not reached" or reached.epoch is None:
        return "not reached"
    return f"{epoch_text(reached.epoch)}{_interval(reached)}"


def epoch_text(epoch: float) -> str:
    return f"{epoch:.1f}".removesuffix(".0")


def _interval(stable: EpochEstimate) -> str:
    if stable.method == "stated":
        return " (by eye)"
    if stable.low is None:
        return ""
    if stable.high is None:
        return f" ({epoch_text(stable.low)} or more)"
    return f" ({epoch_text(stable.low)}-{epoch_text(stable.high)})"
