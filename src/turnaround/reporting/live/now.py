"""The state of every run as blocks: one over all, a small one for each run, one for those that are done."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from markupsafe import Markup

from turnaround.findings.bottlenecks import why
from turnaround.reporting.live.hub import RUN_BLOCK
from turnaround.reporting.live.progress import RunProgress, State
from turnaround.reporting.page.blocks import Block
from turnaround.reporting.page.templates import environment
from turnaround.words import about, accuracy

STATES: tuple[State, ...] = (
    "running",
    "preparing",
    "queued",
    "failed",
    "diverged",
    "interrupted",
    "unreadable",
    "finished",
)
"""States in the order in which they are shown: those that move, those that went wrong, the finished ones."""
OVERVIEW = "live"
MAX_TO_COME, MAX_LABEL = 12, 100  # planned runs that are named; characters of a name


def now_blocks(
    runs: Sequence[RunProgress], notes: Sequence[str], *, waiting: str, to_come: Sequence[str] = ()
) -> list[Block]:
    """Return the overview, a block for each run that moves or went wrong, and one short list of the finished ones."""
    # A block for each run: an update sends that of the run that moved, not all of them.
    counted = Counter(run.state for run in runs)
    counts = [(state, counted[state]) for state in STATES if counted[state]]
    overview = _piece("overview", counts=counts, waiting=waiting, notes=notes, to_come=_shortened(to_come))
    ordered = sorted(runs, key=lambda run: STATES.index(run.state))  # stable: within a state by name
    done = [(run, _text_of(run.val_accuracy)) for run in ordered if run.state == "finished"]
    cards = [Block(id=f"{RUN_BLOCK}{run.id}", html=_run(run)) for run in ordered if run.state != "finished"]
    finished = [Block(id="live/finished", html=_piece("finished", runs=done))] if done else []
    return [Block(id=OVERVIEW, html=overview), *cards, *finished]


def failure_block(title: str, reason: str) -> Block:
    """Return the block that stands in place of the answer when the page cannot be made."""
    return Block(id="answer", html=_piece("failed", title=title, reason=reason))


def mark_block(heard: str, digests: Mapping[str, str]) -> Block:
    """Return a block that tells the page's script what the page already shows; the script removes it."""
    return Block(id="live/mark", html=_piece("mark", heard=heard, digests=json.dumps(digests)))


def _shortened(labels: Sequence[str]) -> str:
    more = f", and {len(labels) - MAX_TO_COME:,} more" if len(labels) > MAX_TO_COME else ""
    return "; ".join(label[:MAX_LABEL] for label in labels[:MAX_TO_COME]) + more


def _text_of(val_accuracy: float | None) -> str:
    return "" if val_accuracy is None else accuracy(val_accuracy)


def _run(run: RunProgress) -> Markup:
    return _piece("run", run=run, figures=list(_figures(run)), held_back=_held_back(run))


def _figures(run: RunProgress) -> Iterator[tuple[str, str]]:
    """Yield (what, value), in the order of interest."""
    if run.epochs and (run.epoch or run.is_under_way):
        yield f"of {run.epochs} epochs", str(run.epoch)
    if run.left_s is not None:
        yield "left", f"about {about(max(1.0, run.left_s))}"
    if run.images_per_s is not None:
        yield "images/s", f"{run.images_per_s:,.0f}"
    if run.val_accuracy is not None:
        yield "validation accuracy", accuracy(run.val_accuracy)
    if run.doing is not None and run.doing != "trains":
        yield "now", run.doing


def _held_back(run: RunProgress) -> str | None:
    if run.held_back is None:
        return None
    kind = run.held_back.kind
    named = "Computing is its limit, as it should be" if kind == "compute" else f"Held back by {kind}"
    return f"{named}: {why(run.held_back)}"


def _piece(name: str, **values: Any) -> Markup:
    filled: Markup = getattr(_pieces(), name)(**values)
    return filled.strip()


@cache
def _pieces() -> Any:
    return environment().get_template("live.html.j2").module
