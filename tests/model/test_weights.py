"""Weights from a file: every usual wrapping is understood, nothing in a file is ever run, misfits are named."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from turnaround.errors import ModelError
from turnaround.model.network import build
from turnaround.model.small import SmallNetwork
from turnaround.recipe import ModelRecipe


def trained(num_classes: int = 10) -> dict[str, Tensor]:
    """Weights that no initialisation gives."""
    torch.manual_seed(1)
    state = SmallNetwork(num_classes=num_classes).state_dict()
    return {k: v + torch.rand_like(v) if v.is_floating_point() else v + 5 for k, v in state.items()}


def loaded(path: Path, num_classes: int = 6) -> nn.Module:
    return build(ModelRecipe(weights=str(path)), num_classes=num_classes, seed=0).module


def body(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v for k, v in state.items() if not k.startswith("head.")}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as error:
        loaded(path)
    assert str(path) in str(error.value)
    return str(error.value)


WRAPPINGS = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"state_dict": state, "epoch": 3},
    "model": lambda state: {"model": state, "args": {"lr": 0.1}},
    "module.": lambda state: {"state_dict": {f"module.{k}": v for k, v in state.items()}},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_torch_file_in_any_usual_wrapping(wrapping: str, tmp_path: Path) -> None:
    torch.save(WRAPPINGS[wrapping](trained()), tmp_path / "w.pt")
    assert same(body(loaded(tmp_path / "w.pt").state_dict()), body(trained()))


def test_a_safetensors_file(tmp_path: Path) -> None:
    save_file(trained(), tmp_path / "w.safetensors")
    assert same(body(loaded(tmp_path / "w.safetensors").state_dict()), body(trained()))


def test_missing_counters_do_no_harm_but_missing_weights_do(tmp_path: Path) -> None:
    state = {k: v for k, v in trained().items() if not k.endswith("num_batches_tracked")}
    save_file(state, tmp_path / "w.safetensors")
    loaded(tmp_path / "w.safetensors")
    del state["stages.1.conv1.weight"]
    save_file(state, tmp_path / "w.safetensors")
    assert "1 missing (such as stages.1.conv1.weight)" in refusal(tmp_path / "w.safetensors")


def test_every_kind_of_misfit_is_named_at_once(tmp_path: Path) -> None:
    state = trained()
    del state["stem.weight"]
    state["norm.weight"] = torch.zeros(99)
    state["tail.weight"] = torch.zeros(1)
    save_file(state, tmp_path / "w.safetensors")
    message = refusal(tmp_path / "w.safetensors")
    assert "does not fit model.name = 'small'" in message
    assert "1 missing (such as stem.weight)" in message
    assert "1 of another shape (such as norm.weight)" in message
    assert "1 unexpected (such as tail.weight)" in message
    assert "Choose the network that the weights were made for" in message


class Malicious:
    """What a pickle can do when it is trusted."""

    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (Path.touch, (self.trap,))


@pytest.mark.parametrize("writer", ["torch", "pickle"])
@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin", "w.safetensors"])
def test_a_malicious_pickle_is_refused_and_never_run(writer: str, name: str, tmp_path: Path) -> None:
    trap, path = tmp_path / "trap", tmp_path / name
    content = {**trained(), "extra": Malicious(trap)}
    if writer == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    assert "cannot be read as weights" in refusal(path)
    assert not trap.exists()


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"\x00" * 4096, b"PK\x03\x04" + b"\xff" * 100])
def test_garbage_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    message = refusal(tmp_path / name)
    assert "cannot be read as weights" in message
    assert ".safetensors" in message


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_a_truncated_file_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    save_file(trained(), path) if name.endswith("safetensors") else torch.save(trained(), path)
    path.write_bytes(path.read_bytes()[:-1000])
    assert "cannot be read as weights" in refusal(path)


@pytest.mark.parametrize("content", [torch.zeros(3), {"epoch": 3}, [torch.zeros(2)], {}])
def test_a_torch_file_without_named_tensors_is_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")
    assert "holds no tensors by name" in refusal(tmp_path / "w.pt")


def test_numbers_for_names_are_refused(tmp_path: Path) -> None:
    torch.save({0: torch.zeros(2)}, tmp_path / "w.pt")
    refusal(tmp_path / "w.pt")


def test_no_message_recommends_to_run_what_is_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(b"not weights at all")
    assert "weights_only" not in refusal(tmp_path / "w.pt")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "There is no weights file" in refusal(tmp_path / "nowhere.safetensors")
    assert "model.weights takes a file, imagenet, or none" in refusal(tmp_path)  # a folder


def test_half_precision_weights_are_taken(tmp_path: Path) -> None:
    state = {k: v.half() if v.is_floating_point() else v for k, v in trained().items()}
    save_file(state, tmp_path / "w.safetensors")
    module = loaded(tmp_path / "w.safetensors")
    stem = module.get_parameter("stem.weight")
    assert stem.dtype == torch.float32
    assert torch.equal(stem, state["stem.weight"].float())


@pytest.mark.parametrize("num_classes", [6, 10])
def test_the_last_layer_is_new_and_starts_near_zero(num_classes: int, tmp_path: Path) -> None:
    save_file(trained(num_classes=num_classes), tmp_path / "w.safetensors")
    head = loaded(tmp_path / "w.safetensors").get_submodule("head")
    assert isinstance(head, nn.Linear)
    assert float(head.weight.detach().abs().max()) < 0.06  # six standard deviations
    assert float(head.bias.detach().abs().max()) == 0
