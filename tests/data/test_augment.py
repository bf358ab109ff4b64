"""Augmentation: random numbers that belong to the sample, and geometry checked against exact operations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.nn import functional as F

from turnaround.data import augment
from turnaround.data.augment import (
    LANES,
    Augmentation,
    Variations,
    _grid,
    _vary,
    affine,
    normalise,
    to_float,
    uniforms,
)
from turnaround.recipe import AugmentRecipe

EVERYTHING = AugmentRecipe(
    rotation_degrees=20, zoom=0.2, shift=0.2, flip=True, brightness=0.3, crop=0.5, colour=0.3, cutout=0.3
)
MOVED = AugmentRecipe(rotation_degrees=20, zoom=0.2, shift=0.2, flip=True)
NEWER = (
    (14756812, 12594941, 14355896, 3384023, 3204862, 1055941, 8008296, 8000440, 15187505, 4989603, 1276939, 5573549),
    (15411685, 8467942, 6990549, 3556751, 14987270, 3183875, 9515434, 9154449, 5983020, 10078257, 8645502, 12486867),
    (6607782, 12257454, 10864085, 1533527, 10940440, 11017472, 11918980, 2716319, 3615966, 5952846, 11492893, 14965084),
)


def photos(count: int = 8, side_px: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, side_px, side_px, 3), dtype=torch.uint8, generator=generator)


def draws(**lanes: float) -> Tensor:
    """Random numbers of one sample that ask for nothing, but for the lanes given (each from -1 to 1)."""
    neutral = {"flip": 1.0}
    return torch.tensor([[(1 + (neutral | lanes).get(lane, 0.0)) / 2 for lane in LANES]], dtype=torch.float64)


def warped(pixels: Tensor, recipe: AugmentRecipe, **lanes: float) -> Tensor:
    grid = _grid(affine(draws(**lanes), recipe, side_px=pixels.shape[-1]), pixels.shape[-1])
    return F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


def floats(count: int = 1, side_px: int = 32) -> Tensor:
    return to_float(photos(count, side_px), dtype=torch.float64)


def test_random_numbers_never_change() -> None:
    """Old runs stay reproducible: a change of these values is a change of every run."""
    found = uniforms(seed=3, epoch=2, ids=torch.tensor([0, 1, 123_456])).double() * 2**24
    assert found.tolist() == [
        [13795983, 15865443, 6284852, 6954488, 15878921, 9824694, *NEWER[0]],
        [7836002, 1509800, 12085617, 15366312, 12761450, 470935, *NEWER[1]],
        [1631350, 4917842, 10749366, 13686449, 13527780, 3341638, *NEWER[2]],
    ]


def test_random_numbers_are_uniform_and_unrelated() -> None:
    found = uniforms(seed=0, epoch=1, ids=torch.arange(100_000)).double()
    assert found.shape == (100_000, len(LANES))
    assert float(found.min()) >= 0
    assert float(found.max()) < 1
    for lane in found.T:
        counts = torch.histc(lane, bins=20, min=0, max=1)
        assert float(((counts - 5000) ** 2 / 5000).sum()) < 60  # chi square, 19 degrees of freedom
    lanes = torch.corrcoef(found.T) - torch.eye(len(LANES))
    assert float(lanes.abs().max()) < 0.02  # six standard errors
    neighbours = torch.corrcoef(torch.stack([found[:-1, 0], found[1:, 0]]))[0, 1]
    assert abs(float(neighbours)) < 0.02
    next_epoch = uniforms(seed=0, epoch=2, ids=torch.arange(100_000)).double()
    assert abs(float(torch.corrcoef(torch.stack([found[:, 0], next_epoch[:, 0]]))[0, 1])) < 0.02


def test_random_numbers_belong_to_the_sample_not_to_the_batch() -> None:
    ids = torch.tensor([7, 3, 900, 3, 0])
    together = uniforms(seed=4, epoch=9, ids=ids)
    alone = torch.cat([uniforms(seed=4, epoch=9, ids=ids[i : i + 1]) for i in range(len(ids))])
    assert torch.equal(together, alone)
    assert torch.equal(together.flip(0), uniforms(seed=4, epoch=9, ids=ids.flip(0)))
    assert torch.equal(together[1], together[3])


def test_many_samples_are_drawn_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.arange(100)
    whole = uniforms(seed=4, epoch=9, ids=ids)
    monkeypatch.setattr(augment, "DRAWN_AT_ONCE", 32)
    assert torch.equal(uniforms(seed=4, epoch=9, ids=ids), whole)


def test_seed_epoch_and_sample_are_not_interchangeable() -> None:
    """A sum as a key would give seed 0, sample 1 the numbers of seed 1, sample 0."""
    seen = {
        tuple(uniforms(seed=seed, epoch=epoch, ids=torch.tensor([i]))[0].tolist())
        for seed in range(6)
        for epoch in range(6)
        for i in range(6)
    }
    assert len(seen) == 6**3


@pytest.mark.parametrize("seed", [0, 2**31 - 1])
def test_the_largest_seed_works(seed: int) -> None:
    found = uniforms(seed=seed, epoch=100_000, ids=torch.tensor([10_000_000]))
    assert bool(((found >= 0) & (found < 1)).all())


def test_no_augmentation_is_the_image_itself() -> None:
    images = photos()
    found = Augmentation(AugmentRecipe(), seed=0)(images, torch.arange(8), epoch=1, dtype=torch.float32)
    assert torch.equal(found, images.permute(0, 3, 1, 2).float() / 255)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("side_px", [16, 32, 64])
def test_the_identity_map_leaves_every_pixel(side_px: int) -> None:
    pixels = floats(side_px=side_px)
    assert torch.equal(warped(pixels, MOVED), pixels)


@pytest.mark.parametrize("side_px", [33, 224])
def test_the_identity_map_at_other_sizes_moves_nothing_visible(side_px: int) -> None:
    pixels = to_float(photos(1, side_px), dtype=torch.float32)
    grid = _grid(affine(draws(), MOVED, side_px=side_px).float(), side_px)
    found = F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    assert float((found - pixels).abs().max()) < 1e-4


def test_flip_alone_mirrors_half_of_the_images_exactly() -> None:
    images = photos(200)
    found = Augmentation(AugmentRecipe(flip=True), seed=0)(images, torch.arange(200), epoch=1, dtype=torch.float32)
    plain = to_float(images, dtype=torch.float32)
    same = [torch.equal(a, b) for a, b in zip(found, plain, strict=True)]
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(found, plain, strict=True)]
    assert all(a != b for a, b in zip(same, mirrored, strict=True))
    assert 70 <= sum(mirrored) <= 130  # 100 +- four standard deviations


def test_shift_moves_by_the_share_that_was_drawn() -> None:
    pixels = floats()
    shifted = warped(pixels, AugmentRecipe(shift=0.25), shift_x=1.0)
    assert torch.allclose(shifted[..., :24], pixels[..., 8:], atol=1e-12)
    assert torch.allclose(shifted[..., 24:], pixels[..., -1:].expand(-1, -1, -1, 8), atol=1e-12)  # the border repeats
    shifted = warped(pixels, AugmentRecipe(shift=0.25), shift_y=-0.5)
    assert torch.allclose(shifted[..., 4:, :], pixels[..., :28, :], atol=1e-12)


@pytest.mark.parametrize(("angle", "turns"), [(1.0, 1), (-1.0, -1)])
def test_a_quarter_turn_is_rot90(angle: float, turns: int) -> None:
    pixels = floats()
    turned = warped(pixels, AugmentRecipe(rotation_degrees=90), rotation=angle)
    assert torch.allclose(turned, torch.rot90(pixels, turns, (2, 3)), atol=1e-12)


def test_a_half_turn_mirrors_both_axes() -> None:
    pixels = floats()
    turned = warped(pixels, AugmentRecipe(rotation_degrees=180), rotation=1.0)
    assert torch.allclose(turned, pixels.flip(2, 3), atol=1e-12)


def test_zoom_in_enlarges_and_zoom_out_shrinks() -> None:
    pixels = torch.zeros(1, 3, 32, 32, dtype=torch.float64)
    pixels[..., 12:20, 12:20] = 1
    area = float(pixels.sum())
    assert float(warped(pixels, AugmentRecipe(zoom=0.5), zoom=1.0).sum()) == pytest.approx(area * 1.5**2, rel=0.05)
    assert float(warped(pixels, AugmentRecipe(zoom=0.5), zoom=-1.0).sum()) == pytest.approx(area * 0.5**2, rel=0.05)


def test_brightness_multiplies_and_clamps() -> None:
    images, ids = photos(64), torch.arange(64)
    found = Augmentation(AugmentRecipe(brightness=0.9), seed=0)(images, ids, epoch=1, dtype=torch.float64)
    lane = uniforms(seed=0, epoch=1, ids=ids)[:, LANES.index("brightness")].double()
    factor = 1 + 0.9 * (2 * lane - 1)
    expected = (to_float(images, dtype=torch.float64) * factor[:, None, None, None]).clamp(0, 1)
    assert torch.allclose(found, expected, atol=1e-12)
    assert float(found.min()) >= 0
    assert float(found.max()) == 1.0
    assert 0.1 <= float(factor.min()) < 0.4
    assert 1.6 < float(factor.max()) <= 1.9


def drawn(lane: str, count: int, *, seed: int = 0, epoch: int = 1) -> list[float]:
    found = uniforms(seed=seed, epoch=epoch, ids=torch.arange(count))[:, LANES.index(lane)]
    return [float(number) for number in found]


def crop_by_hand(sample: int, smallest: float) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a sample's crop as shares of the side, one number after the other."""
    area_at, ratio_at, x_at, y_at = (
        drawn(lane, sample + 1)[sample] for lane in ("crop_area", "crop_ratio", "crop_x", "crop_y")
    )
    area = smallest + (1 - smallest) * area_at
    low, high = math.log(max(3 / 4, area)), math.log(min(4 / 3, 1 / area))
    ratio = math.exp(low + (high - low) * ratio_at)
    width, height = math.sqrt(area * ratio), math.sqrt(area / ratio)
    left, top = x_at * (1 - width), y_at * (1 - height)
    return left, top, left + width, top + height


@pytest.mark.parametrize("smallest", [0.08, 0.35, 0.9])
def test_a_resized_crop_is_pils(smallest: float) -> None:
    """PIL enlarges the same part of the image, in floats, with the same interpolation."""
    images = photos(6)
    found = Augmentation(AugmentRecipe(crop=smallest), seed=0)(images, torch.arange(6), epoch=1, dtype=torch.float64)
    for sample, image in enumerate(images.numpy()):
        left, top, right, bottom = crop_by_hand(sample, smallest)
        assert smallest - 1e-6 <= (right - left) * (bottom - top) <= 1
        assert 3 / 4 - 1e-6 <= (right - left) / (bottom - top) <= 4 / 3 + 1e-6
        assert min(left, top) >= 0
        assert max(right, bottom) <= 1 + 1e-9
        for channel in range(3):
            whole = Image.fromarray(image[:, :, channel].astype(np.float32))
            box = tuple(32 * edge for edge in (left, top, right, bottom))
            part = np.asarray(whole.transform((32, 32), Image.Transform.EXTENT, box, Image.Resampling.BILINEAR))
            assert float(np.abs(found[sample, channel].numpy() - part / 255).max()) < 1e-4


def test_crops_fill_the_range_of_areas_and_of_ratios() -> None:
    theta = affine(uniforms(seed=0, epoch=1, ids=torch.arange(10_000)).double(), AugmentRecipe(crop=0.25), side_px=32)
    width, height = theta[:, 0, 0], theta[:, 1, 1]
    area, ratio = width * height, width / height
    assert 0.25 <= float(area.min()) < 0.26
    assert 0.99 < float(area.max()) <= 1
    assert float(area.mean()) == pytest.approx(0.625, abs=0.01)  # uniform
    assert 3 / 4 - 1e-9 <= float(ratio.min()) < 0.76
    assert 1.32 < float(ratio.max()) <= 4 / 3 + 1e-9
    assert bool((theta[:, 0, 2].abs() <= 1 - width + 1e-12).all())  # within the image
    assert bool((theta[:, 1, 2].abs() <= 1 - height + 1e-12).all())


def test_a_crop_of_the_whole_area_is_the_image() -> None:
    images = photos()
    found = Augmentation(AugmentRecipe(crop=1.0), seed=0)(images, torch.arange(8), epoch=1, dtype=torch.float64)
    assert torch.allclose(found, to_float(images, dtype=torch.float64), atol=1e-9)


def test_a_crop_comes_before_every_other_move() -> None:
    """In one sample of the pixels: the map is the crop's after that of the rest."""
    lanes = {"crop_area": 0.1, "crop_ratio": -0.4, "crop_x": 0.7, "crop_y": -0.9, "rotation": 0.3, "shift_x": 0.8}

    def square(recipe: AugmentRecipe, **moves: float) -> Tensor:
        last = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
        return torch.cat([affine(draws(**moves), recipe, side_px=32)[0], last])

    both = square(AugmentRecipe(crop=0.3, rotation_degrees=40, shift=0.2, zoom=0.2, flip=True), **lanes)
    crop, rest = square(AugmentRecipe(crop=0.3), **lanes), square(MOVED_AS_BOTH, **lanes)
    assert torch.allclose(both, crop @ rest, atol=1e-12)
    assert not torch.allclose(both, rest @ crop, atol=1e-3)


MOVED_AS_BOTH = AugmentRecipe(rotation_degrees=40, shift=0.2, zoom=0.2, flip=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("share", "side_px", "hole_px"), [(0.25, 32, 8), (0.5, 45, 22), (0.001, 16, 1), (1.0, 16, 16)])
def test_cutout_hides_a_square_around_a_pixel(share: float, side_px: int, hole_px: int, dtype: torch.dtype) -> None:
    images, mean = photos(40, side_px), (0.1, 0.6, 0.9)
    cut = Augmentation(AugmentRecipe(cutout=share), seed=0)
    found = cut(images, torch.arange(40), epoch=1, dtype=dtype, mean=mean)
    wanted = to_float(images, dtype=dtype).numpy().copy()
    for sample, (x, y) in enumerate(zip(drawn("cutout_x", 40), drawn("cutout_y", 40), strict=True)):
        left, top = math.floor(x * side_px) - hole_px // 2, math.floor(y * side_px) - hole_px // 2
        for row in range(max(0, top), min(side_px, top + hole_px)):
            for column in range(max(0, left), min(side_px, left + hole_px)):
                wanted[sample, :, row, column] = mean
    assert np.array_equal(found.numpy(), wanted)


def test_contrast_and_saturation_by_hand() -> None:
    images = photos(12)
    found = Augmentation(AugmentRecipe(colour=0.8), seed=0)(images, torch.arange(12), epoch=1, dtype=torch.float64)
    for sample, image in enumerate(images.numpy() / 255.0):
        contrast, saturation = (1 + 0.8 * (2 * drawn(lane, 12)[sample] - 1) for lane in ("contrast", "saturation"))
        contrasted = np.clip(0.5 + contrast * (image - 0.5), 0, 1)
        grey = contrasted @ np.array([0.299, 0.587, 0.114])
        wanted = np.clip(saturation * contrasted + (1 - saturation) * grey[:, :, None], 0, 1)
        assert np.allclose(found[sample].permute(1, 2, 0).numpy(), wanted, atol=1e-7)


def test_saturation_is_pils() -> None:
    """PIL rounds grey and result to bytes."""
    image = photos(1)
    unchanged, less = torch.ones(1, 2, dtype=torch.float64), torch.tensor([[1.0, 0.4]], dtype=torch.float64)
    for colours, factor in ((unchanged, 1.0), (less, 0.4)):
        found = _vary(to_float(image, dtype=torch.float64), Variations(colours=colours), mean=(0, 0, 0))
        wanted = np.asarray(ImageEnhance.Color(Image.fromarray(image[0].numpy())).enhance(factor))
        assert float(np.abs(found[0].permute(1, 2, 0).numpy() * 255 - wanted).max()) < 1.6


def test_each_epoch_varies_anew() -> None:
    vary, images, ids = Augmentation(EVERYTHING, seed=0), photos(), torch.arange(8)
    first, again, second = (vary(images, ids, epoch=epoch, dtype=torch.float32) for epoch in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side_px", [32, 45])
def test_a_batch_gives_the_pixels_of_single_images(dtype: torch.dtype, side_px: int) -> None:
    """To the bit: how a global batch is cut must not matter."""
    vary, images, ids = Augmentation(EVERYTHING, seed=3), photos(37, side_px), torch.arange(37) * 11
    together = vary(images, ids, epoch=2, dtype=dtype)
    alone = [vary(images[i : i + 1], ids[i : i + 1], epoch=2, dtype=dtype) for i in range(37)]
    assert together.dtype == dtype
    assert torch.equal(together, torch.cat(alone))


def test_float64_agrees_with_float32() -> None:
    vary, images, ids = Augmentation(EVERYTHING, seed=3), photos(), torch.arange(8)
    single, double = (vary(images, ids, epoch=2, dtype=dtype) for dtype in (torch.float32, torch.float64))
    assert float((single.double() - double).abs().max()) < 1e-4


def test_varied_pixels_stay_in_range() -> None:
    found = Augmentation(EVERYTHING, seed=1)(photos(64), torch.arange(64), epoch=1, dtype=torch.float32)
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    assert bool(found.isfinite().all())


def test_normalise_is_what_a_hand_computes() -> None:
    pixels = torch.tensor([0.5, 0.25, 1.0], dtype=torch.float64).view(1, 3, 1, 1)
    found = normalise(pixels, mean=(0.5, 0.5, 0.4), std=(0.5, 0.25, 0.2))
    assert found.flatten().tolist() == pytest.approx([0.0, -1.0, 3.0])
    assert found.dtype == torch.float64


def test_rotation_keeps_within_its_limit() -> None:
    theta = affine(
        uniforms(seed=0, epoch=1, ids=torch.arange(10_000)).double(), AugmentRecipe(rotation_degrees=10), side_px=32
    )
    angles = torch.atan2(theta[:, 1, 0], theta[:, 0, 0])
    limit = math.radians(10)
    assert 0.99 * limit < float(angles.abs().max()) <= limit
    assert abs(float(angles.mean())) < 0.03 * limit


@pytest.mark.gpu
def test_a_gpu_draws_the_same_bits_and_nearly_the_same_pixels() -> None:
    ids = torch.arange(50_000)
    assert torch.equal(uniforms(seed=5, epoch=7, ids=ids), uniforms(seed=5, epoch=7, ids=ids.cuda()).cpu())
    vary, images, ids = Augmentation(EVERYTHING, seed=3), photos(64, 45), torch.arange(64)
    here = vary(images, ids, epoch=2, dtype=torch.float32)
    there = vary(images.cuda(), ids.cuda(), epoch=2, dtype=torch.float32).cpu()
    assert float((here - there).abs().max()) < 1 / 255


def test_whole_pixels_move_an_image_without_blurring_it() -> None:
    recipe = AugmentRecipe(preset="none", shift=0.125, whole_pixels=True)
    images = torch.randint(0, 256, (600, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    ids = torch.arange(len(images))
    moved = Augmentation(recipe, seed=3)(images, ids, epoch=1, dtype=torch.float64)
    padded = F.pad(images.permute(0, 3, 1, 2).double() / 255, (4, 4, 4, 4), mode="replicate")  # (N, 3, 40, 40)
    # (81, N): whether the 8 x 8 pixels in the middle are those of the original at this shift: of noise, only one is.
    is_there = torch.stack(
        [
            torch.isclose(padded[:, :, y + 12 : y + 20, x + 12 : x + 20], moved[:, :, 12:20, 12:20]).flatten(1).all(1)
            for x in range(9)
            for y in range(9)
        ]
    )
    assert (is_there.sum(0) == 1).all()
    shifts = [divmod(place, 9) for place in is_there.int().argmax(0).tolist()]
    whole = [picture[:, y : y + 32, x : x + 32] for picture, (x, y) in zip(padded, shifts, strict=True)]
    assert torch.allclose(torch.stack(whole), moved)
    assert is_there.any(1).all()  # every whole shift from -4 to 4, both ways
