"""What all adapters share, and what torch tells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from turnaround.adapters import torch_facts
from turnaround.adapters.holding import Holder, ask, known, never_raises
from turnaround.record.reader import Run
from turnaround.recorder import RecorderWarning


def test_facts_of_the_user_go_first_and_broken_questions_say_nothing(tmp_path: Path) -> None:
    holder = Holder(tmp_path / "run", model="mine", seed=None)
    facts: dict[str, Any] = {
        "model": lambda: "theirs",
        "epochs": lambda: 3,
        "seed": lambda: 1 / 0,
        "loss": lambda: None,
    }
    rec = holder.begin(lambda: known(facts))
    rec.epoch(val_accuracy=0.5)
    rec.close()
    recipe = Run.load(tmp_path / "run").recipe
    assert (recipe["model"]["name"], recipe["training"]["epochs"], recipe["training"]["seed"]) == ("mine", 3, None)
    assert ask(lambda: 1 / 0) is None


def test_a_hook_that_breaks_ends_the_record_and_nothing_else(tmp_path: Path) -> None:
    @never_raises
    class Hooks:
        def __init__(self) -> None:
            self._holder = Holder(tmp_path / "run")
            self._holder.begin(dict)

        def on_epoch_end(self, trainer: Any) -> None:
            """As a framework calls it."""
            self._holder.recorder.epoch(val_accuracy=trainer.accuracy)

    hooks = Hooks()
    with pytest.warns(RecorderWarning, match="AttributeError: .* The training goes on without a record") as said:
        hooks.on_epoch_end(object())
    hooks.on_epoch_end(object())  # no second warning: it would be an error here
    assert len(said) == 1
    assert Hooks.on_epoch_end.__doc__ == "As a framework calls it."
    assert not hooks._holder.recorder.is_recording


def test_what_torch_tells() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    assert torch_facts.of_model(model) == {
        "model": "Sequential",
        "parameters": 23,
        "trainable_parameters": 8,
        "fine_tune": False,
        "device": "cpu",
    }
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.5)
    assert torch_facts.of_optimizer(optimizer) == {"optimizer": "sgd", "learning_rate": 0.5}
    loader = DataLoader(TensorDataset(torch.zeros(10, 4)), batch_size=4)
    assert torch_facts.of_loaders(loader, loader) == {"batch_per_worker": 4, "num_train": 10, "num_validation": 10}
    for ask_about in (torch_facts.of_model, torch_facts.of_optimizer, torch_facts.of_loaders):
        assert ask_about(None) == {}


def test_a_wrapped_network_goes_by_its_own_name() -> None:
    assert torch_facts.name_of(torch.nn.DataParallel(torch.nn.Linear(2, 2))) == "Linear"
