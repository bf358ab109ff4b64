"""The comparison of depthwise kernels: its parts on any device, and what it says where it cannot run."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "bench" / "depthwise.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: it would run")
def test_without_a_gpu_it_says_what_is_missing() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "bench/depthwise.py needs a GPU on which our kernels run: there is no CUDA device.\n"


def test_its_parts_take_turns_and_are_compared() -> None:
    """On the CPU both are torch's own."""
    parts = runpy.run_path(str(SCRIPT))
    contenders = [parts["Contender"](4, 6, 2, is_ours=ours, device=torch.device("cpu")) for ours in (False, True)]
    assert type(contenders[1].layer).__name__ == "DepthwiseConv2d"
    cudnn, ours = parts["measured"](contenders, images=3, new_images=2, rounds=2)
    assert min(*cudnn, *ours) > 0
    line = parts["told"]("a layer", parts["Times"](4.0, 2.0, 900.0), parts["Times"](2.0, 4.0, 3.0))
    assert line.split() == ["a", "layer", "4.00", "2.00", "2.00", "2.00", "4.00", "0.50", "900.00", "3.00", "300.00"]
    assert sum(parts["LAYERS"].values()) == 17


@pytest.mark.gpu
def test_on_a_gpu_it_prints_every_layer() -> None:
    command = [sys.executable, str(SCRIPT), "--images", "4", "--new-images", "2", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 13
    assert done.stdout.splitlines()[-1].startswith("all 17")
