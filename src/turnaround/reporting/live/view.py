"""A survey of runs that train -> the PageView of the live page; forecasts are renewed only when a run has finished."""

from __future__ import annotations

import shlex
from dataclasses import replace

from turnaround.analysis.workloads import Survey
from turnaround.forecast.predict import Forecaster
from turnaround.forecast.score import Score, saved_in, scored
from turnaround.forecast.sweep import forecasters_of
from turnaround.record.folder import FollowedFolder
from turnaround.record.layout import RunDirectory
from turnaround.reporting.page.blocks import PageView
from turnaround.reporting.page.build import PageOptions, page_view


class LiveView:
    """Makes the PageView of a survey; no example pictures: a record must not say what the server opens."""

    def __init__(self, folder: FollowedFolder) -> None:
        self.folder = folder
        self.title = folder.root.name or str(folder.root)
        self._forecasters: dict[str, tuple[Forecaster, ...]] = {}
        self._scores: tuple[Score, ...] = ()
        self._known: dict[str, frozenset[tuple[str, int]]] = {}
        """The finished runs, by job, that the forecasts rest on. Forecasts take longer than the rest, so they are made
        anew only when one more has finished."""

    def __call__(self, survey: Survey, notes: tuple[str, ...]) -> PageView:
        self._forecast(survey)
        options = PageOptions(has_pictures=False, has_forecasts=False, is_live=True)
        view = page_view(survey, [], options=options)
        command = f"turnaround report {shlex.quote(str(self.folder.given))} --out page.html"
        return replace(
            view,
            title=self.title,
            forecasters={job.name: self._forecasters.get(job.name, ()) for job in survey.workloads},
            scores=self._scores,
            notes=(*view.notes, *notes),
            command=command,
        )

    def _forecast(self, survey: Survey) -> None:
        for job in survey.workloads:
            finished = [run for c in job.configurations for run in c.summaries if run.state == "finished"]
            known = frozenset((run.directory, run.epochs) for run in finished)
            if known and known != self._known.get(job.name):
                self._known[job.name] = known
                self._forecasters[job.name] = forecasters_of(job)
                self._scores = self._scored(survey)

    def _scored(self, survey: Survey) -> tuple[Score, ...]:
        """Score the saved forecasts; those of a single run lie around its folder, where nothing is read."""
        if RunDirectory(self.folder.root).is_run():
            return ()
        return tuple(scored(saved_in(self.folder.root), survey))
