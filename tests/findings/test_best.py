"""Which configuration: by time to one accuracy where there are curves, and never by each one's own plateau."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from turnaround.analysis.goals import time_ranking
from turnaround.analysis.workloads import survey
from turnaround.findings import find_all
from turnaround.findings.best import own_plateau_only
from turnaround.findings.labels import label_of


def texts(folder: Path) -> dict[str, str]:
    return {finding.id: finding.text for finding in find_all(survey([folder]))}


def test_time_to_the_common_target_decides(tmp_path: Path) -> None:
    """Four workers are faster in an epoch, and come to 80 % too late."""
    build(tmp_path / "one", Plan(workers=1, epoch_time_s=20, accuracy=rising(0.80, pace=1.0, epochs=30)))
    build(tmp_path / "four", Plan(workers=4, epoch_time_s=10, accuracy=rising(0.80, pace=6.0, epochs=30)))
    (job,) = survey([tmp_path]).workloads
    ranked = time_ranking(job)
    assert ranked is not None
    assert ranked.basis == "target"
    assert ranked.target == job.target
    times_s = {label_of(configuration): time_s for configuration, time_s in ranked.time_s}
    assert times_s["1 T4"] < times_s["4 T4"]
    found = texts(tmp_path)
    assert found["best-for-speed"].startswith("Best for speed: 1 T4 with ")
    assert f"to {100 * (job.target or 0):.1f} %" in found["best-for-speed"]
    assert "without curves" not in found["best-for-speed"]


def test_job_times_of_other_settings_are_not_ranked(tmp_path: Path) -> None:
    header, *rows = LAB.splitlines()
    short = [row.replace(",30,", ",10,").replace(",25,", ",8,") if row.startswith("model6") else row for row in rows]
    caltech, _ = survey([import_table("\n".join([header, *short]), tmp_path)]).workloads
    ranked = time_ranking(caltech)
    assert ranked is not None
    assert (ranked.basis, [label_of(configuration) for configuration, _ in ranked.time_s]) == (
        "job",
        [f"{label}, epochs 30" for label in ("2 T4", "4 T4", "4 V100")],
    )


def test_epoch_times_where_nothing_else_is_known(tmp_path: Path) -> None:
    table = "name,workers,gpu,epoch_time_s\na,1,T4,20\nb,2,T4,11\n"
    assert "2 T4 with 11 s an epoch (next: 1 T4 with 20 s)" in texts(import_table(table, tmp_path))["best-for-speed"]


def test_gpu_seconds_of_two_kinds_have_two_prices(tmp_path: Path) -> None:
    found = texts(import_table(LAB.replace("model1,fruit,T4", "model1,fruit,V100"), tmp_path))
    assert "a second of T4 and V100 does not cost the same" in found["best-for-cost"]


def test_the_best_within_the_noise_is_said_to_be_so(tmp_path: Path) -> None:
    for workers in (1, 2):
        build(tmp_path / str(workers), Plan(workers=workers, accuracy=rising(0.8 + 0.001 * workers)))
    assert (
        texts(tmp_path)["best-for-accuracy"]
        == "Best for accuracy: 2 T4 with 80.4 %, but 1 T4 may be as good, within noise."
    )


@pytest.mark.parametrize(("other", "words"), [("0.6861", "rough comparison"), ("0.6200", "do not rank")])
def test_plateaus_of_one_level_may_be_compared_roughly(other: str, words: str, tmp_path: Path) -> None:
    header, *rows = LAB.splitlines()
    table = "\n".join([header, rows[3], rows[5].replace("0.6861", other)])
    (finding,) = own_plateau_only(survey([import_table(table, tmp_path)]).workloads[0])
    assert words in finding.text


def test_processes_without_a_gpu_have_no_gpu_seconds(tmp_path: Path) -> None:
    for workers, time_s in ((1, 0.62), (2, 0.53)):
        build(tmp_path / str(workers), Plan(workers=workers, gpu=None, epoch_time_s=time_s))
    text = texts(tmp_path)["best-for-cost"]
    assert "process-seconds" in text
    assert "GPU" not in text


def test_the_figures_of_repeats_are_the_means_of_the_sentence(tmp_path: Path) -> None:
    for workers, levels in ((1, (0.90, 0.90, 0.96)), (8, (0.70, 0.70, 0.76))):
        for seed, level in enumerate(levels):
            plan = Plan(workers=workers, accuracy=rising(level, noise=0.0), training={"seed": seed})
            build(tmp_path / f"{workers}-{seed}", plan)
    found = {finding.id: finding for finding in find_all(survey([tmp_path]))}
    finding = found["accuracy-falls-with-workers"]
    assert "from 92.0 % on 1 T4 to 72.0 % on 8 T4 (20.0 points; means of 3 runs each" in finding.text
    means = [e.value for e in finding.evidence if e.what == "final validation accuracy (mean)"]
    assert means == pytest.approx([0.92, 0.72], abs=1e-3)
