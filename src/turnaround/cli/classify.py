"""`turnaround classify`: what a trained network says of pictures. One of the verbs that reach the GPU side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnaround.cli.options import Device, Weights
from turnaround.errors import InputError
from turnaround.words import percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnaround.use.predictor import ClassifiedFile, Predictor

BAR_CELLS = 20
MAX_NAME = 60


def classify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory of `turnaround train`.")],
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE", help="Files, folders of images, or - for standard input.")
    ],
    top: Annotated[int, typer.Option(help="How many classes to tell, the most probable first.")] = 5,
    device: Device = "auto",
    weights: Weights = "best",
    json_: Annotated[bool, typer.Option("--json", help="Print the answers as JSON on stdout.")] = False,
) -> None:
    """Classify pictures with a trained network, prepared as in training.

    A file that cannot be read is named with the reason, the others are classified, and the exit code is 1.

    [bold]turnaround classify runs/fruit apple.jpg more/[/bold]
    [bold]curl -s URL | turnaround classify runs/fruit -[/bold]
    """
    from turnaround.launch.contract import checked_device
    from turnaround.reporting.terminal import err, preparation, print_json, print_notes
    from turnaround.use.images import find_images
    from turnaround.use.predictor import Predictor

    if run.is_file():
        raise InputError(f"The run comes first, then the images. Received: {str(run)!r}, a file, in place of the run.")
    files = find_images(images)
    predictor = Predictor.load(run, device=checked_device(device), weights=weights)
    predictor.checked_top(top)
    print_notes([*predictor.trained.notes(), *([] if json_ else [predictor.trained.which])])
    answers: list[ClassifiedFile] = []
    with preparation(err(), quiet=json_ or len(files) == 1) as show:

        def on_batch(batch: list[ClassifiedFile]) -> None:
            answers.extend(batch)
            show("classifying images", len(answers), len(files))

        predictor.classify_files(files, top=top, on_batch=on_batch)
    if json_:
        print_json(_payload(predictor, answers))
    else:
        _print_text(answers)
    if any(answer.problem for answer in answers):
        raise typer.Exit(1)


def _payload(predictor: Predictor, answers: Sequence[ClassifiedFile]) -> dict[str, Any]:
    trained = predictor.trained
    return {
        "run": str(trained.run.path),
        "epoch": trained.epoch,
        "weights": "last" if trained.best is None else "best",
        "answers": [
            {"file": answer.name, "classes": [asdict(guess) for guess in answer.guesses]}
            for answer in answers
            if answer.problem is None
        ],
        "failed": [{"file": answer.name, "reason": answer.problem} for answer in answers if answer.problem],
    }


def _print_text(answers: Sequence[ClassifiedFile]) -> None:
    """Answers on stdout; what could not be read on stderr, after them."""
    from rich.text import Text

    from turnaround.reporting.charts import glyphs_for
    from turnaround.reporting.terminal import err, out, print_lines
    from turnaround.reporting.text_layout import clean

    console, good = out(), [answer for answer in answers if answer.problem is None]
    bad = [answer for answer in answers if answer.problem is not None]
    if len(answers) == 1 and good:
        print_lines(console, map(Text, _bars(good[0], glyphs_for(console.encoding).full)))
    else:
        print_lines(console, map(Text, _rows(good)))
    for answer in bad:
        err().print(Text(clean(f"{answer.name}: {answer.problem}"), style="red"))
    if bad:
        err().print(Text(f"{len(bad)} of {len(answers)} could not be read", style="bold"))


def _bars(answer: ClassifiedFile, full: str) -> Iterator[str]:
    from turnaround.reporting.text_layout import clean

    names = [clean(guess.name) for guess in answer.guesses]
    width = max(map(len, names))
    for name, guess in zip(names, answer.guesses, strict=True):
        bar = full * round(BAR_CELLS * guess.probability)
        yield f"{name:<{width}}  {100 * guess.probability:5.1f} %  {bar}".rstrip()


def _rows(answers: Sequence[ClassifiedFile]) -> Iterator[str]:
    from turnaround.reporting.text_layout import clean

    width = min(MAX_NAME, max((len(answer.name) for answer in answers), default=0))
    for answer in answers:
        told = ", ".join(f"{clean(guess.name)} {percent(guess.probability, 1)}" for guess in answer.guesses)
        yield f"{clean(answer.name):<{width}}  {told}"
