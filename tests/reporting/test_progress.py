"""A training while it runs: a bar on a terminal, plain lines elsewhere, nothing when not wanted."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from turnaround.record.schema import EpochRecord
from turnaround.reporting.progress import BarProgress, PlainProgress, SilentProgress, epoch_line, progress_for


def record(epoch: int) -> EpochRecord:
    return EpochRecord(
        epoch=epoch,
        train_loss=1.23456,
        train_accuracy=0.5,
        val_loss=1.0,
        val_accuracy=0.625,
        epoch_time_s=12.345,
        images_per_s=1234.5,
        learning_rate=0.1,
    )


def two_epochs(progress: SilentProgress, *, first: int = 1) -> None:
    """What the training side calls: epochs of four steps of 32 images."""
    with progress:
        for epoch in (first, first + 1):
            progress.epoch_begins(epoch=epoch, epochs=10, steps=4)
            for _ in range(4):
                progress.step_done(images=32)
            progress.epoch_done(record(epoch))


def test_an_epoch_in_one_line() -> None:
    line = epoch_line(record(3), epochs=10)
    assert line == "epoch  3/10  loss 1.235  train 0.500  validation 0.625  12.35 s  1,234 images/s"
    assert len(line) <= 80


def test_plain_lines_and_nothing_else() -> None:
    stream = io.StringIO()
    two_epochs(PlainProgress(stream))
    assert stream.getvalue().splitlines() == [epoch_line(record(n), epochs=10) for n in (1, 2)]


def test_silence(capfd: object) -> None:
    two_epochs(SilentProgress())
    assert capfd.readouterr() == ("", "")  # type: ignore[attr-defined]


def test_a_bar_with_a_line_for_every_epoch() -> None:
    stream = io.StringIO()
    progress = BarProgress(Console(file=stream, force_terminal=True, width=120))
    two_epochs(progress)
    task = progress.bar.tasks[0]
    assert (task.completed, task.total, task.fields["epoch"]) == (8, 40, 2)
    assert task.fields["accuracy"] == "validation 0.625"
    shown = stream.getvalue()
    assert all(epoch_line(record(n), epochs=10) in shown for n in (1, 2))
    assert "starting" in shown
    assert not progress.bar.live.is_started


def test_a_bar_that_resumes_begins_where_it_was() -> None:
    progress = BarProgress(Console(file=io.StringIO(), force_terminal=True, width=120))
    two_epochs(progress, first=8)
    assert (progress.bar.tasks[0].completed, progress.bar.tasks[0].total) == (36, 40)


def test_a_bar_is_cleared_when_training_fails() -> None:
    progress = BarProgress(Console(file=io.StringIO(), force_terminal=True))
    try:
        with progress:
            raise RuntimeError
    except RuntimeError:
        pass
    assert not progress.bar.live.is_started


def test_the_choice_is_the_streams() -> None:
    assert isinstance(progress_for(io.StringIO()), PlainProgress)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(progress_for(Terminal()), BarProgress)


@pytest.mark.parametrize(("method", "kind"), [("warn", "warning"), ("note", "note")])
def test_a_warning_or_a_note_is_shown_at_once_whatever_shows_the_rest(
    capsys: pytest.CaptureFixture[str], method: str, kind: str
) -> None:
    text = "no room for [bold]epoch-00003[/bold]"
    plain, bar = io.StringIO(), io.StringIO()
    getattr(PlainProgress(plain), method)(text)
    with BarProgress(Console(file=bar, force_terminal=True, width=120, color_system=None)) as progress:
        getattr(progress, method)(text)
    getattr(SilentProgress(), method)(text)
    shown = [plain.getvalue(), bar.getvalue(), capsys.readouterr().err]
    assert all(f"{kind}: {text}" in said for said in shown)
