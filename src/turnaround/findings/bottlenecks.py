"""Findings about what holds the runs of one configuration back, from their own spans, epochs and telemetry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from turnaround.analysis.bottleneck import Bottleneck, Kind
from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.findings.finding import Draft, Evidence, who
from turnaround.findings.labels import label_of
from turnaround.words import duration, listed, percent

_KINDS: dict[Kind | Literal["copy"], tuple[str, str]] = {
    "input": (
        "wait for their images",
        "Keep decoded pixels (data.cache=on), give the job more cores, or make the images smaller; turnaround bench "
        "measures the input alone.",
    ),
    "copy": (
        "spend part of each step on moving and varying their images",
        "Vary them less ([augment]) or make them smaller; turnaround bench measures the input alone.",
    ),
    "communication": (
        "wait for the exchange of gradients",
        "Take more images per worker, a faster connection, or fewer hosts for the same number of GPUs.",
    ),
    "straggler": (
        "wait for their slowest process",
        "Look at its host: a shared or throttled GPU, a busy processor, a slow disk; or leave that host out.",
    ),
    "host": (
        "leave their GPUs idle between kernels",
        "Take more images per worker, or training.compile=true; the network is too small for the GPU.",
    ),
    "evaluation": (
        "spend part of every epoch on evaluation and checkpoints",
        "Evaluate fewer validation images, or save checkpoints less often (training.checkpoint_every_s).",
    ),
}

MIN_EVALUATION_S = 60.0
"""Evaluation of a whole run from which it is worth a word: below a minute nobody would change a training for it, and
the first runs on a few hundred photos, whose epochs take seconds, would all be told."""


def bound_by(kind: Kind, job: Workload) -> Iterator[Draft]:
    """Report one finding for the job: the configuration that loses most, and with it the others of the same kind."""
    found = [(configuration, configuration.bottleneck) for configuration in job.configurations]
    bound = [(c, verdict) for c, verdict in found if verdict is not None and verdict.kind == kind and _matters(verdict)]
    if bound:
        bound.sort(key=lambda pair: -(pair[1].share or 0.0))
        configuration, verdict = bound[0]
        loses, advice = _KINDS["copy" if _is_copying(verdict) else kind]
        others = f" (also: {listed([label_of(other) for other, _ in bound[1:]])})" if len(bound) > 1 else ""
        yield Draft(
            severity="caution" if verdict.is_strong else "note",
            text=f"The runs on {label_of(configuration)}{others} {loses}: {_size(verdict)}; {why(verdict)}",
            evidence=tuple(_evidence(*pair) for pair in bound),
            advice=advice,
        )


def _matters(verdict: Bottleneck) -> bool:
    # Only an evaluation has a total; any other loss is told whatever its seconds.
    return verdict.figures.get("total_s", MIN_EVALUATION_S) >= MIN_EVALUATION_S


def _is_copying(verdict: Bottleneck) -> bool:
    """Tell whether an input-bound step hardly waits: its images are there, and faster decoding would gain nothing."""
    figures = verdict.figures
    return verdict.reason == "input spans" and figures["copy"] > figures["wait"]


def why(verdict: Bottleneck) -> str:
    """Say in a clause what the verdict rests on."""
    f = verdict.figures
    steps = f"by the spans of {f.get('num_steps', 0):.0f} steps"
    match verdict.reason:
        case "damaged record":
            return verdict.damage
        case "imported":
            return "no step of it was taken apart: a table has no spans."
        case "few steps":
            return "too few of its steps were timed."
        case "compute spans":
            return f"computing takes {percent(f['share'])} of a step, {steps}."
        case "input spans":
            return (
                f"{percent(f['wait'])} of a step is waiting for the next batch and {percent(f['copy'])} moving and "
                f"augmenting it, {steps}; only turnaround bench, which measures each part alone, is conclusive."
            )
        case "reduce spans":
            return f"{percent(f['reduce'])} of a step is averaging gradients that computing does not hide, {steps}."
        case "slow process":
            return (
                f"process {f['rank']:.0f} takes {f['ratio']:.2f} times the median time for its part of a step, and "
                "all others wait for it (spans)."
            )
        case "idle GPUs":
            return (
                f"the GPUs were busy {percent(f['busy'])} of the time by telemetry, and it is not the input: kernels "
                "are launched too slowly for their size."
            )
        case "evaluation times":
            return (
                f"{duration(f['outside_s'])} of every epoch are evaluation and checkpoints, in which nothing is learnt "
                "(epochs)."
            )


def _size(verdict: Bottleneck) -> str:
    of_what = "the epoch" if verdict.kind == "evaluation" else "the step"
    return (
        f"{percent(verdict.share or 0.0)} of {of_what}, so at most {verdict.most_gain or 1.0:.2f} times faster without"
    )


def _evidence(configuration: ConfigurationRuns, verdict: Bottleneck) -> Evidence:
    return Evidence(
        run=who(configuration), what=f"share lost ({verdict.kind})", value=verdict.share or 0.0, unit="share"
    )
