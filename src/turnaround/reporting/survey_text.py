"""The report of a survey for the terminal: each job's table and charts, then the findings, then what was left out.

Enters: a survey and its findings. Leaves: lines of at most the width, with their style apart from their text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from turnaround.analysis.configurations import Configuration, ConfigurationRuns, Workload
from turnaround.analysis.energy import EnergyRates
from turnaround.analysis.speed import Speedup, speedups
from turnaround.analysis.workloads import Survey
from turnaround.findings import Evidence, Finding
from turnaround.findings.energy import rated_lines
from turnaround.findings.labels import label_of
from turnaround.findings.runs import gap_text, left_out_text
from turnaround.reporting.charts import BLOCKS, Glyphs, accuracy_chart, stable_chart, time_chart
from turnaround.reporting.comparison_table import (
    Column,
    configuration_names,
    filled_columns,
    has_repeats,
    job_tables,
    meanings,
    table_rows,
    unknown_headings,
    used_baselines,
)
from turnaround.reporting.text_layout import NARROWEST, clean, wrapped
from turnaround.words import UNKNOWN, accuracy, counted, number

SEVERITY_STYLES = {"problem": "bold red", "caution": "bold yellow", "note": "bold cyan"}
MAX_NAMES = 6
"""Runs named of one configuration; `--json` has all."""
MAX_PROSE = 120
HEADING = "bold"
QUIET = "dim"


@dataclass(frozen=True, kw_only=True)
class Screen:
    """The room on a terminal, and what can be drawn in it."""

    width: int = 80
    glyphs: Glyphs = BLOCKS

    @property
    def prose(self) -> int:
        """The width of sentences: longer lines are hard to follow."""
        return min(self.width, MAX_PROSE)


def survey_lines(
    survey: Survey, findings: Sequence[Finding], screen: Screen, rates: EnergyRates | None = None
) -> list[Text]:
    """Return everything, in the order in which it is read; with `rates`, what the energy costs and emits."""
    screen = Screen(width=max(screen.width, NARROWEST), glyphs=screen.glyphs)
    lines: list[Text] = []
    shown: list[Column] = []
    for job in survey.workloads:
        ups = speedups(job)
        lines += [*job_lines(job, ups, screen, rates or EnergyRates()), Text()]
        shown += [c for c in filled_columns(job, table_rows(job, ups)) if c.is_on_terminal]
    lines += [*_words(survey.workloads, shown, screen), Text()]
    lines += findings_lines(survey, findings, screen)
    lines += [*_running(survey, screen), *_notes_of_reading(survey, screen), *_left_out(survey, screen)]
    return lines


# --- one job


def job_lines(
    job: Workload, ups: Mapping[Configuration, Speedup], screen: Screen, rates: EnergyRates
) -> Iterator[Text]:
    """Yield the heading, the tables with their notes, and the charts."""
    width, glyphs = screen.width, screen.glyphs
    name = clean(job.name)
    yield from _styled(wrapped(name, width), HEADING)
    yield Text(glyphs.rule * min(len(name), width), style=QUIET)
    yield from _styled(wrapped(_counts(job), screen.prose))
    for table in job_tables(job, ups, width):
        yield Text()
        yield from _styled(table.heading, HEADING)
        yield from _styled(table.rows)
    yield Text()
    for note in (*_notes(job, ups), *map(clean, rated_lines(job, rates))):
        yield from _styled(wrapped(note, screen.prose))
    charts = (
        accuracy_chart(job, width, glyphs),
        time_chart(job, ups, width, glyphs),
        stable_chart(job, width, glyphs),
    )
    for chart in charts:
        if chart:
            yield Text()
            yield from _styled(chart)


def _counts(job: Workload) -> str:
    """Say how many there are, and whether turnaround has measured them."""
    runs = [run for c in job.configurations for run in c.summaries]
    num_imported = sum(run.is_imported for run in runs)
    count = (
        f"{counted(len(runs), 'run')} of {counted(len(job.configurations), 'configuration')}"
        if has_repeats(job)
        else (f"{counted(len(job.configurations), 'configuration')}, one run each" if len(runs) > 1 else "One run")
    )
    if not num_imported:
        return f"{count}."
    which = "" if num_imported == len(runs) else f" of {num_imported} of them"
    return f"{count}. The figures{which} are imported: stated by others, not measured here."


def _notes(job: Workload, ups: Mapping[Configuration, Speedup]) -> Iterator[str]:
    """Yield what must be known to read the table and the findings."""
    named = zip(configuration_names(job), job.configurations, strict=True)
    yield f"Runs: {'; '.join(f'{_run_names(configuration)} = {name}' for name, configuration in named)}."
    guessing = next((c.guessing_accuracy for c in job.configurations if c.guessing_accuracy is not None), None)
    if guessing is not None:
        yield f"Guessing the largest class of the validation images gives {accuracy(guessing)}."
    used = [clean(label_of(baseline)) for baseline in used_baselines(job, ups)]
    if used:
        yield f"Baseline{'s' * (len(used) > 1)} of speed-up and efficiency: {' and '.join(used)}."
    if any(configuration.is_rehearsal for configuration in job.configurations):
        yield (
            "Rehearsed: one process stood in for several workers. The accuracy is that of the workers; the times would "
            "not be, so they are left out."
        )
    unknown = unknown_headings(job, ups)
    if unknown:
        yield f"Not known for any of these runs: {', '.join(unknown)}."


def _run_names(configuration: ConfigurationRuns) -> str:
    names = [clean(run.name) for run in configuration.summaries]
    rest = [f"and {len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    return ", ".join([*names[:MAX_NAMES], *rest])


def _words(jobs: Sequence[Workload], shown: Sequence[Column], screen: Screen) -> Iterator[Text]:
    """Yield the headings with their meanings."""
    explained = meanings(jobs, shown)
    if explained:
        yield Text("What the columns mean", style=HEADING)
    for word, meaning in explained:
        yield from _labelled(f"{word}: ", f"{meaning}.", HEADING, screen)


# --- findings


def findings_lines(survey: Survey, findings: Sequence[Finding], screen: Screen) -> Iterator[Text]:
    """Yield a heading, then each finding: sentence, evidence in brackets, what to do next."""
    if not findings:
        yield from _styled(wrapped("Findings: none. Nothing in these runs asks for your attention.", screen.prose))
        return
    counts = [counted(found, severity) for severity in SEVERITY_STYLES if (found := _num(findings, severity))]
    yield from _styled(wrapped(f"Findings: {', '.join(counts)}", screen.prose), HEADING)
    has_several_jobs = len(survey.workloads) > 1
    for finding in findings:
        yield Text()
        yield from finding_lines(finding, screen, names_job=has_several_jobs)


def short_findings(findings: Sequence[Finding], screen: Screen, *, most: int) -> list[Text]:
    """Return the sentences alone of the first few; what is missing is counted."""
    lines: list[Text] = []
    for finding in findings[:most]:
        lines += _labelled(f"{finding.severity}: ", clean(finding.text), SEVERITY_STYLES[finding.severity], screen)
    if len(findings) > most:
        lines.append(Text(f"and {len(findings) - most} more"))
    return lines


def _num(findings: Sequence[Finding], severity: str) -> int:
    return sum(finding.severity == severity for finding in findings)


def finding_lines(finding: Finding, screen: Screen, *, names_job: bool) -> Iterator[Text]:
    style = SEVERITY_STYLES[finding.severity]
    if names_job and finding.job:
        text = f"({finding.job}): {finding.text}"
        yield from _labelled(f"{finding.severity} ", clean(text), style, screen)
    else:
        yield from _labelled(f"{finding.severity}: ", clean(finding.text), style, screen)
    if finding.evidence:
        yield from _styled(wrapped(f"[{evidence_text(finding.evidence)}]", screen.prose, first="  "), QUIET)
    if finding.advice:
        yield from _styled(wrapped(clean(finding.advice), screen.prose, first="  Next: "))


def evidence_text(evidence: Sequence[Evidence]) -> str:
    """ "epoch time: model4 81 s, model5 80 s; global batch: model4 128 images" """
    by_figure: dict[str, list[str]] = {}
    for item in evidence:
        shown = " ".join(part for part in (item.run, _value(item)) if part)
        by_figure.setdefault(item.what, []).append(shown)
    return clean(
        "; ".join(f"{what}: {', '.join(shown)}" if what else ", ".join(shown) for what, shown in by_figure.items())
    )


def _value(item: Evidence) -> str:
    if isinstance(item.value, str):
        return f"{item.value} {item.unit}".strip()
    if item.unit == "share":  # shares of one in the data, percent when shown
        return accuracy(item.value) if math.isfinite(item.value) else UNKNOWN
    return f"{number(item.value, digits=4)} {item.unit}".strip()


# --- the rest


def _running(survey: Survey, screen: Screen) -> Iterator[Text]:
    if survey.running:
        yield Text()
        names = ", ".join(clean(name) for name in survey.running)
        is_one = len(survey.running) == 1
        text = (
            f"{names}. {'It is' if is_one else 'They are'} shown as far as {'it has' if is_one else 'they have'} come."
        )
        yield from _labelled("Still going: ", text, HEADING, screen)


def _notes_of_reading(survey: Survey, screen: Screen) -> Iterator[Text]:
    for gap in survey.gaps:
        yield Text()
        yield from _labelled("Not all could be read: ", clean(gap_text(gap)), HEADING, screen)


def _left_out(survey: Survey, screen: Screen) -> Iterator[Text]:
    if survey.left_out:
        yield Text()
        yield Text(f"Left out: {len(survey.left_out):,}", style=HEADING)
        for item in survey.left_out:
            reason = left_out_text(item)
            # The reader begins with the file where one is to blame: only its sentence tells, for all kinds of errors.
            text = reason if reason.startswith(item.directory) else f"{item.directory}: {reason}"
            yield from _styled(wrapped(clean(text), screen.prose, first="  ", rest="    "))


def _labelled(label: str, text: str, style: str, screen: Screen) -> Iterator[Text]:
    for line in wrapped(text, screen.prose, first=label, rest="  "):
        styled = Text(line)
        if line.startswith(label):
            styled.stylize(style, 0, len(label.rstrip()))
        yield styled


def _styled(lines: Sequence[str], style: str = "") -> Iterator[Text]:
    yield from (Text(line, style=style) for line in lines)
