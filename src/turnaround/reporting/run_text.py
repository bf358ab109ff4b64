"""A run at its end, and runs side by side, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turnaround.analysis.balance import balance
from turnaround.analysis.energy import run_energy
from turnaround.analysis.shares import limited_s, parts_of_run_s
from turnaround.analysis.summary import RunSummary
from turnaround.findings import Finding
from turnaround.findings.energy import energy_text
from turnaround.findings.times import PART_NAMES
from turnaround.record.reader import Run
from turnaround.record.schema import EpochRecord
from turnaround.words import accuracy, counted, duration, few, points


def comparison(summaries: Sequence[RunSummary]) -> Table:
    """Runs side by side. A rehearsal's times stand in brackets: they are this machine's, not those of its workers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for heading in ("workers", "processes", "batch", "s/epoch", "images/s", "best", "final", "turnaround"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for run in summaries:
        table.add_row(
            str(run.workers),
            str(run.processes),
            "-" if run.global_batch is None else str(run.global_batch),
            _time(run, None if run.epoch_time_s is None else f"{run.epoch_time_s:.2f}"),
            _time(run, None if run.images_per_s is None else f"{run.images_per_s:,.0f}"),
            accuracy(run.best_val_accuracy),
            accuracy(run.final_val_accuracy),
            _time(run, duration(run.turnaround_s)),
            Text("rehearsed", style="italic") if run.is_rehearsal else "",
        )
    return table


def _time(run: RunSummary, shown: str | None) -> str:
    return "-" if shown is None else f"({shown})" if run.is_rehearsal else shown


MAX_FINDINGS = 3
"""At the end of a run: what is most severe. `turnaround report` has all."""
SAID_ALREADY = {"time-lost-outside-training", "rehearsal-times", "straggler"}
"""Findings that the lines of a run's end tell by themselves."""


def run_end(summary: RunSummary, run: Run, findings: Sequence[Finding] = ()) -> RenderableType:
    """Return what a person wants to know when a training has ended."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")  # a path is shown whole, to be copied
    worth_telling = [finding for finding in findings if finding.id not in SAID_ALREADY]
    for name, text in _end_rows(summary, run, worth_telling[:MAX_FINDINGS]):
        if text:
            table.add_row(name, Text(text))  # as text: names of classes and folders may hold [brackets]
    return Group(table)


def _end_rows(summary: RunSummary, run: Run, findings: Sequence[Finding]) -> Iterator[tuple[str, str | None]]:
    """Yield name and text of each line; without a text there is nothing to say."""
    final = accuracy(summary.final_val_accuracy)
    if run.evaluation:
        final += f" of {counted(run.evaluation.num_images, 'validation image')}"
        if run.evaluation.top5 is not None:
            final += f", top-5 {accuracy(run.evaluation.top5)}"
    if summary.guessing_accuracy is not None:
        final += f"; guessing the largest class: {accuracy(summary.guessing_accuracy)}"
    yield "final accuracy", final
    yield "by class", class_metrics_sentence(summary)
    if summary.best_epoch is not None:
        yield "best epoch", best_sentence(summary, run)
    yield "epochs", summary.stopped_early
    yield "time limit", limit_sentence(summary, run)
    yield "weakest class", weakest_class(run)
    note = " (this machine's, for all workers together)" if summary.is_rehearsal else ""
    yield "epoch time", f"{duration(summary.epoch_time_s)}, {summary.images_per_s or 0:,.0f} images/s{note}"
    yield "turnaround", f"{duration(summary.turnaround_s)}: {parts_sentence(summary)}"
    yield "to the first step", first_step_sentence(summary, run)
    yield "energy", energy_sentence(run)
    yield "scaling", scaling_sentence(run)
    yield "noise scale", noise_sentence(run)
    slow = balance(run)
    if slow is not None and slow.has_straggler:
        yield "straggler", f"process {slow.slowest_rank} takes {slow.ratio:.2f} x the median time of a step"
    for sentence in run.machine.get("passed_over_checkpoints", []):
        yield "checkpoint", sentence
    yield "changed", changed_sentence(run)
    for finding in findings:
        yield finding.severity, finding.text
    yield "record", summary.directory


def changed_sentence(run: Run) -> str | None:
    """Return what was other at a later start than before: hardware, code, processes; None where nothing was."""
    changed = run.machine.get("changed")
    said = [what for what in changed if isinstance(what, str)] if isinstance(changed, list) else []
    return f"{few(said)}. The training stays the same, its last bits may not." if said else None


def best_sentence(summary: RunSummary, run: Run) -> str:
    """Say which epoch was the best, and what is done with its weights."""
    found = f"{summary.best_epoch} with {accuracy(summary.best_val_accuracy)}"
    if run.evaluation is None or run.evaluation.best is None or summary.epochs < 2:
        return found
    # The best of many figures with noise lies above what the same weights would reach on other images.
    return f"{found}: classify, export and serve use its weights; as the best of {summary.epochs} it is optimistic"


def limit_sentence(summary: RunSummary, run: Run) -> str | None:
    """Say what was planned for a time limit and what was done; None for a run without one."""
    limit_s = summary.time_limit_s
    if limit_s is None or summary.turnaround_s is None:
        return None
    used_s = limited_s(summary)
    planned = run.status.epochs_planned or summary.epochs_planned or summary.epochs
    kept = "" if used_s <= limit_s else "; it was exceeded: an epoch is the least that is trained"
    return f"{duration(limit_s)}: {planned} epochs planned, {summary.epochs} done in {duration(used_s)}{kept}"


def parts_sentence(summary: RunSummary) -> str:
    """Say where the time went, largest part first, without what is too small to matter."""
    parts = sorted(parts_of_run_s(summary).items(), key=lambda item: -item[1])
    # A table does not tell the cold epoch from the others.
    names = PART_NAMES | ({"training_steady": "epochs"} if summary.is_imported else {})
    return ", ".join(f"{names.get(name, name)} {duration(value)}" for name, value in parts if value >= 0.05)


def first_step_sentence(summary: RunSummary, run: Run) -> str | None:
    """Say how long the first step took from the submission of a job; None for a run that waited for nobody."""
    parts = summary.first_step_parts_s
    if not parts or run.status.job is None:
        return None
    listed = ", ".join(f"{PART_NAMES.get(name, name)} {duration(time_s)}" for name, time_s in parts.items())
    return f"{duration(sum(parts.values()))} after it was submitted: {listed}"


def energy_sentence(run: Run) -> str | None:
    """Say what energy the GPUs used, or why it is not known; None for a run on processors."""
    used = run_energy(run)
    return None if used.unknown == "no GPU" else energy_text(used)


def scaling_sentence(run: Run) -> str | None:
    """Say what was scaled because of the workers, and why; None for one worker."""
    choice = run.machine.get("choices", {}).get("scaling", {})
    return str(choice["reason"]) if run.machine.get("workers", 1) > 1 and "reason" in choice else None


def noise_sentence(run: Run) -> str | None:
    """Return the gradient noise scale in words: the last with an upper bound, else what is known instead, and why."""
    bounded = [e for e in run.epochs if e.noise_scale is not None and e.noise_scale_high is not None]
    if not bounded:
        return _noise_unknown(run.epochs[-1]) if run.epochs else None
    last = bounded[-1]
    about = float(f"{last.noise_scale:.2g}")
    interval = f"90 %: {last.noise_scale_low or 0:,.0f} to {last.noise_scale_high:,.0f}"
    return f"beyond about {about:,.0f} images a step, more workers buy little ({interval}; an order of magnitude)"


def _noise_unknown(last: EpochRecord) -> str | None:
    """Say why the noise scale is not known, and its lower end where there is one; None where no reason is given."""
    if last.noise_scale_reason is None:
        return None
    if not last.noise_scale_low:
        return f"not known: {last.noise_scale_reason}"
    least = float(f"{last.noise_scale_low:.2g}")
    return (
        f"at least about {least:,.0f} images a step, so more workers still pay up to there ({last.noise_scale_reason})"
    )


def class_metrics_sentence(summary: RunSummary) -> str | None:
    """Return macro precision, recall and F1, and the calibration error; None for a run that was not evaluated so."""
    if summary.macro_f1 is None:
        return None
    named = {"precision": summary.macro_precision, "recall": summary.macro_recall, "F1": summary.macro_f1}
    macro = ", ".join(f"{name} {accuracy(value)}" for name, value in named.items())
    error = summary.calibration_error
    return f"{macro} (macro)" + ("" if error is None else f"; calibration error {points(error)}")


def weakest_class(run: Run) -> str | None:
    """Return the class that is recognised least, if there is anything to say about it."""
    results = [c for c in run.evaluation.per_class if c.accuracy is not None] if run.evaluation else []
    if len(results) < 2:
        return None
    worst = min(results, key=lambda c: (c.accuracy or 0.0, c.name))
    if worst.accuracy == 1.0:
        return None  # all are recognised
    return f"{worst.name}: {accuracy(worst.accuracy)} of {counted(worst.num_images, 'image')}"
