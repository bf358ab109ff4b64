"""Findings about single runs, and about whether runs may be compared at all."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnaround.analysis.compare import Difference, unintended_differences
from turnaround.analysis.configurations import ConfigurationRuns, Spread, Workload
from turnaround.analysis.speed import job_speedups
from turnaround.analysis.summary import RunSummary
from turnaround.analysis.times_in_doubt import RunsTogether, ran_together
from turnaround.analysis.workloads import LeftOut, RecordGap
from turnaround.errors import TurnaroundError
from turnaround.findings.finding import Draft, Evidence
from turnaround.findings.labels import fact_name, fact_text, label_of
from turnaround.record.reader import Run
from turnaround.record.schema import State
from turnaround.words import counted, duration, listed


@dataclass(frozen=True)
class _State:
    """Sentences for runs in one state."""

    text: str
    advice: str
    of_others: str = ""
    """Advice for a program that turnaround started and cannot resume, where it is another."""


_STUDY_AGAIN = "Repair the cause; the same turnaround study --command, with --retry after a failure, starts it again."
_STATES: dict[State, _State] = {
    "diverged": _State(
        "diverged: the loss is no longer a number",
        "Lower the learning rate, lengthen the warm-up, or use training.scaling=auto.",
    ),
    "failed": _State("failed", "Repair the cause, then: turnaround resume {path}", _STUDY_AGAIN),
    "interrupted": _State(
        "was interrupted, so its accuracy is left out", "Go on with it: turnaround resume {path}", _STUDY_AGAIN
    ),
    "running": _State(
        "is still running: its times so far are in, its accuracy is not", "Look again when it has ended."
    ),
}


def in_state(state: State, job: Workload) -> Iterator[Draft]:
    """Report one finding for all runs of the job in one state."""
    told = _STATES[state]
    found = [member for member in job.members if member.summary.state == state]
    if found:
        (first, run), others = found[0], [summary.name for summary, _ in found[1:]]
        cause = f" ({run.status.cause.rstrip('.')})" if run.status.cause else ""
        also = f"; so is it with {listed(others)}" if others else ""
        yield Draft(
            text=f"{first.name} {told.text}{_how_far(first)}{cause}{also}.",
            evidence=tuple(item for summary, run in found for item in _how_it_ended(summary, run)),
            advice=told.of_others
            if told.of_others and _is_of_others(run)
            else told.advice.format(path=shlex.quote(str(run.path))),
        )


def _is_of_others(run: Run) -> bool:
    """A program that turnaround started and cannot resume."""
    return isinstance(run.machine.get("program"), dict)


def _how_far(summary: RunSummary) -> str:
    return f" after {summary.epochs} of {summary.epochs_planned or '?'} epochs" if summary.is_recorded else ""


def _how_it_ended(summary: RunSummary, run: Run) -> Iterator[Evidence]:
    """Yield how far a run came, and why it came no farther."""
    if not summary.is_recorded:
        code = summary.exit_code
        yield Evidence(run=summary.name, what="exit code", value="none" if code is None else str(code))
        return
    yield Evidence(run=summary.name, what="epochs done", value=summary.epochs)
    if run.status.cause:
        yield Evidence(run=summary.name, what="cause", value=run.status.cause.rstrip("."))


def not_recorded(job: Workload) -> Iterator[Draft]:
    """Programs of others that say nothing about themselves: what was seen from outside, and what would show more."""
    found = [summary for summary, _ in job.members if not summary.is_recorded]
    if found:
        ups = [(configuration, speedup) for configuration, speedup in _faster(job) if speedup.value != 1.0]
        gains = [f"{label_of(configuration)} {speedup.value:.2f} times as fast" for configuration, speedup in ups]
        faster = f" Counted by the whole job, {listed(gains)}." if gains else ""
        yield Draft(
            text=f"{counted(len(found), 'run')} of {job.name} kept no record: there are wall times and exit codes, but "
            f"no accuracies, no epochs, and nothing that says what the time was spent on.{faster}",
            evidence=tuple(
                Evidence(run=run.name, what="wall time", value=run.job_time_s, unit="s")
                for run in found
                if run.job_time_s is not None
            ),
            advice="Add one line to the program, the recorder's: docs/any-loop.md shows it for every kind of loop.",
        )


def _faster(job: Workload) -> list[tuple[ConfigurationRuns, Spread]]:
    """Return the configurations beside the one with the fewest workers."""
    ups = job_speedups(job)
    fewest = min((key.workers for key in ups), default=0)
    return [
        (configuration, ups[configuration.key])
        for configuration in job.configurations
        if configuration.key in ups and configuration.workers > fewest
    ]


MAX_ERROR = 200
"""Letters of an error: it may quote a whole record."""
MAX_PAIRS = 10
"""Pairs of runs that were on one host together: twenty runs make 190."""

# Told by findings of their own, with their size; another seed is chance, not unfair.
_TOLD_ELSEWHERE = frozenset({"global_batch", "rehearsal", "seed"})


def unfair_comparison(job: Workload) -> Iterator[Draft]:
    """Report each difference besides what was meant to vary once, with the two configurations that show it first."""
    by_id: defaultdict[str, list[tuple[ConfigurationRuns, Difference]]] = defaultdict(list)
    for configuration in job.configurations[1:]:
        is_same_hardware = _hardware(configuration) == _hardware(job.configurations[0])
        for difference in unintended_differences(job.configurations[0], configuration):
            # On the same hardware a setting is what makes it another configuration: it was meant to differ.
            is_meant = is_same_hardware and difference.id in {fact.id for fact in configuration.settings}
            if difference.id not in _TOLD_ELSEWHERE and not is_meant:
                by_id[difference.id].append((configuration, difference))
    for id_, found in by_id.items():
        what = fact_name(id_)
        configuration, difference = found[0]
        matters = "time and accuracy" if difference.matters_for == "both" else difference.matters_for
        others = f" (and {listed([label_of(other) for other, _ in found[1:]])})" if len(found) > 1 else ""
        left, right = (" / ".join(sorted(map(fact_text, side))) for side in (difference.left, difference.right))
        text = (
            f"{label_of(job.configurations[0])} and {label_of(configuration)}{others} differ in more than the "
            f"configuration: {what} is {left} and {right}, which matters for {matters}."
        )
        sides = ((job.configurations[0], left), (configuration, right))
        yield Draft(
            text=text,
            evidence=tuple(Evidence(run=label_of(side), what=what, value=value) for side, value in sides),
            advice="Compare runs that differ in one thing only; repeat one of them with the other's setting.",
        )


def _hardware(configuration: ConfigurationRuns) -> tuple[object, ...]:
    return configuration.workers, configuration.gpu, configuration.hosts, configuration.processes


def runs_together(job: Workload) -> Iterator[Draft]:
    """Report runs that were on one host at the same time: each slowed the other down."""
    pairs = ran_together(list(job.members))
    if pairs:
        yield Draft(
            text=together_text(pairs),
            evidence=tuple(
                Evidence(
                    run=f"{pair.first.name}, {pair.second.name}", what="time together", value=pair.both_s, unit="s"
                )
                for pair in pairs[:MAX_PAIRS]
            ),
            advice="Repeat them one after the other, or compare their accuracies only.",
        )


def together_text(pairs: Sequence[RunsTogether]) -> str:
    """Name the pair that shared a host longest, and count the others."""
    longest = pairs[0]
    more = f", and {len(pairs) - 1} more pairs did" if len(pairs) > 1 else ""
    return (
        f"{longest.first.name} and {longest.second.name} ran on the same host for {duration(longest.both_s)} at the "
        f"same time{more}: their times are not those of a machine of their own."
    )


def left_out_text(item: LeftOut) -> str:
    """Return why a run was left out; of one that never began also how it ended."""
    if not isinstance(item.error, TurnaroundError):
        return f"It holds what no run has ({error_text(item.error)})."
    cause = f": {item.cause}" if item.cause else ""
    return str(item.error) if item.state == "finished" else f"{item.error} Its state is {item.state}{cause}."


def error_text(error: Exception) -> str:
    """Return the kind and the beginning of an error that was meant for nobody: a record of others made a bug show."""
    return f"{type(error).__name__}: {str(error)[:MAX_ERROR]}"


def gap_text(gap: RecordGap) -> str:
    """Say what the record of a run lacks."""
    if gap.note:
        return f"{gap.run}: not everything could be measured ({gap.file}: {gap.note})."
    if gap.bad_lines:
        lines, verb = counted(gap.bad_lines, "line"), "is" if gap.bad_lines == 1 else "are"
        return f"{gap.run}: {lines} of {gap.file} cannot be read and {verb} left out."
    if gap.lost_epochs:
        return f"{gap.run}: {gap.file} lacks {counted(gap.lost_epochs, 'epoch')} before its last: its curve has gaps."
    return (
        f"{gap.run}: {gap.file} ends with epoch {gap.last_epoch}, though {gap.epochs_done} were done: what counts as "
        "its end is not its end."
    )
