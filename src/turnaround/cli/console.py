"""What the verbs share: where text goes, and a bar for long preparations.

Results go to stdout, everything on the way to stderr, so that `--json` output can be piped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from turnaround.data.decoders import Show
from turnaround.errors import InputError, one_of

DEVICES = ("auto", "cpu", "cuda", "mps")


def out() -> Console:
    """For results. Made at each use: tests and pipes replace the streams."""
    return Console(highlight=False, soft_wrap=True)


def err() -> Console:
    """For everything on the way."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(payload: Any) -> None:
    """For programs: one JSON document on stdout. JSON has no NaN and no infinity: they are null."""
    from turnaround.record.coding import plain

    content = plain(payload)
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:  # an ASCII terminal, or a file name that is no UTF-8
        text = json.dumps(content, indent=2, allow_nan=False)
    typer.echo(text)


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """Lines that are laid out already; a character that the terminal's encoding does not have is shown as ?."""
    for line in lines:
        line.plain = line.plain.encode(console.encoding, "replace").decode(console.encoding)
        console.print(line)


def checked_device(device: str) -> str:
    if device not in DEVICES:
        raise InputError(one_of("--device", device, DEVICES))
    return device


@contextmanager
def preparation(console: Console, *, quiet: bool = False) -> Iterator[Show]:
    """A bar for drawing and decoding; without a terminal, one line when each begins; nothing when quiet."""
    if quiet:
        yield lambda what, done, total: None
        return
    if not console.is_terminal:
        seen: set[str] = set()

        def tell(what: str, done: int, total: int) -> None:
            if what not in seen:
                seen.add(what)
                console.print(f"{what}: {total:,}")

        yield tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
                bar.start()  # again, after an earlier task has stopped it
            bar.update(tasks[what], completed=done, total=total)
            if done >= total:
                bar.stop()  # the training's own progress follows

        yield show


def installed_version() -> str:
    """Of this program; a source tree that is used without being installed does not know it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("turnaround")
    except PackageNotFoundError:
        return "not installed"
