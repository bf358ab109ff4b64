"""The words for configurations, pools and facts: each kind of fact that a run can have has its name."""

from __future__ import annotations

from pathlib import Path

from analysis.build import Plan, build, built
from turnaround.analysis import compare
from turnaround.analysis.compare import Fact, machine_facts, recipe_facts, result_facts
from turnaround.analysis.workloads import survey
from turnaround.findings.labels import (
    FACT_NAMES,
    fact_name,
    fact_text,
    hardware_label,
    hardware_labels,
    label_of,
    settings_label,
)


def test_every_key_that_is_compared_has_a_name() -> None:
    keys = {f"{section}.{key}" for section, key, *_ in (*compare._RECIPE_KEYS, *compare._OFF_BY_DEFAULT)}
    chosen = {f"choices.{key}" for key, _ in compare._CHOICES}
    assert keys | chosen | compare.MEANT | compare._VARIES_OVER_REPEATS <= set(FACT_NAMES)


def test_every_fact_of_a_run_has_a_name(tmp_path: Path) -> None:
    ranks = [{"host": "n", "device": "cuda:0", "workers": [rank]} for rank in range(2)]
    machine = {"ranks": ranks, "cpu": "a processor", "hosts": 1, "share": [1, 1], "turnaround_git": {"commit": "abc"}}
    run = built(tmp_path / "a", machine=machine, training={"batch_total": 64, "class_weights": "balanced"})
    ids = {fact.id for fact in (*recipe_facts(run), *result_facts(run), *machine_facts(run))}
    assert ids - set(FACT_NAMES) == set()
    assert {"batch", "augment", "training.class_weights", "shared_gpu", "fingerprint", "code_version"} <= ids


def test_values_of_facts() -> None:
    size = Fact(id="data.size_px", value=64, unit="px", matters_for="both")
    assert (fact_name(size.id), fact_text(size)) == ("image size", "64 px")
    shared = Fact(id="shared_gpu", value=(("processes", 4), ("gpus", 1)), matters_for="time")
    assert fact_text(shared) == "4 processes on 1 GPU"
    augmented = Fact(id="augment", value=(("flip", True), ("shift", 0.1)), matters_for="both")
    assert fact_text(augmented) == "flip yes, shift 0.1"


def test_a_label_is_the_hardware_and_the_settings(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan())
    build(tmp_path / "b", Plan(training={"batch_per_worker": 64, "optimizer": "adam"}))
    first, second = survey([tmp_path]).workloads[0].configurations
    assert settings_label(second) == "optimizer adam, batch 64 per worker"
    assert label_of(second) == f"2 T4, {settings_label(second)}"
    assert label_of(second.key) == label_of(second)
    assert hardware_label(second) == "2 T4"
    assert hardware_labels((first, second)) == ["2 T4"]
