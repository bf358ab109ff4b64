"""The parts of a turnaround and of a step, by configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table
from turnaround.analysis.configurations import ConfigurationRuns
from turnaround.analysis.shares import limited_s, step_parts_s, turnaround_parts_s
from turnaround.analysis.workloads import survey
from turnaround.findings.labels import label_of


def only_configuration(folder: Path) -> ConfigurationRuns:
    (job,) = survey([folder]).workloads
    (configuration,) = job.configurations
    return configuration


def test_the_median_of_each_part_over_the_finished_runs(tmp_path: Path) -> None:
    for seed, start_s in enumerate((1.0, 5.0, 9.0)):
        plan = Plan(accuracy=[0.5] * 3, epoch_time_s=10.0, training={"seed": seed}, time_s={"start_up": start_s})
        build(tmp_path / f"r{seed}", plan)
    build(tmp_path / "going", Plan(accuracy=[0.5] * 3, state="running", training={"seed": 9, "epochs": 3}))
    parts = turnaround_parts_s(only_configuration(tmp_path))
    assert parts == {
        "start_up": 5.0,
        "training_cold": 10.0,
        "training_steady": 20.0,
        "evaluation": 1.5,
        "other": pytest.approx(0.0, abs=1e-6),
    }


def test_code_that_a_fork_server_had_loaded_is_a_part_as_if_the_run_had_started_alone(tmp_path: Path) -> None:
    times = {"alone": {"start_up": 5.0}, "forked": {"start_up": 0.5, "preloaded": 4.5}}
    for name, time_s in times.items():
        build(tmp_path / name / "run", Plan(accuracy=[0.5] * 3, epoch_time_s=10.0, time_s=time_s))
    alone, forked = (only_configuration(tmp_path / name) for name in times)
    assert alone.job_time_s is not None
    assert forked.job_time_s is not None
    assert forked.job_time_s.value == pytest.approx(alone.job_time_s.value)
    parts = turnaround_parts_s(forked)
    assert (parts["start_up"], parts["preloaded"]) == (0.5, 4.5)
    assert "preloaded" not in turnaround_parts_s(alone)


def test_a_table_tells_two_parts(tmp_path: Path) -> None:
    jobs = {job.name: job for job in survey([import_table(LAB, tmp_path)]).workloads}
    parts = {label_of(c): turnaround_parts_s(c) for c in jobs["caltech256, frozen"].configurations}
    assert parts["8 V100"] == {"training_steady": 1320.0, "other": 67.0}
    assert parts["2 T4"] == {"training_steady": 5910.0, "other": 0.0}  # its epochs are longer than its job


def test_rehearsals_have_no_parts(tmp_path: Path) -> None:
    build(tmp_path / "r", Plan(workers=4, processes=1, parts_s={0: (0.1, 0.1, 0.1, 0.1, 0.1)}))
    assert turnaround_parts_s(only_configuration(tmp_path)) == step_parts_s(only_configuration(tmp_path)) == {}


def test_a_typical_step_is_the_median_over_processes(tmp_path: Path) -> None:
    fast, slow = (0.01, 0.002, 0.1, 0.03, 0.004), (0.01, 0.002, 0.12, 0.01, 0.004)
    build(tmp_path / "r", Plan(workers=2, parts_s={0: fast, 1: slow}))
    parts = {"wait": 0.01, "copy": 0.002, "compute": 0.11, "reduce": 0.02, "update": 0.004}
    assert step_parts_s(only_configuration(tmp_path)) == pytest.approx(parts)


def test_without_spans_there_is_no_step(tmp_path: Path) -> None:
    build(tmp_path / "r", Plan())
    assert step_parts_s(only_configuration(tmp_path)) == {}


def test_the_queue_does_not_count_against_a_time_limit(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan())
    (run,) = survey([tmp_path]).workloads[0].configurations[0].summaries
    parts = {"queue": 900.0, "preloaded": 30.0, "start_up": 1.0, "training_cold": 580.0}
    assert limited_s(replace(run, turnaround_parts_s=parts)) == 581.0
