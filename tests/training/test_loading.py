"""What a process loads before it has images, and what it never loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forking import WITHOUT_TIMM, ForkingParent
from turnaround.optimizers import OPTIMIZERS
from turnaround.training.loading import get_ready
from turnaround.workers.environment import RankInfo


def said(code: str, *arguments: str) -> list[str]:
    """Run code in a process of its own, which has nothing loaded, and return the words that it prints."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_getting_ready_loads_the_code_of_the_network_alone(forking_parent: ForkingParent) -> None:
    pytest.importorskip("timm")
    code = WITHOUT_TIMM + (
        "from turnaround.training.loading import get_ready\n"
        "from turnaround.workers.environment import RankInfo\n"
        "for network in (None, 'small', 'resnet18'):\n"
        "    get_ready('cpu', RankInfo(), network=network)\n"
        "    print(*(name in sys.modules for name in ('timm', 'timm.models.resnet', 'timm.models.vgg')))"
    )
    done = subprocess.run([forking_parent.python, "-c", code], capture_output=True, text=True, check=True)
    nothing, one_family = "False False False", "False True False"
    assert done.stdout.splitlines() == [nothing, nothing, one_family]


def test_what_goes_wrong_while_getting_ready_is_said_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    get_ready("no such device", RankInfo(), network="resnet18")


# One process for all of it, since each imports torch: the order is that of a training which compiles late.
LOADED = """
import sys
import torch
from turnaround.model.network import build, cost
from turnaround.optimizers import OPTIMIZERS, make_optimizer
from turnaround.recipe import ModelRecipe, TrainingRecipe
from turnaround.training import loading

def is_loaded():
    return "torch._dynamo.eval_frame" in sys.modules

loading.load_late_code("small")
network = build(ModelRecipe(name="small"), num_classes=3, seed=0)
cost(network.module, size_px=32)
for name in OPTIMIZERS:
    optimizer = make_optimizer(network.module, TrainingRecipe(optimizer=name, learning_rate=0.1))
    network.module(torch.zeros(2, 3, 32, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    assert optimizer.state_dict()["param_groups"]
print(is_loaded(), "torch.distributed.tensor" in sys.modules, "sympy" in sys.modules)

compiled = torch.compile(torch.nn.Linear(2, 2), backend="eager", fullgraph=True)
assert compiled(torch.ones(1, 2)).shape == (1, 2)
print(is_loaded(), type(sys.modules["torch._dynamo"]).__name__, torch._dynamo is sys.modules["torch._dynamo"])
loading.postpone_dynamo()
print(type(sys.modules["torch._dynamo"]).__name__)
"""


def test_dynamo_is_loaded_when_something_is_compiled_and_not_before() -> None:
    """Neither counting FLOPs nor any optimizer loads it; torch.compile finds the real one."""
    assert len(OPTIMIZERS) > 5
    assert said(LOADED) == ["False", "False", "False", "True", "module", "True", "module"]


SEVERAL = """
import sys
from turnaround.training import loading

loading.load_late_code(None)
print("torch._dynamo.eval_frame" in sys.modules)
loading.load_late_code(None, is_alone=False)
print("torch._dynamo.eval_frame" in sys.modules)
"""


def test_several_processes_load_dynamo_before_they_meet(tmp_path: Path) -> None:
    """DistributedDataParallel asks it for its settings, and a fork server loads it once for all of them."""
    assert said(SEVERAL) == ["False", "True"]
