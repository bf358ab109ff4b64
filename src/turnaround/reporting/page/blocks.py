"""The content of the page, block by block. Enters: a PageView. Leaves: blocks in the order in which they are read."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from turnaround.analysis.configurations import Workload
from turnaround.analysis.confusion import best_evaluated, confused_pairs
from turnaround.analysis.energy import EnergyRates
from turnaround.analysis.prices import PriceTable
from turnaround.analysis.workloads import Survey
from turnaround.findings import SEVERITIES, Finding
from turnaround.findings.energy import rated_lines
from turnaround.findings.forecasts import Answer, assumption_text, track_record_text
from turnaround.findings.runs import gap_text, left_out_text
from turnaround.forecast.predict import Forecaster
from turnaround.forecast.question import Prediction, Question
from turnaround.forecast.score import Score
from turnaround.reporting.page.answer import Headline, answer_of
from turnaround.reporting.page.fig_common import Figure
from turnaround.reporting.page.figures import SECTIONS, figures_of, key_figures
from turnaround.reporting.page.questions import missing_curves, missing_usage, questions_of
from turnaround.reporting.page.runs import run_cards
from turnaround.reporting.page.tables import asked_counts, class_table, comparison, forecasts, leaderboard
from turnaround.reporting.page.templates import piece
from turnaround.reporting.range_words import best_in_words
from turnaround.reporting.survey_text import evidence_text
from turnaround.words import counted

MAX_CONFUSED = 6
MAX_MISTAKES = 12
"""Mistakes in the gallery; evaluation.json has more."""
MAX_INTERRUPTED = 8
"""Interrupted runs whose command is told; the others are counted."""
SHORT_EVIDENCE = 260
"""Characters of evidence that are shown at once; longer evidence is folded away."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A named piece of the page: html, or a figure. The live page pushes the blocks that changed."""

    id: str
    """Unique in the page, the same from one rendering to the next: "answer", "job-1f2e3d4c/findings"."""
    html: str = ""
    """Escaped: names from others are text only."""
    figure: Figure | None = None
    heading: str = ""
    """The text of its heading, where the contents name it."""
    fold: str = ""
    """The id of the heading under which it is folded away; empty for what is always in view."""


@dataclass(frozen=True, kw_only=True)
class PageView:
    """Everything that the page tells."""

    survey: Survey
    title: str
    now: str
    """The time at which the page was made, for people."""
    findings: tuple[Finding, ...] = ()
    forecasters: Mapping[str, tuple[Forecaster, ...]] = field(default_factory=dict)
    """Forecasters by the job's name, one for each kind of GPU; a job about which nothing can be forecast is missing."""
    scores: tuple[Score, ...] = ()
    """Forecasts that were saved, held against later runs."""
    thumbnails: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """Example pictures as data URIs, by the job's name and by class."""
    mistakes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pictures of the surest mistakes, by the job's name and by file."""
    notes: tuple[str, ...] = ()
    """Sentences about what could not be shown."""
    price: float | PriceTable | None = None
    """The price of one GPU for one hour, or the prices by kind."""
    rates: EnergyRates = field(default_factory=EnergyRates)
    """What a kWh costs and emits."""
    command: str = ""
    """The command that makes the page again."""
    version: str = ""
    is_live: bool = False


def job_key(name: str) -> str:
    """Return the part of a block's id that stands for a job: it stays when jobs are added before it."""
    # A checksum of the name instead of its place or the name itself: the live page replaces blocks by id, and names of
    # others may hold anything. Names of folders need not be UTF-8, hence surrogatepass.
    return f"job-{crc32(name.encode('utf-8', 'surrogatepass')):08x}"


def anchor(block_id: str) -> str:
    """Return the id of the block's element."""
    return block_id.replace("/", "-")


def page_blocks(view: PageView) -> tuple[Block, ...]:
    """Return the answer and what was interrupted; for each job the charts that carry its answer, its findings and its
    table, and folded away everything else; what was left out."""
    jobs = [list(_job_blocks(view, job)) for job in view.survey.workloads]
    return (
        _answer(view),
        *_interrupted(view),
        _contents(view, jobs),
        *(block for blocks in jobs for block in blocks),
        *_rest(view),
        Block(id="footer", html=piece("footer", view=view)),
    )


def _answer(view: PageView) -> Block:
    survey = view.survey
    jobs = survey.workloads
    runs = [run for job in survey.workloads for c in job.configurations for run in c.summaries]
    html = piece(
        "answer",
        title=view.title,
        answer=_answer_of(view, jobs[0]) if len(jobs) == 1 else None,
        board=leaderboard([(job, job_key(job.name)) for job in jobs]) if len(jobs) > 1 else None,
        num_jobs=len(jobs),
        num_runs=len(runs),
        num_rehearsed=sum(run.is_rehearsal for run in runs),
        num_imported=sum(run.is_imported for run in runs),
        running=survey.running,
        is_live=view.is_live,
    )
    return Block(id="answer", html=html)


def _answer_of(view: PageView, job: Workload) -> Headline:
    return answer_of(job, view.forecasters.get(job.name, ()), view.findings)


def _interrupted(view: PageView) -> Iterator[Block]:
    """Yield the command that goes on with each run that was interrupted; the live page tells it in the run's card."""
    stopped = [
        (run.name, run.epochs, run.epochs_planned, shlex.join(["turnaround", "resume", os.path.abspath(run.directory)]))
        for job in view.survey.workloads
        for configuration in job.configurations
        for run in configuration.summaries
        if run.state == "interrupted" and not run.is_imported
    ]
    if stopped and not view.is_live:
        html = piece("interrupted", shown=stopped[:MAX_INTERRUPTED], more=len(stopped) - MAX_INTERRUPTED)
        yield Block(id="interrupted", html=html)


def _contents(view: PageView, jobs: Sequence[Sequence[Block]]) -> Block:
    """Return links to where the parts of each job begin, under the names that their headings have."""
    linked = [
        (
            job.name,
            f"{job_key(job.name)}-heading",
            [(anchor(block.id), block.heading) for block in blocks if block.heading],
        )
        for job, blocks in zip(view.survey.workloads, jobs, strict=True)
    ]
    return Block(id="contents", html=piece("contents", jobs=linked))


def _job_blocks(view: PageView, job: Workload) -> Iterator[Block]:
    key, forecasters = job_key(job.name), view.forecasters.get(job.name, ())
    answer = _answer_of(view, job) if len(view.survey.workloads) > 1 else None
    yield Block(id=f"{key}/heading", html=piece("job_heading", job=job, answer=answer))
    figures = figures_of(job, forecasters, price=view.price)
    # In view without a click: what carries the answer. The browser draws a folded figure only when it is opened.
    first = key_figures(figures)
    if first:
        html = piece("section_heading", text="Key charts")
        yield Block(id=f"{key}/charts", html=html, heading="Key charts")
    yield from (Block(id=f"{key}/figure/{figure.id}", figure=figure) for figure in first)
    yield _findings(view, job, key)
    is_single = sum(len(configuration.summaries) for configuration in job.configurations) == 1
    heading = "Results" if is_single else "Comparison"
    rated = rated_lines(job, view.rates)
    html = piece("comparison", table=comparison(job), key=key, job=job.name, heading=heading, rated=rated)
    yield Block(id=f"{key}/table", html=html, heading=heading)
    asked = piece("questions", questions=questions_of(job, figures, forecasters), key=key)
    yield Block(id=f"{key}/questions", html=asked, heading="Questions and answers")
    rest = [figure for figure in figures if figure not in first]
    empty = {"curves": missing_curves(job, figures), "gpus": missing_usage(job, figures)}
    for section, heading in SECTIONS.items():
        inside: list[Block] = [
            Block(id=f"{key}/figure/{figure.id}", figure=figure) for figure in rest if figure.section == section
        ]
        if empty.get(section):
            inside = [Block(id=f"{key}/empty/{section}", html=piece("empty", reason=empty[section])), *inside]
        if section == "classes":
            inside += [*_classes(job, key), *_mistakes(view, job, key), *_confused(view, job, key)]
        yield from _folded(f"{key}/section/{section}", heading, inside)
    yield from _folded(f"{key}/fold/forecast", "Forecast", list(_forecasts(view, job, key)))
    runs = run_cards(job)
    heading = "The run" if len(runs.cards) == 1 else "The runs"
    inside = [Block(id=f"{key}/runs", html=piece("runs", runs=runs, key=key))]
    yield from _folded(f"{key}/fold/runs", heading, inside, counted(len(runs.cards), "run"))


def _folded(block_id: str, heading: str, inside: Sequence[Block], note: str = "") -> Iterator[Block]:
    """Yield a heading that opens and closes, and what is folded away under it; nothing without content."""
    if not inside:
        return
    titles = [block.figure.title for block in inside if block.figure is not None]
    html = piece("fold", text=heading, note=note or " · ".join(titles))
    yield Block(id=block_id, html=html, heading=heading)
    yield from (replace(block, fold=block_id) for block in inside)


def _findings(view: PageView, job: Workload, key: str) -> Block:
    findings = [finding for finding in view.findings if finding.job == job.name]
    # `sort` is stable: within a severity the order of the registry in findings/ stays.
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    shown = [(finding, evidence_text(finding.evidence)) for finding in findings]
    html = piece("findings", findings=shown, short=SHORT_EVIDENCE)
    return Block(id=f"{key}/findings", html=html, heading="Findings")


def _classes(job: Workload, key: str) -> Iterator[Block]:
    """Yield the table of the classes of the most accurate run."""
    best = best_evaluated(job, needs_matrix=False)
    if best is None:
        return
    table = class_table(best.evaluation)
    html = piece(
        "classes",
        table=table,
        key=key,
        job=job.name,
        run=best.summary.name,
        several=len(list(job.members)) > 1,
        evaluation=best.evaluation,
    )
    yield Block(id=f"{key}/class-metrics", html=html)


def _mistakes(view: PageView, job: Workload, key: str) -> Iterator[Block]:
    """Yield a gallery of the mistakes that the network was surest of; where they are not recorded, it says so."""
    best = best_evaluated(job, needs_matrix=False)
    if best is None:
        return
    shown = best.evaluation.mistakes[:MAX_MISTAKES]
    html = piece(
        "mistakes",
        mistakes=shown,
        pictures=view.mistakes.get(job.name, {}),
        run=best.summary.name,
        # `top1` is a share of whole images: the product is a whole number but for its last bit.
        num_wrong=best.evaluation.num_images - round(best.evaluation.top1 * best.evaluation.num_images),
        is_live=view.is_live,
    )
    yield Block(id=f"{key}/mistakes", html=html)


def _confused(view: PageView, job: Workload, key: str) -> Iterator[Block]:
    """Yield pictures of the confused classes: a figure cannot show how they look."""
    best, pictures = best_evaluated(job), view.thumbnails.get(job.name, {})
    if best is None or not pictures:
        return
    names, rows = best.evaluation.classes, best.evaluation.confusion
    pairs = [
        (names[pair.true], names[pair.predicted], pair.num_images, sum(rows[pair.true]))
        for pair in confused_pairs(best.evaluation, most=MAX_CONFUSED)
    ]
    if pairs:
        yield Block(id=f"{key}/confused", html=piece("confused", pairs=pairs, pictures=pictures, run=best.summary.name))


def _forecasts(view: PageView, job: Workload, key: str) -> Iterator[Block]:
    by_gpu = []
    for forecaster in view.forecasters.get(job.name, ()):
        predictions = [forecaster.predict(count) for count in asked_counts(forecaster)]
        # Of the largest number of workers, which lies furthest from what was measured.
        last = Answer.of(predictions[-1])
        grounds = {
            "Based on": last.rests_on,
            # A page has no flags to set an assumption right with.
            "Assumed": [*(assumption_text(each, flags=False) for each in last.remarks.assumed), *last.left_open],
            "Caveats": list(last.warnings),
        }
        by_gpu.append((forecaster.laws.gpu, forecasts(predictions), _best(predictions, forecaster.question), grounds))
    if by_gpu:
        scored = track_record_text([score for score in view.scores if score.job == job.name])
        yield Block(id=f"{key}/forecast", html=piece("forecast", by_gpu=by_gpu, scored=scored, key=key, job=job.name))


def _best(predictions: Sequence[Prediction], question: Question) -> str:
    said = best_in_words(predictions, question)
    return f"{said[0].upper()}{said[1:]}"


def _rest(view: PageView) -> Iterator[Block]:
    survey = view.survey
    if survey.left_out or survey.gaps or view.notes:
        notes = (*map(gap_text, survey.gaps), *view.notes)
        left_out = [(item.directory, left_out_text(item)) for item in survey.left_out]
        yield Block(id="left-out", html=piece("left_out", left_out=left_out, notes=notes))
