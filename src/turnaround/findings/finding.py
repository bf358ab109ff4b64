"""A finding: one sentence with its size, the figures it rests on, and what to do next.

Also the evidence that most rules hand over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from turnaround.analysis.configurations import ConfigurationRuns, Spread, Workload
from turnaround.findings.labels import label_of
from turnaround.words import durations

Severity = Literal["problem", "caution", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "caution", "note")
"""Most severe first. A problem makes a result wrong or a run useless; a caution limits what can be concluded."""

Unit = Literal["", "share", "s", "images", "images/s", "GPU-seconds", "process-seconds"]
"""The unit of a figure; "share" is a share of one, which people read in percent, "" a plain number or a word."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One figure that a finding rests on."""

    run: str
    """The run's name, or the configuration's where it is a figure over repeats."""
    what: str
    value: float | str
    unit: Unit = ""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The result of a rule: a finding without its id and its job, which the caller knows."""

    text: str
    evidence: tuple[Evidence, ...]
    advice: str
    """Advice: what to do next."""
    severity: Severity | None = None
    """Severity, where it differs from that of the rule."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that the runs show."""

    id: str
    """The rule that found it: the same words in every report."""
    severity: Severity
    text: str
    evidence: tuple[Evidence, ...]
    advice: str
    """What to do next."""
    job: str = ""
    """The name of the job it is about; empty when it is about all of them."""


@dataclass(frozen=True)
class Rule:
    """One kind of finding: how it is called, how severe it usually is, and who looks for it in one workload."""

    id: str
    severity: Severity
    find: Callable[[Workload], Iterable[Draft]]

    def findings(self, job: Workload) -> Iterable[Finding]:
        for draft in self.find(job):
            yield Finding(
                id=self.id,
                severity=draft.severity or self.severity,
                text=draft.text,
                evidence=draft.evidence,
                advice=draft.advice,
                job=job.name,
            )


# --- evidence that several rules hand over


def epochs(*configurations: ConfigurationRuns) -> tuple[str, ...]:
    """Return the times of an epoch of configurations that have times, as they are compared."""
    times_s = [c.epoch_time_s.value for c in configurations if c.epoch_time_s is not None]
    assert len(times_s) == len(configurations), "only timed configurations are compared in time"
    return durations(*times_s)


def figure(run: str, what: str, value: float | None, unit: Unit = "") -> Iterable[Evidence]:
    """Yield one figure; nothing where it is not known."""
    if value is not None:
        yield Evidence(run=run, what=what, value=value, unit=unit)


def _median(configuration: ConfigurationRuns, what: str, spread: Spread | None, unit: Unit) -> Iterable[Evidence]:
    return figure(who(configuration), what, None if spread is None else spread.value, unit)


def who(configuration: ConfigurationRuns) -> str:
    """Return the run's name where there is one run, else the configuration and how often it was run."""
    return (
        configuration.summaries[0].name
        if len(configuration.summaries) == 1
        else f"{label_of(configuration)} ({len(configuration.summaries)} runs)"
    )


def epoch_times(*configurations: ConfigurationRuns) -> tuple[Evidence, ...]:
    return tuple(e for c in configurations for e in _median(c, "epoch time", c.epoch_time_s, "s"))


def image_rates(*configurations: ConfigurationRuns) -> tuple[Evidence, ...]:
    return tuple(e for c in configurations for e in _median(c, "images per second", c.images_per_s, "images/s"))


def final_accuracies(*configurations: ConfigurationRuns) -> tuple[Evidence, ...]:
    """Means over the repeats, as the sentences about pools have them."""
    known = [(c, [a for run in c.finished if (a := run.final_val_accuracy) is not None]) for c in configurations]
    what = "final validation accuracy" + (" (mean)" if any(len(values) > 1 for _, values in known) else "")
    return tuple(Evidence(run=who(c), what=what, value=fmean(values), unit="share") for c, values in known if values)
