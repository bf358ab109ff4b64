"""What the data of a fit tells about itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turnaround.adapters import keras_data
from turnaround.adapters.keras_data import arguments_of_fit, batch_of, classes_of, num_images, size_of, whole_set

ARRAY = np.zeros((50, 8, 8, 3))
GENERATOR = SimpleNamespace(batch_size=32, samples=640, class_indices={"fresh": 0, "rotten": 1})
BATCHED = SimpleNamespace(element_spec=(SimpleNamespace(shape=(16, 8, 8, 3)), SimpleNamespace(shape=(16,))))
RAGGED = SimpleNamespace(element_spec={"image": SimpleNamespace(shape=(None, 8, 8, 3))})
LOADER = SimpleNamespace(batch_size=10, dataset=[0] * 70)


@pytest.mark.parametrize(
    ("data", "given", "batch", "images"),
    [
        (ARRAY, None, 32, 50),
        (ARRAY, 10, 10, 50),
        ([ARRAY, ARRAY], None, 32, 50),
        ({"x": ARRAY}, None, 32, 50),
        ((ARRAY, np.zeros(50)), None, 32, 50),
        (GENERATOR, None, 32, 640),
        (BATCHED, None, 16, None),
        (RAGGED, None, None, None),
        (LOADER, None, 10, 70),
        (iter([]), None, None, None),
        (None, None, None, None),
    ],
)
def test_batches_and_images(data: Any, given: int | None, batch: int | None, images: int | None) -> None:
    assert (batch_of(data, given), num_images(data)) == (batch, images)


@pytest.mark.parametrize(
    ("steps", "images"),
    [
        (10, 640),  # each of two processes has all 640 images and sees its half of every global batch of 64
        (20, 1280),  # each has a share of its own
        (15, None),  # neither: what was seen is counted instead
        (None, 640),
    ],
)
def test_all_images_or_a_share(steps: int | None, images: int | None) -> None:
    assert whole_set(640, steps=steps, batch=32, size=2) == images


def test_one_process_has_them_all() -> None:
    assert whole_set(640, steps=3, batch=32, size=1) == 640


def test_classes_and_sizes() -> None:
    model = SimpleNamespace(output_shape=(None, 6), input_shape=(None, 96, 96, 3))
    assert classes_of(GENERATOR, model) == ["fresh", "rotten"]
    assert classes_of(ARRAY, model) == 6
    assert classes_of(ARRAY, SimpleNamespace(output_shape=(None, 1))) is None
    assert size_of(ARRAY, model) == 96
    assert size_of(ARRAY, object()) == 8
    assert size_of(None, SimpleNamespace(input_shape=(None, 10))) is None


class Model:
    def fit(self, x: Any, batch_size: int) -> dict[str, Any]:
        return self._train()

    def _train(self) -> dict[str, Any]:
        return arguments_of_fit(self)


def test_the_fit_that_is_under_way() -> None:
    said = Model().fit(x="images", batch_size=7)
    assert (said["x"], said["batch_size"]) == ("images", 7)
    assert keras_data.arguments_of_fit(Model()) == {}
