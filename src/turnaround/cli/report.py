"""`turnaround report`: what recorded runs say, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

PROPOSAL = "proposal"

For = Annotated[
    str | None,
    typer.Option("--for", metavar="proposal", help="Write a compute-time proposal on two printed pages instead."),
]
Workers = Annotated[
    int | None, typer.Option(help="Of the proposal: how many GPUs. Default: beyond which more gain below 5 %.")
]
Kind = Annotated[str | None, typer.Option(help="Of the proposal: which kind of GPU. Default: most measured.")]
Trainings = Annotated[int | None, typer.Option(help="Of the proposal: how many trainings. Default: 1.")]
Figures = Annotated[
    Path | None,
    typer.Option("--figures", metavar="FOLDER", help="Of the proposal: each figure as SVG and CSV, there."),
]
Job = Annotated[
    str | None,
    typer.Option("--job", metavar="NAME", help="Only jobs of this name, or with this word in their name."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="PAGE.html", help="Write one page with pictures, which needs nothing else."),
]
Price = Annotated[
    float | None,
    typer.Option(help="Of one GPU for one hour, in any currency: for the costs on the page or in the proposal."),
]

Prices = Annotated[
    Path | None,
    typer.Option(
        "--prices", metavar="FILE", help="A price table for the page or the proposal. Default: turnaround prices."
    ),
]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnaround.analysis.energy import EnergyRates
    from turnaround.analysis.workloads import Survey
    from turnaround.findings import Finding
    from turnaround.forecast.score import OtherWork, Score
    from turnaround.reporting.page.build import PageOptions


@dataclass(frozen=True, kw_only=True)
class ProposalFlags:
    """The flags that only a proposal has."""

    workers: int | None
    gpu: str | None
    trainings: int | None
    figures: Path | None

    def refuse(self) -> None:
        """Refuse what would have no effect."""
        from turnaround.errors import InputError

        given = next((name for name, value in vars(self).items() if value is not None), None)
        if given is not None:
            raise InputError(
                f"--{given} is about a proposal: add --for proposal --out proposal.html, or leave it out. "
                "turnaround predict answers questions about numbers and kinds of GPUs."
            )


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR", help="Runs, or folders of runs.")],
    job: Job = None,
    json_: Annotated[bool, typer.Option("--json", help="Print runs, jobs and findings as JSON on stdout.")] = False,
    out: Out = None,
    price: Price = None,
    prices: Prices = None,
    electricity: Annotated[float | None, typer.Option(help="Price of one kWh, in any currency.")] = None,
    grid: Annotated[float | None, typer.Option(help="kg of CO2e emitted for one kWh of your electricity.")] = None,
    for_: For = None,
    workers: Workers = None,
    gpu: Kind = None,
    trainings: Trainings = None,
    figures: Figures = None,
    pictures: Annotated[bool, typer.Option(help="Show example images of confused classes on the page.")] = True,
) -> None:
    """Compare runs: tables, charts, and what stands out.

    [bold]turnaround report runs/[/bold]                   every run below a folder
    [bold]turnaround report runs/ --out page.html[/bold]   the same as a page, to hand in
    [bold]turnaround report runs/ --for proposal --out proposal.html[/bold]
    [bold]turnaround report runs/a runs/b --json[/bold]    two runs, for a program
    """
    from turnaround.analysis.energy import EnergyRates
    from turnaround.analysis.prices import price_table
    from turnaround.analysis.workloads import filter_jobs
    from turnaround.findings import find_all
    from turnaround.forecast.score import runs_in, saved_in, scored, unscored
    from turnaround.reporting.terminal import print_json

    rates = EnergyRates(electricity=electricity, grid=grid)
    asked = ProposalFlags(workers=workers, gpu=gpu, trainings=trainings, figures=figures)
    if for_ is not None:
        _check_for(for_, out, has_json=json_)
        assert out is not None, "checked just before"
        _write_proposal(directories, out, asked, job=job, price=price, prices=prices, rates=rates)
        return
    asked.refuse()
    if out is not None:
        from turnaround.reporting.page.build import PageOptions

        table = price_table(prices)
        options = PageOptions(job=job, price=price, prices=table, rates=rates, has_pictures=pictures)
        _write_page(directories, out, options)
        if not json_:  # the page has it all; a program gets its JSON besides
            return
    elif price is not None or prices is not None or not pictures:
        given = "--price" if price is not None else "--prices" if prices is not None else "--no-pictures"
        _refuse_without_page(given)
    survey = runs_in(directories)
    if job is not None:
        survey = filter_jobs(survey, job)
    findings = find_all(survey)
    saved = [line for directory in directories for line in saved_in(directory)]
    scores = scored(saved, survey)
    if json_:
        from turnaround.reporting.survey_json import survey_payload

        print_json(survey_payload(survey, findings, scores))
    else:
        _print_text(survey, findings, rates)
        _print_scores(scores, unscored(saved, survey))


def _write_page(directories: Sequence[Path], out: Path, options: PageOptions) -> None:
    """Says where it is on stderr: stdout may go into a pipe."""
    from turnaround.forecast.question import Question
    from turnaround.reporting.page.build import write_page
    from turnaround.reporting.terminal import err

    Question(workers=1, price=options.price)  # refuses a price that is none
    write_page(directories, out=out, options=options)
    err().print(f"page: {out}", markup=False)


def _check_for(what: str, out: Path | None, *, has_json: bool) -> None:
    from turnaround.errors import InputError, one_of

    if what != PROPOSAL:
        raise InputError(one_of("--for", what, (PROPOSAL,)))
    if out is None or has_json:
        raise InputError(f"--for {PROPOSAL} writes a page: add --out proposal.html, and leave --json out.")


def _write_proposal(
    directories: Sequence[Path],
    out: Path,
    asked: ProposalFlags,
    *,
    job: str | None,
    price: float | None,
    prices: Path | None,
    rates: EnergyRates,
) -> None:
    import shlex
    import sys

    from turnaround.analysis.prices import price_table
    from turnaround.findings import find_all
    from turnaround.findings.forecast_warnings import warning_text
    from turnaround.forecast.proposal import make_proposal
    from turnaround.forecast.question import Question
    from turnaround.forecast.remarks import NotPriced
    from turnaround.forecast.score import runs_in
    from turnaround.record.files import replace_file
    from turnaround.reporting.page.build import refuse_target
    from turnaround.reporting.proposal import ProposalOptions, proposal_page, write_figures
    from turnaround.reporting.terminal import err

    # Before the survey of what may be hundreds of runs: a wrong number and a target that may not be replaced.
    question = Question(
        workers=1 if asked.workers is None else asked.workers,
        gpu=asked.gpu,
        job=job,
        price=price,
        prices=price_table(prices).prices,
    )
    refuse_target(out)
    survey = runs_in(directories)
    trainings = 1 if asked.trainings is None else asked.trainings
    proposal = make_proposal(survey, question, workers=asked.workers, trainings=trainings)
    paid = question.price_of(proposal.request.prediction.gpu)
    options = ProposalOptions(price=paid, rates=rates, command=shlex.join(["turnaround", *sys.argv[1:]]))
    replace_file(out, proposal_page(proposal, find_all(survey), options).encode("utf-8", "replace"))
    err().print(f"proposal: {out}", markup=False)
    for missing in (w for w in proposal.request.prediction.remarks.warnings if isinstance(w, NotPriced)):
        err().print(warning_text(missing), markup=False)
    if asked.figures is not None:
        written = write_figures(proposal, asked.figures)
        err().print(f"figures: {', '.join(str(path) for path in written)}", markup=False)


def _refuse_without_page(flag: str) -> None:
    from turnaround.errors import InputError

    raise InputError(f"{flag} is about the page: add --out page.html, or leave it out.")


def _print_text(survey: Survey, findings: Sequence[Finding], rates: EnergyRates) -> None:
    from turnaround.reporting.charts import glyphs_for
    from turnaround.reporting.survey_text import Screen, survey_lines
    from turnaround.reporting.terminal import out, print_lines

    console = out()
    screen = Screen(width=console.width, glyphs=glyphs_for(console.encoding))
    print_lines(console, survey_lines(survey, findings, screen, rates))


def _print_scores(scores: Sequence[Score], others: Sequence[OtherWork]) -> None:
    """Print what was estimated before any run beside what was measured, or beside runs of other work."""
    from turnaround.reporting.estimate_text import score_lines
    from turnaround.reporting.terminal import out, print_lines

    print_lines(out(), score_lines(scores, out().width, others=others))
