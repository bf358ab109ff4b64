"""`turnaround resume`: go on with a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def resume(
    directory: Annotated[Path, typer.Argument(help="The run directory.")],
    processes: Annotated[
        int | None, typer.Option(help="Another number of processes. Default: as many as before.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Another engine than before: torch or horovod; the result stays the same.")
    ] = None,
    restarts: Annotated[
        int, typer.Option(min=0, help="Start again by itself from the last checkpoint when a process fails: how often.")
    ] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout; no progress.")] = False,
) -> None:
    """Go on after a crash, a time limit or a Ctrl-C, from the last checkpoint."""
    from turnaround.cli.console import checked_device, err, preparation
    from turnaround.cli.train import announce, print_result
    from turnaround.launch.conduct import Request
    from turnaround.launch.conduct import resume as go_on
    from turnaround.workers.environment import place

    here = place()
    console = err()
    with preparation(console, quiet=json_) as show:
        request = Request(
            out=directory,
            show=show,
            processes=processes,
            device=checked_device(device),
            engine=engine,
            place=here,
            restarts=restarts,
            shows_progress=not json_,
            announce=lambda recipe, prepared, count: None if json_ else announce(console, recipe, prepared, count),
        )
        run = go_on(request)
    if here.rank == 0:
        print_result(run, as_json=json_)
