"""Findings about what holds the runs of one configuration back, from their own spans, epochs and telemetry."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from turnaround.analysis.bottleneck import Bottleneck, Kind
from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.findings.finding import Evidence, Finding, Rule
from turnaround.findings.words import who
from turnaround.words import listed, percent

_KINDS: dict[str, tuple[Kind, str, str]] = {
    "input-bound": (
        "input",
        "wait for their images",
        "Keep decoded pixels (data.cache=on), give the job more cores, or make the images smaller; turnaround bench "
        "measures the input alone.",
    ),
    "communication-bound": (
        "communication",
        "wait for the exchange of gradients",
        "Take more images per worker, a faster connection, or fewer hosts for the same number of GPUs.",
    ),
    "straggler": (
        "straggler",
        "wait for their slowest process",
        "Look at its host: a shared or throttled GPU, a busy processor, a slow disk; or leave that host out.",
    ),
    "launch-bound": (
        "host",
        "leave their GPUs idle between kernels",
        "Take more images per worker, or training.compile=true; the network is too small for the GPU.",
    ),
    "evaluation-bound": (
        "evaluation",
        "spend part of every epoch on evaluation and checkpoints",
        "Evaluate fewer validation images, or save checkpoints less often (training.checkpoint_every_s).",
    ),
}


def _bound(finding_id: str, job: Workload) -> Iterator[Finding]:
    """One finding for the job: the case that loses most, and with it the others of the same kind."""
    kind, loses, advice = _KINDS[finding_id]
    found = [(case, case.bottleneck) for case in job.configurations]
    bound = [(case, verdict) for case, verdict in found if verdict is not None and verdict.kind == kind]
    if bound:
        bound.sort(key=lambda pair: -(pair[1].share or 0.0))
        case, verdict = bound[0]
        others = f" (also: {listed([other.label for other, _ in bound[1:]])})" if len(bound) > 1 else ""
        yield Finding(
            id=finding_id,
            severity="caution" if verdict.is_strong else "note",
            text=f"The runs on {case.label}{others} {loses}: {_size(verdict)}; {verdict.why}",
            evidence=tuple(_evidence(*pair) for pair in bound),
            advice=advice,
            job=job.name,
        )


def _size(verdict: Bottleneck) -> str:
    of_what = "the epoch" if verdict.kind == "evaluation" else "the step"
    return (
        f"{percent(verdict.share or 0.0)} of {of_what}, so at most {verdict.most_gain or 1.0:.2f} times faster without"
    )


def _evidence(case: ConfigurationRuns, verdict: Bottleneck) -> Evidence:
    return Evidence(run=who(case), what=f"share lost ({verdict.kind})", value=verdict.share or 0.0)


RULES: dict[str, Rule] = {finding_id: partial(_bound, finding_id) for finding_id in _KINDS}
