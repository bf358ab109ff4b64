"""A training while it runs: a bar on a terminal, plain lines elsewhere, nothing when not wanted.

Each is a context manager, and what the training side calls `Progress`.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import IO, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from turnaround.record.schema import EpochRecord
from turnaround.reporting.terminal import on_stream
from turnaround.reporting.text_layout import clean


def epoch_line(record: EpochRecord, *, epochs: int) -> str:
    """Return one epoch in one line: 80 columns hold 99 epochs at 99,999 images/s."""
    return (
        f"epoch {record.epoch:>{len(str(epochs))}}/{epochs}  loss {record.train_loss:5.3f}  "
        f"train {record.train_accuracy:.3f}  validation {record.val_accuracy:.3f}  "
        f"{record.epoch_time_s:5.2f} s  {record.images_per_s:,.0f} images/s"
    )


class SilentProgress:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def epoch_begins(self, *, epoch: int, epochs: int, steps: int) -> None:
        pass

    def step_done(self, *, images: int) -> None:
        pass

    def epoch_done(self, record: EpochRecord) -> None:
        pass

    def warn(self, text: str) -> None:
        print(f"warning: {clean(text)}", file=sys.stderr, flush=True)  # of a process of ours: into its log

    def note(self, text: str) -> None:
        print(f"note: {clean(text)}", file=sys.stderr, flush=True)


class PlainProgress(SilentProgress):
    """One line an epoch, for logs and pipes."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.epochs = 0

    def epoch_begins(self, *, epoch: int, epochs: int, steps: int) -> None:
        self.epochs = epochs

    def epoch_done(self, record: EpochRecord) -> None:
        print(epoch_line(record, epochs=self.epochs), file=self.stream, flush=True)

    def warn(self, text: str) -> None:
        print(f"warning: {clean(text)}", file=self.stream, flush=True)

    def note(self, text: str) -> None:
        print(f"note: {clean(text)}", file=self.stream, flush=True)


class BarProgress(SilentProgress):
    """A bar over the whole training, with a line above it for every epoch that is done."""

    def __init__(self, console: Console) -> None:
        self.bar = Progress(
            TextColumn("[bold]epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=None),
            _Rate(),
            TextColumn("{task.fields[accuracy]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            transient=True,
            expand=True,
        )
        self.task = self.bar.add_task("", total=None, epoch=0, epochs=0, images=0, accuracy="starting")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def epoch_begins(self, *, epoch: int, epochs: int, steps: int) -> None:
        done = (epoch - 1) * steps
        self.epochs = epochs
        if not self.bar.tasks[0].total:
            self.bar.reset(self.task, total=epochs * steps, completed=done, epoch=epoch, epochs=epochs, accuracy="")
        self.bar.update(self.task, epoch=epoch, completed=done)

    def step_done(self, *, images: int) -> None:
        self.bar.update(self.task, advance=1, images=images)

    def epoch_done(self, record: EpochRecord) -> None:
        # A longer line loses its end, not the look of a table.
        line = epoch_line(record, epochs=self.epochs)
        self.bar.console.print(line, highlight=False, no_wrap=True, overflow="ellipsis")
        self.bar.update(self.task, accuracy=f"validation {record.val_accuracy:.3f}")

    def warn(self, text: str) -> None:
        self.bar.console.print(f"warning: {text}", style="bold yellow", highlight=False, markup=False)

    def note(self, text: str) -> None:
        self.bar.console.print(f"note: {text}", highlight=False, markup=False)


class _Rate(ProgressColumn):
    """Images a second of the last steps."""

    def render(self, task: Task) -> Text:
        steps_per_s = task.speed or 0.0
        return Text(f"{steps_per_s * task.fields['images']:,.0f} images/s" if steps_per_s else "")


def progress_for(stream: IO[str]) -> PlainProgress | BarProgress:
    """Return a bar for a terminal, plain lines for a log or a pipe."""
    console = on_stream(stream)
    return BarProgress(console) if console.is_terminal else PlainProgress(stream)
