"""What every finding is: one sentence with its size, the figures it rests on, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from turnaround.analysis.configurations import Workload

Severity = Literal["problem", "caution", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "caution", "note")
"""Most severe first. A problem makes a result wrong or a run useless; a caution limits what can be concluded."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One figure that a finding rests on."""

    run: str
    """The run's name, or the configuration's where it is a figure over repeats."""
    what: str
    value: float | str
    unit: str = ""


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


Rule = Callable[[Workload], Iterable[Finding]]
"""Looks at one job for one kind of finding."""
