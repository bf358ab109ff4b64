"""A study while it runs: one row a run, and the time that is left."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turnaround.study.lifecycle import seconds_left
from turnaround.study.state import RunState
from turnaround.words import about, accuracy, duration


def study_table(states: Sequence[RunState]) -> RenderableType:
    """Return every planned run and how far it is."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("run", "state", "epoch", "validation", "time"):
        table.add_column(heading, justify="left" if heading in ("run", "state") else "right", no_wrap=True)
    for state in states:
        table.add_row(
            state.planned.label,
            _standing(state),
            f"{state.epochs_done}/{state.epochs}" if state.epochs else "-",
            accuracy(state.val_accuracy),
            _time(state),
        )
    return Group(table, Text(progress_line(states)))


def _standing(state: RunState) -> str:
    """Return the state; in the queue of a cluster with the cluster's own word for what it waits for."""
    if state.standing == "queued":
        return f"queued ({state.cause})" if state.cause else "queued"
    return "waiting" if state.standing == "missing" else state.standing


def progress_line(states: Sequence[RunState]) -> str:
    """Say how much is done, and how long the rest takes at this pace."""
    done = sum(state.is_done for state in states)
    left_s = seconds_left(states)
    rest = "" if left_s is None or done == len(states) else f", about {about(left_s)} left at this pace"
    return f"{done} of {len(states)} runs done{rest}"


def change_line(state: RunState) -> str:
    """Return one line for a log: what has just become of a run."""
    line = f"{state.planned.label}: {'waiting' if state.standing == 'missing' else state.standing}"
    if state.standing == "finished":
        level = "" if state.val_accuracy is None else f"{accuracy(state.val_accuracy)} validation accuracy, "
        line += f", {level}{_time(state)}"
    return f"{line} ({state.cause})" if state.cause and not state.is_done else line


def _time(state: RunState) -> str:
    shown = duration(state.program_s)
    return f"({shown})" if state.planned.is_rehearsal and state.program_s else shown
