"""What is refused before anything is decoded, and what is left to training."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from turnaround.errors import InputError, ModelError
from turnaround.launch import checks
from turnaround.launch.checks import may_have_cuda, refuse_early, timm_names
from turnaround.recipe import ModelRecipe, Recipe


def refuse(**model: str) -> None:
    refuse_early(Recipe(model=ModelRecipe(**model)), device="cpu")  # type: ignore[arg-type]


def test_the_names_are_those_that_timm_registers() -> None:
    timm = pytest.importorskip("timm")
    assert set(timm.list_models()) <= set(timm_names())


@pytest.mark.parametrize(
    "name", ["small", "resnet11", "auto", "resnet50", "resnet50.a1_in1k", "tv_resnet50", "efficientnet_b0"]
)
def test_names_that_training_takes(name: str) -> None:
    refuse(name=name)  # tv_resnet50 is an old name, which timm still knows


def test_old_names_are_those_of_timm() -> None:
    registry = pytest.importorskip("timm.models._registry")
    for name in registry._deprecated_models:
        refuse(name=name)


@pytest.mark.parametrize(("name", "near"), [("resnet5O", "resnet50"), ("resnet", "resnet")])
def test_an_unknown_name_has_neighbours(name: str, near: str) -> None:
    """A family of networks is no network, although timm's files are full of its name."""
    pytest.importorskip("timm")
    with pytest.raises(ModelError, match=rf"Unknown model.name '{name}'. Did you mean .*{near}"):
        refuse(name=name)


def test_weights_whose_name_is_no_network(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    file = tmp_path / "mine.safetensors"
    save_file({"a": np.zeros(3, np.float32)}, file)
    with pytest.raises(ModelError, match=r"does not say by its name of which network .* Add --model NAME"):
        refuse(name="mine", weights=str(file))


def test_without_timm_training_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "timm_names", lambda: ())
    refuse(name="resnet5O")


def test_weights_by_their_first_bytes(tmp_path: Path) -> None:
    tensors, state = tmp_path / "w.safetensors", tmp_path / "w.pth"
    save_file({"a": np.zeros(3, np.float32)}, tensors)
    torch.save({"a": torch.zeros(3)}, state)
    old = tmp_path / "old.pt"
    torch.save({"a": torch.zeros(3)}, old, _use_new_zipfile_serialization=False)
    for fine in (tensors, state, old):
        refuse(weights=str(fine))
    renamed = tmp_path / "w.bin"
    renamed.write_bytes(tensors.read_bytes())
    with pytest.raises(ModelError, match=r"It is a safetensors file: let its name end in .safetensors"):
        refuse(weights=str(renamed))
    for content in (b"", b"root:x:0:0:root:/root:/bin/bash", b"<!DOCTYPE html>"):
        renamed.write_bytes(content)
        with pytest.raises(ModelError, match="does not begin as such a file does"):
            refuse(weights=str(renamed))
    with pytest.raises(ModelError, match="There is no weights file"):
        refuse(weights=str(tmp_path))


def test_devices_of_several_kinds_are_for_the_engine_torch() -> None:
    refuse_early(Recipe(model=ModelRecipe(name="small")), device="cpu,cpu")
    horovod = Recipe(model=ModelRecipe(name="small")).replace("workers", engine="horovod")
    with pytest.raises(InputError, match=r"--device cpu,cpu: the engine horovod needs the same kind .* Leave --engine"):
        refuse_early(horovod, device="cpu,cpu")


def test_a_batch_that_is_to_be_tried_needs_devices_of_one_kind() -> None:
    refuse_early(Recipe(model=ModelRecipe(name="small")), device="cpu", tries_memory=True)
    with pytest.raises(InputError, match=r"--device cpu,cpu: which batch fits is tried .* --batch 32"):
        refuse_early(Recipe(model=ModelRecipe(name="small")), device="cpu,cpu", tries_memory=True)


@pytest.mark.skipif(sys.platform != "linux", reason="device files are those of Linux")
def test_a_gpu_that_may_be_there_is_left_to_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "describe_gpus", list)
    monkeypatch.setattr(checks, "GPU_FILES", (str(tmp_path / "nvidiactl"),))
    assert not may_have_cuda({})
    (tmp_path / "nvidiactl").touch()
    assert may_have_cuda({})
    assert may_have_cuda({"CUDA_VISIBLE_DEVICES": "1"})
    assert not may_have_cuda({"CUDA_VISIBLE_DEVICES": ""})
    assert not may_have_cuda({"CUDA_VISIBLE_DEVICES": "-1"})
