"""`turnaround report`: what recorded runs say, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnaround.analysis.energy import EnergyRates
    from turnaround.analysis.workloads import Survey
    from turnaround.findings import Finding
    from turnaround.forecast.score import Score
    from turnaround.reporting.page.build import PageOptions


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR", help="Runs, or folders of runs.")],
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="NAME", help="Only jobs of this name, or with this word in their name."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print runs, jobs and findings as JSON on stdout.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="PAGE.html", help="Write one page with pictures, which needs nothing else."),
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="Of one GPU for one hour, in any currency: for the costs on the page.")
    ] = None,
    electricity: Annotated[float | None, typer.Option(help="Price of one kWh, in any currency.")] = None,
    grid: Annotated[float | None, typer.Option(help="kg of CO2e emitted for one kWh of your electricity.")] = None,
    pictures: Annotated[bool, typer.Option(help="Show example images of confused classes on the page.")] = True,
) -> None:
    """Compare runs: tables, charts, and what stands out.

    [bold]turnaround report runs/[/bold]                   every run below a folder
    [bold]turnaround report runs/ --out page.html[/bold]   the same as a page, to hand in
    [bold]turnaround report runs/a runs/b --json[/bold]    two runs, for a program
    """
    from turnaround.analysis.energy import EnergyRates
    from turnaround.analysis.workloads import filter_jobs, survey_of
    from turnaround.findings import find_all
    from turnaround.forecast.score import saved_in, scored
    from turnaround.reporting.terminal import print_json

    rates = EnergyRates(electricity=electricity, grid=grid)
    if out is not None:
        from turnaround.reporting.page.build import PageOptions

        _write_page(directories, out, PageOptions(job=job, price=price, rates=rates, has_pictures=pictures))
        if not json_:
            return
    elif price is not None or not pictures:
        _refuse_without_page("--price" if price is not None else "--no-pictures")
    survey = survey_of(directories)
    if job is not None:
        survey = filter_jobs(survey, job)
    findings = find_all(survey)
    scores = scored([line for directory in directories for line in saved_in(directory)], survey)
    if json_:
        from turnaround.reporting.survey_json import survey_payload

        print_json(survey_payload(survey, findings, scores))
    else:
        _print_text(survey, findings, rates)
        _print_scores(scores)


def _write_page(directories: Sequence[Path], out: Path, options: PageOptions) -> None:
    """Says where it is on stderr: stdout may go into a pipe."""
    from turnaround.forecast.question import Question
    from turnaround.reporting.page.build import write_page
    from turnaround.reporting.terminal import err

    Question(workers=1, price=options.price)  # refuses a price that is none
    write_page(directories, out=out, options=options)
    err().print(f"page: {out}", markup=False)


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


def _print_scores(scores: Sequence[Score]) -> None:
    """Print what was estimated before any run beside what was measured."""
    from turnaround.reporting.estimate_text import score_lines
    from turnaround.reporting.terminal import out, print_lines

    print_lines(out(), score_lines(scores, out().width))
