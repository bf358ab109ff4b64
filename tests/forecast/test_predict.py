"""From run directories to an answer: known laws come back, what is not known is said."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analysis.build import LAB, Plan, build, import_table, without_checksums
from forecast.conftest import BATCH, IMAGES, curve, epochs_to_stable, real, rehearsal, step_s
from turnaround.analysis.workloads import survey
from turnaround.errors import InputError
from turnaround.findings.forecasts import Answer, next_run_text
from turnaround.forecast.next_run import next_run
from turnaround.forecast.predict import Forecaster, fit_forecaster
from turnaround.forecast.question import Prediction, Question
from turnaround.forecast.ranking import best_of_range
from turnaround.record.layout import RunDirectory


def ask(folder: Path, workers: int, **question: object) -> Forecaster:
    return fit_forecaster(survey([folder]), Question(workers=workers, **question))  # type: ignore[arg-type]


def answer(folder: Path, workers: int, **question: object) -> Answer:
    return Answer.of(ask(folder, workers, **question).predict(workers))


# --- the lab's table


def test_the_labs_sixteen_v100(lab: Path) -> None:
    p = answer(lab, 16, gpu="V100", price=2.48)
    assert (p.job, p.workers, p.gpu, p.processes, p.kind) == ("caltech256, frozen", 16, "V100", 16, "forecast")
    assert p.epoch_time_s is not None
    assert 23.5 < p.epoch_time_s.value < 24.5
    assert p.epoch_time_s.low < 22 < 26 < p.epoch_time_s.high
    assert p.epochs_to_stable is not None
    assert p.epochs_to_stable.value == pytest.approx(38, abs=1)
    assert (p.epochs_to_stable.low, p.epochs_to_stable.high) == pytest.approx((31, 45), abs=2)
    assert p.reaches_stable is False
    assert p.job_time_s is not None
    assert p.job_time_s.value == pytest.approx(13.4 * 60, rel=0.05)
    assert p.time_to_stable_s is not None
    assert p.time_to_stable_s.value > p.job_time_s.value
    assert p.cost is not None
    assert p.cost.value == pytest.approx(16 * 2.48 * p.job_time_s.value / 3600)
    assert p.val_accuracy is not None
    assert p.val_accuracy.low < 0.6719 < p.val_accuracy.high
    assert any("the input path was the limit" in warning for warning in p.warnings)
    assert p.basis[0] == "epoch times of 4 V100 and 8 V100 (2 runs)"
    assert p.pinned


def test_the_labs_job_is_chosen_or_asked_for(lab: Path) -> None:
    with pytest.raises(InputError, match=r"Several jobs could answer: 'caltech256, frozen' .*fruit.*--job NAME"):
        ask(lab, 16)
    with pytest.raises(InputError, match=r"Several jobs"):
        ask(lab, 16, gpu="T4")
    with pytest.raises(InputError, match=r"No job is called 'cats'. The jobs here: 'caltech256"):
        ask(lab, 16, job="cats")
    assert answer(lab, 16, job="frozen").job == "caltech256, frozen"
    assert answer(lab, 16, job="CAL").gpu == "V100"  # most was measured on it, after what is set aside: a tie
    assert answer(lab, 4, job="cal", gpu="T4").warnings[0].startswith("2 processes (209 s an epoch) set aside")


def test_a_table_without_images_or_epochs_to_stable(lab: Path) -> None:
    p = answer(lab, 8, job="fruit")
    assert p.images_per_s is p.epochs_to_stable is p.time_to_stable_s is p.reaches_stable is None
    assert p.epoch_time_s is not None
    assert any("how many images an epoch has" in warning for warning in p.warnings)
    assert any("when its accuracy became stable" in warning for warning in p.warnings)


def test_a_measured_configuration_shows_what_was_measured(lab: Path) -> None:
    p = answer(lab, 8, gpu="V100", price=1.0)
    assert p.kind == "measured"
    assert {name: round(spread.value, 4) for name, spread in p.measured.items()} == {
        "images_per_s": round(24485 / 44, 4),
        "epoch_time_s": 44.0,
        "epochs_to_stable": 25.0,
        "time_to_stable_s": 1167.0,
        "job_time_s": 1387.0,
        "cost": round(8 * 1387 / 3600, 4),
        "cost_to_stable": round(8 * 1167 / 3600, 4),
        "val_accuracy": 0.6719,
    }


@pytest.mark.parametrize("trial", ["a-trial", "z-trial"])  # before the run that counts, and after it
def test_a_trial_of_a_few_epochs_measures_steps_and_no_more(trial: str, tmp_path: Path) -> None:
    few = {"accuracy": curve(1, epochs=3), "training": {"epochs": 3}}
    real(tmp_path / trial, 1, **few)
    real(tmp_path / trial.replace("trial", "other"), 2, **few)
    for workers in (1, 4, 8):
        real(tmp_path / f"real-{workers}", workers)
    measured = answer(tmp_path, 1).measured
    assert measured["val_accuracy"].value == pytest.approx(curve(1)[-1])
    assert measured["job_time_s"].value > 20 * measured["epoch_time_s"].value
    # Two processes were tried for three epochs only: the job is thirty.
    assert set(answer(tmp_path, 2).measured) == {"images_per_s", "epoch_time_s"}


# --- simulated studies with a known law


def test_known_laws_come_back(study: Path) -> None:
    p = answer(study, 8)
    assert p.epoch_time_s is not None
    assert p.epoch_time_s.value == pytest.approx(step_s(8) * math.ceil(10_000 / 256), rel=0.03)
    assert p.epochs_to_stable is not None
    assert p.epochs_to_stable.value == pytest.approx(epochs_to_stable(8), abs=1.5)
    assert p.val_accuracy is not None
    assert p.val_accuracy.value == pytest.approx(0.8, abs=0.02)
    assert p.images_per_s is not None
    assert p.images_per_s.value == pytest.approx(10_000 / p.epoch_time_s.value)
    assert p.reaches_stable is True
    # 30 epochs, an evaluation of 0.5 s on 4 processes after each, and one second of start-up.
    assert p.job_time_s is not None
    assert p.job_time_s.value == pytest.approx(30 * (p.epoch_time_s.value + 0.25) + 1.0, rel=0.01)
    assert "2 of them rehearsed" in p.basis[1]


def test_one_run_and_rehearsals_answer_for_eight_and_sixteen(one_run: Path, study: Path) -> None:
    for n in (8, 16):
        one, three = answer(one_run, n), answer(study, n)
        assert one.epoch_time_s is not None
        assert three.epoch_time_s is not None
        assert one.epoch_time_s.low < step_s(n) * math.ceil(10_000 / (32 * n)) < one.epoch_time_s.high
        assert one.epochs_to_stable is not None
        assert one.epochs_to_stable.value == pytest.approx(epochs_to_stable(n), abs=1.5)
        assert set(one.pinned) == {"time: c1", "time: c2"}
        assert any("Only 1 worker was timed" in warning for warning in one.warnings)
    sixteen = answer(one_run, 16).epoch_time_s
    eight = answer(one_run, 8).epoch_time_s
    assert sixteen is not None
    assert eight is not None
    assert sixteen.high / sixteen.value > eight.high / eight.value


def test_one_run_alone_is_wide_and_says_so(tmp_path: Path) -> None:
    real(tmp_path / "only", 1)
    p = answer(tmp_path, 8)
    assert p.epochs_to_stable is not None
    assert p.epochs_to_stable.high > 1.5 * p.epochs_to_stable.low
    assert "epochs: critical_batch" in p.pinned
    assert "accuracy: fall" in p.pinned


def test_monotone_where_it_must_be(study: Path) -> None:
    asked = ask(study, 64)
    each = [asked.predict(n) for n in (1, 2, 4, 8, 16, 32, 64)]
    epochs = [p.epochs_to_stable.value for p in each if p.epochs_to_stable]
    accuracies = [p.val_accuracy.value for p in each if p.val_accuracy]
    assert all(b >= a for a, b in pairwise(epochs))
    assert all(b <= a for a, b in pairwise(accuracies))
    steps = [p.epoch_time_s.value / math.ceil(10_000 / (32 * p.workers)) for p in each if p.epoch_time_s]
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(steps))


def test_never_narrower_than_the_repeats(tmp_path: Path) -> None:
    for n in (1, 2):
        for seed, factor in enumerate((0.8, 1.0, 1.2)):
            real(tmp_path / f"n{n}-{seed}", n, factor=factor, training={"seed": seed})
    p = answer(tmp_path, 4)
    for figure in (p.epoch_time_s, p.job_time_s, p.time_to_stable_s):
        assert figure is not None
        assert figure.high / figure.value > 1.2
        assert figure.low / figure.value < 0.8


def test_leave_one_out_from_four_counts_on(tmp_path: Path) -> None:
    for n in (1, 2, 4, 8):
        real(tmp_path / f"n{n}", n)
    assert set(answer(tmp_path, 16).leave_one_out) == {1, 2, 4, 8}


# --- hardware, hosts, input


def test_another_kind_of_gpu_is_an_estimate(study: Path) -> None:
    h200, t4 = answer(study, 4), answer(study, 4, gpu="T4")
    assert (t4.kind, t4.gpu, t4.measured) == ("estimate from data sheets", "T4", {})
    assert h200.epoch_time_s is not None
    assert t4.epoch_time_s is not None
    assert t4.epoch_time_s.value == pytest.approx(h200.epoch_time_s.value * 15.0, rel=0.01)
    assert t4.epochs_to_stable == h200.epochs_to_stable
    assert any("No T4 was measured" in warning for warning in t4.warnings)
    with pytest.raises(InputError, match=r"No data sheet for the GPU 'Abacus 1'. Known: T4, .*To add yours"):
        ask(study, 4, gpu="Abacus 1")


def test_what_the_input_held_up_another_gpu_need_not_make_faster(lab: Path) -> None:
    v100, a100 = (answer(lab, 16, gpu=gpu, job="cal").epoch_time_s for gpu in ("V100", "A100"))
    assert v100 is not None
    assert a100 is not None
    assert a100.value < v100.value
    assert a100.high == v100.high


def test_a_measured_input_limit_caps_and_is_said(tmp_path: Path) -> None:
    for n in (1, 2):
        real(tmp_path / f"n{n}", n, machine={"probes": {"input_images_per_s": 400.0}})
    p = answer(tmp_path, 16)
    assert p.images_per_s is not None
    assert p.images_per_s.value == pytest.approx(400, rel=0.03)
    assert p.images_per_s.low < p.images_per_s.value < p.images_per_s.high
    assert any("The input path is the limit: 400 images/s" in warning for warning in p.warnings)
    two = answer(tmp_path, 16, hosts=2).images_per_s
    assert two is not None
    assert two.value == pytest.approx(800, rel=0.03)


def test_hosts_are_as_asked_or_as_in_the_runs(tmp_path: Path, study: Path) -> None:
    assert answer(study, 8).hosts == 1
    assert any("one host" in sentence for sentence in answer(study, 8).assumed)
    assert any("No run was on more than one host" in w for w in answer(study, 8, hosts=2).warnings)
    many = answer(study, 64)  # never silently on one host
    assert many.hosts == 8
    assert any(sentence.startswith("8 hosts, up to 8 workers each: no run says") for sentence in many.assumed)
    assert any("No run was on more than one host" in w for w in many.warnings)
    for n, hosts in ((4, 1), (8, 2)):
        real(tmp_path / "several" / f"n{n}", n, machine={"hosts": hosts})
    p = answer(tmp_path / "several", 32)
    assert p.hosts == 8
    assert "8 hosts, up to 4 workers each, as in the runs" in p.assumed


def test_gpus_on_each_host_are_told_or_seen_by_the_runs(tmp_path: Path, study: Path) -> None:
    told = answer(study, 8, gpus_per_host=4)
    assert told.hosts == 2
    assert "2 hosts: as you said, 4 GPUs on each host" in told.assumed
    assert any("No run was on more than one host" in w for w in told.warnings)
    assert answer(study, 8, gpus_per_host=4, cluster="Slurm").assumed[-1] == "2 hosts: Slurm has 4 GPUs on each host"
    # What was run on one host of 4 is no measurement of 2 hosts with 2 GPUs each.
    assert (answer(study, 4, gpus_per_host=4).kind, answer(study, 4, gpus_per_host=2).kind) == ("measured", "forecast")
    with pytest.raises(InputError, match="--gpus-per-host must be 1 or more, received 0"):
        answer(study, 8, gpus_per_host=0)
    eight = [{"name": "NVIDIA H200", "index": index} for index in range(8)]
    for n in (1, 2):
        real(tmp_path / "seen" / f"n{n}", n, machine={"gpus": eight})
    seen = answer(tmp_path / "seen", 16)
    assert seen.hosts == 2
    assert "2 hosts: the hosts of the runs have 8 GPUs on each host" in seen.assumed
    assert answer(tmp_path / "seen", 8).hosts == 1


def test_far_away_is_answered_and_flagged(study: Path) -> None:
    p = answer(study, 256)
    assert p.epoch_time_s is not None
    assert any("64 times away from what was measured (1 to 4)" in warning for warning in p.warnings)


# --- what is missing


def test_only_rehearsals_give_epochs_and_accuracy(tmp_path: Path) -> None:
    for n in (4, 8):
        rehearsal(tmp_path / f"n{n}", n)
    p = answer(tmp_path, 16, price=3.0)
    assert p.epoch_time_s is p.images_per_s is p.job_time_s is p.time_to_stable_s is p.cost is None
    assert p.epochs_to_stable is not None
    assert p.val_accuracy is not None
    assert any("no forecast of time or cost" in warning for warning in p.warnings)


def test_times_alone(tmp_path: Path) -> None:
    table = "name,workers,gpu,epoch_time_s,epochs\na,1,T4,20,3\nb,2,T4,11,3\n"
    p = answer(import_table(table, tmp_path), 4)
    assert p.epoch_time_s is not None
    assert p.epochs_to_stable is p.val_accuracy is None
    assert any("do not say their batch" in warning for warning in p.warnings)
    assert any("start-up is missing" in warning for warning in p.warnings)


def test_nothing_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither times nor epochs nor accuracies"):
        ask(import_table("name,workers,batch_per_worker\na,1,32\n", tmp_path), 4)


def test_none_is_stable_yet(tmp_path: Path) -> None:
    real(tmp_path / "a", 1, accuracy=tuple(0.02 * n for n in range(1, 21)))
    p = answer(tmp_path, 4)
    assert p.epochs_to_stable is p.reaches_stable is None
    assert any("No run has become stable by its end" in warning for warning in p.warnings)


def test_a_lower_bound_lifts_the_law_and_never_lowers_it(tmp_path: Path) -> None:
    for n in (1, 2):
        rehearsal(tmp_path / f"n{n}", n, processes=1)
    before = answer(tmp_path, 16).epochs_to_stable
    rehearsal(tmp_path / "n8", 8, accuracy=tuple(0.02 * n for n in range(1, 31)))
    after = answer(tmp_path, 16).epochs_to_stable
    assert before is not None
    assert after is not None
    assert after.value > before.value


def test_a_target(study: Path, lab: Path) -> None:
    p = answer(study, 8, target=0.7)
    assert p.reaches_target is True
    assert p.epochs_to_target is not None
    assert p.epochs_to_stable is not None
    assert p.epochs_to_target.value < p.epochs_to_stable.value
    assert p.time_to_target_s is not None
    out_of_reach = answer(lab, 16, gpu="V100", target=0.9)
    assert out_of_reach.reaches_target is False
    assert out_of_reach.epochs_to_target is None


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"workers": 0}, "--workers must be 1 or more, received 0"),
        ({"workers": -4}, "--workers must be 1 or more, received -4"),
        ({"workers": 4, "hosts": 0}, "--hosts must be 1 or more, received 0"),
        ({"workers": 4, "hosts": 8}, "--hosts 8 is more than --workers 4: a host needs at least one worker"),
        ({"workers": 4, "price": 0.0}, "--price must be above 0"),
        ({"workers": 4, "price": -1.0}, "--price must be above 0"),
        ({"workers": 4, "price": math.inf}, "--price must be above 0"),
        ({"workers": 4, "target": 90.0}, "--target is an accuracy between 0 and 1, received 90: 0.9 is 90 %"),
    ],
)
def test_impossible_questions_are_refused(question: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Question(**question)  # type: ignore[arg-type]


# --- what to run next


def next_for(folder: Path, workers: int, **question: object) -> Prediction:
    asked = ask(folder, workers, **question)
    prediction = asked.predict(workers)
    return replace(prediction, next_run=next_run(asked, prediction))


def test_with_one_batch_a_rehearsal_helps_most(tmp_path: Path) -> None:
    real(tmp_path / "only", 1)
    following = next_for(tmp_path, 8, price=2.0).next_run
    assert following is not None
    assert following.is_rehearsal
    assert following.width_after is not None
    assert following.width_before is not None
    assert following.width_after < following.width_before
    # On one GPU, as long as a plain run: 30 epochs of 312 steps.
    assert following.gpu_hours == pytest.approx(30 * 0.2 * 312 / 3600, rel=0.05)
    assert following.cost == pytest.approx(2 * following.gpu_hours)


def test_with_all_rehearsals_a_real_run_helps_most(one_run: Path) -> None:
    following = next_for(one_run, 16).next_run
    assert following is not None
    assert not following.is_rehearsal
    assert 1 < following.workers < 16
    assert "% narrower" in next_run_text(following)


def test_without_times_or_epochs_the_first_of_them_is_asked_for(tmp_path: Path, lab: Path) -> None:
    rehearsal(tmp_path / "own" / "n4", 4)
    following = next_for(tmp_path / "own", 8).next_run
    assert following is not None
    assert "No run has times yet" in next_run_text(following)
    fruit = next_for(lab, 8, job="fruit").next_run
    assert fruit is not None
    assert fruit.is_rehearsal
    assert "when the accuracy becomes stable" in next_run_text(fruit)


def test_curves_of_the_study_are_what_they_should_be() -> None:
    """The simulation itself: the curve is within a point of its level at the epoch that it is built for."""
    for n in (1, 4, 16):
        values = curve(n, epochs=60)
        first = next(epoch for epoch, value in enumerate(values, start=1) if value >= 0.8 - 0.01)
        assert first == pytest.approx(epochs_to_stable(n), abs=1)


def test_more_processes_than_cores_are_warned_about(tmp_path: Path) -> None:
    for n in (1, 2):
        real(tmp_path / f"n{n}", n, gpu=None, machine={"cores": 2})
    assert not any("core" in warning for warning in answer(tmp_path, 2).warnings)
    assert any("has 2 cores: more processes than cores share them" in w for w in answer(tmp_path, 4).warnings)
    assert answer(tmp_path, 4).gpu == "CPU"


def test_one_cpu_process_has_used_all_cores_so_more_gain_little(tmp_path: Path) -> None:
    real(tmp_path / "one", 1, gpu=None, machine={"cores": 2})
    alone, two = answer(tmp_path, 1), answer(tmp_path, 2)
    assert alone.epoch_time_s is not None
    assert two.epoch_time_s is not None
    assert two.epoch_time_s.value == pytest.approx(alone.epoch_time_s.value, rel=0.02)  # rounding of the last step
    assert two.epoch_time_s.low < 0.6 * alone.epoch_time_s.value  # as if each had cores of its own
    assert two.epoch_time_s.high > 1.2 * alone.epoch_time_s.value
    [said] = [warning for warning in two.warnings if "share" in warning]
    assert said.startswith(
        "Only 1 CPU process was timed, with threads on all 2 cores of the host: 2 CPU processes would"
    )
    assert not any("published series, and the interval is wide" in warning for warning in two.warnings)
    assert not any("would share" in warning for warning in alone.warnings)
    best = best_of_range([ask(tmp_path, 2).predict(n) for n in (1, 2)])
    assert best is not None
    assert best.fastest == 1
    elsewhere = answer(tmp_path, 2, hosts=2)  # cores of its own on another host
    assert not any("would share" in warning for warning in elsewhere.warnings)


def test_where_two_cpu_counts_were_timed_they_show_what_more_are_worth(tmp_path: Path) -> None:
    for n in (1, 2):
        real(tmp_path / f"n{n}", n, gpu=None, machine={"cores": 8})
    four = answer(tmp_path, 4)
    assert four.epoch_time_s is not None
    assert four.epoch_time_s.value < 0.6 * step_s(2) * (IMAGES // (2 * BATCH))
    assert not any("would share" in warning for warning in four.warnings)


def test_the_better_of_two_recipes_is_taken_and_said(tmp_path: Path) -> None:
    for n in (1, 2):
        real(tmp_path / f"good{n}", n)
        real(tmp_path / f"bad{n}", n, accuracy=curve(n, level=0.5), training={"learning_rate": 9.0})
    p = answer(tmp_path, 4)
    assert p.val_accuracy is not None
    assert p.val_accuracy.low > 0.7
    assert "the settings learning rate 0.05; others were set aside" in p.assumed
    assert any("those of other settings (learning rate 9)" in warning for warning in p.warnings)


def test_what_one_row_does_not_say_is_no_difference(lab: Path, tmp_path: Path) -> None:
    """Without its images, or its batch, a run of the table is a run like the others."""
    header, *rows = LAB.splitlines()
    for number, missing in enumerate((",24485,", ",32,")):
        table = [row.replace(missing, ",,") if row.startswith("model4") else row for row in rows]
        folder = import_table("\n".join([header, *table]), tmp_path / str(number))
        asked, whole = answer(folder, 8, gpu="T4", job="cal"), answer(lab, 8, gpu="T4", job="cal")
        assert asked.epoch_time_s == whole.epoch_time_s


def test_the_batch_is_that_of_the_runs_whose_times_are_learnt_from(tmp_path: Path) -> None:
    """Most runs are of another kind of GPU and of half the batch: a step of theirs is another step."""
    for n in (1, 2, 4):
        real(tmp_path / f"h200-{n}", n)
    for n in (1, 2):
        real(
            tmp_path / f"v100-{n}",
            n,
            gpu="Tesla V100-SXM2-16GB",
            epoch_time_s=40 / n,
            training={"batch_per_worker": 64},
        )
    p = answer(tmp_path, 2, gpu="V100")
    assert p.global_batch == 128
    assert p.epoch_time_s is not None
    assert p.epoch_time_s.value == pytest.approx(20, rel=0.03)
    assert answer(tmp_path, 2).global_batch == 64


def test_a_target_without_a_curve_is_told(lab: Path) -> None:
    said = answer(lab, 16, gpu="V100", target=0.66).warnings
    assert "No curve of these runs reaches 66 %, so the epochs to it cannot be forecast." in said


# --- questions that people ask


def test_another_batch_per_worker_changes_epochs_and_time(study: Path) -> None:
    plain, larger = answer(study, 8), answer(study, 8, batch_per_worker=128)
    assert (plain.global_batch, larger.global_batch) == (256, 1024)
    assert plain.epochs_to_stable is not None
    assert larger.epochs_to_stable is not None
    assert larger.epochs_to_stable.value > 1.5 * plain.epochs_to_stable.value
    assert plain.epoch_time_s is not None
    assert larger.epoch_time_s is not None
    assert 0.85 * plain.epoch_time_s.value < larger.epoch_time_s.value < plain.epoch_time_s.value
    assert larger.epoch_time_s.relative_width > plain.epoch_time_s.relative_width
    assert any(
        sentence.startswith("128 images a worker and step, where the runs had 32") for sentence in larger.assumed
    )
    assert answer(study, 4, batch_per_worker=128).measured == {}
    assert answer(study, 4, batch_per_worker=32).measured != {}


def test_another_precision_is_an_estimate(study: Path) -> None:
    plain, slower = answer(study, 8), answer(study, 8, precision="fp32")
    assert plain.epoch_time_s is not None
    assert slower.epoch_time_s is not None
    assert slower.epoch_time_s.value > 1.8 * plain.epoch_time_s.value
    assert slower.kind == "estimate from data sheets"
    assert any(sentence.startswith("No run was in fp32") for sentence in slower.warnings)
    assert any("H200 in fp32 is taken as 0.5" in sentence for sentence in slower.basis)
    assert answer(study, 8, precision="bf16").epoch_time_s == plain.epoch_time_s


def test_an_input_limit_that_is_told_caps(study: Path) -> None:
    p = answer(study, 8, input_limit=800.0)
    assert p.images_per_s is not None
    assert p.images_per_s.value == pytest.approx(800, rel=0.03)
    assert "The input path is the limit: 800 images/s on each host were told; more GPUs wait for it." in p.warnings


def test_an_input_limit_below_what_was_measured_is_contradicted_and_rewrites_no_time(lab: Path) -> None:
    """400 images/s cannot be the limit of a host on which 8 V100 read 556."""
    measured, sixteen = (answer(lab, workers, gpu="V100", input_limit=400.0) for workers in (8, 16))
    for p in (measured, sixteen):
        [told] = [w for w in p.warnings if "input limit" in w]
        assert told.startswith("An input limit of 400 images/s, as told, contradicts 8 V100, which read 556 images/s")
        assert not any("The input path is the limit" in w for w in p.warnings)
        assert not any("takes it as growing on" in w for w in p.warnings)
        assert p.images_per_s is not None
        assert p.images_per_s.value == pytest.approx(556, rel=0.01)
    assert measured.epoch_time_s is not None
    assert measured.epoch_time_s.value == pytest.approx(44, abs=0.5)
    assert measured.best_known("time_to_stable_s") == 25 * 44 + (1387 - 30 * 44)
    above = answer(lab, 16, gpu="V100", input_limit=700.0)
    assert "The input path is the limit: 700 images/s on each host were told; more GPUs wait for it." in above.warnings
    assert not any("contradicts" in w for w in above.warnings)


def test_another_precision_of_processors_is_refused_for_what_it_is(tmp_path: Path) -> None:
    processors = {"device": "cpu", "gpus": [], "choices": {"precision": {"value": "fp32"}}}
    for n in (1, 2):
        real(tmp_path / f"n{n}", n, machine=processors)
    with pytest.raises(InputError, match="computed on processors in fp32, and no data sheet tells how fast bf16 is"):
        ask(tmp_path, 4, precision="bf16")
    assert ask(tmp_path, 4, precision="fp32").predict(4).kind == "forecast"


def test_times_that_a_report_doubts_are_doubted_here_as_well(lab: Path, tmp_path: Path) -> None:
    hours = [f"2026-03-01T{hour:02d}:00:00+00:00" for hour in (9, 10, 11)]
    real(tmp_path / "runs" / "a", 1, started_at=hours[0], ended_at=hours[2])
    real(tmp_path / "runs" / "b", 2, started_at=hours[1], ended_at=hours[2])
    assert any("a and b ran on the same host for 1 h" in w for w in answer(tmp_path / "runs", 4).warnings)
    t4 = answer(lab, 8, gpu="T4", job="cal").warnings
    assert any("2 processes (209 s an epoch) set aside: against 4" in w for w in t4)
    assert any("model3 (2 T4) contradicts itself: its epochs are 6,270 s together" in w for w in t4)
    assert not any("contradicts itself" in w for w in answer(lab, 16, gpu="V100").warnings)


def test_a_network_that_is_told_makes_the_interval_narrower(study: Path) -> None:
    slow, fast = answer(study, 8, hosts=2), answer(study, 8, hosts=2, network=12.5)
    assert slow.epoch_time_s is not None
    assert fast.epoch_time_s is not None
    assert fast.epoch_time_s.high < 0.7 * slow.epoch_time_s.high
    assert fast.epoch_time_s.value <= slow.epoch_time_s.value


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"batch_per_worker": 0}, "--batch-per-worker must be 1 or more, received 0"),
        ({"input_limit": -1.0}, "--input-limit must be above 0"),
        ({"network": float("nan")}, "--network must be above 0"),
        ({"precision": "int3"}, "--precision must be amp"),
    ],
)
def test_questions_that_cannot_be_asked(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Question(workers=4, **asked)


def test_the_two_readings_of_the_labs_input_limit(lab: Path) -> None:
    """306 images/s at 4 and 556 at 8: a limit of each worker, which the forecast takes as growing on; no cap."""
    p = answer(lab, 16, gpu="V100")
    [sentence] = [w for w in p.warnings if "the input path was the limit, about 306 images/s" in w]
    assert "8 V100 had 556 images/s: the limit grows with the workers" in sentence
    assert not any("The input path is the limit" in w for w in p.warnings)
    assert p.images_per_s is not None
    assert p.images_per_s.value > 556


def test_an_input_limit_that_was_seen_is_a_cap(tmp_path: Path) -> None:
    """4 and 8 V100 as fast as one another and as 4 T4: one input path for all."""
    rows = [("a", "T4", 4, 82), ("b", "V100", 4, 80), ("c", "V100", 8, 78)]
    header = "name,dataset,gpu,workers,batch_per_worker,images_per_epoch,epochs,epoch_time_s\n"
    table = header + "".join(f"{name},fruit,{gpu},{n},32,24485,10,{t}\n" for name, gpu, n, t in rows)
    p = answer(import_table(table, tmp_path / "out"), 16, gpu="V100")
    assert p.images_per_s is not None
    assert p.images_per_s.value == pytest.approx(24485 / 78, rel=0.03)
    assert any("314 images/s on each host were seen; the lower end" in w for w in p.warnings)


def test_what_more_gpus_buy_against_the_most_that_were_run(lab: Path, study: Path) -> None:
    p = answer(lab, 16, gpu="V100")
    assert p.against is not None
    assert (p.against.workers, p.against.is_to_stable) == (8, True)
    assert p.times_as_many == p.workers / 8
    assert p.against.is_measured
    assert p.against.time_s == 25 * 44 + (1387 - 30 * 44)
    assert p.time_to_stable_s is not None
    assert p.against.saved_s == pytest.approx(p.against.time_s - p.time_to_stable_s.value)
    assert answer(study, 4).against is None
    assert answer(study, 8, gpu="T4").against is None


# --- energy


def test_energy_is_the_measured_power_times_the_forecast_time(tmp_path: Path) -> None:
    for workers, epoch_s in ((1, 40.0), (2, 21.0), (4, 11.0)):
        build(tmp_path / f"w{workers}", Plan(workers=workers, epoch_time_s=epoch_s, watts=200.0))
    found = survey([tmp_path])
    asked = Question(workers=8, electricity=0.3, grid=0.35)
    p = fit_forecaster(found, asked).predict(8)
    assert p.job_time_s is not None
    assert p.energy_wh is not None
    # Each of 8 GPUs has less to do than each of 4, so its power is a little less than what was measured.
    most_wh = 8 * 200.0 * p.job_time_s.value / 3600
    assert 0.8 * most_wh < p.energy_wh.value <= most_wh
    assert p.energy_wh.low < 0.9 * p.energy_wh.value
    assert p.energy_wh.high > 1.1 * p.energy_wh.value
    assert p.energy_to_stable_wh is not None
    assert p.energy_to_stable_wh.value < p.energy_wh.value
    assert p.electricity_cost == p.energy_wh.scaled(0.3 / 1000)
    assert p.emissions_kg == p.energy_wh.scaled(0.35 / 1000)
    seen = fit_forecaster(found, Question(workers=4)).predict(4)
    assert seen.measured["energy_wh"].value == pytest.approx(4 * 200.0 * (11.0 * 20 + 11.0) / 3600)
    assert (seen.electricity_cost, seen.emissions_kg) == (None, None)


def test_energy_that_no_run_has_measured_is_not_known_and_said_where_it_was_asked_for(tmp_path: Path) -> None:
    build(tmp_path / "timed", Plan(workers=2))
    found = survey([tmp_path])
    plain = fit_forecaster(found, Question(workers=4)).predict(4)
    asked = fit_forecaster(found, Question(workers=4, electricity=0.3)).predict(4)
    assert (asked.energy_wh, asked.electricity_cost) == (None, None)
    assert not any("energy" in text for text in Answer.of(plain).warnings)
    assert "The energy is not known" in Answer.of(asked).warnings[-1]
    other = Path(build(tmp_path / "other", Plan(workers=2, gpu="Tesla V100", watts=250.0))).parent
    assert fit_forecaster(survey([other]), Question(workers=4, gpu="A100")).predict(4).energy_wh is None


def test_several_processes_on_one_gpu_say_nothing_about_the_power_of_several(tmp_path: Path) -> None:
    run = build(tmp_path / "a", Plan(workers=2, watts=200.0))
    telemetry = RunDirectory(run).telemetry("node1")
    lines = without_checksums(telemetry.read_text())
    telemetry.write_text(lines.replace('"run_processes":1', '"run_processes":2', 1))  # of the first GPU
    telemetry.write_text(re.sub(r',\{"index":1[^}]*\}', "", telemetry.read_text()))
    assert fit_forecaster(survey([tmp_path]), Question(workers=4)).predict(4).energy_wh is None
