"""How tests run real trainings: through the same functions as the command line, with a traced worker process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from turnaround import recipes
from turnaround.launch import lifecycle, local
from turnaround.launch.contract import Launcher
from turnaround.record.reader import Run

TESTS = Path(__file__).parent
EXACT = (
    "data.size_px=16",
    "model.name=small",
    "training.optimizer=adamw",
    "workers.count=4",
    "training.batch_per_worker=8",
    "training.precision=fp64",
    "training.checkpoint_every_s=0",
)
"""A training of four workers whose weights agree to 1e-12 on any processes, with a checkpoint of every epoch."""


def silent(what: str, done: int, total: int) -> None:
    pass


def request(
    out: Path,
    *,
    processes: int | None = 1,
    device: str = "cpu",
    launcher: Launcher | None = None,
    share: str | None = None,
) -> lifecycle.Request:
    asked = lifecycle.Request(
        out=out, show=silent, processes=processes, device=device, share=share, shows_progress=False
    )
    return asked if launcher is None else replace(asked, launcher=launcher)


def train(
    source: Path | str,
    out: Path,
    *overrides: str,
    processes: int | None = 1,
    device: str = "cpu",
    launcher: Launcher | None = None,
    share: str | None = None,
) -> Run:
    """A whole run in real processes, on the CPU unless told otherwise. A network that is named sees plain images."""
    if any(override.startswith("model.name=") for override in overrides):
        overrides = ("augment.preset=none", *overrides)  # steady and cheap, unless a test says otherwise
    asked = request(out, processes=processes, device=device, launcher=launcher, share=share)
    return lifecycle.start(recipes.find(str(source), list(overrides)), asked)


def contract_told(
    folder: Path, *arguments: str, start: list[str], processes: int, python: str = sys.executable
) -> list[dict[str, Any]]:
    """What the processes of workers/conformance_worker.py say of their engine, by rank; `start` is its launcher."""
    path = [str(TESTS / "workers"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **local.loopback(), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
    command = [python, *start, "conformance_worker", "contract", str(folder), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


def traced(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    """From here on every worker process is tests/traced_worker.py, told what to do by TRACED_... variables."""
    monkeypatch.setattr(local, "WORKER_MODULE", "traced_worker")
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    for name, value in settings.items():
        monkeypatch.setenv(f"TRACED_{name.upper()}", value)


@contextmanager
def host_never_waits() -> Iterator[None]:
    """Inside it an operation that makes the host wait for the GPU raises."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype feature")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def weights(run: Run, epoch: int | None = None) -> dict[str, Tensor]:
    """The weights of a checkpoint; of the last one unless told otherwise."""
    name = f"epoch-{epoch:05d}" if epoch else sorted(p.name for p in run.directory.checkpoint.iterdir())[-1]
    return load_file(run.directory.checkpoint / name / "weights.safetensors")


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Over all tensors, relative to the largest value in each; one whose values are all tiny counts as it is."""
    assert one.keys() == other.keys()
    return max(
        float((one[k].double() - other[k].double()).abs().max() / one[k].double().abs().max().clamp(min=1e-3))
        for k in one
        if one[k].numel()
    )
