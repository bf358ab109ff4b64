"""What a careful reader would say about the runs, in sentences. Enters: a Survey. Leaves: Findings, most severe first.

A rule looks at one job and knows one id. What a rule says rests on figures that it hands over as evidence.

    finding.py      one sentence with its evidence and its size
    words.py        figures as a sentence wants them
    pools.py        accuracies that may be compared, and their noise
    speed.py        what more or faster GPUs brought
    accuracy.py     what more workers cost, and what is only noise
    curves.py       curves that rise, fall, or are learnt by heart
    bottlenecks.py  what holds the runs of one configuration back
    times.py        what of the turnaround was not training
    data.py         leaks and unequal classes
    runs.py         runs that failed, and comparisons that are not fair
    forecasts.py    the words for forecasts
    best.py         which configuration for speed, cost and accuracy
"""

from __future__ import annotations

from turnaround.analysis.workloads import Survey
from turnaround.findings import accuracy, best, bottlenecks, curves, data, runs, speed, times
from turnaround.findings.finding import SEVERITIES, Evidence, Finding, Rule, Severity

__all__ = ["RULES", "SEVERITIES", "Evidence", "Finding", "Severity", "find_all"]

RULES: dict[str, Rule] = {
    finding_id: rule
    for theme in (runs, speed, accuracy, data, bottlenecks, curves, times, best)
    for finding_id, rule in theme.RULES.items()
}
"""Every id and the rule that finds it, in the order in which findings of one severity are told."""


def find_all(survey: Survey) -> list[Finding]:
    """Every finding about every job, most severe first; equal ones by job and by rule."""
    found = [finding for job in survey.workloads for rule in RULES.values() for finding in rule(job)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))
