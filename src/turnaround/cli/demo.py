"""`turnaround demo`: the whole story on generated fruit, on this machine, in less than a minute."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnaround.cli.options import Device
from turnaround.words import accuracy, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from turnaround.analysis.summary import RunSummary

# Small enough for two CPU cores, large enough that more workers visibly cost epochs. At 32 px the accuracies are those
# of 64 px within two points (docs/LOG.md), for a fraction of the computing.
OVERRIDES = ("data.images=1500", "data.size_px=32", "training.epochs=10")
TRAINED = (1, 2)
REHEARSED = (4, 8)
MAX_FINDINGS = 5


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Where the runs go. Default: runs/demo, or the next free one.")
    ] = None,
    device: Device = "auto",
    json_: Annotated[bool, typer.Option("--json", help="Print the runs as JSON on stdout; no progress.")] = False,
) -> None:
    """Draw fruit, train with 1 and 2 workers, rehearse 4 and 8, compare."""
    from turnaround import recipes
    from turnaround.analysis.summary import summarise
    from turnaround.launch.contract import checked_device, choose_processes
    from turnaround.launch.forked import forking_here
    from turnaround.launch.lifecycle import Request, start
    from turnaround.launch.process_settings import process_settings
    from turnaround.record.layout import default_run_path
    from turnaround.reporting.terminal import err, preparation, print_json
    from turnaround.reporting.training_display import leave_page

    folder, console = out or default_run_path(Path("runs"), "demo"), err()

    def trained(workers: int) -> RunSummary:
        devices = choose_processes(asked=None, workers=workers, device=checked_device(device))
        processes = 1 if workers in REHEARSED else devices
        is_rehearsal = processes < workers
        if not json_:
            console.print(_heading(workers, is_rehearsal))
        recipe = recipes.find("fruitbowl", [*OVERRIDES, f"workers.count={workers}"])
        with preparation(console, quiet=json_) as show:
            request = Request(
                out=folder / f"{workers}-workers",
                show=show,
                processes=processes,
                device=device,
                shows_progress=not json_,
            )
            return summarise(start(recipe, request))

    with forking_here(process_settings(1)):  # the runs load their code once, while the first one's images are drawn
        summaries = [trained(workers) for workers in (*TRAINED, *REHEARSED)]
    if json_:
        print_json([asdict(summary) for summary in summaries])
    else:
        _print_story(summaries, folder)
    leave_page(folder, is_quiet=json_)


def _heading(workers: int, is_rehearsal: bool) -> str:
    if is_rehearsal:
        return (
            f"\n[bold]Rehearsing {workers} workers[/bold] in one process: the accuracy that {workers} GPUs would reach"
        )
    return f"\n[bold]Training with {counted(workers, 'worker')}[/bold]"


def _print_story(summaries: Sequence[RunSummary], folder: Path) -> None:
    from rich.markup import escape

    from turnaround.reporting.run_text import comparison
    from turnaround.reporting.terminal import out

    console = out()
    console.print()
    console.print(comparison(summaries))
    one, most = summaries[0], summaries[-1]
    console.print(
        f"\nWith the same images a worker, {most.workers} workers take steps of {most.global_batch} images instead of "
        f"{one.global_batch}: 1/{most.workers // one.workers} of the updates in the same epochs. They end at "
        f"{accuracy(most.final_val_accuracy)}, one worker at {accuracy(one.final_val_accuracy)}. "
        "One run each: a difference of a point or two is chance.\n"
        "A rehearsal's accuracy is that of its workers; its times, in brackets, are this machine's alone."
    )
    _print_findings(summaries, console)
    # After `make demo` the command lies in .venv/bin, which is not on the user's path.
    is_on_path = shutil.which("turnaround") or Path(sys.argv[0]).name != "turnaround"
    program = "turnaround" if is_on_path else sys.argv[0]
    console.print("\n[bold]What next[/bold]")
    for what, command in (
        ("train on your own images", "train FOLDER"),
        ("as 4 GPUs would", "train FOLDER --workers 4 --processes 1"),
        (
            "a network with ImageNet weights",
            "train FOLDER --set model.name=resnet50 --set model.weights=imagenet",
        ),
        ("all of these runs, in full", f"report {shlex.quote(str(folder))}"),
        ("other recipes, and their keys", "recipes"),
        ("is this machine all right?", "doctor"),
    ):
        console.print(f"  {what:<34}{program} {escape(command)}")
    console.print(f"\nThe runs are recorded in {escape(str(folder))}.")


def _print_findings(summaries: Sequence[RunSummary], console: Console) -> None:
    """Print what the runs say, in a few sentences."""
    from turnaround.analysis.workloads import survey_runs
    from turnaround.findings import find_all
    from turnaround.record.reader import Run
    from turnaround.reporting.survey_text import Screen, short_findings
    from turnaround.reporting.terminal import print_lines

    findings = find_all(survey_runs([Run.load(Path(summary.directory)) for summary in summaries]))
    if findings:
        console.print("\n[bold]What the runs say[/bold]")
        print_lines(console, short_findings(findings, Screen(width=console.width), most=MAX_FINDINGS))
