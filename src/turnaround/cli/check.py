"""`turnaround check`: what is wrong with these images, before you train on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnaround.cli.options import refuse_no_page, refuse_unwritable, write_text

if TYPE_CHECKING:
    from turnaround.check.dataset import Check

PAGE_GROUPS = 200
"""On a page: the worst. All are in --json."""


def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of images, as `train` takes it.")],
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE.html", help="Write a page with the pictures side by side.")
    ] = None,
    split: Annotated[
        Path | None,
        typer.Option("--split-by-photo", metavar="FILE", help="Write a hold-out that keeps each photo on one side."),
    ] = None,
    holdout: Annotated[float, typer.Option(help="The share held out, where the folder has no split.")] = 0.2,
    seed: Annotated[int, typer.Option(help="The hold-out follows from it, as in training.seed.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print everything as JSON on stdout.")] = False,
) -> None:
    """Find copies, leaks, unreadable and odd images, before you train.

    Exit code 1 when something serious is found: a leak, an unreadable image, one image under two classes.

    [bold]turnaround check photos/[/bold]                     what is wrong, in a few lines
    [bold]turnaround check photos/ --page check.html[/bold]   with the pictures
    [bold]turnaround check photos/ --split-by-photo split.json[/bold]
    [bold]turnaround train photos/ --set data.split_by_photo=split.json[/bold]
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
    with preparation(err(), quiet=json_) as show:
        checked = check_folder(folder, holdout=holdout, seed=seed, show=show)
    payload = checked.payload()
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
    from turnaround.check.thumbnails import thumbnails
    from turnaround.reporting.check_report import MAX_FILES, check_page, shown_files

    shown = [name for one in payload["groups"][:PAGE_GROUPS] for name, _ in shown_files(one)]
    shown += [name for one in payload["odd"] for name in one["files"][:MAX_FILES]]
    write_text(path, check_page(payload, thumbnails(checked.table.root, shown), most_groups=PAGE_GROUPS))
