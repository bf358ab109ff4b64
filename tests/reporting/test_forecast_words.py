"""The lab's sentences agree with one another: what is best, and where the time of a run went."""

from __future__ import annotations

from pathlib import Path

from analysis.build import LAB, import_table
from turnaround.analysis.workloads import survey
from turnaround.forecast.predict import fit_forecaster
from turnaround.forecast.question import Question
from turnaround.reporting.forecast_words import best_in_range, counts_in_words
from turnaround.reporting.run_text import parts_sentence


def test_the_fastest_within_noise_says_so(tmp_path: Path) -> None:
    known = survey([import_table(LAB, tmp_path)])
    forecaster = fit_forecaster(known, Question(workers=16, gpu="V100", job="cal"))
    predictions = [forecaster.predict(workers) for workers in (1, 2, 4, 8, 16)]
    assert best_in_range(predictions) == (
        "By time to stable: fastest 16 (8 within its interval), fewest GPU-hours 1 (2 within its interval)."
    )
    assert counts_in_words([2, 4, 8, 16]) == "4 others from 2 to 16"
    nothing = fit_forecaster(known, Question(workers=4, job="fruit"))
    assert "job time" in (best_in_range([nothing.predict(4)]) or "")


def test_the_time_of_a_tables_run_is_mostly_its_epochs(tmp_path: Path) -> None:
    runs = {run.name: run for job in survey([import_table(LAB, tmp_path)]).workloads for run, _ in job.members}
    assert parts_sentence(runs["model6"]).startswith("epochs 22 min, ")
    assert parts_sentence(runs["model6"]).endswith(" 67 s")
    assert parts_sentence(runs["model3"]) == "epochs 1 h 38 min"
