"""Whole-batch augmentation on the device, keyed by (seed, epoch, sample).

Enters: uint8 images (N, H, W, 3) on the device and the sample numbers (N,).
Leaves: normalised floats (N, 3, H, W) in channels-last memory.

Each sample's random numbers are a hash of (seed, epoch, sample number): the same on any device, in any batch, in any
process, in any order. Integer arithmetic only, so a CPU and a GPU draw the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from turnaround.data import mixing
from turnaround.data.mixing import Mixing
from turnaround.recipe import AugmentRecipe

LANES = (
    *("rotation", "zoom", "shift_x", "shift_y", "flip", "brightness"),
    *("crop_area", "crop_ratio", "crop_x", "crop_y", "contrast", "saturation", "cutout_x", "cutout_y"),
    *("mix_kind", "mix_weight", "mix_x", "mix_y"),
)
"""One random number a sample for each; new ones go to the end, so that old runs stay reproducible."""
CROP_RATIOS = (3 / 4, 4 / 3)
"""Width to height of a random resized crop: Szegedy et al. 2015, and everybody since."""
MIDDLE_GREY = 0.5
"""Contrast moves values away from it or towards it, as DALI's does. The image's own mean, as torchvision takes it,
would cost another pass over its pixels."""
LUMA = (0.299, 0.587, 0.114)
"""ITU-R BT.601: the grey of a colour, as PIL's mode L has it."""

DRAWN_AT_ONCE = 2**18
"""Samples whose random numbers are made at a time: on the way they take eight bytes each, several times over. All of a
million images would take most of a gigabyte of the device's memory at the beginning of every epoch."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class Variations:
    """How some samples vary, one row for each; None: nothing varies that way."""

    maps: Tensor | None = None
    """(N, 2, 3): from output to input coordinates, -1..1."""
    light: Tensor | None = None
    """(N,): brightness factors."""
    colours: Tensor | None = None
    """(N, 2): factors of contrast and saturation."""
    holes: Tensor | None = None
    """int32 (N, 4): left, top, right and bottom of the hidden square in pixels; right and bottom are outside of it."""
    mixing: Mixing | None = None


class Augmentation:
    """Callable: the [augment] section of a recipe as a function of a batch."""

    def __init__(self, recipe: AugmentRecipe, *, seed: int) -> None:
        self.recipe, self.seed = recipe.filled(), seed
        recipe = self.recipe
        self.is_geometric = bool(recipe.rotation_degrees or recipe.zoom or recipe.shift or recipe.flip or recipe.crop)
        self.mixes = recipe.is_mixed
        is_lit = bool(recipe.brightness or recipe.colour)
        self.is_none = not (self.is_geometric or is_lit or recipe.cutout or self.mixes)
        self._kept: tuple[tuple[int, int, int, torch.device], Variations] | None = None

    def __call__(
        self,
        images: Tensor,
        ids: Tensor,
        *,
        epoch: int,
        dtype: torch.dtype,
        mean: tuple[float, ...] = (MIDDLE_GREY,) * 3,
    ) -> Tensor:
        """Return augmented images in 0..1, (N, 3, H, W), not yet mixed; what is hidden has the colour `mean`."""
        pixels = to_float(images, dtype=dtype)
        if self.is_none:
            return pixels
        draws = uniforms(seed=self.seed, epoch=epoch, ids=ids).to(dtype)  # (N, lanes)
        return _vary(pixels, self._variations(draws, side_px=pixels.shape[-1]), mean=mean)

    def mixing(self, ids: Tensor, *, epoch: int, side_px: int, dtype: torch.dtype) -> Mixing:
        """Return how samples are mixed with their partners."""
        return self._mixing(uniforms(seed=self.seed, epoch=epoch, ids=ids).to(dtype), side_px=side_px)

    def epoch_variations(self, *, epoch: int, num_samples: int, side_px: int, device: torch.device) -> Variations:
        """Return the variations of all samples of an epoch; cached for it.

        Made at once they take some thirty launches an epoch; made batch by batch, as many a step.
        """
        wanted = (epoch, num_samples, side_px, device)
        if self._kept is None or self._kept[0] != wanted:
            made = Variations()
            if not self.is_none:
                draws = uniforms(seed=self.seed, epoch=epoch, ids=torch.arange(num_samples, device=device))
                made = self._variations(draws, side_px=side_px)
            self._kept = (wanted, made)
        return self._kept[1]

    def _variations(self, draws: Tensor, *, side_px: int) -> Variations:
        recipe = self.recipe
        return Variations(
            maps=affine(draws, recipe, side_px=side_px).contiguous() if self.is_geometric else None,
            light=_factors(draws, "brightness", amount=recipe.brightness)[:, 0] if recipe.brightness else None,
            colours=_factors(draws, "contrast", "saturation", amount=recipe.colour) if recipe.colour else None,
            holes=_holes(draws, recipe.cutout, side_px=side_px) if recipe.cutout else None,
            mixing=self._mixing(draws, side_px=side_px) if self.mixes else None,
        )

    def _mixing(self, draws: Tensor, *, side_px: int) -> Mixing:
        mixup, cutmix = self.recipe.mixup or 0.0, self.recipe.cutmix or 0.0
        some = _columns(draws, "mix_kind", "mix_weight", "mix_x", "mix_y")
        return mixing.draw(some, mixup=mixup, cutmix=cutmix, side_px=side_px)


def to_float(images: Tensor, *, dtype: torch.dtype) -> Tensor:
    """uint8 (N, H, W, 3) -> floats in 0..1 (N, 3, H, W); the permutation makes it channels-last without a copy."""
    return images.permute(0, 3, 1, 2).to(dtype) / 255


def normalise(pixels: Tensor, *, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return pixels with the mean and deviation that the network was made for."""
    return (pixels - _channels(mean, pixels.dtype, pixels.device)) / _channels(std, pixels.dtype, pixels.device)


@cache  # made once: a copy to the device would make every step wait for the host
def _channels(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)[:, None, None]


def _vary(pixels: Tensor, variations: Variations, *, mean: tuple[float, ...]) -> Tensor:
    """Apply the variations of (N, 3, H, W) in 0..1: geometry, light, contrast, saturation, hole. The kernel of
    inputs_triton.py does the same in the same order."""
    if variations.maps is not None:
        grid = _grid(variations.maps, pixels.shape[-1])
        # Border pixels are repeated outside the image, as the lab's Keras generator does ("nearest").
        pixels = F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    if variations.light is not None:
        pixels = (pixels * variations.light[:, None, None, None]).clamp(0, 1)
    if variations.colours is not None:
        contrast, saturation = variations.colours[:, :, None, None, None].unbind(1)  # (N, 1, 1, 1) each
        pixels = ((pixels - MIDDLE_GREY) * contrast + MIDDLE_GREY).clamp(0, 1)
        red, green, blue = (pixels[:, i : i + 1] for i in range(3))
        grey = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue  # (N, 1, H, W)
        pixels = (grey + (pixels - grey) * saturation).clamp(0, 1)
    if variations.holes is not None:
        hidden = mixing.within(variations.holes, pixels.shape[-1])[:, None]
        pixels = torch.where(hidden, _channels(mean, pixels.dtype, pixels.device), pixels)
    return pixels


def _factors(draws: Tensor, *lanes: str, amount: float) -> Tensor:
    """Return factors of 1-amount .. 1+amount, (N, lanes)."""
    return 1 + amount * (2 * _columns(draws, *lanes) - 1)


def _columns(draws: Tensor, *lanes: str) -> Tensor:
    # Not draws[:, [...]]: a list of indices would be copied to the device, and the host would wait for it.
    return torch.stack([draws[:, LANES.index(lane)] for lane in lanes], dim=1)


def _holes(draws: Tensor, share: float, *, side_px: int) -> Tensor:
    """Return the squares that cutout hides (DeVries and Taylor 2017): around any pixel, cut at the image's edges."""
    x, y = _columns(draws, "cutout_x", "cutout_y").unbind(1)
    return mixing.squares(x, y, max(1, round(share * side_px)), side_px=side_px)


def affine(draws: Tensor, recipe: AugmentRecipe, *, side_px: int) -> Tensor:
    """Return for each sample the 2x3 map from output to input coordinates (-1..1), from its random numbers."""
    angle, zoom, shift_x, shift_y, flip = (2 * draws[:, i] - 1 for i in range(5))  # (N,) each, in [-1, 1)
    # Rotation x scale x mirror. It maps output to input, so a larger picture takes its pixels from a smaller area.
    radians = angle * math.radians(recipe.rotation_degrees or 0.0)
    shrink = 1 / (1 + (recipe.zoom or 0.0) * zoom)
    mirror = torch.where((flip < 0) & bool(recipe.flip), -1.0, 1.0).to(draws.dtype)
    cos, sin = torch.cos(radians) * shrink, torch.sin(radians) * shrink
    shift = recipe.shift or 0.0
    if recipe.whole_pixels:
        # Every whole number of pixels from -n to n is equally likely; between two pixels an image would be blurred.
        most_px = round(shift * side_px)
        pixels = (torch.floor((most_px + 0.5) * (move + 1)) - most_px for move in (shift_x, shift_y))
        move_x, move_y = (2 * moved / side_px for moved in pixels)
    else:
        move_x, move_y = 2 * shift * shift_x, 2 * shift * shift_y  # a shift by the whole side is 2
    rows = [cos * mirror, -sin, move_x, sin * mirror, cos, move_y]
    if recipe.crop:
        # The image is cropped before anything else moves it, so its map comes last on the way from output to input.
        extent, centre = _crops(draws, recipe.crop)
        rows = [value * extent[:, i // 3] for i, value in enumerate(rows)]
        rows[2], rows[5] = rows[2] + centre[:, 0], rows[5] + centre[:, 1]
    return torch.stack(rows, dim=1).view(-1, 2, 3)


def _crops(draws: Tensor, smallest: float) -> tuple[Tensor, Tensor]:
    """Return width and height of random resized crops as shares of the side, and their centres, -1..1: (N, 2) both."""
    where_area, where_ratio = _columns(draws, "crop_area", "crop_ratio").unbind(1)  # (N,) both
    area = smallest + (1 - smallest) * where_area
    # Neither side may be longer than the image's: area <= ratio <= 1/area. torchvision draws again until it fits; the
    # ratios that fit an area are drawn here by one number.
    low = area.log().clamp(min=math.log(CROP_RATIOS[0]))
    high = (-area.log()).clamp(max=math.log(CROP_RATIOS[1]))
    half = (low + (high - low) * where_ratio) / 2  # of the logarithm of the ratio
    extent = (area.sqrt()[:, None] * torch.stack([half, -half], dim=1).exp()).clamp(max=1)
    return extent, (1 - extent) * (2 * _columns(draws, "crop_x", "crop_y") - 1)


def _grid(theta: Tensor, side_px: int) -> Tensor:
    """Return sampling positions (N, H, W, 2). Element by element, not as a matrix product, whose rounding may depend on
    how many samples stand in the batch."""
    # Centres of the pixels, as grid_sample counts them with align_corners=False: (2 i + 1) / side - 1.
    axis = (2 * torch.arange(side_px, device=theta.device, dtype=theta.dtype) + 1) / side_px - 1
    x, y = axis[None, None, :], axis[None, :, None]
    row_x, row_y = theta[:, 0, :, None, None], theta[:, 1, :, None, None]
    return torch.stack(
        [row_x[:, 0] * x + row_x[:, 1] * y + row_x[:, 2], row_y[:, 0] * x + row_y[:, 1] * y + row_y[:, 2]],
        dim=-1,
    )


def uniforms(*, seed: int, epoch: int, ids: Tensor) -> Tensor:
    """Return random numbers in [0, 1), (N, len(LANES)), a pure function of (seed, epoch, sample)."""
    if len(ids) > DRAWN_AT_ONCE:
        return torch.cat([uniforms(seed=seed, epoch=epoch, ids=part) for part in ids.split(DRAWN_AT_ONCE)])  # type: ignore[no-untyped-call]
    # Mixed after every part: neighbouring seeds, epochs and samples differ in a few low bits only.
    run_key = _mix_int(_mix_int(seed + _GOLDEN) + epoch)
    sample_key = _mix(_mix(ids.to(torch.int64) + _signed(_GOLDEN)) ^ _signed(run_key))
    bits = _mix(sample_key[:, None] + _lane_keys(ids.device))  # (N, lanes)
    return _shift_right(bits, 40).to(torch.float32) * 2.0**-24  # 24 bits: exact in float32


@cache  # made once, as _channels
def _lane_keys(device: torch.device) -> Tensor:
    return torch.tensor([[_signed(_GOLDEN * (k + 1)) for k in range(len(LANES))]], device=device)


def _mix(x: Tensor) -> Tensor:
    """Apply the finaliser of splitmix64 (Steele, Lea and Flood 2014); int64 products wrap around as they must."""
    x = (x ^ _shift_right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def _mix_int(x: int) -> int:
    x &= _MASK64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK64
    return x ^ (x >> 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift logically: torch's own shift keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    x &= _MASK64
    return x - 2**64 if x >= 2**63 else x
