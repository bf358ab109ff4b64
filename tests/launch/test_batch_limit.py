"""How large a batch pays: by the noise scale of an earlier run, or by the number of updates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forking import ForkingLauncher
from running import request, train, weights
from turnaround import fruitbowl, recipes
from turnaround.errors import RecipeError
from turnaround.launch import lifecycle
from turnaround.launch.automatic import decide
from turnaround.launch.batch_limit import MAX_UNKNOWN, known_noise_scale, paying_batch
from turnaround.recipe import Recipe
from turnaround.record.layout import RunDirectory
from turnaround.record.recipe_changes import BATCH_TO_FIT
from turnaround.record.schema import EpochRecord, Status, to_json
from turnaround.record.writer import write_json


def recipe(*overrides: str) -> Recipe:
    return recipes.find("fruitbowl", list(overrides)).resolved()


def recorded(path: Path, made: Recipe, *noise_scales: float | None) -> Path:
    directory = RunDirectory.create(path)
    write_json(directory.recipe, made.to_dict())
    write_json(directory.status, to_json(Status(state="finished", epochs_done=len(noise_scales))))
    lines = (
        EpochRecord(
            epoch=epoch,
            noise_scale=scale,
            **dict.fromkeys(("train_loss", "train_accuracy", "val_loss", "val_accuracy"), 0.5),
            **dict.fromkeys(("epoch_time_s", "images_per_s", "learning_rate"), 1.0),
        )
        for epoch, scale in enumerate(noise_scales, start=1)
    )
    directory.epochs.write_text("".join(json.dumps(to_json(line)) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("num_train", "epochs", "workers", "batch"),
    [
        (768, 10, 1, 16),  # 7,680 images in 400 updates are 19.2 each
        (50_000, 10, 1, MAX_UNKNOWN),
        (50_000, 30, 64, 32),  # 3,750 a step, 58 of each worker
        (100, 1, 1, 8),  # fewer are left to nobody's batch norm
        (20, 100, 4, 4),  # but a worker has only five images
    ],
)
def test_without_a_noise_scale_the_updates_decide(num_train: int, epochs: int, workers: int, batch: int) -> None:
    made = recipe(f"training.epochs={epochs}", f"workers.count={workers}", "training.warmup_epochs=0")
    assert paying_batch(made, num_train=num_train, runs=None).value == batch


def test_images_that_are_not_here_yet_get_the_usual_batch() -> None:
    assert paying_batch(recipe(), num_train=None, runs=None).value == 32


def test_a_noise_scale_of_the_same_training_decides(tmp_path: Path) -> None:
    recorded(tmp_path / "earlier", recipe(), 100.0, 700.0, None)
    recorded(tmp_path / "another", recipe("model.name=resnet11"), 9_000.0)
    (tmp_path / "empty").mkdir()
    one = paying_batch(recipe(), num_train=50_000, runs=tmp_path)
    assert one.value == 512  # the largest power of two up to 700
    assert "earlier has a gradient noise scale of about 700 images" in one.reason
    assert paying_batch(recipe("workers.count=4"), num_train=50_000, runs=tmp_path).value == 128
    assert known_noise_scale(recipe("data.size_px=96"), tmp_path) is None
    assert known_noise_scale(recipe(), tmp_path / "nowhere") is None


def test_auto_is_a_number_for_the_processes_to_try() -> None:
    asked = recipes.find("fruitbowl", ["training.batch_per_worker=auto"])
    assert asked.training.batch_per_worker == "auto"
    decision = decide(asked, cache=Path("nowhere"), device="cpu")
    assert decision.tries_memory
    assert decision.recipe.training.batch_per_worker == 32
    assert "training.batch_per_worker = 32 was chosen" in " ".join(decision.notes())
    given = decide(recipes.find("fruitbowl", ["training.batch_per_worker=24"]), cache=Path("nowhere"), device="cpu")
    assert (given.recipe.training.batch_per_worker, given.tries_memory) == (24, False)


def test_none_is_what_it_was() -> None:
    plain = recipes.find("fruitbowl", ["training.batch_per_worker=none"])
    assert plain.training.batch_per_worker is None
    assert not decide(plain, cache=Path("nowhere"), device="cpu").tries_memory


def test_other_words_and_two_answers_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"training.batch_per_worker .many.*Valid: auto, a number"):
        recipe("training.batch_per_worker=many")
    with pytest.raises(RecipeError, match=r"batch_total = 64 fixes it\. Leave one of them out"):
        recipe("training.batch_per_worker=auto", "training.batch_total=64")


def test_two_processes_try_the_memory_and_train_as_if_the_batch_had_been_given(
    tmp_path: Path, forking: ForkingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # sums by several threads round otherwise
    # 40 images to train on are two updates: a core takes 0.4 s for the bf16 products of one.
    folder = fruitbowl.generate(tmp_path / "images", images=48, size_px=32, seed=3)
    settings = ("data.size_px=32", "workers.count=2", "training.epochs=1", "training.optimizer=muon")
    asked = (*settings, "training.batch_per_worker=auto")
    run = train(folder, tmp_path / "auto", *asked, processes=2, launcher=forking)
    assert run.recipe["training"]["batch_per_worker"] == 8
    reason = run.recipe["automatic"]["training.batch_per_worker"]
    assert "2 updates in all" in reason  # why not more
    assert "a step of it needs about" in reason  # what was tried
    assert BATCH_TO_FIT not in run.recipe
    told = (*settings, "training.batch_per_worker=8")
    given = train(folder, tmp_path / "given", *told, processes=2, launcher=forking)
    assert run.recipe["training"] == given.recipe["training"]  # the learning rate follows the batch
    ours, theirs = weights(run), weights(given)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    on = lifecycle.resume(replace(request(run.path, processes=2, launcher=forking), epochs=2))
    assert on.recipe["training"]["batch_per_worker"] == 8
    assert on.status.epochs_done == 2
