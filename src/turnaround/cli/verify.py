"""`turnaround verify`: is every file of a run, a study or a cache what was written?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from turnaround.record.verify import FileCheck


def verify(
    path: Annotated[Path, typer.Argument(metavar="RUN|STUDY|CACHE", help="A run, a folder of runs, or a pixel cache.")],
    json_: Annotated[bool, typer.Option("--json", help="Print every file as JSON on stdout.")] = False,
) -> None:
    """Find damaged files of runs and caches by their checksums.

    A file is whole, damaged, or unknown: it has no checksum (logs, pages, and what earlier versions wrote). Nothing is
    changed. Exit code 1 when anything is damaged.

    [bold]turnaround verify runs/x[/bold]                 one run
    [bold]turnaround verify runs/[/bold]                  all runs below a folder
    [bold]turnaround verify ~/.cache/turnaround[/bold]    every decoded picture
    """
    from turnaround.reporting.terminal import out, print_json, print_lines
    from turnaround.reporting.verify_text import payload_of, verify_lines

    checks = list(_checks(path))
    if json_:
        print_json(payload_of(path, checks))
    else:
        print_lines(out(), verify_lines(checks))
    if any(check.state == "damaged" for check in checks):
        raise typer.Exit(1)


def _checks(path: Path) -> Iterable[FileCheck]:
    from turnaround.data.verify import is_cache, verify_cache
    from turnaround.record.layout import RunDirectory, StudyDirectory
    from turnaround.record.reader import find_runs
    from turnaround.record.verify import FileCheck, verify_run, verify_study

    if RunDirectory(path).is_run():
        return verify_run(path)
    if is_cache(path):
        return (FileCheck(path=file.path, reason=file.reason, detail=file.detail) for file in verify_cache(path))
    if StudyDirectory(path).study.is_file() or find_runs(path):
        return verify_study(path)
    RunDirectory.open(path)  # raises, with the names that are near
    raise AssertionError("what is no run raises")
