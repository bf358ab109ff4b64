"""What the network takes: the kernel gives what plain torch gives, wherever the pixels are."""

from __future__ import annotations

import os
import textwrap

import pytest
import torch

from forking import ForkingParent
from interpreting import interpreted
from turnaround.data.augment import Augmentation, uniforms
from turnaround.data.batches import EvaluationBatch, StepBatch
from turnaround.data.inputs import Inputs
from turnaround.data.mixing import Labels, MixedLabels, dominant
from turnaround.recipe import AugmentRecipe

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EVERYTHING = AugmentRecipe(
    rotation_degrees=25,
    zoom=0.3,
    shift=0.2,
    flip=True,
    brightness=0.4,
    crop=0.3,
    colour=0.5,
    cutout=0.4,
    mixup=0.8,
    cutmix=1.0,
)
RECIPES = {
    "nothing": AugmentRecipe(),
    "geometry": AugmentRecipe(rotation_degrees=180, zoom=0.9, shift=0.9),
    "light": AugmentRecipe(brightness=0.9),
    "crop": AugmentRecipe(crop=0.08),
    "colour": AugmentRecipe(colour=0.9),
    "cutout": AugmentRecipe(cutout=0.5),
    "mixup": AugmentRecipe(mixup=0.8),
    "cutmix": AugmentRecipe(cutmix=1.0, flip=True),
    "mixed": AugmentRecipe(mixup=0.8, cutmix=1.0),
    "everything": EVERYTHING,
}
CPU, COUNT, SIDE_PX = torch.device("cpu"), 23, 45
ONE_BYTE = 1 / 255


def pixels(device: torch.device = CPU) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (COUNT, SIDE_PX, SIDE_PX, 3), dtype=torch.uint8, generator=generator).to(device)


def inputs(recipe: AugmentRecipe, device: torch.device = CPU, **types: torch.dtype) -> Inputs:
    augmentation = Augmentation(recipe, seed=5)
    types = {"dtype": torch.float32, **types}
    return Inputs(augmentation, mean=MEAN, std=STD, num_train=COUNT, device=device, **types)


def step_batch(device: torch.device = CPU, *, gathered: bool) -> StepBatch:
    ids = torch.tensor([3, 22, 0, 3, 17, 9], device=device)
    everything = pixels(device)
    return StepBatch(
        pixels=everything[ids] if gathered else everything,
        rows=None if gathered else ids,
        labels=ids,
        ids=ids,
        worker_sizes=(4, 2),
        global_size=6,
    )


def assert_same_labels(found: Labels, wanted: Labels) -> None:
    assert type(found) is type(wanted)
    assert torch.equal(dominant(found).cpu(), dominant(wanted))
    if isinstance(found, MixedLabels) and isinstance(wanted, MixedLabels):
        assert torch.equal(found.second.cpu(), wanted.second)
        assert torch.allclose(found.share.cpu(), wanted.share, atol=1e-6)


def largest_difference_in_pixels(one: torch.Tensor, other: torch.Tensor) -> float:
    """In units of the pixels before they were normalised, 0..1."""
    std = torch.tensor(STD, device=one.device)[:, None, None]
    return float(((one.float() - other.float()) * std).abs().max())


def test_gathered_or_not_is_the_same() -> None:
    make = inputs(EVERYTHING)
    one, other = (make.varied(step_batch(gathered=g), epoch=2) for g in (True, False))
    assert torch.equal(one, other)
    assert one.shape == (6, 3, SIDE_PX, SIDE_PX)
    assert one.is_contiguous(memory_format=torch.channels_last)


def test_plain_images_are_not_varied() -> None:
    batch = EvaluationBatch(pixels=pixels(), rows=torch.tensor([4, 1]), labels=torch.zeros(2))
    found = inputs(EVERYTHING).plain(batch)
    wanted = (pixels()[[4, 1]].permute(0, 3, 1, 2).float() / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(
        STD
    )[:, None, None]
    assert torch.allclose(found, wanted, atol=1e-5)


def test_the_variations_of_all_samples_are_those_of_each_batch() -> None:
    augmentation, ids = Augmentation(EVERYTHING, seed=5), torch.tensor([3, 22, 0])
    everything = augmentation.epoch_variations(epoch=4, num_samples=COUNT, side_px=SIDE_PX, device=CPU)
    draws = uniforms(seed=5, epoch=4, ids=ids)
    some = Augmentation(EVERYTHING, seed=5)._variations(draws, side_px=SIDE_PX)
    for whole, part in ((everything, some), (everything.mixing, some.mixing)):
        for name, values in vars(part).items():
            assert name == "mixing" or torch.equal(vars(whole)[name][ids], values), name
    again = augmentation.epoch_variations(epoch=4, num_samples=COUNT, side_px=SIDE_PX, device=CPU)
    assert again is everything  # kept within the epoch
    other = augmentation.epoch_variations(epoch=5, num_samples=COUNT, side_px=SIDE_PX, device=CPU)
    assert not torch.equal(other.maps, everything.maps)


KERNEL_IN_PYTHON = """
    sys.path.insert(0, {folder!r})
    import torch
    import test_inputs as t
    from turnaround.data import inputs_triton

    t.SIDE_PX = 17  # a block of 256 pixels and one that is nearly empty: the interpreter takes 10 ms for a block
    for recipe in t.RECIPES.values():
        for gathered in (True, False):
            make, batch = t.inputs(recipe), t.step_batch(gathered=gathered)
            wanted = make.varied(batch, epoch=2)
            make.kernel = inputs_triton
            found = make.varied(batch, epoch=2)
            assert found.is_contiguous(memory_format=torch.channels_last)
            labels = make.labels(batch, epoch=2)
            make.kernel = None
            t.assert_same_labels(labels, make.labels(batch, epoch=2))
            print(t.largest_difference_in_pixels(found, wanted))
"""


def test_the_kernel_gives_the_reference_pixels(forking_parent: ForkingParent) -> None:
    """Triton's interpreter runs the kernel on the CPU, in a process of its own since it must know before it imports."""
    pytest.importorskip("triton")
    code = textwrap.dedent(KERNEL_IN_PYTHON).format(folder=os.path.dirname(__file__))
    differences = [float(line) for line in interpreted(forking_parent.python, code).split()]
    assert len(differences) == 2 * len(RECIPES)
    assert max(differences) < ONE_BYTE / 100


@pytest.mark.gpu
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("gathered", [True, False])
def test_the_kernel_on_a_gpu(name: str, gathered: bool) -> None:
    device = torch.device("cuda")
    make = inputs(RECIPES[name], device)
    assert make.kernel is not None
    found = make.varied(step_batch(device, gathered=gathered), epoch=2)
    wanted = inputs(RECIPES[name]).varied(step_batch(gathered=gathered), epoch=2)
    assert largest_difference_in_pixels(found.cpu(), wanted) < ONE_BYTE / 10
    on_device, here = step_batch(device, gathered=gathered), step_batch(gathered=gathered)
    assert_same_labels(make.labels(on_device, epoch=2), inputs(RECIPES[name]).labels(here, epoch=2))
    narrow = inputs(RECIPES[name], device, autocast=torch.bfloat16).varied(
        step_batch(device, gathered=gathered), epoch=2
    )
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, found.to(torch.bfloat16))
    batch = EvaluationBatch(pixels=pixels(device), rows=torch.tensor([4, 1], device=device), labels=torch.zeros(2))
    on_cpu = EvaluationBatch(pixels=pixels(), rows=torch.tensor([4, 1]), labels=torch.zeros(2))
    assert largest_difference_in_pixels(make.plain(batch).cpu(), inputs(RECIPES[name]).plain(on_cpu)) < ONE_BYTE / 10


def test_what_is_hidden_is_zero_for_the_network() -> None:
    found = inputs(AugmentRecipe(cutout=0.5)).varied(step_batch(gathered=True), epoch=2)
    hidden = (found == 0).all(dim=1).sum(dim=(1, 2))  # by image
    assert bool((hidden >= 11 * 11).all())  # a quarter of 22 x 22 at least: the centre is within the image
    assert bool((hidden <= 23 * 23).all())


def test_double_precision_takes_the_reference() -> None:
    assert inputs(EVERYTHING, dtype=torch.float64).kernel is None
    assert inputs(EVERYTHING).choice.value == "plain torch"
