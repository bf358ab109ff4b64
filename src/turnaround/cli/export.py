"""`turnaround export`: a trained network as a file for other programs. One of the verbs that reach the GPU side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnaround.cli.options import Weights


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory of `turnaround train`.")],
    to: Annotated[str, typer.Option(help="onnx, torchscript, torch-export or safetensors.")],
    out: Annotated[Path | None, typer.Option(help="The file. Default: the run's name, here.")] = None,
    weights: Weights = "best",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that already exists, and its card.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print what was written and checked as JSON.")] = False,
) -> None:
    """Write the trained network as one file, and check it on pictures.

    The graph takes RGB bytes (N, size, size, 3), normalises them itself and gives logits. Labels and preprocessing
    are in the file; a model card lies beside it.

    [bold]turnaround export runs/fruit --to onnx[/bold]
    """
    from dataclasses import asdict

    from rich.text import Text

    from turnaround.reporting.terminal import err, preparation, print_json, print_notes
    from turnaround.reporting.terminal import out as stdout
    from turnaround.use.export import export_run
    from turnaround.use.trained import load_trained

    trained = load_trained(run, weights=weights)
    print_notes([*trained.notes(), *([] if json_ else [trained.which])])
    with preparation(err(), quiet=json_) as show:
        exported = export_run(trained, to=to, out=out, show=show, force=force)
    if json_:
        return print_json(asdict(exported))
    return stdout().print(Text(exported.sentence()))
