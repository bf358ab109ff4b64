"""The accuracies at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import Plan, build
from reporting.page.figure_study import job_in, study_job
from turnaround.reporting.page.fig_curves import final_accuracy_figure


def test_accuracies_at_the_end(tmp_path: Path) -> None:
    job = study_job(tmp_path)
    shown = final_accuracy_figure(job)
    assert shown is not None
    validation, train = shown.data
    assert (validation["marker"]["symbol"], train["marker"]["symbol"]) == ("circle", "square-open")
    assert validation["x"][0] == pytest.approx(job.configurations[0].final_val_accuracy.value, abs=1e-4)  # type: ignore[union-attr]
    assert shown.layout["yaxis"]["ticktext"][3] == "8 workers rehearsed<br>on 1 T4"
    assert shown.layout["xaxis"]["title"]["text"] == "accuracy (%)"


def test_one_configuration_has_nothing_to_compare(tmp_path: Path) -> None:
    build(tmp_path / "r", Plan())
    assert final_accuracy_figure(job_in(tmp_path)) is None


def test_without_training_images_only_validation_is_spoken_of(tmp_path: Path) -> None:
    unknown = [float("nan")] * 3
    for workers in (1, 2):
        build(tmp_path / str(workers), Plan(workers=workers, accuracy=[0.1, 0.2, 0.3], train_accuracy=unknown))
    shown = final_accuracy_figure(job_in(tmp_path))
    assert shown is not None
    assert shown.caption == "Share of validation images recognised after the last epoch."
