"""The names of many frameworks, and numbers of many kinds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from turnaround.recorder.measures import Reader, in_our_names, our_name, record_of


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("val_accuracy", "val_accuracy"),
        ("val_acc", "val_accuracy"),
        ("val/acc", "val_accuracy"),
        ("valid_loss", "val_loss"),
        ("validation_loss", "val_loss"),
        ("eval_accuracy", "val_accuracy"),
        ("test-acc", "val_accuracy"),
        ("sparse_categorical_accuracy", "train_accuracy"),
        ("val_sparse_categorical_accuracy", "val_accuracy"),
        ("accuracy_1", "train_accuracy"),
        ("loss", "train_loss"),
        ("train_loss_epoch", "train_loss"),
        ("train_loss_step", None),
        ("training_loss", "train_loss"),
        ("lr", "learning_rate"),
        ("val_top_k_categorical_accuracy", "val_top5_accuracy"),
        ("val_top5", "val_top5_accuracy"),
        ("top5", None),
        ("val_auc", None),
        ("value", None),
        ("val", None),
        ("", None),
    ],
)
def test_names(name: str, ours: str | None) -> None:
    assert our_name(name) == ours


def test_of_two_with_one_name_the_first_counts() -> None:
    assert in_our_names({"val_acc": 0.5, "val_accuracy": 0.6}) == {"val_accuracy": 0.5}
    assert in_our_names({"val_acc": 0.5, "val_top1": 0.6}) == {"val_accuracy": 0.5, "val_top1": 0.6}


def test_numbers_of_every_kind() -> None:
    reader = Reader()
    numbers, extra = reader.read(
        {"epoch": np.int64(3), "loss": np.float32(0.5), "val_loss": np.array(2.0), "val_accuracy": None, "note": object}
    )
    assert numbers == {"epoch": 3, "train_loss": 0.5, "val_loss": 2.0}
    assert list(extra) == ["note"]
    assert reader.remarks == []


@pytest.mark.parametrize("value", [np.zeros(3), "much", [1.0]])
def test_what_is_no_number(value: object) -> None:
    reader = Reader()
    assert reader.read({"val_loss": value})[0] == {}
    assert "is no number and is left out" in reader.remarks[0]


@pytest.mark.parametrize("name", ["epoch_time_s", "evaluation_time_s", "epoch", "images"])
def test_what_cannot_be(name: str) -> None:
    reader = Reader()
    assert reader.read({name: -1.0})[0] == {}
    assert "cannot be and is left out" in reader.remarks[0]


@pytest.mark.parametrize(
    ("steps", "batch", "num_train", "images"),
    [
        (10, 32, 320, 320),
        (10, 32, 300, 300),  # the last batch was smaller
        (9, 32, 300, 288),  # it was left out
        (20, 32, 300, 640),  # another kind of epoch: what was seen
        (0, 32, 300, 300),
        (10, None, 300, 300),
        (10, 32, None, 320),
        (0, None, None, None),
    ],
)
def test_images_of_an_epoch(steps: int, batch: int | None, num_train: int | None, images: int | None) -> None:
    assert Reader(global_batch=batch, num_train=num_train).images(steps) == images


def test_what_nobody_said_is_no_number() -> None:
    record = record_of({}, epoch=1, steps=0, images=None, epoch_time_s=0.0, evaluation_time_s=None)
    assert math.isnan(record.val_accuracy)
    assert math.isnan(record.images_per_s)
    assert (record.steps, record.val_top5_accuracy) == (None, None)
