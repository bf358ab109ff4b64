"""The report of a survey for programs: the payload of `turnaround report --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from turnaround.analysis.bottleneck import Bottleneck
from turnaround.analysis.configurations import Configuration, ConfigurationRuns, Workload
from turnaround.analysis.speed import Speedup, speedups
from turnaround.analysis.workloads import Survey
from turnaround.findings import Finding
from turnaround.findings.bottlenecks import why
from turnaround.findings.labels import fact_name, fact_text, label_of
from turnaround.findings.runs import gap_text, left_out_text
from turnaround.forecast.score import Score
from turnaround.reporting.comparison_table import figures


def survey_payload(survey: Survey, findings: Sequence[Finding], scores: Sequence[Score] = ()) -> dict[str, Any]:
    """Return runs one by one, jobs with their configurations, findings, what was left out, and estimates from before
    any run beside what was measured."""
    return {
        "runs": [asdict(run) for job in survey.workloads for c in job.configurations for run in c.summaries],
        "jobs": [_job(job) for job in survey.workloads],
        "findings": [finding_payload(finding) for finding in findings],
        "left_out": [{"directory": item.directory, "reason": left_out_text(item)} for item in survey.left_out],
        "running": list(survey.running),
        "notes": [gap_text(gap) for gap in survey.gaps],
        "estimates": [{**asdict(score), "is_inside": score.is_inside} for score in scores if score.is_estimate],
    }


def _job(job: Workload) -> dict[str, Any]:
    ups = speedups(job)
    return {
        "name": job.name,
        "target": job.target,
        "cases": [_configuration_json(configuration, ups, job.target) for configuration in job.configurations],
    }


def _configuration_json(
    configuration: ConfigurationRuns, ups: Mapping[Configuration, Speedup], target: float | None
) -> dict[str, Any]:
    """Return the configuration and its figures; its runs by name, since they stand under "runs" in full."""
    up = ups.get(configuration.key)
    return {
        "configuration": {
            "label": label_of(configuration),
            **asdict(configuration.key),
            "settings": _settings(configuration),
        },
        "runs": [run.name for run in configuration.summaries],
        **{name: _plain(value) for name, value in figures(configuration, target).items()},
        "bottleneck": None if configuration.bottleneck is None else _bottleneck(configuration.bottleneck),
        "speedup": None if up is None else {**asdict(up), "baseline": label_of(up.baseline)},
    }


def _settings(configuration: ConfigurationRuns) -> list[dict[str, str]]:
    return [
        {"what": fact_name(f.id), "value": fact_text(f), "matters_for": f.matters_for} for f in configuration.settings
    ]


def _bottleneck(verdict: Bottleneck) -> dict[str, Any]:
    return {
        "kind": verdict.kind,
        "share": verdict.share,
        "most_gain": verdict.most_gain,
        "why": why(verdict),
        "probes": False,  # programs read it; every verdict rests on what the run itself has recorded
    }


def _plain(value: Any) -> dict[str, Any] | None:
    return None if value is None else asdict(value)


def finding_payload(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "severity": finding.severity,
        "text": finding.text,
        # A share is a plain number for programs: its unit is none.
        "evidence": [{**asdict(item), "unit": "" if item.unit == "share" else item.unit} for item in finding.evidence],
        "next": finding.advice,
        "job": finding.job,
    }
