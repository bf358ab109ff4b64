"""The answer in one sentence: what is ranked, what is forecast, and what is said where nothing can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from turnaround.analysis.configurations import Workload
from turnaround.analysis.workloads import survey
from turnaround.findings import find_all
from turnaround.forecast.sweep import forecasters_of
from turnaround.reporting.page.answer import Headline, answer_of


def answers(folder: Path) -> dict[str, Headline]:
    found = survey([folder])
    findings = find_all(found)
    return {job.name: answer_of(job, forecasters_of(job), findings) for job in found.workloads}


def only(folder: Path) -> Headline:
    (answer,) = answers(folder).values()
    return answer


def job_of(folder: Path) -> Workload:
    (job,) = survey([folder]).workloads
    return job


def test_the_labs_table_is_ranked_by_job_time_and_twice_the_gpus_are_forecast(tmp_path: Path) -> None:
    answer = answers(import_table(LAB, tmp_path))["caltech256, frozen"]
    assert answer.text == (
        "8 V100 finish 30 epochs first, in 23 min 07 s with 67.2 % accuracy; 16 would need about 13 min (11-16) for 30 "
        "epochs and would probably not be stable by then. Against 8 V100 that saves about 2 min 30 s of 19 min 27 s to "
        "a stable accuracy, at twice the GPUs; the interval has room for no gain."
    )
    assert answer.basis == (
        "Compared by the time from submit to finish: without curves, the time to one accuracy is not known."
    )
    assert answer.mind.startswith("4 V100 take as long as 4 T4")


def test_a_sentence_ends_where_it_was_made_to_end_whatever_names_it_holds(tmp_path: Path) -> None:
    for workers, schedule in ((1, "v1. a"), (2, "v1. b")):
        own = {"schedule": schedule}
        plan = Plan(workers=workers, epoch_time_s=100.0 / workers, training=own, accuracy=(0.5, 0.6))
        build(tmp_path / f"v1. x{workers}", plan)
    two = only(tmp_path)
    assert two.sentence.startswith("1 T4 (schedule v1. a) reaches 60.0 % accuracy")
    assert two.sentence.endswith(" for 2 epochs.")
    assert two.rest.startswith("Against 2 T4 that saves")
    failed = Plan(accuracy=(0.5, 0.6), state="failed", cause="v2. y broke. It had no images.")
    assert only(build(tmp_path / "alone" / "v1. x", failed)).sentence.endswith("(v2. y broke. It had no images).")


def test_what_more_gpus_buy_is_a_sentence_of_its_own(tmp_path: Path) -> None:
    answer = answers(import_table(LAB, tmp_path))["caltech256, frozen"]
    assert answer.sentence.endswith("would probably not be stable by then.")
    assert answer.rest.startswith("Against 8 V100 that saves about 2 min 30 s")
    assert answer.sentences == (answer.sentence, answer.rest)


def test_runs_with_curves_are_ranked_by_the_time_to_one_accuracy(tmp_path: Path) -> None:
    for workers, time_s in ((1, 100.0), (2, 60.0)):
        curve = rising(0.8, epochs=30, pace=3.0, seed=workers)
        build(tmp_path / str(workers), Plan(workers=workers, accuracy=curve, epoch_time_s=time_s))
    answer = only(tmp_path)
    target = job_of(tmp_path).target
    assert target is not None
    assert answer.text.startswith(f"2 T4 reach {100 * target:.1f} % accuracy first, in ")
    assert "; 4 would need about " in answer.text
    assert answer.basis.endswith("validation accuracy, which every finished configuration has reached.")


def test_a_result_at_chance_is_not_praised(tmp_path: Path) -> None:
    curve = rising(0.54, epochs=12)
    build(tmp_path / "run", Plan(workers=1, accuracy=curve, per_class={"ants": 70, "bees": 83}, top1=83 / 153))
    answer = only(tmp_path)
    assert answer.text.startswith("No better than guessing the largest class (54.2 %): 1 T4 reaches ")
    assert "guessing the largest class" in answer.mind
    assert answer.severity == "problem"


def test_times_that_cannot_be_compared_are_said_to_be_so(tmp_path: Path) -> None:
    for workers, time_s in ((1, 400.0), (2, 21.0)):
        curve = rising(0.8, epochs=30, pace=3.0, seed=workers)
        build(tmp_path / str(workers), Plan(workers=workers, accuracy=curve, epoch_time_s=time_s))
    answer = only(tmp_path)
    assert answer.text.startswith("As far as these times compare: 2 T4 reach ")
    assert "would need" not in answer.text
    assert (answer.severity, "more than linear" in answer.mind) == ("caution", True)
    found = {finding.id: finding.text for finding in find_all(survey([tmp_path]))}
    for goal in ("speed", "cost"):
        assert "2 T4 is more than linear against 1 T4" in found[f"best-for-{goal}"]


def test_times_that_are_the_same_have_no_first(tmp_path: Path) -> None:
    for workers, time_s in ((1, 100.0), (2, 99.0)):
        build(tmp_path / str(workers), Plan(workers=workers, accuracy=rising(0.8, epochs=3), epoch_time_s=time_s))
    assert only(tmp_path).text.startswith("2 T4 and 1 T4 finish 3 epochs equally fast, in ")


@pytest.mark.parametrize(
    ("plan", "begin"),
    [
        (
            {"workers": 1, "accuracy": rising(0.8, epochs=30, pace=3.0), "epoch_time_s": 60.0},
            "1 T4 reaches 80.0 % accuracy after 30 epochs, in 30 min 16 s, stable from epoch ",
        ),
        (
            {"workers": 8, "processes": 1, "accuracy": rising(0.8, epochs=4)},
            "8 workers rehearsed on 1 T4 reach 69.2 % accuracy after 4 epochs.",
        ),
        (
            {"workers": 2, "accuracy": (0.25, 0.5), "state": "running", "training": {"epochs": 10}},
            "2 T4: 2 of 10 epochs done, with 50.0 % accuracy so far.",
        ),
        (
            {"workers": 2, "accuracy": (0.25, 0.5), "state": "failed", "cause": "Process 1 died.", "gpu": None},
            "2 CPU processes: 2 of 2 epochs done, with 50.0 % accuracy so far; the run failed (Process 1 died).",
        ),
    ],
)
def test_one_configuration_alone(tmp_path: Path, plan: dict[str, Any], begin: str) -> None:
    build(tmp_path / "run", Plan(**plan))
    answer = only(tmp_path)
    assert answer.text.startswith(begin)
    assert answer.basis == ""


def test_a_rehearsals_time_is_never_told(tmp_path: Path) -> None:
    build(tmp_path / "real", Plan(workers=1, accuracy=rising(0.8, epochs=12), epoch_time_s=500.0))
    build(tmp_path / "rehearsed", Plan(workers=4, processes=1, accuracy=rising(0.8, epochs=12), epoch_time_s=1.0))
    assert "rehearsed" not in only(tmp_path).text


def test_settings_stand_in_brackets(tmp_path: Path) -> None:
    for name, rate in (("a", 0.1), ("b", 0.2)):
        plan = Plan(
            workers=2, accuracy=rising(0.8, epochs=3), epoch_time_s=100 * rate, training={"learning_rate": rate}
        )
        build(tmp_path / name, plan)
    assert only(tmp_path).text.startswith("2 T4 (learning rate 0.1) ")
