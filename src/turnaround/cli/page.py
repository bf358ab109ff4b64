"""What `report --out`, `train`, `study` and `demo` share: the page of some runs, gathered and written."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnaround.analysis.workloads import Survey
    from turnaround.record.reader import Run
    from turnaround.report.page.blocks import PageView

MAX_PICTURES = 24
PICTURES_EACH = 2
PICTURE_PX = 96
MAX_SEARCHED = 50_000
"""Images of a folder that is looked through for examples: more would keep people waiting."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the page is to have."""

    job: str | None = None
    """Only jobs of this name, or with this word in it."""
    price: float | None = None
    """Of one GPU for one hour."""
    has_pictures: bool = True
    has_forecasts: bool = True
    is_live: bool = False


def write_page(directories: Sequence[Path], *, out: Path, wanted: Wanted | None = None) -> Path:
    """The page of all runs at or below the directories; `out` is replaced where it is such a page already."""
    from turnaround.cli.report import filter_jobs, survey_of
    from turnaround.record.writer import replace_file

    wanted = wanted or Wanted()
    refuse_place(out)
    found = survey_of(directories)
    found = filter_jobs(found, wanted.job) if wanted.job is not None else found
    text = page_of(page_view(found, directories, wanted=wanted, out=out))
    replace_file(out, text.encode("utf-8", "replace"))
    return out


def page_of(view: PageView) -> str:
    """The page as html text."""
    from turnaround.report.page.blocks import page_blocks
    from turnaround.report.page.render import render_page

    return render_page(page_blocks(view), title=f"{view.title} · turnaround", live=view.is_live)


def page_view(
    found: Survey, directories: Sequence[Path], *, wanted: Wanted | None = None, out: Path | None = None
) -> PageView:
    """Everything the page tells of these runs: findings, forecasts and how past ones did, example pictures."""
    from datetime import datetime

    from turnaround.cli.console import installed_version
    from turnaround.findings import find_all
    from turnaround.forecast.along import forecasters_of
    from turnaround.forecast.score import saved_in, scored
    from turnaround.report.page.blocks import PageView

    wanted = wanted or Wanted()
    pictures, notes = _pictures(found) if wanted.has_pictures else ({}, [])
    asked = found.jobs if wanted.has_forecasts else ()
    return PageView(
        survey=found,
        title=_title(directories),
        now=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        findings=tuple(find_all(found)),
        forecasters={job.name: forecasters_of(job, price=wanted.price) for job in asked},
        scores=tuple(scored([line for directory in directories for line in saved_in(directory)], found)),
        thumbnails=pictures,
        notes=tuple(notes),
        price=wanted.price,
        command=_command(directories, wanted, out) if out is not None else "",
        version=installed_version(),
        is_live=wanted.is_live,
    )


def refuse_place(out: Path) -> None:
    """Before the work is done: a folder, a place that is not there, or a file that somebody else has written."""
    from turnaround.errors import StorageError
    from turnaround.report.page.render import GENERATOR

    if out.is_dir():
        raise StorageError(f"Cannot write {str(out)!r}: it is a folder. Give the path of a file: {out / 'page.html'}.")
    if not out.absolute().parent.is_dir():
        raise StorageError(f"Cannot write {str(out)!r}: there is no folder {str(out.parent)!r}. Make it first.")
    try:
        with out.open("rb") as file:
            begin = file.read(20_000)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"Cannot write {str(out)!r}: {error.strerror}. Choose another place.") from error
    if begin and GENERATOR.encode() not in begin:
        raise StorageError(
            f"{str(out)!r} is there already, and is no page of turnaround: it is left as it is. Choose another name, "
            "or remove it."
        )


# --- at the end of a training


def leave_page(folder: Path, *, is_quiet: bool = False) -> None:
    """FOLDER/page.html of the run or the runs in it, and a line that says so; what goes wrong is a warning, no more."""
    from turnaround.cli.console import err
    from turnaround.record.layout import RunDirectory

    place = RunDirectory(folder).page
    try:
        write_page([folder], out=place)
    except (Exception, KeyboardInterrupt) as error:  # whatever it is: the training is over, and its record counts
        reason = str(error) or type(error).__name__
        err().print(f"warning: the page {place} could not be written: {reason}", markup=False, style="yellow")
        return
    if not is_quiet:
        err().print(f"page: {place}", markup=False)


@contextmanager
def page_on_failure(folder: Path, *, is_quiet: bool = False, is_first: bool = True) -> Iterator[None]:
    """Around a training: the page of what there is, when it ends before its end. `is_first`: only process 0 writes.

    What was refused before it began has none: the folder may be another run's.
    """
    from turnaround.errors import InterruptedRunError, TrainingError
    from turnaround.record.reader import find_runs

    try:
        yield
    except (TrainingError, InterruptedRunError):
        if is_first and folder.is_dir() and any(_has_begun(path) for path in find_runs(folder)):
            leave_page(folder, is_quiet=is_quiet)
        raise


def _has_begun(run: Path) -> bool:
    from turnaround.record.layout import RunDirectory

    return RunDirectory(run).machine.exists()


# --- what the page is made of


def _title(directories: Sequence[Path]) -> str:
    names = [directory.absolute().name or str(directory) for directory in directories]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _command(directories: Sequence[Path], wanted: Wanted, out: Path) -> str:
    options = [*(["--job", wanted.job] if wanted.job is not None else [])]
    options += ["--price", f"{wanted.price:g}"] if wanted.price is not None else []
    options += [] if wanted.has_pictures else ["--no-pictures"]
    return shlex.join(["turnaround", "report", *map(str, directories), *options, "--out", str(out)])


def _pictures(found: Survey) -> tuple[dict[str, dict[str, tuple[str, ...]]], list[str]]:
    """Examples of the classes that are confused most, by job; and which jobs have none although they could."""
    from turnaround.analysis.confusion import best_evaluated, confused_pairs
    from turnaround.report.page.blocks import MAX_CONFUSED

    pictures: dict[str, dict[str, tuple[str, ...]]] = {}
    notes, room = [], MAX_PICTURES
    for job in found.jobs:
        best = best_evaluated(job)
        pairs = confused_pairs(best.evaluation, most=MAX_CONFUSED) if best else ()
        places = dict.fromkeys(place for pair in pairs for place in (pair.true, pair.predicted))
        if best is None or not places or room < 1:
            continue
        names = [best.evaluation.classes[place] for place in places]
        pictures[job.name] = _examples(best.run, names[: room // PICTURES_EACH])
        room -= sum(len(each) for each in pictures[job.name].values())
        if not pictures[job.name]:
            notes.append(f"{job.name}: no example pictures, because its folder of images is not here as it was.")
    return pictures, notes


def _examples(run: Run, classes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Drawn anew from the pixels, without the files' metadata; nothing where the folder is not as the run found it.

    A record may come from others and name any folder: only one with the same classes and as many images is opened.
    """
    from turnaround.check.thumbnails import thumbnails
    from turnaround.data.folder import scan
    from turnaround.data.pixels import default_cache
    from turnaround.data.source import folder_here
    from turnaround.errors import TurnaroundError
    from turnaround.recipe import Recipe

    images = run.recipe.get("images")
    if run.imported is not None or not isinstance(images, dict):
        return {}
    try:
        recipe = Recipe.from_record(run.recipe)
        folder = folder_here(recipe.data, size_px=recipe.size_px, cache=default_cache())
        if folder is None or not 0 < _count(images) <= MAX_SEARCHED:
            return {}
        table = scan(folder, holdout=recipe.data.holdout, seed=recipe.training.seed)
    except (TurnaroundError, AssertionError, OSError, ValueError):
        return {}
    if list(table.classes) != images.get("classes") or len(table.files) != _count(images):
        return {}
    validation = range(table.num_train, len(table.files))
    files: dict[str, list[str]] = {}
    for name in classes:
        label = table.classes.index(name) if name in table.classes else -1
        files[name] = [table.files[i] for i in validation if table.labels[i] == label][:PICTURES_EACH]
    drawn = thumbnails(table.root, [file for each in files.values() for file in each], size_px=PICTURE_PX)
    return {name: tuple(drawn[file] for file in each if file in drawn) for name, each in files.items()}


def _count(images: Mapping[str, object]) -> int:
    counts = [images.get(key) for key in ("num_train", "num_validation")]
    skipped = images.get("skipped")
    known = sum(count for count in counts if isinstance(count, int))
    return known + (len(skipped) if isinstance(skipped, list) else 0)
