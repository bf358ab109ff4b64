"""`turnaround estimate`: time, memory and cost of a training from zero runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnaround.cli.options import Batch, Device, Epochs, Model, Pretrained, Set, Size, overrides_of

EXIT_CTRL_C = 130


if TYPE_CHECKING:
    from turnaround.study.estimate import EstimateReport

Kinds = Annotated[
    str, typer.Option("--gpu", metavar="KINDS", help="Kinds of GPU: t4,v100. This machine is always among them.")
]
Counts = Annotated[str, typer.Option(help="How many, one on each GPU: 16, a list 1,2,4 or a range 1-64.")]
Prices = Annotated[
    Path | None,
    typer.Option("--prices", metavar="FILE", help="A price table, CSV or TOML. Default: turnaround prices."),
]
Network = Annotated[
    float | None, typer.Option(help="GB/s that an all-reduce gets between hosts. Default: not known, maybe slow.")
]
Folder = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", help="The folder of runs that will score the estimate: it is kept there."),
]


def estimate(
    source: Annotated[str, typer.Argument(help="A folder of images, a recipe file (.toml), or a built-in recipe.")],
    gpu: Kinds = "t4,l4,v100,a100,h100",
    workers: Counts = "1-64",
    prices: Prices = None,
    gpus_per_host: Annotated[int, typer.Option(help="GPUs of a host.")] = 8,
    network: Network = None,
    out: Folder = Path("runs"),
    keep: Annotated[bool, typer.Option(help="Keep the estimate, to be scored by later runs.")] = True,
    device: Device = "auto",
    set_: Set = None,
    epochs: Epochs = None,
    batch: Batch = None,
    model: Model = None,
    pretrained: Pretrained = None,
    size: Size = None,
    seconds: Annotated[float, typer.Option(help="How long each part of the trial is measured.", min=0.01)] = 2.0,
    json_: Annotated[bool, typer.Option("--json", help="Print the estimate as JSON on stdout.")] = False,
) -> None:
    """Answer from zero runs: which GPUs, how long, how much.

    Measures some seconds of the training on this machine, trains nothing, and tells time, memory and cost elsewhere
    with wide, honest intervals; then the one run that would narrow them most.

    [bold]turnaround estimate photos/ --gpu t4,a100 --workers 1-16[/bold]
    """
    from dataclasses import replace

    from turnaround import recipes
    from turnaround.analysis.prices import price_table
    from turnaround.cli.predict import asked_workers
    from turnaround.errors import InputError, InterruptedRunError
    from turnaround.forecast.estimate import EstimateQuestion
    from turnaround.launch.contract import checked_device
    from turnaround.reporting.terminal import err, preparation, print_json
    from turnaround.study.estimate import estimate_recipe
    from turnaround.study.estimate import keep as keep_estimate

    kinds = tuple(kind for part in gpu.split(",") if (kind := part.strip()))
    if not kinds:
        raise InputError(f"--gpu takes kinds of GPU, with commas: t4,v100,a100. Received: {gpu!r}.")
    question = EstimateQuestion(
        gpus=kinds,
        workers=tuple(asked_workers(workers)),
        prices=price_table(prices),
        gpus_per_host=gpus_per_host,
        network=network,
    )
    keys = {"workers": 1, "epochs": epochs, "batch": batch, "model": model, "size": size}
    settings = overrides_of(set_, keys, pretrained=pretrained)
    recipe = recipes.find(source, settings)
    where, console = checked_device(device), err()
    with preparation(console, quiet=json_) as show:
        try:
            report = estimate_recipe(source, recipe, question, device=where, trial_s=seconds, show=show)
        except InterruptedRunError:
            console.print("Stopped. An estimate keeps nothing to go on with: start it again.")
            raise typer.Exit(EXIT_CTRL_C) from None
    report = replace(report, settings=tuple(settings))
    path = keep_estimate(report, out) if keep else None
    if json_:
        print_json(report.as_json())
    else:
        _print(report, path)


def _print(report: EstimateReport, path: Path | None) -> None:
    from turnaround.reporting.estimate_text import estimate_lines
    from turnaround.reporting.terminal import err, out, print_lines

    print_lines(out(), estimate_lines(report, min(out().width, 120)))
    if path is not None:
        err().print(f"kept in {path}: later runs beside it will score it", markup=False)
