"""Every rule: a set of runs in which its finding appears, with its size, and one in which it must not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from turnaround.analysis.workloads import survey
from turnaround.findings import RULES, Finding, find_all

Runs = Mapping[str, Plan] | str
"""Run directories by name, or a table."""

HEALTHY = (0.001, 0.001, 0.090, 0.004, 0.004)
"""Seconds of wait, copy, compute, reduce and update."""
HUNGRY = (0.040, 0.001, 0.050, 0.004, 0.005)
TALKING = (0.001, 0.001, 0.063, 0.030, 0.005)
SLOW = (0.001, 0.001, 0.180, 0.004, 0.004)
NINE, TEN, ELEVEN = (f"2026-03-01T{hour:02d}:00:00.000+00:00" for hour in (9, 10, 11))


def seeds(accuracy: float, count: int = 3, **options: object) -> dict[str, Plan]:
    """Repeats of one configuration that differ by a few tenths of a point."""
    return {
        f"{options.get('workers', 2)}-{seed}": Plan(
            accuracy=rising(accuracy + 0.002 * seed, seed=seed),
            training={**options.get("training", {}), "seed": seed},  # type: ignore[dict-item]
            **{key: value for key, value in options.items() if key != "training"},  # type: ignore[arg-type]
        )
        for seed in range(count)
    }


def falling(by: float) -> tuple[float, ...]:
    return tuple(value - by * max(0, number - 9) / 10 for number, value in enumerate(rising(0.8)))


def row(name: str, workers: int, epoch_time_s: float, *, gpu: str = "T4", job_time_s: float = 10_000) -> str:
    return f"{name},x,{gpu},{workers},32,1000,10,true,true,{job_time_s},{epoch_time_s},,,\n"


HEADER = LAB.partition("\n")[0] + "\n"
UNEVEN = "Strong imbalance: 900 training images of 'apple', 20 of 'pear'."
RISE = tuple(0.5 + 0.02 * epoch for epoch in range(20))

# id: runs in which it appears, words with its size, runs in which it must not appear
CASES: dict[str, tuple[Runs, str, Runs]] = {
    "run-diverged": (
        {"a": Plan(state="diverged", cause="Loss is NaN.", accuracy=(0.1, 0.1), training={"epochs": 9})},
        "a diverged: the loss is no longer a number after 2 of 9 epochs (Loss is NaN)",
        {"a": Plan()},
    ),
    "run-failed": (
        {"a": Plan(state="failed", cause="disk full"), "b": Plan(state="failed")},
        "a failed after 20 of 20 epochs (disk full); so is it with b",
        {"a": Plan()},
    ),
    "run-interrupted": ({"a": Plan(state="interrupted")}, "a was interrupted", {"a": Plan(state="failed")}),
    "still-running": ({"a": Plan(state="running")}, "a is still running", {"a": Plan(state="interrupted")}),
    "program-not-recorded": (
        {
            str(n): Plan(program="./lab {workers}", workers=n, gpu=None, accuracy=(), time_s={"program": 60 / n})
            for n in (1, 3)
        },
        "2 runs of ./lab {workers} kept no record: there are wall times and exit codes, but no accuracies, no epochs, "
        "and nothing that says what the time was spent on. Counted by the whole job, 3 CPU processes 2.90 times",
        {"a": Plan()},
    ),
    "no-better-than-guessing": (
        {
            "good": Plan(workers=1, per_class={"ants": 70, "bees": 83}, top1=0.9),
            "a": Plan(workers=8, per_class={"ants": 70, "bees": 83}, top1=83 / 153, training={"optimizer": "lars"}),
        },
        "a is no better than guessing the largest class (54.2 %): it has 54.2 % of 153 validation images (95 % "
        "interval 46.3 % to 61.9 %), and 'bees' for every image needs no network, on 8 workers with lars and "
        "scaling = auto; good, on 1 worker, reaches",
        {
            "a": Plan(per_class={"ants": 70, "bees": 83}, top1=0.65),
            "b": Plan(per_class={"ants": 70, "bees": 83}, top1=0.5, state="running"),
            "c": Plan(per_class={"bees": 153}, top1=1.0),
        },
    ),
    "one-class-validated": (
        {"a": Plan(per_class={"ants": 0, "bees": 6}, top1=1.0)},
        "All validation images of a are of 'bees', so the accuracy says nothing of the other classes",
        {"a": Plan(per_class={"ants": 1, "bees": 6}, top1=1.0), "b": Plan(per_class={"bees": 6}, top1=1.0)},
    ),
    "unfair-comparison": (
        {"a": Plan(), "b": Plan(workers=4, machine={"versions": {"torch": "2.9", "turnaround": "0.2"}})},
        "2 T4 and 4 T4 differ in more than the configuration: torch version is 2.8 and 2.9, which matters for time and",
        {"a": Plan(), "b": Plan(workers=4, gpu="Tesla V100", training={"seed": 5})},
    ),
    "impossible-speed": (
        "name,dataset,gpu,workers,images_per_epoch,epochs,epoch_time_s\na,x,T4,2,24485,30,0.058\n",
        "a would train 211,078 images/s on each T4, where 64,000 are beyond any network: its times are probably",
        LAB,
    ),
    "ran-together": (
        {"a": Plan(started_at=NINE, ended_at=TEN), "b": Plan(started_at="2026-03-01T09:30:00+00:00", ended_at=ELEVEN)},
        "a and b ran on the same host for 30 min at the same time",
        {"a": Plan(started_at=NINE, ended_at=TEN), "b": Plan(started_at=TEN, ended_at=ELEVEN)},
    ),
    "shared-gpus": (
        {"a": Plan(watts=200.0, compute_processes=3), "b": Plan(watts=200.0, compute_processes=1)},
        "Programs of others computed on the GPUs of 2 T4 during 1 run (a): their energy is in the figures",
        {"a": Plan(watts=200.0, compute_processes=1), "b": Plan(watts=200.0), "c": Plan()},
    ),
    "faster-gpu-no-gain": (
        {"a": Plan(epoch_time_s=10), "b": Plan(epoch_time_s=9.8, gpu="NVIDIA H100 80GB HBM3")},
        "2 H100 take as long as 2 T4 (9.8 s and 10 s an epoch) although a H100 has 10.5 times the memory bandwidth: "
        "these runs measured the input pipeline (1,020 images/s)",
        {"a": Plan(epoch_time_s=10), "b": Plan(epoch_time_s=5, gpu="NVIDIA H100 80GB HBM3")},
    ),
    "more-than-linear": (
        {"a": Plan(workers=1, epoch_time_s=40), "b": Plan(workers=2, epoch_time_s=18), "c": Plan(workers=4)},
        "1 -> 2 T4 is 2.22 times faster (40 s and 18 s an epoch) on 2 times the workers",
        HEADER
        + row("a", 2, 11, job_time_s=150)
        + row("b", 4, 5, job_time_s=80),  # of whole seconds: 10.5 and 5.5 would be less than twice
    ),
    "efficiency-falls": (
        {"a": Plan(workers=1, epoch_time_s=40), "b": Plan(workers=8, epoch_time_s=10)},
        "8 T4 are 4.00 times as fast as 1 T4 (40 s -> 10 s an epoch) on 8 times the workers: 50 % efficiency",
        {"a": Plan(workers=1, epoch_time_s=40), "b": Plan(workers=8, epoch_time_s=5)},
    ),
    "accuracy-falls-with-workers": (
        {
            **seeds(0.85, workers=1, training={"scaling": "none"}),
            **seeds(0.80, workers=8, training={"scaling": "none"}),
        },
        "the global batch grew from 32 to 256 and the number of updates fell to 1/8; the learning rate was not raised",
        {**seeds(0.80, workers=1), **seeds(0.80, workers=8)},
    ),
    "repeats-disagree": (
        {"a": Plan(accuracy=rising(0.8)), "b": Plan(accuracy=rising(0.7), training={"seed": 1}, epoch_time_s=14)},
        "The 2 runs of 2 T4 disagree: final accuracies from 70.",
        seeds(0.8),
    ),
    "noise-larger-than-difference": (
        {**seeds(0.800, workers=1), **seeds(0.801, workers=8)},
        "they cannot be ranked",
        {**seeds(0.80, workers=1), **seeds(0.90, workers=8)},
    ),
    "one-seed-only": (
        {"a": Plan(workers=1), "b": Plan(workers=2)},
        "Each of the 2 configurations was run once: differences below",
        {**seeds(0.8, workers=1), "b": Plan(workers=2)},
    ),
    "leak": (
        {"a": Plan(images={"leaks": {"num": 600, "of": 2698}})},
        "600 of 2,698 (22 %) validation images have a copy",
        {"a": Plan(images={"leaks": {"num": 0, "of": 2698}}), "b": Plan(images={"leaks": None})},
    ),
    "class-imbalance": (
        {"a": Plan(images={"classes": ["apple", "pear"], "num_train_by_class": [900, 20]})},
        UNEVEN,
        {
            "a": Plan(images={"classes": ["apple", "pear"], "num_train_by_class": [200, 20]}),
            "b": Plan(images={"num_train_by_class": "many"}, per_class={"apple": 100, "pear": 20}),
        },
    ),
    "input-bound": (
        {"a": Plan(parts_s={0: HUNGRY, 1: HUNGRY})},
        "The runs on 2 T4 wait for their images: 41 % of the step, so at most 1.69 times faster without",
        {"a": Plan(parts_s={0: HEALTHY, 1: HEALTHY})},
    ),
    "communication-bound": (
        {"a": Plan(parts_s={0: TALKING, 1: TALKING}), "b": Plan(workers=1, parts_s={0: TALKING})},
        "wait for the exchange of gradients: 30 % of the step, so at most 1.43 times faster",
        {"a": Plan(parts_s={0: HUNGRY, 1: HUNGRY})},
    ),
    "straggler": (
        {"a": Plan(workers=3, parts_s={0: HEALTHY, 1: SLOW, 2: HEALTHY})},
        "process 1 takes 1.98 times the median time",
        {"a": Plan(workers=3, parts_s={0: HEALTHY, 1: HEALTHY, 2: HEALTHY})},
    ),
    "launch-bound": (
        {"a": Plan(parts_s={0: HEALTHY, 1: HEALTHY}, busy_percent=40.0)},
        "leave their GPUs idle between kernels: 60 % of the step, so at most 2.50 times faster",
        {"a": Plan(parts_s={0: HEALTHY, 1: HEALTHY}, busy_percent=90.0)},
    ),
    "evaluation-bound": (
        {"a": Plan(evaluation_time_s=10.0)},
        "spend part of every epoch on evaluation and checkpoints: 50 % of the epoch, so at most 2.00 times faster",
        {"a": Plan(evaluation_time_s=0.5), "b": Plan(workers=2, epoch_time_s=1.0, evaluation_time_s=1.0)},
    ),
    "not-yet-stable": (
        {"a": Plan(accuracy=RISE), "b": Plan(workers=4, accuracy=RISE)},
        "has not become stable in 20 epochs: its plateau begins at epoch 20 or later; nor has that on",
        {"a": Plan()},
    ),
    "memorising": (
        {"a": Plan(train_accuracy=rising(0.95))},
        "training accuracy is 15.0 points above validation",
        {"a": Plan(train_accuracy=rising(0.82))},
    ),
    "harmful-overfitting": (
        {"a": Plan(accuracy=falling(0.10))},
        "validation accuracy has fallen by 9.0 points since epoch 10",
        {"a": Plan(accuracy=falling(0.0))},
    ),
    "over-confident": (
        {"a": Plan(val_loss=tuple(0.5 + 0.01 * abs(epoch - 8) for epoch in range(20)))},
        "validation loss is 18 % above its minimum",
        {"a": Plan(val_loss=tuple(0.5 - 0.01 * epoch for epoch in range(20)))},
    ),
    "underfitting": (
        {"a": Plan(accuracy=RISE, train_accuracy=RISE)},
        "training accuracy still rises",
        {"a": Plan()},
    ),
    "times-contradict": (
        HEADER + row("a", 2, 100, job_time_s=900),
        "a (2 T4) contradicts itself: 10 epochs of 100 s are 1,000 s, more than its whole job of 900 s",
        HEADER + row("a", 2, 100, job_time_s=990),  # rounding may do that
    ),
    "time-lost-outside-training": (
        {"a": Plan(time_s={"start_up": 90.0}, cold_time_s=50.0)},
        "2 min 20 s (41 %) were not steady epochs, most of it starting up (90 s)",
        {"a": Plan(time_s={"start_up": 20.0})},
    ),
    "rehearsal-times": (
        {"a": Plan(workers=8, processes=1), "b": Plan()},
        "The times of 1 rehearsal (8 workers rehearsed on 1 T4) are left out",
        {"b": Plan()},
    ),
    "best-for-speed": (
        {"a": Plan(workers=1, epoch_time_s=40), "b": Plan(workers=4, epoch_time_s=12)},
        "Best for speed: 4 T4 with ",
        {"a": Plan(workers=1, epoch_time_s=40), "b": Plan(workers=4, processes=1)},
    ),
    "best-for-cost": (
        {"a": Plan(workers=1, epoch_time_s=40), "b": Plan(workers=4, epoch_time_s=12)},
        "Best for cost: 1 T4 with ",
        {"a": Plan(workers=1, epoch_time_s=40)},
    ),
    "best-for-accuracy": (
        {**seeds(0.90, workers=1), **seeds(0.80, workers=8)},
        "Best for accuracy: 1 T4 with 90.2 %, more than noise above the others",
        {"a": Plan(workers=1)},
    ),
    "own-plateau-only": (LAB, "2 T4 54 min 59 s at 68.9 %", {"a": Plan(workers=1), "b": Plan(workers=2)}),
}


def findings(runs: Runs, tmp_path: Path) -> list[Finding]:
    if isinstance(runs, str):
        return find_all(survey([import_table(runs, tmp_path)]))
    for name, plan in runs.items():
        build(tmp_path / name, plan)
    return find_all(survey([tmp_path]))


def test_every_rule_is_shown_here() -> None:
    assert list(CASES) == [rule.id for rule in RULES]


@pytest.mark.parametrize("finding_id", CASES)
def test_it_is_found_with_its_size(finding_id: str, tmp_path: Path) -> None:
    runs, words, _ = CASES[finding_id]
    found = [finding for finding in findings(runs, tmp_path) if finding.id == finding_id]
    assert found
    assert words in found[0].text
    for finding in found:
        assert finding.text.endswith(".")
        assert finding.text == finding.text.strip()
        assert finding.advice
        assert finding.evidence
        assert finding.job


@pytest.mark.parametrize("finding_id", CASES)
def test_it_is_not_found_where_it_is_not(finding_id: str, tmp_path: Path) -> None:
    _, _, runs = CASES[finding_id]
    assert [finding.text for finding in findings(runs, tmp_path) if finding.id == finding_id] == []


def test_a_healthy_single_run_needs_no_words(tmp_path: Path) -> None:
    assert findings({"a": Plan(parts_s={0: HEALTHY, 1: HEALTHY}, busy_percent=96.0)}, tmp_path) == []


def test_images_that_are_there_are_not_waited_for(tmp_path: Path) -> None:
    copying = (0.001, 0.010, 0.090, 0.004, 0.004)  # wait, copy, compute, reduce, update
    found = findings({"a": Plan(parts_s={0: copying, 1: copying})}, tmp_path)
    assert [finding.id for finding in found] == ["input-bound"]
    assert "spend part of each step on moving and varying their images: " in found[0].text
    assert "data.cache" not in found[0].advice


@pytest.mark.parametrize(("start_up_s", "says"), [(40.0, False), (70.0, True)])
def test_seconds_of_starting_are_no_finding(start_up_s: float, says: bool, tmp_path: Path) -> None:
    short = {"accuracy": (0.5, 0.6), "epoch_time_s": 5.0, "training": {"epochs": 2}}
    found = findings({"a": Plan(time_s={"start_up": start_up_s}, **short)}, tmp_path)  # type: ignore[arg-type]
    assert ("time-lost-outside-training" in {finding.id for finding in found}) is says


def test_no_runs_no_findings(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "recipe.json").write_text("{}")
    assert find_all(survey([tmp_path])) == []
