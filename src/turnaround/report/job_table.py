"""The comparison table of one job: a row for each configuration, first its times, then its accuracies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from turnaround.analysis.configurations import Configuration, ConfigurationRuns, Spread, Workload
from turnaround.analysis.speed import Speedup, job_speedups
from turnaround.analysis.stable import EpochEstimate
from turnaround.analysis.summary import RunSummary
from turnaround.report.lines import Column, Table, clean, tables
from turnaround.words import UNKNOWN, accuracy, duration, number

MEANINGS = {
    "batch": "images in one update of the weights, over all workers together",
    "runs": "repeats of the configuration; figures are their median, in brackets the lowest and the highest of them",
    "s/epoch": "duration for one pass over the training images; where it is recorded, the first (cold) one is left out",
    "images/s": "training images a second, over all workers together",
    "speed-up": "how many times faster an epoch is than the baseline's: the fewest workers of the same kind of GPU",
    "efficiency": "how much of the added workers becomes speed: the speed-up, divided by how many times as many "
    "workers there are as in the baseline; 100 % is ideal",
    "job time": "from submit to finish",
    "job time speed-up": "how many times shorter the whole job is than the one with the fewest workers; its start, "
    "which no worker shortens, is in it",
    "exit code": "how the program ended: 0 is well, a negative number is the signal that killed it",
    "stable epoch": "the first epoch of the plateau, where validation accuracy stays within a percentage point (or its "
    "noise, if that is larger) of the best level seen",
    "epochs to": "epochs until validation accuracy is there, a level that every finished configuration has reached; "
    "times s/epoch it compares configurations fairly",
    "validation accuracy": "accuracy of images recognised after the last epoch, of images that were not trained on",
    "training accuracy": "the same of images that were trained on",
}
"""What each heading means, in the order of the columns."""


def case_names(job: Workload) -> list[str]:
    """The label of each configuration; where two have the same, with the batch that tells them apart."""
    labels = [clean(case.configuration.label) for case in job.cases]
    count = Counter(labels)
    return [
        f"{label}, batch {case.configuration.global_batch or 'unknown'}" if count[label] > 1 else label
        for label, case in zip(labels, job.cases, strict=True)
    ]


def has_repeats(job: Workload) -> bool:
    return any(len(case.runs) > 1 for case in job.cases)


def job_tables(job: Workload, speedups: Mapping[Configuration, Speedup], width: int) -> list[Table]:
    """The tables, in lines; columns of which nothing is known are left out (see `headings`)."""
    names = Column(heading="configuration", cells=tuple(case_names(job)), is_left=True)
    groups = [[column for column in group if _is_known(column)] for group in column_groups(job, speedups)]
    return tables(names, groups, width)


def headings(job: Workload, speedups: Mapping[Configuration, Speedup], *, known: bool) -> list[str]:
    """Of the columns in which something stands, or of those in which nothing does."""
    columns = [column for group in column_groups(job, speedups) for column in group]
    return [column.heading.replace("\n", " ") for column in columns if _is_known(column) == known]


def _is_known(column: Column) -> bool:
    return any(cell != UNKNOWN for cell in column.cells)


def column_groups(job: Workload, speedups: Mapping[Configuration, Speedup]) -> list[list[Column]]:
    """All columns: those of time, those of accuracy."""
    cases = job.cases
    used = used_baselines(job, speedups)
    ups = [up if (up := speedups.get(case.configuration)) and up.baseline in used else None for case in cases]
    time = [
        _column("batch", (_whole(case.configuration.global_batch) for case in cases)),
        *([_column("runs", (str(len(case.runs)) for case in cases))] if has_repeats(job) else []),
        _column("s/epoch", (spread_text(case.epoch_time_s) for case in cases)),
        _column("images/s", (_median(case.images_per_s, number) for case in cases)),
        _column("speed-up", (_speedup(case, up) for case, up in zip(cases, ups, strict=True))),
        _column("efficiency", (_efficiency(case, up) for case, up in zip(cases, ups, strict=True))),
        _column("job time", (_median(case.job_time_s, duration) for case in cases)),
        *_outside_columns(job),
    ]
    accuracy = [
        _column("stable\nepoch", (stable_text(case.stable) for case in cases)),
        *(
            []
            if job.target is None
            else [_column(target_heading(job.target), (target_text(c.to_target) for c in cases))]
        ),
        _column("validation\naccuracy", (accuracy_text(case.final_val_accuracy) for case in cases)),
        _column("training\naccuracy", (accuracy_text(case.final_train_accuracy) for case in cases)),
    ]
    return [time, accuracy]


def _outside_columns(job: Workload) -> Iterator[Column]:
    """Of programs that kept no record of their own: what can be told from outside."""
    runs = [[run for run in case.runs if not run.is_recorded] for case in job.cases]
    if any(runs):
        ups = job_speedups(job)
        yield _column("job time\nspeed-up", (_job_speedup(ups.get(case.configuration)) for case in job.cases))
        yield _column("exit\ncode", (_exit_codes(own) for own in runs))


def _job_speedup(speedup: Spread | None) -> str:
    if speedup is None:
        return UNKNOWN
    return "baseline" if speedup.value == speedup.low == speedup.high == 1.0 else f"{speedup.value:.2f}x"


def _exit_codes(runs: Sequence[RunSummary]) -> str:
    """Each once: of ten repeats that ended well, one 0."""
    codes = dict.fromkeys("none" if run.exit_code is None else str(run.exit_code) for run in runs)
    return ", ".join(codes) or UNKNOWN


def target_heading(target: float) -> str:
    return f"epochs to\n{accuracy(target)}"


def _column(heading: str, cells: Iterator[str]) -> Column:
    return Column(heading=heading, cells=tuple(cells))


def _whole(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def spread_text(spread: Spread | None) -> str:
    """The median, and the range where repeats differ."""
    return _with_range(spread, number, number)


def accuracy_text(spread: Spread | None) -> str:
    """The same in percent."""
    return _with_range(spread, accuracy, lambda value: f"{100 * value:.1f}")


def _median(spread: Spread | None, show: Callable[[float], str]) -> str:
    return UNKNOWN if spread is None or not math.isfinite(spread.value) else show(spread.value)


def _with_range(spread: Spread | None, show: Callable[[float], str], show_end: Callable[[float], str]) -> str:
    text = _median(spread, show)
    if spread is None or text == UNKNOWN or show_end(spread.low) == show_end(spread.high):
        return text
    return f"{text} ({show_end(spread.low)}-{show_end(spread.high)})"


def _speedup(case: ConfigurationRuns, up: Speedup | None) -> str:
    if up is None:
        return UNKNOWN
    return "baseline" if up.baseline == case.configuration else f"{up.speedup.value:.2f}x"


def _efficiency(case: ConfigurationRuns, up: Speedup | None) -> str:
    if up is None:
        return UNKNOWN
    return "baseline" if up.baseline == case.configuration else f"{100 * up.efficiency.value:.0f} %"


def stable_text(stable: EpochEstimate) -> str:
    """The stable epoch in a table's cell."""
    if stable.status == "too short":
        return "too few epochs"
    if stable.epoch is None:
        return UNKNOWN
    if stable.status == "not yet stable":
        return f"not yet stable (>= {epoch_text(stable.epoch)})"
    return f"{epoch_text(stable.epoch)}{_interval(stable)}"


def target_text(reached: EpochEstimate | None) -> str:
    """The epoch at which the job's common target was reached, in a table's cell."""
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


def used_baselines(job: Workload, speedups: Mapping[Configuration, Speedup]) -> list[Configuration]:
    """The configurations that another one is held against, in the job's order."""
    ups = {case.configuration: speedups.get(case.configuration) for case in job.cases}
    used = {up.baseline for configuration, up in ups.items() if up and up.baseline != configuration}
    return [configuration for configuration in ups if configuration in used]


def meanings(jobs: Sequence[Workload], shown: Sequence[str]) -> list[tuple[str, str]]:
    """Each heading that is shown, with its meaning; the common target's without its value, which jobs differ in."""
    words = [word for word in MEANINGS if any(h == word or h.startswith(f"{word} ") for h in shown)]
    stable = _stable_meaning(jobs)
    return [
        (f"{word} N %" if word == "epochs to" else word, MEANINGS[word] + (stable if word == "stable epoch" else ""))
        for word in words
    ]


def _stable_meaning(jobs: Sequence[Workload]) -> str:
    """What stands beside the stable epochs of these jobs."""
    stables = [case.stable for job in jobs for case in job.cases if case.stable.epoch is not None]
    parts = []
    if any(stable.low is not None and stable.method != "stated" for stable in stables):
        parts.append("in brackets the epochs between which it lies with 80 % confidence")
    if any(stable.method == "stated" for stable in stables):
        parts.append('"by eye": as the imported table states it')
    if any(stable.status == "not yet stable" for stable in stables):
        parts.append('"not yet stable": training ended before the plateau was sure, so the epoch is a lower bound')
    return "".join(f"; {part}" for part in parts)
