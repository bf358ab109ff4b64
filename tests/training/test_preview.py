"""What --show-batch shows is what a training takes in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from turnaround import recipes
from turnaround.data.augment import Augmentation
from turnaround.data.batches import Batches, Slicing
from turnaround.data.folder import scan
from turnaround.data.inputs import Inputs
from turnaround.data.mixing import MixedLabels
from turnaround.data.pixels import Pixels, prepare
from turnaround.recipe import Recipe
from turnaround.training.preview import varied_images

CPU = torch.device("cpu")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pixels(folder: Path, cache: Path, *, keeps: bool = True) -> Pixels:
    table = scan(folder, holdout=0.2, seed=0)
    return prepare(table, size_px=32, cache=cache, skip_bad=False, keeps_pixels=keeps)


def recipe(*overrides: str) -> Recipe:
    settings = ["data.size_px=32", "training.batch_per_worker=10", "workers.count=2", *overrides]
    return recipes.find("fruitbowl", settings).resolved()


@pytest.mark.parametrize("keeps", [True, False])
def test_they_are_the_first_images_of_the_first_worker(fruit_folder: Path, tmp_path: Path, keeps: bool) -> None:
    made, found = (
        recipe("augment.crop=0.4", "augment.cutout=0.3", "augment.mixup=0.4", "augment.cutmix=1"),
        pixels(fruit_folder, tmp_path, keeps=keeps),
    )
    shown = varied_images(made, found, most=16)
    # Two steps of ten images, as a training of this recipe takes them in.
    kept = pixels(fruit_folder, tmp_path / "kept")
    batches = Batches(kept, device=CPU, residency="host")
    slicing = Slicing(seed=0, global_batch=20, workers=2, hosted=range(1))
    augmentation = Augmentation(made.augment, seed=0)
    inputs = Inputs(augmentation, mean=MEAN, std=STD, num_train=192, device=CPU, dtype=torch.float32)
    wanted = []
    for step, batch in zip(range(2), batches.steps(slicing, epoch=1), strict=False):
        images, labels = inputs.varied(batch, epoch=1), inputs.labels(batch, epoch=1)
        assert isinstance(labels, MixedLabels)
        plain = images * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
        for i, number in enumerate(batch.ids.tolist()):
            both = {kept.classes[int(labels.second[i])]: 1 - float(labels.share[i])}
            first = kept.classes[int(labels.first[i])]
            both[first] = both.get(first, 0.0) + float(labels.share[i])
            wanted.append((kept.files[number], batch.images[i].numpy(), plain[i].clamp(0, 1), both))
        assert step < 2
    assert len(shown) == 16
    for image, (file, before, after, weights) in zip(shown, wanted[:16], strict=True):
        assert image.file == file
        assert np.array_equal(image.before, before)
        assert float((torch.from_numpy(image.after).permute(2, 0, 1) / 255 - after).abs().max()) < 0.6 / 255
        assert dict(image.labels) == pytest.approx(weights)
        assert image.labels[0][1] >= 0.5
    assert any(len(image.labels) == 2 for image in shown)


def test_without_variation_before_is_after(fruit_folder: Path, tmp_path: Path) -> None:
    nothing = ("augment.rotation_degrees=0", "augment.shift=0", "augment.flip=false")
    shown = varied_images(recipe(*nothing), pixels(fruit_folder, tmp_path), most=200)
    assert len(shown) == 96  # half of the epoch: that of one of two workers
    assert all(np.array_equal(image.before, image.after) for image in shown)
    assert all(image.labels == ((Path(image.file).parent.name, 1.0),) for image in shown)


def test_what_is_hidden_has_the_mean_of_the_network_that_will_be_trained(fruit_folder: Path, tmp_path: Path) -> None:
    hidden = ("augment.cutout=0.9", "augment.rotation_degrees=0", "augment.shift=0", "augment.flip=false")
    made = recipe(*hidden, "model.name=tf_efficientnet_lite0")
    shown = varied_images(made, pixels(fruit_folder, tmp_path), most=4)
    for image in shown:
        changed = image.after[(image.before != image.after).any(axis=2)]
        assert len(changed)
        assert np.abs(changed.astype(int) - 127).max() <= 1  # its mean is 0.5 in each colour; ImageNet's is not
