"""Whole-batch augmentation on the device, keyed by (seed, epoch, sample).

Enters: uint8 images (N, H, W, 3) on the device and the sample numbers (N,).
Leaves: normalised floats (N, 3, H, W) in channels-last memory.

Each sample's random numbers are a hash of (seed, epoch, sample number): the same on any device, in any batch, in any
process, in any order. Integer arithmetic only, so a CPU and a GPU draw the same bits.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from turnaround.recipe import AugmentRecipe

LANES = ("rotation", "zoom", "shift_x", "shift_y", "flip", "brightness")
"""One random number a sample for each; new ones go to the end, so that old runs stay reproducible."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = 2**64 - 1


class Augmentation:
    """Callable: the [augment] section of a recipe as a function of a batch."""

    def __init__(self, recipe: AugmentRecipe, *, seed: int) -> None:
        self.recipe, self.seed = recipe, seed
        self.is_geometric = bool(recipe.rotation_degrees or recipe.zoom or recipe.shift or recipe.flip)
        self.is_none = not self.is_geometric and not recipe.brightness
        self._kept: tuple[tuple[int, int, torch.device], tuple[Tensor | None, Tensor | None]] | None = None

    def __call__(self, images: Tensor, ids: Tensor, *, epoch: int, dtype: torch.dtype) -> Tensor:
        """Return augmented images in 0..1, (N, 3, H, W)."""
        pixels = to_float(images, dtype=dtype)
        if self.is_none:
            return pixels
        draws = uniforms(seed=self.seed, epoch=epoch, ids=ids).to(dtype)  # (N, lanes)
        if self.is_geometric:
            theta = affine(draws, self.recipe)  # (N, 2, 3)
            # Border pixels are repeated outside the image, as the lab's Keras generator does ("nearest").
            pixels = F.grid_sample(pixels, _grid(theta, pixels.shape[-1]), padding_mode="border", align_corners=False)
        if self.recipe.brightness:
            pixels = (pixels * self._light(draws)[:, None, None, None]).clamp(0, 1)
        return pixels

    def epoch_transforms(
        self, *, epoch: int, num_samples: int, device: torch.device
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the affine maps (num_samples, 2, 3) and brightness factors (num_samples,) of an epoch; cached for it.

        Made at once they take some thirty launches an epoch; made batch by batch, as many a step.
        """
        wanted = (epoch, num_samples, device)
        if self._kept is None or self._kept[0] != wanted:
            maps = light = None
            if not self.is_none:
                draws = uniforms(seed=self.seed, epoch=epoch, ids=torch.arange(num_samples, device=device))
                maps = affine(draws, self.recipe).contiguous() if self.is_geometric else None
                light = self._light(draws) if self.recipe.brightness else None
            self._kept = (wanted, (maps, light))
        return self._kept[1]

    def _light(self, draws: Tensor) -> Tensor:
        return 1 + self.recipe.brightness * (2 * draws[:, LANES.index("brightness")] - 1)


def to_float(images: Tensor, *, dtype: torch.dtype) -> Tensor:
    """uint8 (N, H, W, 3) -> floats in 0..1 (N, 3, H, W); the permutation makes it channels-last without a copy."""
    return images.permute(0, 3, 1, 2).to(dtype) / 255


def normalise(pixels: Tensor, *, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return pixels with the mean and deviation that the network was made for."""
    return (pixels - _channels(mean, pixels.dtype, pixels.device)) / _channels(std, pixels.dtype, pixels.device)


@cache  # made once: a copy to the device would make every step wait for the host
def _channels(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)[:, None, None]


def affine(draws: Tensor, recipe: AugmentRecipe) -> Tensor:
    """Return for each sample the 2x3 map from output to input coordinates (-1..1), from its random numbers."""
    angle, zoom, shift_x, shift_y, flip = (2 * draws[:, i] - 1 for i in range(5))  # (N,) each, in [-1, 1)
    # Rotation x scale x mirror. It maps output to input, so a larger picture takes its pixels from a smaller area.
    radians = angle * math.radians(recipe.rotation_degrees)
    shrink = 1 / (1 + recipe.zoom * zoom)
    mirror = torch.where((flip < 0) & recipe.flip, -1.0, 1.0).to(draws.dtype)
    cos, sin = torch.cos(radians) * shrink, torch.sin(radians) * shrink
    # A shift by the whole side is 2 in these coordinates.
    rows = [cos * mirror, -sin, 2 * recipe.shift * shift_x, sin * mirror, cos, 2 * recipe.shift * shift_y]
    return torch.stack(rows, dim=1).view(-1, 2, 3)


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
