"""The trial of an estimate: what it does where a step does not fit into this machine's memory, or fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnaround import recipes
from turnaround.errors import InputError, ProcessFailedError
from turnaround.forecast.estimate import TrialFacts
from turnaround.launch.lifecycle import Request
from turnaround.recipe import Recipe
from turnaround.record.gpus import UNKNOWN_GPU
from turnaround.study import trial
from turnaround.study.trial import try_here

RATE = {"images_per_s": 50.0, "low": 40.0, "high": 60.0}
FACTS: dict[str, Any] = {
    "rates": {"training": RATE},
    "footprint": {
        "activation_bytes_per_image": 1e6,
        "largest_activation_bytes": 1e5,
        "kept_tensors": 20,
        "weight_bytes": 1e6,
        "trained_bytes": 1e6,
    },
    "cost": {"forward_flops_per_image": 1e8, "gradient_bytes": 1e6},
    "choices": {"precision": {"value": "fp32"}},
    "device": "cpu",
    "decode": {"images_per_s": 500.0},
    "start_up_s": 3.0,
    "training_watts": None,
}
Measured = Callable[..., dict[str, Any]]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which trials make theirs."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(trial, "image_facts", lambda prepared: {"num_train": 6000, "num_validation": 600})
    return tmp_path


def tried(
    monkeypatch: pytest.MonkeyPatch,
    measured: Measured,
    batch: int = 64,
    workers: tuple[int, ...] = (1,),
    device: str = "cpu",
) -> TrialFacts:
    monkeypatch.setattr(trial, "measure", measured)
    recipe = recipes.find("fruitbowl", [f"training.batch_per_worker={batch}", "workers.count=1"])
    return try_here(recipe, workers=workers, device=device, trial_s=0.1, show=lambda what, done, total: None)


def machine_with_room_for(most: int, words: str, asked: list[int]) -> Measured:
    """A machine whose processes fail with more images a step than it has room for."""

    def measure(recipe: Recipe, request: Request, *, part_s: float, fits_batch: bool) -> dict[str, Any]:
        assert fits_batch
        request.out.mkdir()
        asked.append(recipe.batch_per_worker)
        request.announce(recipe, SimpleNamespace(), 1)  # type: ignore[arg-type]
        if recipe.batch_per_worker > most:
            raise ProcessFailedError(f"Process 0 failed: {words}. Details are in {request.out}/logs/processes.log.")
        return FACTS | {"batch_per_worker": recipe.batch_per_worker}

    return measure


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: not enough memory",
        "died without a word (signal 9): killed from outside, out of memory, or ended early",
    ],
)
def test_a_batch_that_does_not_fit_is_halved_until_it_does(
    words: str, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    facts = tried(monkeypatch, machine_with_room_for(20, words, asked))
    assert asked == [64, 32, 16]
    assert (facts.batch, facts.trial_batch, facts.is_smaller) == (64, 16, True)
    assert list(folders.iterdir()) == []


def test_a_batch_that_fits_is_tried_as_it_is(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = tried(monkeypatch, machine_with_room_for(64, "", asked := []))
    assert (asked, facts.batch, facts.trial_batch, facts.is_smaller) == ([64], 64, 64, False)
    assert list(folders.iterdir()) == []


def test_not_even_one_image_is_the_error_of_the_machine(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProcessFailedError, match="bad_alloc"):
        tried(monkeypatch, machine_with_room_for(0, "bad_alloc", asked := []), batch=2)
    assert asked == [2, 1]


def test_another_failure_leaves_the_log_that_it_names(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProcessFailedError, match="no such operator") as failed:
        tried(monkeypatch, machine_with_room_for(0, "RuntimeError: no such operator", asked := []))
    assert asked == [64]
    (kept,) = folders.iterdir()
    assert str(kept) in str(failed.value)


def test_too_few_images_are_refused_before_the_trial(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(recipe: Recipe, request: Request, **asked: object) -> dict[str, Any]:
        request.announce(recipe, SimpleNamespace(), 1)  # type: ignore[arg-type]
        raise AssertionError("nothing is measured for it")

    with pytest.raises(InputError, match="100 workers of 64 images a step are more than the 6,000 training images"):
        tried(monkeypatch, measure, workers=(100, 200))
    assert list(folders.iterdir()) == []


def test_bad_input_leaves_nothing(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*about: object, **asked: object) -> dict[str, Any]:
        raise InputError("no images")

    with pytest.raises(InputError, match="no images"):
        tried(monkeypatch, refused)
    assert list(folders.iterdir()) == []


def test_a_gpu_without_a_data_sheet_is_named_before_it_is_measured(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "checked_device", lambda device: device)
    monkeypatch.setattr(trial, "describe_gpus", lambda: [{"name": "NVIDIA Rivals 9000"}, {"name": "Tesla T4"}])
    with pytest.raises(InputError, match=r"No data sheet for the GPU .*To add yours, write into"):
        tried(monkeypatch, machine_with_room_for(64, "", asked := []), device="auto")
    assert asked == []
    for name in ("Tesla T4", UNKNOWN_GPU):
        monkeypatch.setattr(trial, "describe_gpus", lambda name=name: [{"name": name}])
        assert tried(monkeypatch, machine_with_room_for(64, "", []), device="auto").batch == 64
