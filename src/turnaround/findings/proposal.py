"""The words of a compute-time proposal: how its figures were measured, and what to mind in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turnaround.analysis.configurations import ConfigurationRuns
from turnaround.findings.energy import energy_text
from turnaround.findings.finding import Finding
from turnaround.findings.forecast_warnings import warning_text
from turnaround.findings.forecasts import Answer, assumption_text
from turnaround.findings.labels import label_of
from turnaround.forecast.proposal import Proposal
from turnaround.forecast.remarks import NotPriced
from turnaround.words import counted, hardware, listed

MAX_WARNINGS = 4
"""Sentences of what to mind: two printed pages have room for no more."""
MAX_LETTERS = 330
"""Longest sentence there, for the same reason."""
ON_SCALING = frozenset(
    {
        *("more-than-linear", "faster-gpu-no-gain", "impossible-speed", "ran-together", "shared-gpus"),
        *("unfair-comparison", "accuracy-falls-with-workers", "repeats-disagree", "efficiency-falls", "input-bound"),
        *("communication-bound", "straggler", "not-yet-stable", "times-contradict", "leak"),
    }
)
"""Findings that a reviewer of a proposal must know."""


def how_measured(proposal: Proposal) -> list[str]:
    """Return how the runs were made, by which definitions their figures are, and where intervals come from."""
    return [*_runs(proposal), *_definitions(proposal), *_intervals(proposal), _energy(proposal), *_forecast(proposal)]


def _runs(proposal: Proposal) -> Iterator[str]:
    configurations = proposal.job.configurations
    runs = [run for c in configurations for run in c.summaries]
    first = runs[0]
    real = [c for c in configurations if not c.is_rehearsal]
    named = listed([hardware(c.workers, c.gpu, hosts=c.hosts) for c in real], limit=8)
    facts = [
        f"{first.images_per_epoch:,} training images" if first.images_per_epoch else "",
        f"{first.epochs_planned} epochs" if first.epochs_planned else "",
        f"{first.batch_per_worker} images per worker in a step" if first.batch_per_worker else "",
    ]
    told = ", ".join(fact for fact in facts if fact)
    yield f"{counted(len(runs), 'run')}: {named}{f'; {told}' if told else ''}."
    num_imported = sum(run.is_imported for run in runs)
    if num_imported:
        which = "All figures" if num_imported == len(runs) else f"The figures of {counted(num_imported, 'run')}"
        yield f"{which} were imported from a table: stated by their authors, not measured by this program."
    rehearsed = [c for c in configurations if c.is_rehearsal]
    if rehearsed:
        yield (
            f"Rehearsed ({listed([counted(c.workers, 'worker') for c in rehearsed], limit=6)}): fewer devices computed "
            "the steps of all workers, with the same global batch, slices and batch norm of each worker. The accuracy "
            "is that of so many workers, measured; their times are not used."
        )


def _definitions(proposal: Proposal) -> Iterator[str]:
    yield (
        "Time of an epoch: the median over a run's epochs without the first after each start; evaluations, checkpoints "
        "and start-up are in the time of a training. Strong scaling: the same images an epoch on more workers; "
        "speed-up is the baseline's epoch time divided by this one's, efficiency the speed-up divided by how many "
        "times as many workers there are. The baseline has the fewest workers of its kind."
    )
    if any(point.weak_efficiency is not None for point in proposal.points):
        yield (
            "Weak scaling: the same images on each worker in a step; efficiency is the baseline's step time divided by "
            "this one's."
        )


def _intervals(proposal: Proposal) -> Iterator[str]:
    measured = [point for point in proposal.points if point.kind == "measured"]
    parts = []
    if any(point.runs > 1 for point in measured):
        parts.append("of repeats the lowest and the highest")
    if any(point.runs == 1 and point.epoch_time_s.high > point.epoch_time_s.low for point in measured):
        parts.append("of a single run the 80 % interval of the median over its epochs")
    if any(point.epoch_time_s.high == point.epoch_time_s.low for point in measured):
        parts.append("where there is none, the run states one figure only")
    yield (
        f"Intervals of measured times: {'; '.join(parts)}. Of forecasts: 80 %. Of accuracies: repeats, else 95 % by "
        "the number of validation images."
    )


def _energy(proposal: Proposal) -> str:
    workers = proposal.request.prediction.workers
    known = [(c, one) for c in proposal.job.configurations for one in c.energies if one.wh is not None]
    if not known:
        return "Energy: not known; no run has recorded the energy or the power of its GPUs."
    nearest, used = min(known, key=lambda pair: abs(pair[0].workers - workers))
    return f"Energy: {label_of(nearest)} used {energy_text(used)}; of the boards alone, without hosts and cooling."


def _forecast(proposal: Proposal) -> Iterator[str]:
    answer = Answer.of(proposal.request.prediction)
    if not proposal.request.is_measured:
        # Reviewers have no command line: the flags that say otherwise are not for them.
        texts = [assumption_text(assumption, flags=False) for assumption in answer.remarks.assumed[:2]]
        assumed = f" Assumed: {'; '.join(texts)}." if texts else ""
        yield _cut(f"The request is a forecast from {'; '.join(answer.basis)}.{assumed}")


def to_mind(proposal: Proposal, findings: Sequence[Finding]) -> list[str]:
    """Return the findings about this job that bear on its scaling, then the warnings of the forecast: a few of them."""
    found = [f.text for f in findings if f.job == proposal.job.name and f.id in ON_SCALING]
    # That a price is missing is said to the applicant, who can set it, not to the reviewer.
    warnings = [w for w in proposal.request.prediction.remarks.warnings if not isinstance(w, NotPriced)]
    said = [*found, *map(warning_text, warnings)]
    return [_cut(text) for text in dict.fromkeys(said)][:MAX_WARNINGS]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS].rsplit(' ', 1)[0]} ..."


def has_gpus(configurations: Sequence[ConfigurationRuns]) -> bool:
    """Tell whether the hours are those of GPUs: of processors they are hours of processes."""
    return any(c.gpu not in ("CPU", "unknown") for c in configurations)
