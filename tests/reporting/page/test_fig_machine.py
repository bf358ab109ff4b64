"""Where the time goes, usage of the GPUs, learning rate and noise scale."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from reporting.page.figure_study import job_in, study_job, traces, with_telemetry
from turnaround.analysis.configurations import Workload
from turnaround.analysis.workloads import survey
from turnaround.record.schema import TelemetrySample, to_json
from turnaround.record.writer import write_lines
from turnaround.reporting.page.fig_gpus import MAX_RUNS, usage_figures
from turnaround.reporting.page.fig_inside import step_figure, turnaround_figure
from turnaround.reporting.page.fig_training import learning_rate_figure, noise_scale_figure


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return study_job(tmp_path_factory.mktemp("study"))


def test_the_parts_of_the_turnaround_are_stacked_in_order(job: Workload) -> None:
    shown = turnaround_figure(job)
    assert shown is not None
    assert [trace["name"] for trace in shown.data] == [
        "starting up",
        "decoding",
        "the cold first epoch",
        "other epochs",
        "evaluation",
        "checkpoints",
    ]
    assert (shown.layout["barmode"], shown.layout["legend"]["traceorder"]) == ("stack", "normal")
    assert shown.layout["xaxis"]["title"]["text"] == "time from submit to finish (h)"
    assert shown.layout["yaxis"]["ticktext"] == ["1 T4", "2 T4", "4 T4"]  # no rehearsal
    cold = shown.data[2]
    assert cold["x"] == pytest.approx([0.17, 0.08925, 0.048875], rel=1e-3)
    assert cold["customdata"][0] == ["10 min 12 s", "5 %"]
    patterns = [trace["marker"]["pattern"]["shape"] for trace in shown.data]
    assert all(first != second for first, second in pairwise(patterns))


def test_a_table_tells_two_parts(tmp_path: Path) -> None:
    found = survey([import_table(LAB, tmp_path)])
    shown = turnaround_figure(found.workloads[0])
    assert shown is not None
    assert [trace["name"] for trace in shown.data] == ["epochs", "overhead"]
    assert "Imported runs tell two parts" in shown.caption


def test_the_parts_of_a_step(job: Workload) -> None:
    shown = step_figure(job)
    assert shown is not None
    assert [(trace["name"], trace["x"][0]) for trace in shown.data] == [
        ("waiting for the batch", 10),
        ("copying and augmenting", 4),
        ("computing", 110),
        ("averaging gradients", 6),
        ("updating the weights", 3),
    ]
    assert shown.layout["xaxis"]["title"]["text"] == "time of a step (ms)"
    assert "1 T4 takes 133 ms, most of it computing (110 ms)" in shown.alt


def test_without_parts_there_is_no_picture(tmp_path: Path) -> None:
    build(tmp_path / "r", Plan(workers=4, processes=1))
    assert turnaround_figure(job_in(tmp_path)) is None
    assert step_figure(job_in(tmp_path)) is None


# --- usage


def test_every_gpu_has_utilisation_memory_and_power(job: Workload) -> None:
    figures = usage_figures(job)
    assert [shown.title for shown in figures] == [f"GPU utilization over time: {n} T4" for n in (1, 2, 4)]
    four = figures[2]
    busy = [trace for trace in four.data if trace["yaxis"] == "y"]
    assert [(trace["name"], trace["y"][0]) for trace in busy] == [(f"GPU {n}", 90 - 10 * n) for n in range(4)]
    assert max(len(trace["x"]) for trace in four.data) <= 300
    titles = [four.layout[name]["title"]["text"] for name in ("yaxis", "yaxis2", "yaxis3", "xaxis")]
    assert titles == ["busy (%)", "memory (GiB)", "power (W)", "time (min)"]
    power = [trace for trace in four.data if trace["yaxis"] == "y3"]
    assert [trace["name"] for trace in power] == ["GPU 0", "GPU 1", "GPU 2"]  # the fourth does not tell
    assert not any(trace["showlegend"] for trace in power)


def test_panels_do_not_lie_upon_each_other(job: Workload) -> None:
    layout = usage_figures(job)[2].layout
    domains = [layout[name]["domain"] for name in ("yaxis", "yaxis2", "yaxis3")]
    assert domains[0][1] == 1
    assert domains[2][0] == 0
    assert domains[0][0] > domains[1][1] > domains[1][0] > domains[2][1]
    assert layout["xaxis"]["anchor"] == "y3"
    one_gpu = usage_figures(job)[0].layout  # it tells no power: two panels
    assert "yaxis3" not in one_gpu


def test_without_gpus_it_is_the_processor(tmp_path: Path) -> None:
    build(tmp_path / "r", Plan(workers=1, gpu=None))
    job = job_in(tmp_path)
    samples = [TelemetrySample(time_s=float(s), at=f"2026-03-01T09:00:0{s}+00:00", cpu_percent=50.0) for s in range(5)]
    write_lines(job.configurations[0].members[0].run.directory.telemetry("node1"), map(to_json, samples))
    (shown,) = usage_figures(job_in(tmp_path))
    assert shown.title == "Processor utilization over time: 1 CPU process"
    assert [trace["name"] for trace in shown.data] == ["node1"]
    assert "Of all cores" in shown.caption


def test_what_is_not_drawn_is_counted(tmp_path: Path) -> None:
    for workers in range(1, MAX_RUNS + 3):
        with_telemetry(build(tmp_path / f"r{workers}", Plan(workers=workers)), gpus=1, count=3)
    figures = usage_figures(job_in(tmp_path))
    assert len(figures) == MAX_RUNS
    assert figures[-1].caption.endswith("2 more runs with telemetry are not drawn.")


# --- training


def test_the_learning_rate_by_epoch(job: Workload) -> None:
    shown = learning_rate_figure(job)
    assert shown is not None
    assert [trace["meta"]["role"] for trace in shown.data] == ["measured"] * 3 + ["rehearsal"]
    assert shown.data[0]["y"][:4] == [0.05, 0.05, 0.016667, 0.0125]
    assert shown.alt.startswith("1 T4 goes from 0.05 to 0.0017, at most 0.05")


def test_the_noise_scale_has_its_interval_where_it_has_ends(job: Workload) -> None:
    shown = noise_scale_figure(job)
    assert shown is not None
    line, band = traces(shown, "measured")[0], traces(shown, "band")[0]
    assert (line["x"][0], line["y"][0]) == (3, 300)
    assert 4 not in band["x"]  # no upper end there
    assert (band["x"][0], band["y"][0], band["y"][-1]) == (3, 600, 150)
    assert shown.layout["yaxis"]["type"] == "log"


def test_not_measured_is_no_picture(tmp_path: Path) -> None:
    build(tmp_path / "r", Plan(accuracy=rising(epochs=1)))
    assert noise_scale_figure(job_in(tmp_path)) is None
    assert learning_rate_figure(job_in(tmp_path)) is None
