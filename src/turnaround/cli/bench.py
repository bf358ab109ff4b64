"""`turnaround bench`: ceilings on this machine for a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnaround.cli.options import (
    Batch,
    Device,
    Engine,
    Epochs,
    LearningRate,
    Model,
    Pretrained,
    Processes,
    Set,
    Size,
    overrides_of,
)


def bench(
    source: Annotated[str, typer.Argument(help="A folder of images, a recipe file (.toml), or a built-in recipe.")],
    workers: Annotated[int | None, typer.Option(help="Data-parallel workers.")] = None,
    processes: Processes = None,
    engine: Engine = None,
    device: Device = "auto",
    set_: Set = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: LearningRate = None,
    model: Model = None,
    pretrained: Pretrained = None,
    size: Size = None,
    seconds: Annotated[float, typer.Option(help="How long each part is measured, in five rounds.", min=0.01)] = 4.0,
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """Measure how fast training could be here, and what is in its way.

    Measures decoding, input, augmentation, the model and the exchange of gradients, each alone, and training itself.
    Nothing is trained and nothing is kept but the cache of decoded images.

    [bold]turnaround bench photos/ --model resnet50 --batch 64[/bold]
    """
    import tempfile
    from dataclasses import asdict

    from turnaround import recipes
    from turnaround.errors import EXIT_CTRL_C, InterruptedRunError
    from turnaround.launch.contract import checked_device
    from turnaround.launch.lifecycle import Request, measure
    from turnaround.reporting.bench_text import bench_table, rates_of, sentence, verdict
    from turnaround.reporting.terminal import err, out, preparation, print_json
    from turnaround.reporting.training_display import announce

    keys = {"workers": workers, "engine": engine, "epochs": epochs, "batch": batch, "lr": lr, "model": model}
    recipe = recipes.find(source, overrides_of(set_, keys | {"size": size}, pretrained=pretrained))
    console = err()
    with tempfile.TemporaryDirectory(prefix="turnaround-bench-") as folder, preparation(console, quiet=json_) as show:
        request = Request(
            out=Path(folder) / "bench",
            show=show,
            processes=processes,
            device=checked_device(device),
            shows_progress=False,
            announce=lambda recipe, prepared, count: None if json_ else announce(console, recipe, prepared, count),
        )
        try:
            facts = measure(recipe, request, part_s=seconds)
        except InterruptedRunError:
            console.print("Stopped. A measurement keeps nothing to go on with: start it again.")
            raise typer.Exit(EXIT_CTRL_C) from None
    if not json_:
        return out().print(bench_table(facts))
    ceilings = verdict(facts)
    print_json({**facts, "rates": rates_of(facts), **asdict(ceilings), "sentence": sentence(facts)})
    return None
