"""`turnaround train`: one run, from a recipe or a folder of images."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from turnaround.data.prepare import Prepared
    from turnaround.recipe import Recipe
    from turnaround.record.reader import Run
    from turnaround.workers.environment import Place


def train(
    source: Annotated[str, typer.Argument(help="A folder of images, a recipe file (.toml), or a built-in recipe.")],
    workers: Annotated[int | None, typer.Option(help="Data-parallel workers: they decide the result.")] = None,
    processes: Annotated[
        int | None,
        typer.Option(help="Processes that host them: they decide the speed. Default: the devices here."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="How processes agree: torch or horovod. Default: the recipe's, else torch.")
    ] = None,
    restarts: Annotated[
        int, typer.Option(min=0, help="Start again by itself from the last checkpoint when a process fails: how often.")
    ] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="The run directory. Default: runs/NAME, or the next free one.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Overrides a key of the recipe; may be repeated."),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do not keep the decoded images after the run.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and do nothing.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout; no progress.")] = False,
) -> None:
    """Train on a folder of images and record the run.

    [bold]turnaround train photos/[/bold]                      one class per folder, a fifth held out
    [bold]turnaround train fruitbowl --workers 4[/bold]        as 4 GPUs would, on what is here
    """
    from turnaround import recipes
    from turnaround.cli.console import checked_device, err, preparation
    from turnaround.launch.conduct import Request, start
    from turnaround.record.layout import default_run_path
    from turnaround.workers.environment import place

    here = place()
    overrides = [*(set_ or []), *([f"workers.count={workers}"] if workers is not None else [])]
    overrides += [f"workers.engine={engine}"] if engine is not None else []
    overrides += ["data.cache=off"] if no_cache else []
    recipe = recipes.find(source, overrides)
    if not here.is_alone:
        recipe = _under_a_launcher(recipe, here, out=out, says_workers="workers.count" in " ".join(overrides))
    target = out or default_run_path(Path("runs"), f"{recipe.name}-{recipe.workers.count}w")
    if dry_run:
        return _print_plan(recipe, target, processes=processes, device=checked_device(device))
    console = err()
    with preparation(console, quiet=json_) as show:
        request = Request(
            out=target,
            show=show,
            processes=processes,
            device=checked_device(device),
            place=here,
            restarts=restarts,
            shows_progress=not json_,
            announce=lambda recipe, prepared, count: None if json_ else announce(console, recipe, prepared, count),
        )
        run = start(recipe, request)
    return print_result(run, as_json=json_) if here.rank == 0 else None


def _under_a_launcher(recipe: Recipe, here: Place, *, out: Path | None, says_workers: bool) -> Recipe:
    """horovodrun or torch.distributed.run runs this command once in each process: all must mean the same run."""
    from turnaround.errors import InputError

    if out is None:
        raise InputError(
            f"A launcher has started this command {here.size} times: give it --out DIR, so that all mean the same run."
        )
    is_default = recipe.workers.count == 1 and not says_workers
    return recipe.replace("workers", count=here.size) if is_default else recipe


def announce(console: Console, recipe: Recipe, prepared: Prepared, processes: int) -> None:
    """What is about to be trained, in a few lines. Names of files and folders may hold [brackets]."""
    from rich.markup import escape

    pixels, workers = prepared.pixels, recipe.workers.count
    num_validation = len(pixels.labels) - pixels.num_train
    console.print(
        f"[bold]{escape(recipe.name)}[/bold]: {pixels.num_train:,} training and {num_validation:,} validation images "
        f"in {len(pixels.classes)} classes, {recipe.size_px} px, {recipe.model.name}"
    )
    how = f"{workers} worker{'s' * (workers > 1)} on {processes} process{'es' * (processes > 1)}"
    if processes < workers:
        how += " (a rehearsal: the accuracy is that of the workers, the times are not)"
    epochs = recipe.training.epochs
    console.print(f"{how}, global batch {recipe.global_batch}, {epochs} epoch{'s' * (epochs > 1)}")
    notes = [*prepared.table.warnings, *(f"left out: {name}" for name in pixels.skipped)]
    for note in notes[:10]:
        console.print(f"[yellow]note:[/yellow] {escape(note)}")
    if len(notes) > 10:
        console.print(f"[yellow]note:[/yellow] and {len(notes) - 10} more; all are in the record")


def print_result(run: Run, *, as_json: bool) -> None:
    """The end of a run, for a person or for a program."""
    from turnaround.analysis.findings import find_all
    from turnaround.analysis.jobs import jobs_of
    from turnaround.analysis.summary import summarise
    from turnaround.cli.console import out, print_json
    from turnaround.report.text import run_end

    summary = summarise(run)
    if as_json:
        print_json(asdict(summary))
    else:
        out().print(run_end(summary, run, find_all(jobs_of([run]))))


def _print_plan(recipe: Recipe, target: Path, *, processes: int | None, device: str) -> None:
    """The resolved recipe as TOML, then the command of every process."""
    from turnaround.launch.contract import LaunchPlan, choose_processes
    from turnaround.launch.local import LocalLauncher
    from turnaround.recipes import as_toml
    from turnaround.record.layout import RunDirectory

    recipe = recipe.resolved()
    plan = LaunchPlan(
        directory=RunDirectory(target),
        pixels_dir=Path("PIXELS"),
        processes=choose_processes(asked=processes, workers=recipe.workers.count, device=device),
        device=device,
        begun_at_s=0.0,
        decode_time_s=0.0,
        engine=recipe.workers.engine,
    )
    typer.echo(as_toml(recipe))
    typer.echo(f"# would decode the images, write {shlex.quote(str(target))}, and start:")
    typer.echo(f"#   {LocalLauncher().text(plan)}")
