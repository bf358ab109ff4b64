"""How tests run real trainings: through the same functions as the command line, with a traced worker process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from turnaround import recipes
from turnaround.launch import conduct, local
from turnaround.record.reader import Run

TESTS = Path(__file__).parent


def silent(what: str, done: int, total: int) -> None:
    pass


def request(out: Path, *, processes: int = 1) -> conduct.Request:
    return conduct.Request(out=out, show=silent, processes=processes, device="cpu", shows_progress=False)


def train(source: Path | str, out: Path, *overrides: str, processes: int = 1) -> Run:
    """A whole run on the CPU in real processes."""
    return conduct.start(recipes.find(str(source), list(overrides)), request(out, processes=processes))


def traced(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    """From here on every worker process is tests/traced_worker.py, told what to do by TRACED_... variables."""
    monkeypatch.setattr(local, "WORKER_MODULE", "traced_worker")
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    for name, value in settings.items():
        monkeypatch.setenv(f"TRACED_{name.upper()}", value)


def weights(run: Run, epoch: int | None = None) -> dict[str, Tensor]:
    """The weights of a checkpoint; of the last one unless told otherwise."""
    name = f"epoch-{epoch:05d}" if epoch else sorted(p.name for p in run.directory.checkpoint.iterdir())[-1]
    return load_file(run.directory.checkpoint / name / "weights.safetensors")


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Over all tensors, relative to the largest value in each."""
    assert one.keys() == other.keys()
    return max(
        float((one[k].double() - other[k].double()).abs().max() / one[k].double().abs().max().clamp(min=1e-12))
        for k in one
        if one[k].numel()
    )
