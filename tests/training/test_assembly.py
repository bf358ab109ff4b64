"""The parts of a training as they fit together: who computes depthwise convolutions, how far a rule was tested, what
classes weigh.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from turnaround import recipes
from turnaround.choice import recorded
from turnaround.data.batches import StepBatch
from turnaround.data.pixels import Pixels
from turnaround.model import convolutions
from turnaround.recipe import TrainingRecipe
from turnaround.training import assembly
from turnaround.training.assembly import Assembly, build_core, choose_depthwise_kernels, warm_up
from turnaround.training.choices import choose_device, choose_precision
from turnaround.training.step import class_weights
from turnaround.workers.environment import RankInfo
from turnaround.workers.single import Single

NUM_TRAIN, NUM_VALIDATION, SIDE_PX = 40, 8, 32


def black(folder: Path, *, num_train: int, num_validation: int, side_px: int) -> Pixels:
    """Black images of two classes, by turns."""
    count = num_train + num_validation
    np.save(folder / "images.npy", np.zeros((count, side_px, side_px, 3), np.uint8))
    return Pixels(
        images=np.load(folder / "images.npy", mmap_mode="r"),
        labels=np.arange(count, dtype=np.int64) % 2,
        num_train=num_train,
        classes=("a", "b"),
        files=tuple(map(str, range(count))),
        fingerprint="0",
        skipped=(),
        cache_dir=folder,
        from_cache=True,
        decode_time_s=0.0,
    )


@pytest.fixture
def pixels(tmp_path: Path) -> Pixels:
    return black(tmp_path, num_train=NUM_TRAIN, num_validation=NUM_VALIDATION, side_px=SIDE_PX)


def assembled(pixels: Pixels, *settings: str) -> tuple[Assembly, StepBatch]:
    """On the CPU, after its warm-up; and its first step."""
    pytest.importorskip("timm")
    defaults = ("model.name=mobilenetv2_100", f"data.size_px={SIDE_PX}", "training.batch_per_worker=8", *settings)
    recipe = recipes.find("fruitbowl", list(defaults)).resolved()
    device = torch.device("cpu")
    core = build_core(
        recipe,
        Single(count=recipe.workers.count, device=device),
        pixels,
        rank_info=RankInfo(),
        device=choose_device("cpu", RankInfo()),
    )
    made = warm_up(core)
    return made, next(made.batches.steps(made.slicing, epoch=1))


def planned(module: nn.Module) -> set[frozenset[int]]:
    return {layer.planned for layer in module.modules() if isinstance(layer, convolutions._Depthwise)}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("training.epochs=399",), frozenset()),  # 1,995 steps
        (("training.epochs=400",), {8}),
        (("training.epochs=400", "workers.count=2"), frozenset()),  # 3 steps an epoch
        (("training.epochs=800", "workers.count=2"), {16}),
    ],
)
def test_full_passes_are_left_to_cudnn_where_a_plan_pays(
    settings: tuple[str, ...], expected: set[int], pixels: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, batch = assembled(pixels, *settings)
    monkeypatch.setattr(assembly, "has_depthwise", lambda module: True)  # as on a GPU
    choice = choose_depthwise_kernels(made.core, batch)
    assert planned(made.core.network.module) == {frozenset(expected)}
    made = dataclasses.replace(made, depthwise=choice)
    assert recorded(made.choices())["depthwise"]["value"] == ("cuDNN for full passes" if expected else "our kernels")


def test_on_a_cpu_nothing_is_said_about_it(pixels: Pixels) -> None:
    made, _ = assembled(pixels)
    assert "depthwise" not in made.choices()


def test_workers_that_a_rule_is_known_for_are_counted_by_their_images() -> None:
    def tested(*settings: str) -> int:
        return assembly._workers_tested(recipes.find("fruitbowl", list(settings)).resolved()).value

    muon = ("workers.count=4", "training.batch_per_worker=128", "training.optimizer=muon")
    assert (tested(*muon), tested(*muon, "augment.cutmix=1")) == (64, 16)
    assert tested("training.optimizer=adamw", "training.batch_per_worker=32") == 16
    assert tested("training.optimizer=sgd", "training.batch_per_worker=2048") == 1
    assert tested("training.optimizer=sgd", "training.batch_total=64", "workers.count=4") == 8


def test_balanced_classes_weigh_one_on_average(pixels: Pixels) -> None:
    labels = np.array([0] * 30 + [1] * 10 + [2] * 8, dtype=np.int64)  # the third has validation images only
    uneven = dataclasses.replace(pixels, labels=labels, classes=("a", "b", "c"))
    cpu, precision = torch.device("cpu"), choose_precision("fp64", torch.device("cpu")).value
    found = class_weights(TrainingRecipe(class_weights="balanced"), uneven, cpu, precision)
    assert found is not None
    assert found.tolist() == pytest.approx([40 / (2 * 30), 40 / (2 * 10), 0.0])
    assert float(found[labels[:NUM_TRAIN]].mean()) == pytest.approx(1.0)
    assert class_weights(TrainingRecipe(), uneven, cpu, precision) is None
