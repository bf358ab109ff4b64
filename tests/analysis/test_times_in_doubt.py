"""Times that cannot be: the lab's table with hours for seconds, and its like."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.build import LAB, import_table
from turnaround.analysis.summary import RunSummary
from turnaround.analysis.times_in_doubt import impossible_speed
from turnaround.analysis.workloads import survey
from turnaround.findings import find_all
from turnaround.findings.forecasts import Answer
from turnaround.forecast.predict import fit_forecaster
from turnaround.forecast.question import Question


def in_unit(unit_s: float) -> str:
    """The lab's table with all of its times in another unit."""
    rows = list(csv.DictReader(io.StringIO(LAB)))
    for row in rows:
        for column in ("job_time_s", "epoch_time_s"):
            row[column] = f"{float(row[column]) / unit_s:.6g}"
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def test_a_table_wholly_in_hours_gets_a_word_in_report_and_forecast(tmp_path: Path) -> None:
    known = survey([import_table(in_unit(3600.0), tmp_path)])
    found = {finding.job: finding for finding in find_all(known) if finding.id == "impossible-speed"}
    assert found["caltech256, frozen"].text == (
        "model3 (3 other runs likewise) would train 210,875 images/s on each T4, where 64,000 are beyond any network: "
        "its times are probably hours or minutes, taken for seconds."
    )
    assert "epoch_time_h" in found["caltech256, frozen"].advice
    # Without the number of images the whole job tells it.
    assert "lab9 (2 other runs likewise) would have finished 10 epochs in 184 ms" in found["fruit, fine-tuned"].text
    told = Answer.of(fit_forecaster(known, Question(workers=16, gpu="V100", job="cal")).predict(16)).warnings
    [sentence] = [warning for warning in told if "images/s on each V100" in warning]
    assert sentence.endswith("The forecast is in the same wrong unit: import the table again.")


def test_seconds_are_believed(tmp_path: Path) -> None:
    known = survey([import_table(LAB, tmp_path)])
    assert not [finding for finding in find_all(known) if finding.id == "impossible-speed"]


@pytest.mark.parametrize(
    ("change", "is_impossible"),
    [
        ({}, True),
        ({"gpu": "a kind that nobody knows"}, False),  # the fastest known kind could
        ({"gpu": "H200"}, False),
        ({"is_imported": False}, False),
        ({"images_per_epoch": None}, False),
        ({"processes": 8}, False),
        ({"images_per_epoch": None, "job_time_s": 0.5}, True),
        ({"images_per_epoch": None, "job_time_s": 0.5, "epochs": 1}, False),
    ],
)
def test_what_no_gpu_does(change: dict[str, object], is_impossible: bool, tmp_path: Path) -> None:
    table = "name,dataset,gpu,workers,images_per_epoch,epochs,epoch_time_s\na,x,T4,2,100000,10,0.5\n"
    [member] = survey([import_table(table, tmp_path)]).workloads[0].members
    run: RunSummary = replace(member.summary, **change)  # type: ignore[arg-type]
    assert (impossible_speed(run) is not None) == is_impossible
