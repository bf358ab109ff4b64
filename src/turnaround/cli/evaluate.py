"""`turnaround evaluate`: a run's network on images with known labels. One of the verbs that reach the GPU side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnaround.cli.options import Device, Weights, refuse_no_page, refuse_unwritable, write_text

if TYPE_CHECKING:
    from turnaround.data.labelled import LabelledImages
    from turnaround.reporting.evaluate_report import Comparison
    from turnaround.use.evaluate import EvaluatedRun


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory of `turnaround train`.")],
    images: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A folder of class folders, or a table (CSV) of files and labels."),
    ],
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="RUN", help="Another run, held against the first on the same images."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", metavar="FILE.html", help="Write a page with the surest mistakes as pictures."),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE.csv", help="Write a table with every image.")
    ] = None,
    weights: Weights = "best",
    device: Device = "auto",
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """Evaluate a trained network on other images: accuracy, mistakes.

    A file that cannot be read is named and counts in no figure, and the exit code is 1.

    [bold]turnaround evaluate runs/fruit new_photos/[/bold]
    [bold]turnaround evaluate runs/a labels.csv --against runs/b[/bold]
    """
    from turnaround.data.labelled import labelled_images
    from turnaround.reporting.evaluate_report import compared, evaluation_lines, evaluation_payload, images_csv
    from turnaround.reporting.terminal import err, out, print_json, print_lines, print_notes

    if page is not None:
        refuse_no_page(page)
    refuse_unwritable(page, csv)
    labelled = labelled_images(images, run=run)
    evaluated = _evaluated(run, labelled, device=device, weights=weights, quiet=json_)
    other: Comparison | None = None
    if against is not None:
        second = _evaluated(against, labelled, device=device, weights=weights, quiet=json_)
        other = second, compared(evaluated, second)
    if csv is not None:
        write_text(csv, images_csv(evaluated, None if other is None else other[0]), what="table")
    if page is not None:
        _write_page(evaluated, labelled, page, other)
    for target in (target for target in (page, csv) if target is not None):
        err().print(f"written: {target}", markup=False)
    if json_:
        print_json(evaluation_payload(evaluated, str(images), other))
    else:
        print_lines(out(), evaluation_lines(evaluated, other, width=out().width))
    print_notes([f"{one.file}: {one.reason}" for one in evaluated.unreadable], label="could not be read")
    if evaluated.unreadable:
        raise typer.Exit(1)


def _evaluated(run: Path, images: LabelledImages, *, device: str, weights: str, quiet: bool) -> EvaluatedRun:
    from turnaround.launch.contract import checked_device
    from turnaround.reporting.terminal import err, preparation, print_notes
    from turnaround.use.evaluate import evaluate_run
    from turnaround.use.predictor import Predictor

    predictor = Predictor.load(run, device=checked_device(device), weights=weights)
    print_notes([*predictor.trained.notes(), *([] if quiet else [predictor.trained.which])])
    with preparation(err(), quiet=quiet) as show:
        return evaluate_run(predictor, images, show=show)


def _write_page(run: EvaluatedRun, images: LabelledImages, path: Path, against: Comparison | None) -> None:
    from turnaround.reporting.evaluate_report import evaluation_page, shown_mistakes
    from turnaround.reporting.pictures import thumbnails

    pictures = thumbnails(images.root, [image.file for image in shown_mistakes(run)])
    write_text(path, evaluation_page(run, str(images.source), pictures, against))
