"""A training as a person sees it: what begins, bars while it is prepared, how it ended, and the page of it.

Used by `train`, `resume`, `bench`, `demo` and `study`. Everything goes to stderr, but for the result itself. What only
the end needs, scipy's optimizers above all, is loaded while the command waits for its processes.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from turnaround.errors import InterruptedRunError, TrainingError
from turnaround.record.layout import RunDirectory
from turnaround.record.notify import notified
from turnaround.record.reader import Run, find_runs
from turnaround.record.viewers.follow import followed
from turnaround.reporting.terminal import err, out, preparation, print_json
from turnaround.words import counted

if TYPE_CHECKING:
    from turnaround.data.decoders import Show
    from turnaround.launch.prepare import Prepared
    from turnaround.recipe import Recipe
    from turnaround.record.notify import Notifier
    from turnaround.workers.environment import RankInfo

MAX_NOTES = 10
"""Notes about the images that are printed before a training; all of them are in the record."""

NEEDED_AT_THE_END = ("analysis.summary", "analysis.workloads", "findings", "reporting.run_text", "reporting.page.build")


@contextmanager
def run_display(
    target: Path, viewers: tuple[str, ...], *, here: RankInfo, is_quiet: bool, notifier: Notifier | None = None
) -> Iterator[tuple[Show, Callable[[Recipe, Prepared, int], None]]]:
    """Show a training: bars while it is prepared, other viewers while it trains, a page when it fails; tell its end.

    Yields what shows the preparation, and what is to be called when the run is ours and begins.
    """
    console, is_first = err(), here.rank == 0

    def tell(note: str) -> None:
        console.print("note:", note, markup=False)

    with (
        notified(target, notifier if is_first else None, tell=tell) as notify,
        page_on_failure(target, is_quiet=is_quiet, is_first=is_first),
        preparation(console, quiet=is_quiet) as show,
        followed(target, viewers if is_first else (), tell=tell) as follow,
    ):

        def announced(recipe: Recipe, prepared: Prepared, processes: int) -> None:
            if is_first:
                _load_for_the_end()
            follow()
            notify()
            if not is_quiet:
                announce(console, recipe, prepared, processes)

        yield show, announced


def _load_for_the_end() -> None:
    """Load in a thread what a training needs when it is over: 0.8 s of computing (2 cores, 2026-11-19).

    Now, because nothing is timed yet: later it would take its time from an epoch where every core computes.
    """

    def load() -> None:
        # After the processes that start meanwhile, where cores are few: of Linux alone a thread has a priority.
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        with suppress(Exception):  # it is loaded again where it is used, and there it is told
            for name in NEEDED_AT_THE_END:
                importlib.import_module(f"turnaround.{name}")
            from turnaround.reporting.page.blocks import Block
            from turnaround.reporting.page.render import render_page

            # An empty page: its scripts are packed and its templates compiled once in a process.
            render_page([Block(id="block")], title="", live=False)

    threading.Thread(target=load, name="load for the end", daemon=True).start()


def announce(console: Console, recipe: Recipe, prepared: Prepared, processes: int) -> None:
    """Print in a few lines what is about to be trained. Names of files and folders may hold [brackets]."""
    pixels, workers = prepared.pixels, recipe.workers.count
    num_validation = len(pixels.labels) - pixels.num_train
    console.print(
        f"[bold]{escape(recipe.name)}[/bold]: {pixels.num_train:,} training and "
        f"{counted(num_validation, 'validation image')} in {counted(len(pixels.classes), 'class')}, "
        f"{recipe.size_px} px, {recipe.model.name}"
    )
    spread = f"{counted(workers, 'worker')} on {counted(processes, 'process')}"
    if processes < workers:
        spread += " (a rehearsal: the accuracy is that of the workers, the times are not)"
    epochs = recipe.training.num_epochs
    console.print(f"{spread}, global batch {recipe.global_batch}, {counted(epochs, 'epoch')}")
    for note in prepared.notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}")
    notes = [*prepared.table.warnings, *(f"left out: {file}: {reason}" for file, reason in pixels.skipped)]
    for note in notes[:MAX_NOTES]:
        console.print(f"[yellow]note:[/yellow] {escape(note)}")
    if len(notes) > MAX_NOTES:
        console.print(f"[yellow]note:[/yellow] and {len(notes) - MAX_NOTES} more; all are in the record")


def print_result(run: Run, *, as_json: bool) -> None:
    """Print the end of a run, for a person or for a program, and leave its page."""
    from turnaround.analysis.summary import summarise
    from turnaround.analysis.workloads import survey_runs
    from turnaround.findings import find_all
    from turnaround.findings.runs import gap_text
    from turnaround.reporting.run_text import run_end

    summary = summarise(run)
    if as_json:
        print_json(asdict(summary))
    else:
        surveyed = survey_runs([run])
        out().print(run_end(summary, run, find_all(surveyed)))
        # A resume goes on behind epochs whose lines are gone; what else a record lacks is told by the report.
        for gap in (gap for gap in surveyed.gaps if gap.lost_epochs or gap.epochs_done):
            err().print(f"warning: {gap_text(gap)}", markup=False, highlight=False)
    if not _has_its_page(run):
        leave_page(run.path, is_quiet=as_json)


def _has_its_page(run: Run) -> bool:
    """Return true where the page is newer than the status: a finished run that is resumed stays as it is."""
    page = run.directory.page
    return page.is_file() and page.stat().st_mtime_ns >= run.directory.status.stat().st_mtime_ns


def leave_page(folder: Path, *, is_quiet: bool = False) -> None:
    """Write FOLDER/page.html of the run or the runs in it, and say so; what goes wrong is a warning, no more."""
    place = RunDirectory(folder).page
    try:
        from turnaround.reporting.page.build import write_page

        write_page([folder], out=place)
    except (Exception, KeyboardInterrupt) as error:  # whatever it is: the training is over, and its record counts
        reason = str(error) or type(error).__name__
        if isinstance(error, KeyboardInterrupt):
            again = shlex.join(["turnaround", "report", str(folder), "--out", str(place)])
            reason = f"Ctrl-C. Everything else is whole; write it with: {again}"
        err().print(f"warning: the page {place} could not be written: {reason}", markup=False, style="yellow")
        return
    if not is_quiet:
        err().print(f"page: {place}", markup=False)


@contextmanager
def page_on_failure(folder: Path, *, is_quiet: bool = False, is_first: bool = True) -> Iterator[None]:
    """Leave the page of what there is when a training ends before its end. `is_first`: only process 0 writes.

    What was refused before it began has none: the folder may be another run's.
    """
    try:
        yield
    except (TrainingError, InterruptedRunError):
        if is_first and folder.is_dir() and any(RunDirectory(run).machine.exists() for run in find_runs(folder)):
            leave_page(folder, is_quiet=is_quiet)
        raise
