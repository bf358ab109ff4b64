"""The figures of a job, in order."""

from __future__ import annotations

from collections.abc import Sequence

from turnaround.analysis.configurations import Workload
from turnaround.analysis.prices import PriceTable
from turnaround.forecast.predict import Forecaster
from turnaround.reporting.page.fig_classes import class_figures
from turnaround.reporting.page.fig_common import Figure
from turnaround.reporting.page.fig_curves import curve_figure, final_accuracy_figure
from turnaround.reporting.page.fig_epochs import epochs_figure
from turnaround.reporting.page.fig_gpus import usage_figures
from turnaround.reporting.page.fig_inside import step_figure, turnaround_figure
from turnaround.reporting.page.fig_scaling import EPOCH_TIME, scaling_figures
from turnaround.reporting.page.fig_time import time_figures
from turnaround.reporting.page.fig_training import learning_rate_figure, noise_scale_figure

SECTIONS = {
    "curves": "Learning curves",
    "time": "Time and cost",
    "scaling": "Scaling",
    "inside": "Time breakdown and overhead",
    "gpus": "Hardware utilization",
    "training": "Learning rate and gradient noise",
    "classes": "Classes and confusion matrix",
}
"""The sections in order, as people read them."""

MAX_KEY_FIGURES = 4
KEY_FIGURES = (
    ("accuracy", "final-accuracy"),
    ("time-to-target", "time-to-stable", "job-time"),
    ("epochs-to-stable",),
    (EPOCH_TIME,),
    ("confusion", "confused-pairs"),
    ("loss",),
)
"""The charts that carry the answer: of each row the first that there is."""
KEY_FIGURES_OF_ONE = (("accuracy",), ("confusion", "confused-pairs"), ("loss",), (EPOCH_TIME,))
"""The same where there is nothing to compare."""


def key_figures(figures: Sequence[Figure]) -> list[Figure]:
    """Return the charts that carry the answer: accuracy, then time; an even number of them, where there are two."""
    by_id = {figure.id: figure for figure in figures}
    rows = KEY_FIGURES if any(name in by_id for name in KEY_FIGURES[1]) else KEY_FIGURES_OF_ONE
    found = [next((by_id[name] for name in row if name in by_id), None) for row in rows]
    known = [figure for figure in found if figure is not None][:MAX_KEY_FIGURES]
    return known[: len(known) // 2 * 2] or known


def figures_of(
    job: Workload, forecasters: Sequence[Forecaster] = (), *, price: float | PriceTable | None = None
) -> tuple[Figure, ...]:
    """Return the pictures of one job that have something to show, section by section."""
    found: list[Figure | None] = [
        curve_figure(job, "accuracy"),
        curve_figure(job, "loss"),
        final_accuracy_figure(job),
        *time_figures(job, price=price),
        *scaling_figures(job, forecasters),
        epochs_figure(job, forecasters),
        turnaround_figure(job),
        step_figure(job),
        *usage_figures(job),
        learning_rate_figure(job),
        noise_scale_figure(job),
        *class_figures(job),
    ]
    return tuple(figure for figure in found if figure is not None)
