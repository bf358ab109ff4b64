"""The input of evaluations: how many images at once, by the device and the size of the images alone."""

from __future__ import annotations

import torch

from turnaround.training.feed import evaluation_batch
from turnaround.training.step import max_images_per_pass


def test_a_gpu_evaluates_more_images_that_are_small() -> None:
    gpu = torch.device("cuda")
    sizes_px = (None, 16, 32, 48, 64, 96, 112, 224)
    found = [evaluation_batch(gpu, side_px=side_px) for side_px in sizes_px]
    assert found == [256, 2_048, 2_048, 1_393, 784, 348, 256, 256]
    # Never more than half of what a pass of a training takes, which keeps its activations as well.
    assert all(2 * batch <= max_images_per_pass(gpu, side_px=px) for batch, px in zip(found, sizes_px, strict=True))


def test_elsewhere_the_size_of_the_images_changes_nothing() -> None:
    for device in ("cpu", "mps"):
        assert {evaluation_batch(torch.device(device), side_px=px) for px in (None, 16, 32, 224)} == {64}
