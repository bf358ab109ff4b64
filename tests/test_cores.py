"""The cores that are ours: what a batch system or a container leaves of the machine."""

from __future__ import annotations

import os

import pytest

from turnaround.cores import usable_cores


def test_the_cores_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert usable_cores() == 3


@pytest.mark.parametrize(("known", "cores"), [(6, 6), (None, 1)])
def test_a_system_without_affinity_has_all_its_cores_or_one(
    known: int | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: known)
    assert usable_cores() == cores
