"""The questions of a scaling study: each is answered, or it is said what is missing."""

from __future__ import annotations

from pathlib import Path

from analysis.build import LAB, Plan, build, import_table, rising
from reporting.page.figure_study import study_job
from turnaround.analysis.workloads import survey
from turnaround.forecast.sweep import forecasters_of
from turnaround.reporting.page.figures import figures_of
from turnaround.reporting.page.questions import CURVES_TO_COME, USAGE_TO_COME, AnsweredQuestion, questions_of


def asked(folder: Path, place: int = 0) -> dict[str, AnsweredQuestion]:
    job = survey([folder]).workloads[place]
    forecasters = forecasters_of(job)
    return {one.text: one for one in questions_of(job, figures_of(job, forecasters), forecasters)}


def test_the_labs_own_questions(tmp_path: Path) -> None:
    """What its author asked, in the order of the report; for 16 V100 also why 30 epochs would not do."""
    found = asked(import_table(LAB, tmp_path))
    answers = [one.answer for one in found.values()]
    assert "turnaround import TABLE --curves CURVES" in answers[0]
    assert answers[1].startswith("Not recorded.")
    assert answers[2] == "2 T4 1 h 38 min, 4 T4 43 min 14 s, 4 V100 41 min 42 s, 8 V100 23 min 07 s."
    assert answers[3].startswith("2 T4 15 (by eye), 4 T4 19 (by eye)")
    assert answers[4].startswith("8 V100 after 19 min")
    assert [one.is_missing for one in found.values()] == [True, True, False, False, False, False, False]
    ahead = found["What would 16 V100 do?"].answer
    assert ahead.startswith("about 13 min")
    assert "39 epochs to stable (31 to 47), so 30 epochs are probably not enough" in ahead


def test_a_table_without_stable_epochs_says_what_it_would_take(tmp_path: Path) -> None:
    found = asked(import_table(LAB, tmp_path), place=1)
    assert found["Which is stable first?"].is_missing
    assert "epochs_to_stable" in found["How many epochs until the accuracy is stable?"].answer


def test_a_recorded_study_has_charts_for_its_answers(tmp_path: Path) -> None:
    study_job(tmp_path)
    found = asked(tmp_path)
    assert [one.figure for one in found.values()][:2] == ["accuracy", "usage-1-t4-1-1-32"]
    assert found["How accurate, epoch by epoch?"].answer.startswith("Final accuracy: 1 T4 ")
    assert not any(one.is_missing for one in found.values())


def test_what_has_just_begun_is_not_called_missing_for_good(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan(workers=1, accuracy=rising(0.8, epochs=1, pace=3.0), state="running"))
    found = asked(tmp_path)
    assert found["How accurate, epoch by epoch?"].answer == CURVES_TO_COME
    assert found["How busy was the hardware?"].answer == USAGE_TO_COME
    assert found["How long did each job take, from submit to finish?"].is_missing
