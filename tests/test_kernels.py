"""Kernels of our own: used where a small one runs, left out with a reason where it does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from forking import ForkingParent
from interpreting import interpreted
from turnaround import kernels
from turnaround.choice import Choice
from turnaround.cli.doctor import _kernels as said_by_doctor
from turnaround.data.augment import Augmentation
from turnaround.data.inputs import Inputs
from turnaround.errors import MissingPartError
from turnaround.recipe import AugmentRecipe
from turnaround.training.choices import choose_compile

GPU = torch.device("cuda")
MUCH = {"flops": 1e20, "learns_all": True, "fuses_norms": False}
NO_COMPILER = RuntimeError("Failed to find C compiler. Please specify via CC.\nand more")
REASON = "RuntimeError: Failed to find C compiler. Please specify via CC."


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """What this machine has said is forgotten, and what it says here too."""
    for function in (kernels.unavailable_reason, kernels.load):
        function.cache_clear()
    yield
    for function in (kernels.unavailable_reason, kernels.load):
        function.cache_clear()


def as_if(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """As if there was a GPU, on which the small kernel runs or fails."""

    def run() -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernels, "run_smallest_kernel", run)


def inputs() -> Inputs:
    made = Augmentation(AugmentRecipe(), seed=0)
    three = (0.5, 0.5, 0.5)
    return Inputs(made, mean=three, std=three, num_train=1, device=GPU, dtype=torch.float32, autocast=torch.bfloat16)


def test_without_a_gpu_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert kernels.unavailable_reason() == "there is no CUDA device"
    assert kernels.load("turnaround.errors") is None


def test_with_a_gpu_they_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    as_if(monkeypatch, None)
    assert kernels.unavailable_reason() is None
    loaded = kernels.load("turnaround.errors")
    assert loaded is not None
    assert loaded.__name__ == "turnaround.errors"
    assert choose_compile("auto", device=GPU, **MUCH).value
    assert choose_compile("auto", device=GPU, **MUCH, time_limit_s=600.0).value
    short = choose_compile("auto", device=GPU, **MUCH, time_limit_s=60.0)
    assert (short.value, "too much of a time limit of 60 s" in short.reason) == (False, True)
    assert said_by_doctor(None) == "Triton compiles and runs them"


@pytest.mark.parametrize("error", [NO_COMPILER, ImportError("No module named triton"), OSError()])
def test_where_they_do_not_run_torch_does_everything_and_the_record_says_why(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_if(monkeypatch, error)
    reason = kernels.unavailable_reason()
    assert reason is not None
    assert reason.startswith(type(error).__name__)
    assert "\n" not in reason
    assert kernels.load("turnaround.errors") is None
    made = inputs()
    assert made.kernel is None
    assert made.choice == Choice("plain torch", f"no Triton kernel: {reason}")
    assert made.dtype_of_images == torch.float32
    compiled = choose_compile("auto", device=GPU, **MUCH)
    assert (compiled.value, compiled.reason) == (False, f"Triton does not work here ({reason})")
    assert f"none ({reason}): training works, but slower" in said_by_doctor(reason)


def test_compiling_that_was_asked_for_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    as_if(monkeypatch, NO_COMPILER)
    with pytest.raises(MissingPartError, match=r"training\.compile=on needs Triton") as caught:
        choose_compile("on", device=GPU, **MUCH)
    assert REASON in str(caught.value)
    assert "install both, or leave training.compile at auto" in str(caught.value)
    assert choose_compile("on", device=torch.device("cpu"), **MUCH).value
    assert not choose_compile("off", device=GPU, **MUCH).value


def test_the_small_kernel_writes(forking_parent: ForkingParent) -> None:
    pytest.importorskip("triton")
    code = "from turnaround.kernels import run_smallest_kernel; run_smallest_kernel('cpu')"
    interpreted(forking_parent.python, code)


@pytest.mark.gpu
def test_the_small_kernel_runs_on_this_gpu() -> None:
    assert kernels.unavailable_reason() is None
