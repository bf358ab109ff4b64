"""Runs become observations: times of real runs only, what cannot be compared is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import Plan, build
from forecast.conftest import BATCH, curve, real, rehearsal, step_s
from turnaround.analysis.compare import Fact
from turnaround.analysis.workloads import Workload, survey
from turnaround.findings.forecasts import facts_text, warning_text
from turnaround.findings.labels import fact_text, label_of
from turnaround.forecast.observations import Observations, observe
from turnaround.forecast.remarks import FasterGpuNoFaster, WaitsForInput
from turnaround.forecast.step_time import StepObservation


def job(folder: Path, name: str = "") -> Workload:
    return next(job for job in survey([folder]).workloads if job.name.startswith(name))


def sentences(seen: Observations) -> tuple[str, ...]:
    return tuple(warning_text(aside) for aside in seen.set_aside)


def test_times_are_those_of_real_runs_and_epochs_those_of_all(study: Path) -> None:
    seen = observe(job(study))
    assert list(seen.times) == ["H200"]
    steps = seen.times["H200"].observed
    assert [o.processes for o in steps] == [1, 2, 4]
    assert [o.time_s for o in steps] == pytest.approx([step_s(n) for n in (1, 2, 4)])
    assert [o.images_per_step for o in steps if isinstance(o, StepObservation)] == [32, 64, 128]
    assert sorted(o.global_batch for o in seen.epochs) == [32, 64, 128, 256, 512]
    assert sorted(o.global_batch for o in seen.accuracies) == [32, 64, 128, 256, 512]
    assert (seen.images_per_epoch, seen.batch_per_worker, seen.epochs_planned) == (10_000, BATCH, 30)
    assert seen.global_batch(16) == 512
    assert seen.set_aside == ()


def test_overheads_are_measured(tmp_path: Path) -> None:
    real(tmp_path / "a", 1, cold_time_s=80.0, evaluation_time_s=2.0, time_s={"checkpoint": 15.0, "decode": 4.0})
    [overhead] = observe(job(tmp_path)).times["H200"].overheads
    assert overhead.evaluation_s == pytest.approx(2.0)
    assert overhead.checkpoint_s == pytest.approx(0.5)
    # One second of start-up, decoding, and what the cold epoch took longer than a steady one.
    assert overhead.fixed_s == pytest.approx(1.0 + 4.0 + 80.0 - step_s(1) * 312)


def test_a_forecast_is_of_a_job_that_loads_its_code_itself(tmp_path: Path) -> None:
    real(tmp_path / "alone" / "a", 1, time_s={"start_up": 5.0})
    real(tmp_path / "forked" / "a", 1, time_s={"start_up": 0.5, "preloaded": 4.5})
    alone, forked = (observe(job(tmp_path / name)).times["H200"].overheads[0] for name in ("alone", "forked"))
    assert forked.fixed_s == pytest.approx(alone.fixed_s)


def test_repeats_have_a_spread(tmp_path: Path) -> None:
    for seed, factor in enumerate((0.9, 1.0, 1.1)):
        real(tmp_path / f"r{seed}", 2, factor=factor, training={"seed": seed})
    [step] = observe(job(tmp_path)).times["H200"].observed
    assert step.repeats == 3
    assert step.spread == pytest.approx(0.1)


def test_the_labs_table(lab: Path) -> None:
    seen = observe(job(lab, "caltech"))
    assert {gpu: times.counts for gpu, times in seen.times.items()} == {"T4": [2, 4], "V100": [4, 8]}
    v100 = seen.times["V100"]
    assert (v100.unit, [o.time_s for o in v100.observed]) == ("epoch", [80, 44])
    assert [o.fixed_s for o in v100.overheads] == [2502 - 2400, 1387 - 1320]
    # 5910 s for 30 epochs of 209 s: the table contradicts itself, so nothing is outside of epochs.
    assert seen.times["T4"].overheads[0].fixed_s is None
    assert sorted((o.global_batch, o.epochs) for o in seen.epochs) == [(64, 15), (128, 19), (128, 20), (256, 25)]
    bound = v100.input_bound
    assert isinstance(bound, FasterGpuNoFaster)
    assert (label_of(bound.fast), label_of(bound.slow)) == ("4 V100", "4 T4")
    assert bound.bandwidth_ratio == pytest.approx(900 / 320)
    assert bound.images_per_s == pytest.approx(24485 / 80)


def test_a_faster_gpu_that_is_faster_is_no_matter(tmp_path: Path) -> None:
    real(tmp_path / "t4", 2, gpu="Tesla T4")
    real(tmp_path / "v100", 2, gpu="Tesla V100-SXM2-16GB", factor=0.4)
    assert [times.input_bound for times in observe(job(tmp_path)).times.values()] == [None, None]


def test_a_run_that_waits_for_its_input_says_so(tmp_path: Path) -> None:
    real(tmp_path / "slow", 1, parts_s={0: (0.5, 0.0, 0.5, 0.0, 0.0)})
    bound = observe(job(tmp_path)).times["H200"].input_bound
    assert isinstance(bound, WaitsForInput)
    assert bound.bottleneck.share == pytest.approx(0.5)


def test_the_input_probe_is_a_limit(tmp_path: Path) -> None:
    real(tmp_path / "a", 1, machine={"probes": {"input_images_per_s": 900.0}, "cost": {"gradient_bytes": 1e8}})
    times = observe(job(tmp_path)).times["H200"]
    assert (times.input_images_per_s, times.gradient_bytes) == (900.0, 1e8)


def test_other_settings_are_set_aside_and_named(tmp_path: Path) -> None:
    for n in (1, 2, 4):
        real(tmp_path / f"n{n}", n)
    real(tmp_path / "other", 8, training={"batch_per_worker": 64})
    seen = observe(job(tmp_path))
    assert seen.times["H200"].counts == [1, 2, 4]
    assert sentences(seen) == (
        "Set aside: 8 H200: their times are those of other settings (batch 64 per worker).",
        "Set aside: 8 H200: their epochs and accuracies are those of other settings (batch 64 per worker).",
    )
    assert [fact_text(fact) for fact in seen.settings] == ["32 per worker"]


def test_many_that_are_set_aside_are_named_shortly(tmp_path: Path) -> None:
    for n in (1, 2, 4, 8, 16, 32, 64):
        real(tmp_path / f"a{n}", n)
    more = {"optimizer": "adam", "learning_rate": 1.0, "scaling": "none"}
    for n in (1, 2, 4, 8, 16, 32):
        real(tmp_path / f"b{n}", n, training=more)
    assert sentences(observe(job(tmp_path))) == (
        "Set aside: 1 H200, 2 H200, 4 H200, 8 H200 and 2 more: their epochs and accuracies are those of other settings "
        "(optimizer adam, learning rate 1, scaling of the learning rate none).",
    )
    facts = [Fact(id=id_, value="1", matters_for="time") for id_ in ("seed", "split", "batch", "hosts")]
    assert (facts_text(facts), facts_text(facts[:2])) == ("seed 1, split 1, batch 1, ...", "seed 1, split 1")


def test_processes_that_share_a_gpu_are_no_gpus(tmp_path: Path) -> None:
    real(tmp_path / "one", 1)
    ranks = [{"host": "node1", "device": "cuda:0", "workers": [n]} for n in range(2)]
    real(tmp_path / "two", 2, machine={"ranks": ranks})
    seen = observe(job(tmp_path))
    assert seen.times["H200"].counts == [1]
    assert "Set aside: 2 H200: the processes share a GPU, none has its own." in sentences(seen)


def test_a_gpu_beside_a_cpu_is_not_two_gpus(tmp_path: Path) -> None:
    real(tmp_path / "one", 1)
    ranks = [{"host": "node1", "device": device, "workers": [n]} for n, device in enumerate(("cuda:0", "cpu"))]
    real(tmp_path / "two", 2, machine={"ranks": ranks})
    seen = observe(job(tmp_path))
    assert seen.times["H200"].counts == [1]
    assert "Set aside: 2 H200: their processes have devices of several kinds." in sentences(seen)


def test_only_rehearsals_have_no_times(tmp_path: Path) -> None:
    rehearsal(tmp_path / "a", 4)
    seen = observe(job(tmp_path))
    assert seen.times == {}
    assert [o.global_batch for o in seen.epochs] == [128]


def test_not_yet_stable_is_a_lower_bound(tmp_path: Path) -> None:
    real(tmp_path / "short", 1, accuracy=tuple(0.02 * n for n in range(1, 21)))
    seen = observe(job(tmp_path))
    assert seen.epochs == ()
    assert [o.global_batch for o in seen.not_yet] == [32]


def test_epochs_to_a_target_need_curves(study: Path, lab: Path) -> None:
    seen = observe(job(study), target=0.7)
    assert [o.global_batch for o in seen.to_target] == [32, 64, 128, 256, 512]
    assert seen.to_target[0].epochs < seen.epochs[0].epochs
    assert observe(job(study), target=0.95).to_target == ()
    assert observe(job(lab, "caltech"), target=0.6).to_target == ()


def test_a_fixed_global_batch_is_kept(tmp_path: Path) -> None:
    for n in (1, 2):
        build(tmp_path / f"n{n}", Plan(workers=n, gpu="T4", accuracy=curve(1), training={"batch_total": 64}))
    seen = observe(job(tmp_path))
    assert (seen.times["T4"].scaling, seen.batch_total, seen.global_batch(16)) == ("strong", 64, 64)
