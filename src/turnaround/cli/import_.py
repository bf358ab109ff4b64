"""`turnaround import`: runs that turnaround did not train become run directories, marked as imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from turnaround.analysis.summary import RunSummary
    from turnaround.record.importers.values import LeftOut, Reading

IN_LOGS = "For logs, which do not say it: "


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            help="A CSV of runs, a CSV of curves, a Keras CSVLogger file, an MLPerf log or a TensorBoard folder."
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

    [bold]turnaround import runs.csv --out runs/lab[/bold]                 one row a run
    [bold]turnaround import training.log --workers 4 --gpu V100 --out runs/keras[/bold]
    """
    from turnaround.analysis.summary import summarise
    from turnaround.record.importers.read import read_runs
    from turnaround.record.importers.values import Given
    from turnaround.record.importers.write import write_runs
    from turnaround.record.reader import Run

    given = Given(
        workers=workers,
        gpu=gpu,
        batch_per_worker=batch_per_worker,
        dataset=dataset,
        images_per_epoch=images_per_epoch,
        name=name,
        nodes=nodes,
    )
    reading = read_runs(file, curves=curves, given=given, is_percent=percent)
    summaries = [summarise(Run.load(path)) for path in write_runs(reading.runs, out)]
    _tell(reading)
    if json_:
        _print_json(reading, summaries)
    else:
        _print_tables(reading, summaries, out)


def _tell(reading: Reading) -> None:
    """What was assumed and what was left out, on stderr: stdout may go into a pipe."""
    from rich.markup import escape

    from turnaround.cli.console import err
    from turnaround.record.importers.read import describe

    console = err()
    for note in reading.notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}")
    for item in reading.left_out:
        console.print(f"[yellow]left out:[/yellow] {escape(describe(item))}")


def _print_json(reading: Reading, summaries: Sequence[RunSummary]) -> None:
    from dataclasses import asdict

    from turnaround.cli.console import print_json
    from turnaround.record.coding import plain

    content: dict[str, Any] = {
        "imported": [asdict(summary) for summary in summaries],
        "left_out": [asdict(item) for item in reading.left_out],
        "notes": list(reading.notes),
    }
    print_json(plain(content))  # plain: a curve's NaN is null


def _print_tables(reading: Reading, summaries: Sequence[RunSummary], out: Path) -> None:
    from rich.text import Text

    from turnaround.cli import console

    screen = console.out()
    screen.print(imported_table(summaries))
    if reading.left_out:
        screen.print()
        screen.print(left_out_table(reading.left_out))
    count = f"{len(summaries):,} run{'s' * (len(summaries) > 1)}"
    rest = f", {len(reading.left_out):,} left out" if reading.left_out else ""
    screen.print(Text(f"\n{count} imported into {out}{rest}."))


def imported_table(summaries: Sequence[RunSummary]) -> Table:
    """One row a run, with what is known of it."""
    from rich.table import Table
    from rich.text import Text

    from turnaround.report.text import seconds, share

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold")
    table.add_column("job", overflow="fold", min_width=11)
    for heading in ("workers", "gpu", "batch", "epochs", "s/epoch", "job time", "final", "curve"):
        table.add_column(heading, justify="left" if heading == "gpu" else "right", no_wrap=True)
    for run in summaries:
        table.add_row(
            Text(run.name),
            Text(run.job),
            str(run.workers),
            Text(run.gpu),
            _or_dash(run.global_batch),
            _or_dash(run.epochs or None),
            "-" if run.epoch_time_s is None else f"{run.epoch_time_s:,.4g}",
            seconds(run.job_time_s),
            share(run.final_val_accuracy),
            _or_dash(len(run.curve.epochs) or None),
        )
    return table


def left_out_table(left_out: Sequence[LeftOut]) -> Table:
    """What did not become a run, and why."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("left out", "run", "reason"):
        table.add_column(heading, overflow="fold")
    for item in left_out:
        table.add_row(Text(item.where), Text(item.name or "-"), Text(item.reason))
    return table


def _or_dash(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
