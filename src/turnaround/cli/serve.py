"""`turnaround serve`: a trained network behind a page and an HTTP address. One of the verbs that reach the GPU side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnaround.cli.options import Device, Weights


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory of `turnaround train`.")],
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = 8900,
    host: Annotated[
        str, typer.Option(help="The address to listen on. The default is reached from this machine alone.")
    ] = "127.0.0.1",
    device: Device = "auto",
    weights: Weights = "best",
) -> None:
    """Classify pictures on a page, or sent to an HTTP address.

    [bold]turnaround serve runs/fruit[/bold]
    [bold]curl --data-binary @apple.jpg http://127.0.0.1:8900/classify[/bold]
    """
    from turnaround.launch.contract import checked_device
    from turnaround.reporting.terminal import err, print_notes
    from turnaround.use.predictor import Predictor
    from turnaround.use.server import Address, listen, run_server

    with listen(host, port) as socket:
        predictor = Predictor.load(run, device=checked_device(device), weights=weights)
        print_notes(predictor.trained.notes())
        address = Address.of(socket, host)
        for line in address.lines(predictor.trained.name):
            err().print(line, markup=False)
        err().print(f"It answers with the {predictor.trained.which}.", markup=False)
        run_server(predictor, address, socket)
