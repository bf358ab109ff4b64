"""`turnaround import`: runs that turnaround did not train become run directories, marked as imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnaround.words import accuracy, counted, duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from turnaround.analysis.summary import RunSummary
    from turnaround.record.importers.values import Reading

IN_LOGS = "For logs, which do not say it: "


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            help="A CSV of runs or of curves; a log of Keras, Lightning, Hugging Face, timm, Ultralytics, W&B, "
            "trackio, TensorBoard or MLPerf, or its folder."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder that gets a run directory for each run.")],
    curves: Annotated[
        Path | None,
        typer.Option(help="With a CSV of runs: a CSV with name, epoch, val_accuracy, ... for their curves."),
    ] = None,
    percent: Annotated[bool, typer.Option("--percent", help="The accuracies are percent, not fractions.")] = False,
    name: Annotated[str | None, typer.Option(help="The run's name. Default: the file's.")] = None,
    workers: Annotated[int | None, typer.Option(help=IN_LOGS + "data-parallel workers. Default: 1.")] = None,
    gpu: Annotated[str | None, typer.Option(help=IN_LOGS + "the GPU's name, or cpu.")] = None,
    nodes: Annotated[int | None, typer.Option(help=IN_LOGS + "the number of machines.")] = None,
    batch_per_worker: Annotated[int | None, typer.Option(help=IN_LOGS + "images a worker takes at each step.")] = None,
    dataset: Annotated[str | None, typer.Option(help=IN_LOGS + "which images.")] = None,
    images_per_epoch: Annotated[int | None, typer.Option(help=IN_LOGS + "training images.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print what was imported as JSON on stdout.")] = False,
) -> None:
    """Turn other people's runs into run directories.

    [bold]turnaround import runs.csv --out runs/lab[/bold]   a table, one row a run
    [bold]turnaround import training.log --workers 4 --gpu V100 --out runs/keras[/bold]
    [bold]turnaround import runs/classify/train --out runs/yolo[/bold]   Ultralytics
    """
    from turnaround.analysis.summary import summarise
    from turnaround.record.importers.read import read_runs
    from turnaround.record.importers.values import ImportOptions
    from turnaround.record.importers.write import write_runs
    from turnaround.record.reader import Run

    options = ImportOptions(
        workers=workers,
        gpu=gpu,
        batch_per_worker=batch_per_worker,
        dataset=dataset,
        images_per_epoch=images_per_epoch,
        name=name,
        nodes=nodes,
    )
    reading = read_runs(file, curves=curves, options=options, is_percent=percent)
    summaries = [summarise(Run.load(path)) for path in write_runs(reading.runs, out)]
    # On stderr, before what is printed of them on stdout: whoever pipes the JSON away sees the doubts.
    _tell(reading, has_table=not json_)
    _doubt(summaries)
    if json_:
        _print_json(reading, summaries)
    else:
        _print_tables(reading, summaries, out)


def _tell(reading: Reading, *, has_table: bool) -> None:
    """Print on stderr what was assumed, and what was left out where no table on stdout names it."""
    from rich.markup import escape

    from turnaround.record.importers.read import describe
    from turnaround.reporting.terminal import err

    console = err()
    for note in reading.notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}")
    for item in () if has_table else reading.left_out:
        console.print(f"[yellow]left out:[/yellow] {escape(describe(item))}")


def _doubt(summaries: Sequence[RunSummary]) -> None:
    """Print on stderr where the times cannot be seconds."""
    from rich.markup import escape

    from turnaround.analysis.times_in_doubt import impossible_speed
    from turnaround.findings.times import impossible_speed_text
    from turnaround.reporting.terminal import err

    if found := [speed for summary in summaries if (speed := impossible_speed(summary)) is not None]:
        err().print(f"[yellow]note:[/yellow] {escape(impossible_speed_text(found))}")


def _print_json(reading: Reading, summaries: Sequence[RunSummary]) -> None:
    from dataclasses import asdict

    from turnaround.record.coding import plain
    from turnaround.reporting.terminal import print_json

    content: dict[str, Any] = {
        "imported": [asdict(summary) for summary in summaries],
        "left_out": [asdict(item) for item in reading.left_out],
        "notes": list(reading.notes),
    }
    print_json(plain(content))  # plain: a curve's NaN is null


def _print_tables(reading: Reading, summaries: Sequence[RunSummary], out: Path) -> None:
    from rich.text import Text

    from turnaround.record.importers.read import describe
    from turnaround.reporting import terminal
    from turnaround.reporting.text_layout import clean, wrapped

    screen = terminal.out()
    lines = list(imported_lines(summaries, screen.width))
    if reading.left_out:
        lines += ["", "left out"]
        for item in reading.left_out:
            lines += wrapped(clean(describe(item)), screen.width, first="  ", rest="    ")
    count = counted(len(summaries), "run")
    rest = f", {len(reading.left_out):,} left out" if reading.left_out else ""
    lines += [
        "",
        f"{count} imported into {clean(str(out))}{rest}. To compare them: turnaround report {clean(str(out))}",
    ]
    terminal.print_lines(screen, (Text(line) for line in lines))


def imported_lines(summaries: Sequence[RunSummary], width: int) -> Iterator[str]:
    """Yield a table with one row a run, of what is known of it."""
    from turnaround.reporting.text_layout import TextColumn, clean, tables

    columns: dict[str, Callable[[RunSummary], str]] = {
        "job": lambda run: clean(run.job),
        "workers": lambda run: str(run.workers),
        "gpu": lambda run: clean(run.gpu),
        "batch": lambda run: _or_dash(run.global_batch),
        "epochs": lambda run: _or_dash(run.epochs or None),
        "s/epoch": lambda run: "-" if run.epoch_time_s is None else f"{run.epoch_time_s:,.4g}",
        "job time": lambda run: duration(run.job_time_s),
        "final": lambda run: accuracy(run.final_val_accuracy),
        "curve": lambda run: _or_dash(len(run.curve.epochs) or None),
    }
    names = TextColumn(heading="run", cells=tuple(clean(run.name) for run in summaries), is_left=True)
    group = [
        TextColumn(heading=heading, cells=tuple(map(cell, summaries)), is_left=heading in ("job", "gpu"))
        for heading, cell in columns.items()
    ]
    for part, table in enumerate(tables(names, [group], width)):
        yield from [""] * (part > 0)
        yield from (*table.heading, *table.rows)


def _or_dash(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
