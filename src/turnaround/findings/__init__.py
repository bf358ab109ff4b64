"""Findings about the runs, in sentences. Enters: a Survey. Leaves: Findings, most severe first.

A rule is a row of RULES: an id, a severity, and a function that looks at one workload. What it says rests on figures
that it hands over as evidence.

    finding.py      one sentence with its evidence and its size; a rule that finds such
    labels.py       the words for a configuration, a pool of repeats and a fact
    speed.py        what more or faster GPUs brought
    accuracy.py     what more workers cost, and what is only noise
    curves.py       curves that rise, fall, or overfit
    bottlenecks.py  what holds the runs of one configuration back
    energy.py       the words for energy, its price and emissions; GPUs that others used too
    times.py        what of the turnaround was not training
    data.py         leaks and unequal classes
    runs.py         runs that failed, and comparisons that are not fair
    evaluation.py   the words for an evaluation on other images
    forecasts.py    the words for forecasts
    estimates.py    the words for estimates from zero runs, and how they were scored
    forecast_warnings.py  the words for what to mind in them
    queue.py        the words for a cluster's queue: who is ready first
    interruptions.py  the words for machines that are taken away
    proposal.py     the words of a compute-time proposal
    best.py         which configuration for speed, cost and accuracy
"""

from __future__ import annotations

from functools import partial

from turnaround.analysis.workloads import Survey
from turnaround.findings import accuracy, best, bottlenecks, curves, data, energy, runs, speed, times
from turnaround.findings.finding import SEVERITIES, Evidence, Finding, Rule, Severity

__all__ = ["RULES", "SEVERITIES", "Evidence", "Finding", "Severity", "find_all"]

RULES = (
    Rule("run-diverged", "problem", partial(runs.in_state, "diverged")),
    Rule("run-failed", "problem", partial(runs.in_state, "failed")),
    Rule("run-interrupted", "note", partial(runs.in_state, "interrupted")),
    Rule("still-running", "note", partial(runs.in_state, "running")),
    Rule("program-not-recorded", "note", runs.not_recorded),
    Rule("no-better-than-guessing", "problem", accuracy.no_better_than_guessing),
    Rule("one-class-validated", "problem", accuracy.one_class_validated),
    Rule("unfair-comparison", "caution", runs.unfair_comparison),
    Rule("impossible-speed", "problem", times.impossible_speeds),
    Rule("ran-together", "caution", runs.runs_together),
    Rule("shared-gpus", "caution", energy.shared_gpus),
    Rule("faster-gpu-no-gain", "problem", speed.faster_gpu_no_gain),
    Rule("more-than-linear", "caution", speed.more_than_linear),
    Rule("efficiency-falls", "note", speed.efficiency_falls),
    Rule("accuracy-falls-with-workers", "problem", accuracy.accuracy_falls_with_workers),
    Rule("repeats-disagree", "caution", accuracy.repeats_disagree),
    Rule("noise-larger-than-difference", "note", accuracy.noise_larger_than_difference),
    Rule("one-seed-only", "note", accuracy.one_seed_only),
    Rule("leak", "problem", data.leak),
    Rule("class-imbalance", "caution", data.class_imbalance),
    Rule("input-bound", "caution", partial(bottlenecks.bound_by, "input")),
    Rule("communication-bound", "caution", partial(bottlenecks.bound_by, "communication")),
    Rule("straggler", "caution", partial(bottlenecks.bound_by, "straggler")),
    Rule("launch-bound", "caution", partial(bottlenecks.bound_by, "host")),
    Rule("evaluation-bound", "caution", partial(bottlenecks.bound_by, "evaluation")),
    Rule("not-yet-stable", "caution", curves.not_yet_stable),
    Rule("memorising", "note", curves.memorising),
    Rule("harmful-overfitting", "problem", partial(curves.overfitting_of, "harmful")),
    Rule("over-confident", "caution", partial(curves.overfitting_of, "over-confident")),
    Rule("underfitting", "caution", partial(curves.overfitting_of, "underfitting")),
    Rule("times-contradict", "caution", times.times_contradict),
    Rule("time-lost-outside-training", "caution", times.time_lost_outside_training),
    Rule("rehearsal-times", "note", times.rehearsal_times),
    Rule("best-for-speed", "note", best.best_for_speed),
    Rule("best-for-cost", "note", best.best_for_cost),
    Rule("best-for-accuracy", "note", best.best_for_accuracy),
    Rule("own-plateau-only", "note", best.own_plateau_only),
)
"""Every kind of finding, in the order in which those of one severity are told: a new one is a function and a row."""


def find_all(survey: Survey) -> list[Finding]:
    """Return every finding about every job, most severe first; equal ones by job and by rule."""
    found = [finding for job in survey.workloads for rule in RULES for finding in rule.findings(job)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))
