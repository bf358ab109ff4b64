"""`turnaround estimate`: time, memory, cost and energy of a training from zero runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnaround.cli.options import (
    LOCAL,
    Account,
    Batch,
    ClusterFlags,
    Device,
    Epochs,
    Model,
    More,
    Partition,
    Pretrained,
    Set,
    Size,
    Time,
    overrides_of,
)
from turnaround.cli.predict import Electricity, Grid

if TYPE_CHECKING:
    from turnaround.study.estimate import AskedCluster, EstimateReport

Kinds = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="KINDS",
        help="Kinds of GPU: t4,v100. This machine is always among them. Default: t4,l4,v100,a100,h100; with --on, "
        "those of the cluster.",
    ),
]
GpusPerHost = Annotated[int | None, typer.Option(help="GPUs of a host. Default: 8; with --on, as the cluster has.")]
On = Annotated[
    str, typer.Option("--on", metavar="CLUSTER", help="Ask slurm when it would start, and for the GPUs of a host.")
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
    gpu: Kinds = None,
    workers: Counts = "1-64",
    prices: Prices = None,
    gpus_per_host: GpusPerHost = None,
    on: On = LOCAL,
    partition: Partition = None,
    account: Account = None,
    time: Time = None,
    slurm: More = None,
    network: Network = None,
    electricity: Electricity = None,
    grid: Grid = None,
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

    Measures some seconds of the training on this machine, trains nothing, and tells time, memory, cost and energy
    elsewhere with wide, honest intervals; then the one run that would narrow them most.

    [bold]turnaround estimate photos/ --gpu t4,a100 --workers 1-16[/bold]
    [bold]turnaround estimate photos/ --workers 1-16 --on slurm[/bold]    with the queue
    """
    from dataclasses import replace

    from turnaround import recipes
    from turnaround.analysis.energy import EnergyRates
    from turnaround.analysis.prices import price_table
    from turnaround.cli.predict import asked_workers
    from turnaround.errors import InputError
    from turnaround.forecast.estimate import GPUS_PER_HOST, EstimateQuestion
    from turnaround.launch.contract import checked_device
    from turnaround.reporting.terminal import err, preparation
    from turnaround.study.estimate import estimate_recipe, placed, usual_kinds, with_queue

    if on != LOCAL and gpus_per_host is not None:
        raise InputError(f"--on {on} asks the cluster what --gpus-per-host tells: give one of the two.")
    # Before the trial, which takes a minute; so with prices, recipe and device.
    cluster = _asked(ClusterFlags(on=on, partition=partition, account=account, time=time, more=tuple(slurm or ())))
    asked = EstimateQuestion(
        gpus=usual_kinds(cluster) if gpu is None else _kinds(gpu),
        workers=tuple(asked_workers(workers)),
        prices=price_table(prices),
        rates=EnergyRates(electricity=electricity, grid=grid),
        gpus_per_host=GPUS_PER_HOST if gpus_per_host is None else gpus_per_host,
        network=network,
    )
    question = placed(asked, cluster)
    keys = {"workers": 1, "epochs": epochs, "batch": batch, "model": model}
    settings = overrides_of(set_, keys | {"size": size}, pretrained=pretrained)
    recipe, where = recipes.find(source, settings), checked_device(device)
    with preparation(err(), quiet=json_) as show, _nothing_to_go_on_with():
        report = estimate_recipe(source, recipe, question, device=where, trial_s=seconds, show=show, runs=out)
    report = replace(with_queue(report, cluster, question, out), settings=tuple(settings))
    _print(report, as_json=json_)
    if keep:
        _keep(report, out, is_quiet=json_)


@contextmanager
def _nothing_to_go_on_with() -> Iterator[None]:
    """Say so when the trial is interrupted, and end as Ctrl-C does."""
    from turnaround.errors import EXIT_CTRL_C, InterruptedRunError
    from turnaround.reporting.terminal import err

    try:
        yield
    except InterruptedRunError:
        err().print("Stopped. An estimate keeps nothing to go on with: start it again.")
        raise typer.Exit(EXIT_CTRL_C) from None


def _kinds(text: str) -> tuple[str, ...]:
    from turnaround.errors import InputError

    kinds = tuple(kind for part in text.split(",") if (kind := part.strip()))
    if not kinds:
        raise InputError(f"--gpu takes kinds of GPU, with commas: t4,v100,a100. Received: {text!r}.")
    return kinds


def _asked(flags: ClusterFlags) -> AskedCluster | None:
    """Return what the cluster has, or why it does not answer; None for this machine, which has no queue."""
    from turnaround.study.estimate import AskedCluster

    cluster = flags.cluster()
    return None if cluster is None else AskedCluster.ask(cluster, flags.wishes)


def _print(report: EstimateReport, *, as_json: bool) -> None:
    from turnaround.reporting.estimate_text import estimate_lines
    from turnaround.reporting.terminal import out, print_json, print_lines

    if as_json:
        print_json(report.as_json())
    else:
        print_lines(out(), estimate_lines(report, min(out().width, 120)))


def _keep(report: EstimateReport, folder: Path, *, is_quiet: bool) -> None:
    """Keep the estimate: after the answer, which a full disk must not take along."""
    from turnaround.reporting.terminal import err
    from turnaround.study.estimate import keep

    path = keep(report, folder)
    if not is_quiet:
        err().print(f"kept in {path}: later runs beside it will score it", markup=False)
