"""Processes through torch.distributed, beyond what test_conformance.py asks of every engine.

This file is also the program that the processes run: ... -m turnaround.workers.torch_agent ... test_torch_ddp.py FOLDER
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forking import ForkingParent
from turnaround.launch.local import loopback
from turnaround.workers.engines import TORCH_AGENT
from turnaround.workers.environment import place
from turnaround.workers.torch_ddp import TorchDDP

TEXTS = ("", "grüße 🍎\n", "x" * 1000)
SIZES = (3, 5)
"""Images of the two processes: unequal, so that a mean of means would be wrong."""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 3)).double()


def images() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 6, generator=generator, dtype=torch.float64), torch.arange(8) % 3


def loss_sum(module: nn.Module, part: slice) -> torch.Tensor:
    pixels, labels = (t[part] for t in images())
    return nn.functional.cross_entropy(module(pixels), labels, reduction="sum")


def speak(folder: Path) -> None:
    """What one of two processes does."""
    workers = TorchDDP(place=place(), count=3, device=torch.device("cpu"), shares_device=True)
    module, calls = network().eval(), []  # eval: nothing couples the images, so a plain pass is the reference
    wrapped = workers.wrap(module, on_last_gradient=lambda: calls.append(1))
    part = slice(0, SIZES[0]) if workers.rank == 0 else slice(SIZES[0], None)
    (loss_sum(wrapped, part) * workers.size / sum(SIZES)).backward()
    gradients = [p.grad.flatten().tolist() for p in module.parameters() if p.grad is not None]
    module.train()
    wrapped(torch.randn(4, 6, dtype=torch.float64) + 10 * workers.rank)
    wrapped(torch.randn(4, 6, dtype=torch.float64))  # a forward pass is where DDP would send its buffers
    told = {
        "backend": workers.backend,
        "hosted": list(workers.hosted),
        "gradients": gradients,
        "calls": len(calls),
        "running_mean": float(module[1].running_mean.mean()),
        "gathered": [workers.gather(text if workers.rank else "") for text in TEXTS],
    }
    workers.barrier()
    (folder / f"{workers.rank}.json").write_text(json.dumps(told))
    workers.close()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, forking_parent: ForkingParent) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ddp")
    start = ["-m", TORCH_AGENT, "--nproc-per-node", "2", __file__, str(folder)]
    environment = {**os.environ, **loopback(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [forking_parent.python, *start], env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_cpus_speak_over_gloo_and_share_three_workers(told: list[dict[str, Any]]) -> None:
    assert [t["backend"] for t in told] == ["gloo", "gloo"]
    assert [t["hosted"] for t in told] == [[0], [1, 2]]


def test_unequal_shares_average_to_the_gradient_of_the_full_batch(told: list[dict[str, Any]]) -> None:
    module = network().eval()
    (loss_sum(module, slice(None)) / sum(SIZES)).backward()
    for t in told:
        for found, parameter in zip(t["gradients"], module.parameters(), strict=True):
            assert parameter.grad is not None
            assert found == pytest.approx(parameter.grad.flatten().tolist(), rel=1e-12, abs=1e-15)
        assert t["calls"] == 1


def test_running_statistics_are_left_to_us(told: list[dict[str, Any]]) -> None:
    """DDP itself would overwrite those of process 1 with those of process 0."""
    assert told[0]["running_mean"] != told[1]["running_mean"]


def test_any_text_is_gathered(told: list[dict[str, Any]]) -> None:
    assert [t["gathered"] for t in told] == [[["", text] for text in TEXTS]] * 2


if __name__ == "__main__":
    speak(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # as our worker does: Gloo's threads sometimes abort at the end of an interpreter
