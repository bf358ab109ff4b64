"""Runs become jobs, configurations and repeats; what cannot be read is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table, rising, without_checksums
from turnaround.analysis.workloads import Configuration, Spread, survey, survey_runs
from turnaround.errors import RunDirectoryError
from turnaround.findings.labels import label_of
from turnaround.findings.runs import gap_text, left_out_text
from turnaround.record.reader import Run
from turnaround.record.schema import Span, to_json
from turnaround.record.writer import Lines


def test_a_spread_has_the_median_and_the_extremes() -> None:
    assert Spread.of([3.0, None, 1.0, 2.0]) == Spread(value=2.0, low=1.0, high=3.0, sd=1.0, count=3)
    assert Spread.of([5.0]) == Spread(value=5.0, low=5.0, high=5.0, sd=None, count=1)
    assert Spread.of([None]) is None


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ({"workers": 4, "gpu": "V100"}, "4 V100"),
        ({"workers": 4, "gpu": "V100", "hosts": 2}, "4 V100 on 2 hosts"),
        ({"workers": 8, "gpu": "H200", "processes": 1, "is_rehearsal": True}, "8 workers rehearsed on 1 H200"),
        (
            {"workers": 8, "gpu": "CPU", "processes": 2, "hosts": 2, "is_rehearsal": True},
            "8 workers rehearsed on 2 CPU processes, 2 hosts",
        ),
        ({"workers": 2, "gpu": "CPU"}, "2 CPU processes"),
        ({"workers": 1, "gpu": "CPU"}, "1 CPU process"),
        ({"workers": 3, "gpu": "unknown"}, "3 workers"),
    ],
)
def test_a_configuration_in_words(values: dict[str, object], label: str) -> None:
    workers = values["workers"]
    defaults = {"processes": workers, "hosts": 1, "global_batch": None, "is_rehearsal": False}
    assert label_of(Configuration(**{**defaults, **values})) == label  # type: ignore[arg-type]


def test_repeats_are_one_case_and_seeds_are_no_setting(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.80, 0.82, 0.78)):
        plan = Plan(accuracy=rising(accuracy, seed=seed), training={"seed": seed}, epoch_time_s=10.0 + seed)
        build(tmp_path / f"run-{seed}", plan)
    build(tmp_path / "more", Plan(workers=4, epoch_time_s=6.0))
    job, *others = survey([tmp_path]).workloads
    assert (job.name, others) == ("photos, small, from scratch, 64 px", [])
    assert [label_of(configuration) for configuration in job.configurations] == ["2 T4", "4 T4"]
    two = job.configurations[0]
    assert two.epoch_time_s == Spread(value=11.0, low=10.0, high=12.0, sd=1.0, count=3)
    assert two.final_val_accuracy is not None
    assert two.final_val_accuracy.count == 3
    assert two.step_time_s is not None
    assert two.step_time_s.value == pytest.approx(11.0 / (10_000 // 64))
    assert (two.stable.repeats, two.stable.status) == (3, "stable")
    assert job.target is not None
    assert 0.75 < job.target < 0.80
    to_target = two.to_target(job.target)
    assert to_target is not None
    assert to_target.status == "reached"


def test_another_setting_is_another_case_and_is_in_its_label(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan())
    build(tmp_path / "b", Plan(training={"learning_rate": 0.4}))
    (job,) = survey([tmp_path]).workloads
    assert sorted(label_of(c) for c in job.configurations) == ["2 T4, learning rate 0.05", "2 T4, learning rate 0.4"]
    left, right = (configuration.key for configuration in job.configurations)
    assert left.settings_for("accuracy") != right.settings_for("accuracy")
    assert left.settings_for("time") == right.settings_for("time") == ()


def test_other_images_under_the_same_name_are_another_case(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan())
    build(tmp_path / "b", Plan(images={"fingerprint": "0" * 64}))
    (job,) = survey([tmp_path]).workloads
    assert sorted(label_of(c) for c in job.configurations) == ["2 T4, images 00000000", "2 T4, images ffffffff"]


def test_a_hold_out_gives_each_seed_a_fingerprint_of_its_own(tmp_path: Path) -> None:
    for seed in (0, 1):
        images = {"split": f"holdout 0.2, seed {seed}", "fingerprint": str(seed) * 64}
        build(tmp_path / str(seed), Plan(images=images, training={"seed": seed}))
    (job,) = survey([tmp_path]).workloads
    assert [label_of(configuration) for configuration in job.configurations] == ["2 T4"]


def test_processes_on_one_gpu_are_not_gpus(tmp_path: Path) -> None:
    ranks = [{"host": "a", "device": "cuda:0", "workers": [rank]} for rank in range(2)]
    build(tmp_path / "shared", Plan(machine={"ranks": ranks}))
    build(tmp_path / "real", Plan())
    (job,) = survey([tmp_path]).workloads
    assert [label_of(c) for c in job.configurations] == ["2 T4", "2 T4, sharing: 2 processes on 1 GPU"]


def test_a_rehearsal_has_accuracy_and_no_times(tmp_path: Path) -> None:
    build(tmp_path / "run", Plan(workers=8, processes=1))
    configuration = survey([tmp_path]).workloads[0].configurations[0]
    assert (label_of(configuration), configuration.is_rehearsal) == ("8 workers rehearsed on 1 T4", True)
    times = (
        configuration.epoch_time_s,
        configuration.images_per_s,
        configuration.job_time_s,
        configuration.step_time_s,
        configuration.bottleneck,
    )
    assert times == (None, None, None, None, None)
    assert configuration.final_val_accuracy is not None


def test_only_finished_runs_have_a_final_accuracy(tmp_path: Path) -> None:
    build(tmp_path / "done", Plan(accuracy=rising(0.8)))
    build(tmp_path / "going", Plan(accuracy=rising(0.8)[:4], state="running", training={"epochs": 20}))
    build(tmp_path / "bad", Plan(accuracy=(0.1, 0.1), state="diverged", training={"epochs": 20}))
    found = survey([tmp_path])
    (configuration,) = found.workloads[0].configurations
    assert (len(configuration.summaries), len(configuration.finished), found.running) == (3, 1, ("going",))
    assert configuration.epoch_time_s is not None
    assert configuration.epoch_time_s.count == 3
    assert configuration.final_val_accuracy is not None
    assert configuration.final_val_accuracy.count == configuration.stable.repeats == 1


def test_a_case_without_a_finished_run_still_has_a_curve(tmp_path: Path) -> None:
    build(tmp_path / "going", Plan(accuracy=rising(0.8, pace=8)[:9], state="running", training={"epochs": 20}))
    (configuration,) = survey([tmp_path]).workloads[0].configurations
    assert (configuration.final_val_accuracy, configuration.stable.status) == (None, "not yet stable")
    assert configuration.to_target(None) is None


def test_a_case_of_diverged_runs_says_nothing(tmp_path: Path) -> None:
    build(tmp_path / "bad", Plan(state="diverged"))
    (configuration,) = survey([tmp_path]).workloads[0].configurations
    assert (configuration.stable.status, configuration.overfitting.kind) == ("unknown", "unknown")


def test_a_table_states_its_plateaus(tmp_path: Path) -> None:
    caltech, fruit = survey([import_table(LAB, tmp_path)]).workloads
    assert (caltech.name, fruit.name) == ("caltech256, frozen", "fruit, fine-tuned")
    assert [label_of(c) for c in caltech.configurations] == ["2 T4", "4 T4", "4 V100", "8 V100"]
    stable = caltech.configurations[3].stable
    assert (stable.status, stable.epoch, stable.low, stable.method) == ("stable", 25.0, None, "stated")
    assert (stable.level, caltech.target, caltech.configurations[3].to_target(0.6)) == (0.6719, None, None)
    assert caltech.configurations[3].bottleneck is None
    assert caltech.configurations[0].step_time_s == Spread.of([209 / 383])
    assert [c.images_per_s.value for c in caltech.configurations if c.images_per_s] == pytest.approx(
        [117.2, 302.3, 306.1, 556.5], abs=0.1
    )
    assert fruit.configurations[0].final_val_accuracy is None
    assert fruit.configurations[0].stable.status == "unknown"


def test_runs_of_one_name_go_by_their_folders(tmp_path: Path) -> None:
    for place in ("a/one", "b/one", "b/two"):
        build(tmp_path / place, Plan())
        recipe = json.loads((tmp_path / place / "recipe.json").read_text())
        (tmp_path / place / "recipe.json").write_text(json.dumps(recipe | {"name": "fruit"}))
    (configuration,) = survey([tmp_path]).workloads[0].configurations
    assert [run.name for run in configuration.summaries] == ["a/one", "b/one", "two"]


def test_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    build(tmp_path / "run", Plan())
    (configuration,) = survey([tmp_path, tmp_path / "run"]).workloads[0].configurations
    assert len(configuration.summaries) == 1


def test_what_cannot_be_read_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    for name in ("damaged", "foreign", "empty", "queued", "good"):
        build(tmp_path / name, Plan())
    (tmp_path / "damaged" / "machine.json").write_text('{"workers": "many"')
    (tmp_path / "foreign" / "recipe.json").write_text('{"dependencies": []}')
    (tmp_path / "empty" / "recipe.json").write_text("")
    (tmp_path / "queued" / "machine.json").unlink()
    status = json.loads((tmp_path / "queued" / "status.json").read_text())
    (tmp_path / "queued" / "status.json").write_text(json.dumps(status | {"state": "failed", "cause": "no GPU"}))
    found = survey([tmp_path])
    assert [run.name for case in found.workloads[0].configurations for run in case.summaries] == ["good"]
    reasons = {Path(item.directory).name: left_out_text(item) for item in found.left_out}
    assert sorted(reasons) == ["damaged", "empty", "foreign", "queued"]
    assert "machine.json is damaged" in reasons["damaged"]
    assert "recipe.json is damaged: " in reasons["foreign"]
    assert "is missing" in reasons["foreign"]
    assert reasons["queued"].endswith("Its state is failed: no GPU.")


def test_lines_that_cannot_be_read_are_counted_and_said(tmp_path: Path) -> None:
    build(tmp_path / "run", Plan())
    path = tmp_path / "run" / "epochs.jsonl"
    path.write_text("not json\n" + path.read_text())
    (gap,) = survey([tmp_path]).gaps
    assert gap_text(gap) == "run: 1 line of epochs.jsonl cannot be read and is left out."


@pytest.mark.fault(22, "measurements whose checksum is wrong: said, file by file")
def test_measurements_that_cannot_be_read_are_counted_and_said(tmp_path: Path) -> None:
    path = build(tmp_path / "run", Plan()) / "spans-7.jsonl"
    with Lines(path, sync=False) as lines:
        for step in range(3):
            lines.write(to_json(Span(step=step, epoch=1, wait_s=0, copy_s=0, compute_s=1, reduce_s=0, update_s=0)))
    path.write_bytes(path.read_bytes().replace(b'"step":1', b'"step":9').replace(b'"step":2', b'"step":8'))
    (gap,) = survey([tmp_path]).gaps
    assert gap_text(gap) == "run: 2 lines of spans-7.jsonl cannot be read and are left out."


def test_what_could_not_be_measured_is_said_once(tmp_path: Path) -> None:
    path = build(tmp_path / "run", Plan()) / "telemetry-node1.jsonl"
    with Lines(path, sync=False) as lines:
        for gpu in (0, 0, 1, 2, 3):
            lines.write({"note": f"GPU {gpu}: lost", "at": "2026-03-01T09:00:00+00:00"})
    said = [gap_text(gap) for gap in survey([tmp_path]).gaps]
    assert said == [f"run: not everything could be measured (telemetry-node1.jsonl: GPU {n}: lost)." for n in (0, 1, 2)]


def test_a_path_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"is not a run directory: no recipe\.json"):
        survey([tmp_path])
    with pytest.raises(RunDirectoryError, match="no such directory"):
        survey([tmp_path / "nowhere"])


def test_no_runs_are_no_jobs() -> None:
    assert survey_runs([]).workloads == ()


def test_every_run_is_read_once(tmp_path: Path) -> None:
    runs = [Run.load(build(tmp_path / "run", Plan()))]
    (configuration,) = survey_runs(runs).workloads[0].configurations
    assert configuration.members[0].run is runs[0]


def test_a_clock_that_stood_still_gives_no_time(tmp_path: Path) -> None:
    build(tmp_path / "run", Plan())
    lines = without_checksums((tmp_path / "run" / "epochs.jsonl").read_text())
    (tmp_path / "run" / "epochs.jsonl").write_text(lines.replace('"epoch_time_s":10.0', '"epoch_time_s":0.0'))
    assert survey([tmp_path]).workloads[0].configurations[0].epoch_time_s is None


def test_a_curve_that_was_cut_off_is_told(tmp_path: Path) -> None:
    path = build(tmp_path / "cut", Plan())
    build(tmp_path / "whole", Plan())
    lines = (path / "epochs.jsonl").read_text().splitlines(keepends=True)
    (path / "epochs.jsonl").write_text("".join(lines[:3]))
    (gap,) = survey([tmp_path]).gaps
    assert gap_text(gap).startswith("cut: epochs.jsonl ends with epoch 3, though 20 were done")
    (path / "epochs.jsonl").write_text("".join([lines[0], *lines[3:]]))
    (gap,) = survey([tmp_path]).gaps
    assert gap_text(gap) == "cut: epochs.jsonl lacks 2 epochs before its last: its curve has gaps."


def test_an_epoch_that_no_training_has_leaves_the_run_out(tmp_path: Path) -> None:
    path = build(tmp_path / "damaged", Plan())
    build(tmp_path / "whole", Plan())
    lines = without_checksums((path / "epochs.jsonl").read_text()).replace('"epoch":20,', '"epoch":1000000000,')
    assert "1000000000" in lines
    (path / "epochs.jsonl").write_text(lines)
    found = survey([tmp_path])
    assert [run.name for case in found.workloads[0].configurations for run in case.summaries] == ["whole"]
    assert "epochs.jsonl is damaged: it names epoch 1,000,000,000; a run has at most" in str(found.left_out[0].error)
