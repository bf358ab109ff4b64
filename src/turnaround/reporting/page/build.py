"""Run directories -> the page: what is gathered for it, and the file that is written.

Enters: folders of runs and what the page is to have. Leaves: a PageView, its html, or one file that needs nothing else.
"""

from __future__ import annotations

import html
import os
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from turnaround.analysis.energy import EnergyRates
from turnaround.analysis.prices import PriceTable, prices_file
from turnaround.analysis.workloads import Survey, filter_jobs
from turnaround.errors import RunDirectoryError, StorageError
from turnaround.findings import find_all
from turnaround.forecast.score import runs_in, saved_in, scored
from turnaround.forecast.sweep import forecasters_of
from turnaround.record.files import open_for_reading, read_json, replace_file
from turnaround.record.layout import RunDirectory
from turnaround.record.machine import installed_version
from turnaround.record.reader import find_runs
from turnaround.reporting.page.blocks import PageView, page_blocks
from turnaround.reporting.page.examples import PagePictures, example_pictures
from turnaround.reporting.page.render import GENERATOR, render_page


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """The choices a person has about the page."""

    job: str | None = None
    """Only jobs of this name, or with this word in it."""
    price: float | None = None
    """The price of one GPU for one hour."""
    prices: PriceTable = field(default_factory=PriceTable)
    """The user's prices by kind of GPU, where no `price` is given."""
    rates: EnergyRates = field(default_factory=EnergyRates)
    """What a kWh costs and emits."""
    has_pictures: bool = True
    has_forecasts: bool = True
    is_live: bool = False


def write_page(directories: Sequence[Path], *, out: Path, options: PageOptions | None = None) -> Path:
    """Write the page of all runs at or below the directories; `out` is replaced where it is such a page already."""
    options = options or PageOptions()
    refuse_target(out)
    survey = runs_in(directories)
    survey = filter_jobs(survey, options.job) if options.job is not None else survey
    text = page_html(page_view(survey, directories, options=options, out=out))
    if any(_is_private(run) for directory in directories for run in find_runs(directory)):
        text = _without_folders(text, [*directories, out])
    replace_file(out, text.encode("utf-8", "replace"))
    return out


def _is_private(run: Path) -> bool:
    with suppress(RunDirectoryError):
        launch = read_json(RunDirectory(run).recipe).get("launch")
        return isinstance(launch, dict) and launch.get("private") is True
    return False


def _without_folders(text: str, paths: Sequence[Path]) -> str:
    """Return the page without the folders around its runs, which commands to copy would name."""
    around = {str(folder) for path in paths for folder in (path.parent, path.absolute().parent, path.resolve().parent)}
    for folder in sorted({*around, os.getcwd(), os.path.expanduser("~")} - {".", os.sep}, key=len, reverse=True):
        for written in (folder, html.escape(folder)):
            text = text.replace(f"{written}{os.sep}", "")
    return text


def page_html(view: PageView) -> str:
    """Return the page as html text."""
    return render_page(page_blocks(view), title=f"{view.title} · turnaround", live=view.is_live)


def page_view(
    survey: Survey, directories: Sequence[Path], *, options: PageOptions | None = None, out: Path | None = None
) -> PageView:
    """Return everything the page tells of these runs: findings, forecasts and how past ones did, example pictures."""
    options = options or PageOptions()
    prices = options.prices.prices
    pictures = example_pictures(survey) if options.has_pictures else PagePictures()
    forecast = survey.workloads if options.has_forecasts else ()
    return PageView(
        survey=survey,
        title=_title(directories),
        now=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        findings=tuple(find_all(survey)),
        forecasters={job.name: forecasters_of(job, price=options.price, prices=prices) for job in forecast},
        scores=tuple(scored([line for directory in directories for line in saved_in(directory)], survey)),
        thumbnails=pictures.by_class,
        mistakes=pictures.by_file,
        notes=tuple(pictures.notes),
        price=options.price if options.price is not None else options.prices,
        rates=options.rates,
        command=_command(directories, options, out) if out is not None else "",
        version=installed_version(),
        is_live=options.is_live,
    )


def refuse_target(out: Path) -> None:
    """Refuse, before the work is done, a folder, a missing place, or a file that somebody else has written."""
    if out.is_dir():
        raise StorageError(
            f"Cannot write {str(out)!r}: it is a folder. Give the path of a file: {RunDirectory(out).page}."
        )
    if out.suffix.lower() not in (".html", ".htm"):
        raise StorageError(
            f"Cannot write the page {str(out)!r}: a page is html, and no browser opens it under that name. Give "
            f"{str(out.with_suffix('.html'))!r}."
        )
    if not out.absolute().parent.is_dir():
        raise StorageError(f"Cannot write {str(out)!r}: there is no folder {str(out.parent)!r}. Make it first.")
    try:
        with os.fdopen(open_for_reading(out), "rb") as file:
            begin = file.read(20_000)
    except FileNotFoundError:
        _refuse_unwritable(out)
        return
    except OSError as error:
        raise StorageError(f"Cannot write {str(out)!r}: {error.strerror}. Choose another place.") from error
    if begin and GENERATOR.encode() not in begin:
        raise StorageError(
            f"{str(out)!r} already exists, and is no page of turnaround: it is left as it is. Choose another name, "
            "or remove it."
        )


def _refuse_unwritable(out: Path) -> None:
    """Try a nameless file in the same folder: permissions alone do not tell what a mounted disk allows."""
    try:
        tempfile.TemporaryFile(dir=out.absolute().parent).close()
    except OSError as error:
        raise StorageError(
            f"Cannot write {str(out)!r}: {error.strerror} in its folder. Choose another place."
        ) from error


def _title(directories: Sequence[Path]) -> str:
    names = [directory.absolute().name or str(directory) for directory in directories]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _command(directories: Sequence[Path], options: PageOptions, out: Path) -> str:
    flags = ["--job", options.job] if options.job is not None else []
    flags += ["--price", f"{options.price:g}"] if options.price is not None else []
    # The user's own table is found again by itself.
    named = options.prices.file if options.prices.file != prices_file() else None
    flags += ["--prices", str(named)] if named is not None else []
    for flag, rate in (("--electricity", options.rates.electricity), ("--grid", options.rates.grid)):
        flags += [flag, f"{rate:g}"] if rate is not None else []
    flags += [] if options.has_pictures else ["--no-pictures"]
    return shlex.join(["turnaround", "report", *map(str, directories), *flags, "--out", str(out)])
