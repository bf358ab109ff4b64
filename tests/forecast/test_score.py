"""Saved forecasts are held against the runs that came later."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from forecast.conftest import curve, epochs_to_stable, real, rehearsal, step_s
from turnaround.analysis.prices import Price
from turnaround.analysis.workloads import survey
from turnaround.errors import StorageError
from turnaround.findings.estimates import score_sentences, unscored_sentence
from turnaround.findings.forecasts import Answer, track_record_text
from turnaround.forecast import score
from turnaround.forecast.interval import Interval
from turnaround.forecast.predict import fit_forecaster
from turnaround.forecast.question import Prediction, Question
from turnaround.forecast.score import Score, keep_estimates, save, saved_in, scores, unscored
from turnaround.record.layout import StudyDirectory

DOCUMENT = (Path(__file__).parents[2] / "docs" / "record-format.md").read_text("utf-8")


def save_for(folder: Path, workers: int, **more: object) -> Prediction:
    known = survey([folder])
    question = Question(workers=workers, **more)  # type: ignore[arg-type]
    prediction = fit_forecaster(known, question).predict(workers)
    assert save(folder, question, Answer.of(prediction).as_json(), known) == StudyDirectory(folder).forecasts
    return prediction


def test_a_later_run_scores_the_forecast(study: Path) -> None:
    prediction = save_for(study, 8, price=2.0)
    assert scores([study]) == []
    assert track_record_text(scores([study])) is None
    real(study / "real-8", 8, factor=1.02)
    found = {score.figure: score for score in scores([study])}
    assert set(found) == {"images_per_s", "epoch_time_s", "epochs_to_stable", "job_time_s", "cost", "val_accuracy"}
    time = found["epoch_time_s"]
    assert (time.job, time.workers, time.gpu, time.runs) == (prediction.job, 8, "H200", 1)
    assert time.measured == pytest.approx(1.02 * step_s(8) * 39)
    assert prediction.epoch_time_s is not None
    assert time.error == pytest.approx(prediction.epoch_time_s.value / time.measured - 1)
    assert time.is_inside
    assert found["epochs_to_stable"].measured == pytest.approx(epochs_to_stable(8), abs=1.5)
    assert re.fullmatch(
        r"saved forecasts against later runs: 6 figures, median error \d+ %, 6 of 6 inside the 80 % interval",
        track_record_text(scores([study])) or "",
    )


def test_the_cost_is_scored_with_the_whole_price_of_the_table(study: Path) -> None:
    hourly = {"H200": Price(per_hour=2.0, billing_s=3600.0, currency="EUR")}
    save_for(study, 8, prices=hourly)
    real(study / "real-8", 8)
    [cost] = [score for score in scores([study]) if score.figure == "cost"]
    assert cost.measured % (8 * 2.0) == 0  # whole hours of eight GPUs
    assert cost.is_inside


def test_an_estimate_keeps_its_price_and_old_lines_still_read(study: Path) -> None:
    known = survey([study])
    real(study / "real-8", 8)
    asked = fit_forecaster(known, Question(workers=8, prices={"H200": Price(per_hour=6.0, billing_s=3600.0)})).predict(
        8
    )
    file = keep_estimates(study, [Answer.of(asked).as_json()], source="photos", prices={"H200": Price(per_hour=6.0)})
    line = json.loads(file.read_text())
    assert line["question"]["prices"]["H200"]["billing_s"] == 1.0
    costs = []
    # Another unit, a line of old, and prices that are none.
    for prices in (
        {"H200": {"per_hour": 6.0, "billing_s": 3600.0}},
        {},
        {"H200": {"per_hour": "6", "billing_s": 0}},
        6,
    ):
        line["question"]["prices"] = prices
        line.pop("crc", None)
        file.write_text(json.dumps(line) + "\n")
        costs += [score.measured for score in scores([study]) if score.figure == "cost"]
    assert costs[0] % (8 * 6.0) == 0
    assert len(set(costs[1:])) == 1
    assert costs[1] < costs[0]


def test_a_rehearsal_or_another_configuration_scores_nothing(study: Path) -> None:
    save_for(study, 8)
    rehearsal(study / "again-8", 8, training={"seed": 3})
    real(study / "t4", 8, gpu="Tesla T4")
    assert scores([study]) == []


def test_hosts_count_where_they_were_asked_for(study: Path) -> None:
    save_for(study, 8)
    save_for(study, 16, hosts=4)
    for n in (8, 16):
        real(study / f"real-{n}", n, machine={"hosts": 2})
    assert {score.workers for score in scores([study])} == {8}


def test_what_was_measured_already_is_no_forecast(study: Path) -> None:
    save_for(study, 4)
    assert scores([study]) == []


def test_asked_twice_counts_once_with_the_last(study: Path) -> None:
    save_for(study, 8)
    real(study / "real-16", 16)  # more is known now
    last = save_for(study, 8)
    real(study / "real-8", 8)
    save_for(study, 8)  # too late: it is known by now
    [time] = [score for score in scores([study]) if score.figure == "epoch_time_s"]
    assert time.forecast == last.epoch_time_s


def test_a_study_that_was_moved_is_scored_all_the_same(study: Path) -> None:
    save_for(study, 8)
    moved = study.rename(study.parent / "elsewhere")
    assert scores([moved]) == []
    real(moved / "real-8", 8)
    assert len(scores([moved])) == 5
    assert len(scores([moved / "real-8"])) == 5  # asked about the run alone: the forecast is in the folder around it


def test_lines_that_are_not_ours_are_passed_over(study: Path) -> None:
    save_for(study, 8)
    file = StudyDirectory(study).forecasts
    good = json.loads(file.read_text())
    del good["crc"]  # as others write lines
    bad = [
        {**good, "format": 99},
        {**good, "runs": None},
        {**good, "prediction": {"job": 1}},
        {**good, "question": []},
        {"anything": 1},
    ]
    odd = {**good, "prediction": {**good["prediction"], "epoch_time_s": {"value": 1, "low": 2, "high": 3}}}
    odd["prediction"] |= {"job_time_s": {"value": "x", "low": 0, "high": 1}, "images_per_s": 3}
    file.write_text("".join(json.dumps(line) + "\n" for line in [*bad, odd]) + "no json\n" + '{"torn": ')
    real(study / "real-8", 8)
    assert {score.figure for score in scores([study])} == {"epochs_to_stable", "val_accuracy"}


def test_the_line_is_what_the_documentation_says(study: Path) -> None:
    save_for(study, 8, price=2.0)
    line = json.loads((StudyDirectory(study).forecasts).read_text())
    section = DOCUMENT[DOCUMENT.index("## forecasts.jsonl") :]
    [example] = re.findall(r"```json\n(.*?)\n```", section)
    assert set(json.loads(example)) == set(line)
    estimate_of(study, memory={"need_bytes": {}, "fits": "yes", "largest_batch": 64})
    estimated = json.loads(StudyDirectory(study).forecasts.read_text().splitlines()[-1])
    named = [*line, *line["question"], *estimated["question"], "memory", *estimated["prediction"]["memory"]]
    assert [key for key in named if f"`{key}`" not in section] == []
    assert set(json.loads(example)["prediction"]) <= set(line["prediction"])
    assert line["format"] == 1
    assert line["runs"] == ["real-1", "real-2", "real-4", "rehearsed-16", "rehearsed-8"]


def test_a_folder_that_cannot_be_written(study: Path) -> None:
    (StudyDirectory(study).forecasts).mkdir()
    with pytest.raises(StorageError, match=r"Cannot open .*forecasts.jsonl"):
        save_for(study, 8)


def test_a_file_that_is_too_large_to_be_ours_is_not_read(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_for(study, 8)
    size = StudyDirectory(study).forecasts.stat().st_size
    monkeypatch.setattr(score, "MAX_SAVED_BYTES", size)
    assert len(saved_in(study)) == 1
    monkeypatch.setattr(score, "MAX_SAVED_BYTES", size - 1)
    assert saved_in(study) == []


def test_the_figures_track_record_text() -> None:
    def one(measured: float) -> Score:
        return Score(
            saved_at="",
            job="j",
            workers=1,
            gpu="T4",
            figure="epoch_time_s",
            forecast=Interval(value=10, low=9, high=12),
            measured=measured,
            runs=1,
        )

    assert track_record_text([one(10), one(11), one(20)]) == (
        "saved forecasts against later runs: 3 figures, median error 9 %, 2 of 3 inside the 80 % interval"
    )


def test_the_curve_of_a_study_is_long_enough() -> None:
    assert max(curve(8)) == pytest.approx(0.8, abs=0.01)


def estimate_of(folder: Path, **more: object) -> dict[str, object]:
    """An estimate of the job of the study on 8 workers, kept in its folder."""
    known = survey([folder])
    prediction = Answer.of(fit_forecaster(known, Question(workers=8)).predict(8)).as_json() | more
    keep_estimates(folder, [prediction], source="photos", prices={})
    return prediction


def not_scored(folder: Path) -> str | None:
    return unscored_sentence(unscored(saved_in(folder), survey([folder])))


def test_an_estimate_of_other_epochs_is_not_scored_and_says_so(study: Path) -> None:
    job = estimate_of(study, epochs_planned=12)["job"]
    assert not_scored(study) is None  # there is no run to score it
    real(study / "real-8", 8)
    assert [score for score in scores([study]) if score.is_estimate] == []
    assert not_scored(study) == f"not scored: the estimate of {job}, 8 H200: the runs have 30 epochs instead of 12"
    estimate_of(study, global_batch=512, epochs_planned=5)
    assert (not_scored(study) or "").endswith(
        "8 H200: the runs have 30 epochs instead of 5 and 256 images a step instead of 512"
    )


def test_an_estimate_that_is_scored_hides_those_of_other_epochs(study: Path) -> None:
    for epochs in (12, 30, 5):
        estimate_of(study, epochs_planned=epochs)
    real(study / "real-8", 8)
    assert [score for score in scores([study]) if score.is_estimate] != []
    assert not_scored(study) is None


def test_a_cost_is_scored_in_its_currency(study: Path) -> None:
    known = survey([study])
    paid = Price(per_hour=2.0, currency="EUR")
    prediction = Answer.of(fit_forecaster(known, Question(workers=8, prices={"H200": paid})).predict(8)).as_json()
    prediction |= {"epochs_planned": 30, "global_batch": 256}
    keep_estimates(study, [prediction], source="photos", prices={"H200": paid})
    real(study / "real-8", 8)
    told = score_sentences([score for score in scores([study]) if score.is_estimate])
    assert [sentence for sentence in told if "cost of the job in EUR: estimated " in sentence]
    assert [sentence for sentence in told if "EUR" in sentence and "cost" not in sentence] == []
