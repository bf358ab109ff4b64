"""Studies for the tests of forecasts: run directories of a job whose laws are known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from analysis.build import LAB, Plan, build, import_table

IMAGES = 10_000
BATCH = 32


def step_s(n: int, *, c0: float = 0.2, c1: float = 0.01, c2: float = 0.006) -> float:
    """The law that the simulated runs follow."""
    return c0 + c1 * (n - 1) / n + c2 * math.log2(n)


def epochs_to_stable(n: int, *, e0: float = 6.0, critical_workers: float = 12.0) -> float:
    return e0 * (1 + n / critical_workers)


def curve(n: int, *, epochs: int = 30, level: float = 0.8) -> tuple[float, ...]:
    """An accuracy that comes within a point of its level at epochs_to_stable(n)."""
    pace = epochs_to_stable(n) / math.log(level / 0.01)
    return tuple(level * (1 - math.exp(-epoch / pace)) for epoch in range(1, epochs + 1))


def real(path: Path, workers: int, *, factor: float = 1.0, **more: Any) -> Path:
    """A run on GPUs of its own."""
    steps = IMAGES // (BATCH * workers)
    options = {"gpu": "NVIDIA H200", "accuracy": curve(workers), "epoch_time_s": factor * step_s(workers) * steps}
    return build(path, Plan(workers=workers, **(options | more)))


def rehearsal(path: Path, workers: int, **more: Any) -> Path:
    options = {"gpu": "NVIDIA H200", "accuracy": curve(workers), "epoch_time_s": 61.0, "processes": 1}
    return build(path, Plan(workers=workers, **(options | more)))


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return import_table(LAB, tmp_path / "lab")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Real runs of 1, 2 and 4 GPUs, rehearsals of 8 and 16."""
    for n in (1, 2, 4):
        real(tmp_path / "study" / f"real-{n}", n)
    for n in (8, 16):
        rehearsal(tmp_path / "study" / f"rehearsed-{n}", n)
    return tmp_path / "study"


@pytest.fixture
def one_run(tmp_path: Path) -> Path:
    """One GPU, and rehearsals of 2 to 16 workers on it."""
    real(tmp_path / "one" / "real-1", 1)
    for n in (2, 4, 8, 16):
        rehearsal(tmp_path / "one" / f"rehearsed-{n}", n)
    return tmp_path / "one"
