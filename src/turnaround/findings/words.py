"""Figures as a sentence wants them, and the evidence that most rules hand over."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from turnaround.analysis.configurations import ConfigurationRuns, Spread
from turnaround.findings.finding import Evidence
from turnaround.words import durations


def epochs(*cases: ConfigurationRuns) -> tuple[str, ...]:
    """The times of an epoch of cases that have times, as they are compared."""
    times_s = [case.epoch_time_s.value for case in cases if case.epoch_time_s is not None]
    assert len(times_s) == len(cases), "only timed cases are compared in time"
    return durations(*times_s)


def figure(case: ConfigurationRuns, what: str, spread: Spread | None, unit: str = "") -> Iterable[Evidence]:
    """One figure of a case over its repeats; nothing when it has none."""
    if spread is not None:
        yield Evidence(run=who(case), what=what, value=spread.value, unit=unit)


def who(case: ConfigurationRuns) -> str:
    """The run's name where there is one run, else the configuration and how often it was run."""
    return case.summaries[0].name if len(case.summaries) == 1 else f"{case.label} ({len(case.summaries)} runs)"


def epoch_times(*cases: ConfigurationRuns) -> tuple[Evidence, ...]:
    return tuple(e for case in cases for e in figure(case, "epoch time", case.epoch_time_s, "s"))


def image_rates(*cases: ConfigurationRuns) -> tuple[Evidence, ...]:
    return tuple(e for case in cases for e in figure(case, "images per second", case.images_per_s, "images/s"))


def final_accuracies(*cases: ConfigurationRuns) -> tuple[Evidence, ...]:
    """Means over the repeats, as the sentences about pools have them."""
    known = [(case, [a for run in case.finished if (a := run.final_val_accuracy) is not None]) for case in cases]
    what = "final validation accuracy" + (" (mean)" if any(len(values) > 1 for _, values in known) else "")
    return tuple(Evidence(run=who(case), what=what, value=fmean(values)) for case, values in known if values)
