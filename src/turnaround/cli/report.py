"""`turnaround report`: what recorded runs say, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnaround.analysis.workloads import LeftOut, Survey
    from turnaround.findings import Finding

TO_GET_RUNS = (
    "`turnaround train` records a run, `turnaround import FILE --out DIR` makes run directories of other people's runs."
)


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR", help="Runs, or folders of runs.")],
    job: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only jobs of this name, or with this word in their name.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print runs, jobs and findings as JSON on stdout.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="PAGE.html", help="Write one page with pictures, which needs nothing else.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="Of one GPU for one hour, in any currency: for the costs on the page.")
    ] = None,
    pictures: Annotated[bool, typer.Option(help="Show example images of confused classes on the page.")] = True,
) -> None:
    """Compare runs: a table and charts for each job, and what stands out.

    [bold]turnaround report runs/[/bold]                          every run below a folder
    [bold]turnaround report runs/ --out page.html[/bold]          the same as a page, to look at or to hand in
    [bold]turnaround report runs/a runs/b --json[/bold]           two runs, for a program
    """
    from turnaround.cli.console import print_json
    from turnaround.findings import find_all

    if out is not None:
        _write_page(directories, out, job=job, price=price, has_pictures=pictures)
        if not json_:
            return
    elif price is not None or not pictures:
        _refuse_without_page("--price" if price is not None else "--no-pictures")
    found = survey_of(directories)
    if job is not None:
        found = filter_jobs(found, job)
    findings = find_all(found)
    if json_:
        from turnaround.report.survey_json import survey_payload

        print_json(survey_payload(found, findings))
    else:
        _print_text(found, findings)


def _write_page(
    directories: Sequence[Path], out: Path, *, job: str | None, price: float | None, has_pictures: bool
) -> None:
    """Says where it is on stderr: stdout may go into a pipe."""
    from turnaround.cli.console import err
    from turnaround.cli.page import Wanted, write_page
    from turnaround.forecast.question import Question

    Question(workers=1, price=price)  # refuses a price that is none
    write_page(directories, out=out, wanted=Wanted(job=job, price=price, has_pictures=has_pictures))
    err().print(f"page: {out}", markup=False)


def _refuse_without_page(flag: str) -> None:
    from turnaround.errors import InputError

    raise InputError(f"{flag} is about the page: add --out page.html, or leave it out.")


def _print_text(found: Survey, findings: Sequence[Finding]) -> None:
    from turnaround.cli.console import out, print_lines
    from turnaround.report.charts import glyphs_for
    from turnaround.report.survey_text import Screen, survey_lines

    console = out()
    screen = Screen(width=console.width, glyphs=glyphs_for(console.encoding))
    print_lines(console, survey_lines(found, findings, screen))


def survey_of(directories: Sequence[Path]) -> Survey:
    """All runs at or below the directories. What holds none is left out, unless nothing else is there."""
    from dataclasses import replace

    from turnaround.analysis.workloads import survey
    from turnaround.errors import RunDirectoryError

    # By name: a folder may be given beside the one that it lies in.
    without = list({item.directory: item for directory in directories for item in _without_runs(directory)}.values())
    names = {item.directory for item in without}
    holding = [directory for directory in directories if str(directory) not in names]
    if not holding:
        raise RunDirectoryError(f"{without[0].reason} {TO_GET_RUNS}")
    found = survey(holding)
    found = replace(found, left_out=(*found.left_out, *without))
    if not found.jobs:
        reasons = " ".join(item.reason for item in found.left_out)
        raise RunDirectoryError(f"No run can be read. {reasons} {TO_GET_RUNS}")
    return found


def _without_runs(directory: Path) -> Iterator[LeftOut]:
    """The directory itself when no run is in it, else those of its folders in which none is."""
    from turnaround.analysis.workloads import LeftOut
    from turnaround.errors import RunDirectoryError
    from turnaround.record.layout import RunDirectory
    from turnaround.record.reader import find_runs

    if find_runs(directory) == [directory]:  # raises when there is no such directory
        return
    try:
        folders = sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:  # not ours to look into
        folders = []
    with_runs = [folder for folder in folders if find_runs(folder)]
    for path in folders if with_runs else [directory]:
        if path not in with_runs:
            try:
                RunDirectory.open(path)
            except RunDirectoryError as error:
                yield LeftOut(directory=str(path), reason=str(error))


def filter_jobs(found: Survey, wanted: str) -> Survey:
    """The jobs of exactly this name; else those whose name contains it, in any case."""
    from dataclasses import replace

    from turnaround.errors import InputError

    jobs = [job for job in found.jobs if job.name == wanted]
    jobs = jobs or [job for job in found.jobs if wanted.casefold() in job.name.casefold()]
    if not jobs:
        names = ", ".join(repr(job.name) for job in found.jobs)
        raise InputError(f"No job of these runs is called {wanted!r}. They are: {names}.")
    runs = {run.name for job in jobs for case in job.cases for run in case.runs}
    return replace(found, jobs=tuple(jobs), running=tuple(name for name in found.running if name in runs))
