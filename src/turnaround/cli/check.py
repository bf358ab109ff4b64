"""`turnaround check`: what is wrong with these images, before you train on them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnaround.cli.options import Device, Set, refuse_no_page, refuse_unwritable, write_text

if TYPE_CHECKING:
    from turnaround.check.dataset import Check
    from turnaround.data.decoders import Show
    from turnaround.recipe import Recipe
    from turnaround.use.label_check import OutOfSample

PAGE_GROUPS = 200
"""On a page: the worst. All are in --json."""


def check(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder of images, a table or shards, as `train` takes them.")
    ],
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE.html", help="Write a page with the pictures side by side.")
    ] = None,
    split: Annotated[
        Path | None,
        typer.Option("--split-by-photo", metavar="FILE", help="Write a hold-out that keeps each photo on one side."),
    ] = None,
    holdout: Annotated[float, typer.Option(help="The share held out, where the folder has no split.")] = 0.2,
    seed: Annotated[int, typer.Option(help="The hold-out follows from it, as in training.seed.")] = 0,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN", help="Find labels that this run contradicts, of images it did not see."),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option("--folds", metavar="N", help="Find wrong labels with N networks, each trained without a part."),
    ] = None,
    set_: Set = None,
    device: Device = "auto",
    json_: Annotated[bool, typer.Option("--json", help="Print everything as JSON on stdout.")] = False,
) -> None:
    """Find copies, leaks, unreadable and odd images, before you train.

    Exit code 1 when something serious is found: a leak, an unreadable image, one image under two classes.

    [bold]turnaround check photos/[/bold]                     what is wrong, in a few lines
    [bold]turnaround check photos/ --page check.html[/bold]   with the pictures
    [bold]turnaround check photos/ --split-by-photo split.json[/bold]
    [bold]turnaround train photos/ --set data.split_by_photo=split.json[/bold]
    [bold]turnaround check photos/ --folds 5 --page check.html[/bold]   and wrong labels
    """
    from turnaround.check.dataset import check_folder
    from turnaround.errors import InputError
    from turnaround.reporting.check_report import check_lines
    from turnaround.reporting.terminal import err, out, preparation, print_json, print_lines

    if not 0 < holdout < 1:
        raise InputError(f"--holdout must be between 0 and 1. Received: {holdout:g}. Try --holdout 0.2")
    if page is not None:
        refuse_no_page(page)
    refuse_unwritable(page, split)
    _refuse_label_options(run, folds, set_)
    with preparation(err(), quiet=json_) as show:
        checked = check_folder(folder, holdout=holdout, seed=seed, show=show)
        payload = checked.payload()
        if run is not None:
            payload["labels"] = _labels_by_run(checked, folder, run, device=device, show=show)
        elif folds is not None:
            payload["labels"] = _labels_by_folds(checked, folder, folds, set_ or [], device=device, show=show)
    if split is not None:
        payload["split_file"] = _write_split(checked, split, holdout=holdout, seed=seed)
    if page is not None:
        _write_page(checked, payload, page)
        err().print(f"page: {page}", markup=False)
    if json_:
        print_json(payload)
    else:
        console = out()
        print_lines(console, check_lines(payload, width=console.width))
    if checked.is_serious:
        raise typer.Exit(1)


def _write_split(checked: Check, path: Path, *, holdout: float, seed: int) -> dict[str, Any]:
    from turnaround.check.dataset import split_by_photo
    from turnaround.data.split_file import VALIDATION, write_split

    parts = split_by_photo(checked, holdout=holdout, seed=seed)
    write_split(path, parts, holdout=holdout, seed=seed)
    num_validation = sum(part == VALIDATION for part in parts.values())
    return {"path": str(path), "num_train": len(parts) - num_validation, "num_validation": num_validation}


def _write_page(checked: Check, payload: dict[str, Any], path: Path) -> None:
    from turnaround.reporting.check_report import MAX_FILES, check_page, shown_files
    from turnaround.reporting.pictures import thumbnails

    shown = [name for one in payload["groups"][:PAGE_GROUPS] for name, _ in shown_files(one)]
    shown += [name for one in payload["odd"] for name in one["files"][:MAX_FILES]]
    shown += [one["file"] for one in payload.get("labels", {}).get("suspects", ())[:PAGE_GROUPS]]
    write_text(path, check_page(payload, thumbnails(checked.table.root, shown), most_groups=PAGE_GROUPS))


# --- labels


def _refuse_label_options(run: Path | None, folds: int | None, settings: list[str] | None) -> None:
    from turnaround.errors import InputError

    if run is not None and folds is not None:
        raise InputError("--run asks a network that is there, --folds trains others. Give one of them.")
    if folds is not None and not 2 <= folds <= 100:
        raise InputError(f"--folds must be between 2 and 100. Received: {folds}. Try --folds 5")
    if settings and folds is None:
        raise InputError("--set chooses the network of --folds, for example --folds 5 --set model.weights=FILE.")


def _labels_by_run(checked: Check, folder: Path, run: Path, *, device: str, show: Show) -> dict[str, Any]:
    """Return the labels that a run contradicts, of the images that it was not trained on."""
    from turnaround.data.labelled import LabelledImages
    from turnaround.errors import InputError
    from turnaround.launch.contract import checked_device
    from turnaround.use.label_check import of_run
    from turnaround.use.predictor import Predictor

    predictor = Predictor.load(run, device=checked_device(device))
    table = checked.table
    seen, note = _trained_on(predictor.trained.recipe, show)
    rows = [
        row for row, file in enumerate(table.files) if row not in checked.bad and _real(table.root, file) not in seen
    ]
    if not rows:
        raise InputError(
            f"{run} was trained on all images of {str(folder)!r}, so it cannot contradict their labels. Name other "
            "images, or use --folds 5."
        )
    images = LabelledImages(
        source=folder,
        root=table.root,
        files=tuple(table.files[row] for row in rows),
        labels=tuple(table.classes[table.labels[row]] for row in rows),
    )
    return _label_payload(of_run(predictor, images, show=show), by=f"the network of {run}", note=note)


def _trained_on(recipe: Recipe, show: Show) -> tuple[set[str], str]:
    """Return the real paths of the images that a run was trained on, and a caution where nobody can tell."""
    from turnaround.data.pixels import default_cache
    from turnaround.data.source import folder_here
    from turnaround.errors import DataError
    from turnaround.launch.prepare import split_table

    cache = default_cache()
    source = folder_here(recipe.data, size_px=recipe.size_px, cache=cache)
    try:
        if source is not None:
            table = split_table(recipe, source, cache=cache, show=show)
            return {_real(table.root, file) for file in table.files[: table.num_train]}, ""
    except DataError:
        pass  # they are no longer as the run found them
    return set(), (
        f"The images that the run was trained on ({recipe.data.source}) are not here any more, so nobody can tell "
        "whether some of these are among them: a network does not contradict what it was taught."
    )


def _real(root: Path, file: str) -> str:
    # The folder that is checked may show the run's own images through links: those are no others.
    return os.path.realpath(root / file)


def _labels_by_folds(
    checked: Check, folder: Path, folds: int, settings: list[str], *, device: str, show: Show
) -> dict[str, Any]:
    """Return the labels that networks contradict which were trained on the other folds."""
    from turnaround import recipes
    from turnaround.check.dataset import rows_in_table
    from turnaround.check.labels import folds_of
    from turnaround.data.pixels import default_cache, prepare
    from turnaround.launch.automatic import decide
    from turnaround.launch.contract import checked_device
    from turnaround.use.label_check import by_folds

    table, cache, device = checked.table, default_cache(), checked_device(device)
    recipe = decide(recipes.find(str(folder), settings), cache=cache, device=device).recipe.resolved()
    fold_of = folds_of(table.files, table.labels.tolist(), checked.groups, folds=folds, seed=recipe.training.seed)
    found: OutOfSample | None = None
    how = f"{folds} classifiers on features of {recipe.model.name}"
    if recipe.model.weights != "none":
        pixels = prepare(
            table,
            size_px=recipe.size_px,
            cache=cache,
            skip_bad=None,
            on_progress=lambda done, total: show("decoding images", done, total),
        )
        found = by_folds(recipe, pixels, fold_of[rows_in_table(table, pixels)], device=device, show=show)
    # No weights, or a network without features to train a classifier on: then each fold has a training of its own.
    if found is None:
        found = _trained_in_folds(recipe, checked, fold_of.tolist(), device=device, show=show)
        how = f"{folds} trainings of {recipe.model.name}"
    return _label_payload(found, by=f"{how}, each without the images that it was asked about")


def _trained_in_folds(recipe: Recipe, checked: Check, fold_of: list[int], *, device: str, show: Show) -> OutOfSample:
    from turnaround.data.labelled import LabelledImages
    from turnaround.launch.folds import train_folds
    from turnaround.use.label_check import joined, of_run
    from turnaround.use.predictor import Predictor

    table = checked.table
    label_of = {file: table.classes[label] for file, label in zip(table.files, table.labels, strict=True)}
    found = []
    for run, files in train_folds(recipe, table.files, fold_of, device=device, show=show):
        labels = tuple(label_of[file] for file in files)
        images = LabelledImages(source=table.root, root=table.root, files=files, labels=labels)
        found.append(of_run(Predictor.load(run, device=device), images, show=show))
    return joined(found)


def _label_payload(found: OutOfSample, *, by: str, note: str = "") -> dict[str, Any]:
    from turnaround.check.labels import check_labels

    checked = check_labels(found.labels, found.probabilities)
    return {
        "by": by,
        "method": checked.method,
        "num_asked": checked.num_asked,
        "note": note,
        "suspects": [
            {
                "file": found.files[one.row],
                "label": found.classes[found.labels[one.row]],
                "suggested": found.classes[one.suggested],
                "label_probability": round(one.label_probability, 4),
                "suggested_probability": round(one.suggested_probability, 4),
            }
            for one in checked.suspects
        ],
    }
