"""The terminal: where text goes, how it is made safe to show, and a bar for long preparations.

Results go to stdout, everything on the way to stderr, so that `--json` output can be piped. Names of classes, runs and
files come from records of others: whatever is printed through `out` or `err` has passed `clean`, in one place.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from turnaround.words import harmless

if TYPE_CHECKING:
    from turnaround.data.decoders import Show

_ACTING = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""DEL and the controls of C1 (one of them begins an escape sequence), separators of lines, what turns the text."""


class SafeConsole(Console):
    """A console on which text cannot act: styles and cursor moves are ours, control characters in text are shown as ?.

    Rich keeps styles and control codes apart from text, so an escape sequence inside text is never one of ours.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def out() -> Console:
    """Return the console for results. Made at each use: tests and pipes replace the streams."""
    return SafeConsole(highlight=False, emoji=False, soft_wrap=True)


def err() -> Console:
    """Return the console for everything on the way."""
    return SafeConsole(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def on_stream(stream: IO[str]) -> Console:
    """Return the console for the progress of a training, on whatever stream its process was given."""
    return SafeConsole(file=stream)


def print_json(payload: Any) -> None:
    """Print one JSON document for programs on stdout. JSON has no NaN and no infinity: they are null."""
    import typer

    from turnaround.record.coding import plain

    content = plain(payload)
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    # JSON escapes control characters below 32 itself; in the same way the others that act on a terminal.
    text = _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:  # an ASCII terminal, or a file name that is no UTF-8
        text = json.dumps(content, indent=2, allow_nan=False)
    typer.echo(text)


def print_script(text: str) -> None:
    """Print a file for other programs on stdout, as it is; on a terminal nothing in it acts."""
    import typer

    typer.echo(harmless(text) if sys.stdout.isatty() else text, nl=False)


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """Print lines that are laid out already; a character that the terminal's encoding does not have is shown as ?."""
    for line in lines:
        line.plain = line.plain.encode(console.encoding, "replace").decode(console.encoding)
        console.print(line)


def print_notes(notes: Iterable[str], *, label: str = "note") -> None:
    """Print each note in a line of its own on stderr: stdout may go into a pipe."""
    console = err()
    for note in notes:
        console.print(Text(f"{label}: {note}", style="yellow"))


@contextmanager
def preparation(console: Console, *, quiet: bool = False) -> Iterator[Show]:
    """Show a bar for drawing and decoding; without a terminal, one line when each begins; nothing when quiet."""
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
