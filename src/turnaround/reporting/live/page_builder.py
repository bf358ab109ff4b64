"""Makes the blocks of the live page, outside the event loop: the quick ones every second, the page when there is time.

A record of others may break the rendering: then that run is left out, with the reason, and the others are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from turnaround.analysis.workloads import LeftOut, Survey, survey_runs
from turnaround.findings.runs import error_text
from turnaround.record.folder import FollowedFolder
from turnaround.record.follow import FollowedRun, RunSnapshot
from turnaround.reporting.live.hub import Packed, pack
from turnaround.reporting.live.now import failure_block, now_blocks
from turnaround.reporting.live.progress import RunProgress, RunWatch
from turnaround.reporting.page.blocks import Block, PageView, page_blocks
from turnaround.study.state import PlanFollower

MAX_NOTES = 20  # a folder of thousands of damaged runs must not become a page of notes

View = Callable[[Survey, tuple[str, ...]], PageView]
"""(survey, notes on what is left out) -> the page's view of them."""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """Rendered blocks and the CPU time they took."""

    blocks: tuple[Packed, ...]
    cpu_s: float


class PageBuilder:
    """Builds both kinds of blocks. One thread calls `now`, another `page`: they share immutable snapshots alone."""

    def __init__(self, folder: FollowedFolder, view: View, *, title: str) -> None:
        self.folder, self.view, self.title = folder, view, title
        self.snapshots: tuple[RunSnapshot, ...] = ()
        self.notes: tuple[str, ...] = ()
        self._watches: dict[str, RunWatch] = {}
        self._plans: dict[Path, PlanFollower] = {}
        self._judged: dict[RunSnapshot, Exception | None] = {}
        """Filled after a rendering failed: the error that a run cannot be rendered for, or None where it can."""

    def now(self) -> Rendered:
        """Read on in the folder, and render the state of every run."""
        begun_s = time.thread_time()  # CPU time of this thread: what waits for the disk need not be rested from
        found: list[RunProgress] = []
        notes: list[str] = []
        try:
            self.folder.look()
        except OSError as error:
            notes.append(f"{self.folder.given} cannot be read now: {error.strerror or error}.")
        try:
            found = self._stand()
        except Exception as error:  # told on the page; the server lives on
            notes.append(f"Where the runs stand cannot be told ({error_text(error)}).")
        waiting = f"No run yet in {self.folder.given}: the first one appears here as soon as it is recorded."
        blocks = now_blocks(found, notes, waiting=waiting, to_come=self._to_come())
        return Rendered(blocks=tuple(pack(block) for block in blocks), cpu_s=time.thread_time() - begun_s)

    def _stand(self) -> list[RunProgress]:
        runs = self.folder.runs
        # A run that was begun anew under its old name is another object, and gets a new watch.
        known = {run.id: watch for run in runs if (watch := self._watches.get(run.id)) and watch.run is run}
        self._watches = {run.id: known.get(run.id) or RunWatch(run) for run in runs}
        notes = [*self.folder.notes, *(note for run in runs for note in run.left_out())]
        hidden = f"{len(notes) - MAX_NOTES} more notes are not shown."
        self.notes = (*notes[:MAX_NOTES], *([hidden] if len(notes) > MAX_NOTES else []))
        self.snapshots = tuple(run.snapshot for run in runs if run.has_recipe)
        return [_progress(run, self._watches[run.id]) for run in runs]

    def _to_come(self) -> list[str]:
        """Return the planned runs of the watched studies: the folder itself, and folders that hold runs."""
        folders = {self.folder.root, *(run.directory.path.parent for run in self.folder.runs)}
        self._plans = {folder: self._plans.get(folder) or PlanFollower(folder) for folder in sorted(folders)}
        return [label for plan in self._plans.values() for label in plan.to_come()]

    def page(self, snapshots: Sequence[RunSnapshot], notes: tuple[str, ...]) -> Rendered:
        """Analyse all runs and render the page; a run that breaks it is left out, with the reason."""
        begun_s = time.thread_time()
        self._judged = {run: self._judged[run] for run in snapshots if run in self._judged}
        try:
            blocks = self._blocks(snapshots, notes)
        except Exception:
            # Each run by itself, once: a snapshot that is not new keeps its verdict, so one bad run does not cost a
            # rendering of all others every time.
            self._judged |= {run: self._why_broken(run) for run in snapshots if run not in self._judged}
            try:
                blocks = self._blocks(snapshots, notes)
            except Exception as error:  # told on the page; the server lives on
                blocks = (failure_block(self.title, f"The page cannot be made of these runs ({error_text(error)})."),)
        return Rendered(blocks=tuple(pack(block) for block in blocks), cpu_s=time.thread_time() - begun_s)

    def _blocks(self, runs: Sequence[RunSnapshot], notes: tuple[str, ...]) -> tuple[Block, ...]:
        broken = {run: error for run, error in self._judged.items() if error is not None}
        survey = survey_runs([run for run in runs if run not in broken])
        left_out = (LeftOut(directory=str(run.path), error=error) for run, error in broken.items())
        return page_blocks(self.view(replace(survey, left_out=(*survey.left_out, *left_out)), notes))

    def _why_broken(self, run: RunSnapshot) -> Exception | None:
        try:
            page_blocks(self.view(survey_runs([run]), ()))
        except Exception as error:
            return error.with_traceback(None)
        return None


def _progress(run: FollowedRun, watch: RunWatch) -> RunProgress:
    try:
        return watch.look()
    except Exception as error:  # a record of others: told in its place
        cause = f"it holds what no run has ({error_text(error)})"
        return RunProgress(id=run.id, name=run.label, state="unreadable", cause=cause)
