"""The order of a study's runs, and what cannot be planned."""

from __future__ import annotations

import pytest

from turnaround.errors import InputError
from turnaround.study.plan import PlannedRun, counts, plan, plan_there


def names(**asked: object) -> list[str]:
    given = {"workers": [], "rehearse": [], "seeds": [0], "devices": 8} | asked
    return [run.name for run in plan(**given)]  # type: ignore[arg-type]


def test_the_runs_that_answer_most_come_first() -> None:
    assert names(workers=[4, 1, 8, 2], rehearse=[16, 32]) == [
        "1w-seed0",  # every speed-up is counted from it
        "8w-seed0",
        "32w-rehearsed-seed0",
        "2w-seed0",
        "4w-seed0",
        "16w-rehearsed-seed0",
    ]


def test_repeats_come_seed_by_seed() -> None:
    assert names(workers=[1, 2], seeds=[3, 4]) == ["1w-seed3", "2w-seed3", "1w-seed4", "2w-seed4"]


def test_a_cluster_has_kinds_and_hosts() -> None:
    base = plan(workers=[1, 4], rehearse=[8], seeds=[0], devices=8)
    runs = plan_there(base, kinds=["t4", "v100", "t4"], hosts_for=lambda run: [1, 2] if run.processes > 1 else [1])
    assert [run.name for run in runs] == [
        *("1w-t4-seed0", "1w-v100-seed0"),
        *("4w-t4-seed0", "4w-t4-2hosts-seed0", "4w-v100-seed0", "4w-v100-2hosts-seed0"),
        *("8w-rehearsed-t4-seed0", "8w-rehearsed-v100-seed0"),
    ]
    assert [run.label for run in runs][2:4] == ["4 workers on t4, seed 0", "4 workers on 2 hosts with t4, seed 0"]
    assert runs[-1].label == "8 workers rehearsed on v100, seed 0"
    anything = plan_there(base, kinds=[None], hosts_for=lambda run: [1])
    assert [run.name for run in anything] == [run.name for run in base]  # as on this machine
    with pytest.raises(InputError, match=r"6,000 runs; 1,000 are the most"):
        plan_there(base, kinds=["x"], hosts_for=lambda run: range(1, 2001))
    assert PlannedRun(workers=2, processes=2, seed=0, hosts=2).label == "2 workers on 2 hosts, seed 0"


def test_rehearsals_alone_and_doubles() -> None:
    assert names(rehearse=[2, 8, 4]) == ["8w-rehearsed-seed0", "4w-rehearsed-seed0", "2w-rehearsed-seed0"]
    assert names(workers=[2, 2, 1]) == ["1w-seed0", "2w-seed0"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"workers": [1, 4], "devices": 2}, r"--workers 4 needs as many devices; here are 2.*--rehearse 4"),
        ({"workers": [2], "devices": 1}, r"here is 1\. "),
        ({}, r"A study needs configurations: --workers 1,2,4, or --rehearse"),
        ({"workers": [1], "seeds": range(2000)}, r"2,000 runs; 1,000 are the most"),
    ],
)
def test_what_cannot_be_planned_is_said(asked: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        names(**asked)


@pytest.mark.parametrize("text", ["", "0", "1,-2", "a", "1;2", "1.5"])
def test_counts_are_whole_numbers(text: str) -> None:
    with pytest.raises(
        InputError, match=r"--workers takes whole numbers from 1, separated by commas: 1,2,4\. Received"
    ):
        counts(text, flag="--workers")
    assert counts(" 4, 1,2,", flag="--workers") == [4, 1, 2]
