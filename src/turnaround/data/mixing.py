"""Mixup and cutmix: two images of a batch become one, and so do their labels.

    mixup    w image + (1 - w) partner, w from Beta(alpha, alpha)                              (Zhang et al. 2018)
    cutmix   a square of the partner's pixels, 1 - w of the area, cut at the image's edges     (Yun et al. 2019)

How much is a function of (seed, epoch, sample), as every variation (augment.py). With whom follows from the order of
the epoch: the partner is the next image of the same half of a worker's slice of the step, and of the last one the
first. The slices are a function of (seed, epoch, step, worker), and a worker's images are always on one device,
wherever pixels are read from; so any number of processes mixes the same pairs. The order is random anew in every epoch,
and so are the pairs. An image is once an epoch the first of a pair and once the second. Halves share no image, since
the noise scale is measured by comparing them (training/noise.py).

The soft labels are two hard ones and a weight (`MixedLabels`), so that hard labels cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

QUANTILES = 4096
"""The weights that a Beta distribution can give: its quantiles at so many equal steps. A table is the same on every
device; an inverse of the distribution function exists on none."""


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How some samples are mixed with their partners, one row for each."""

    weights: Tensor
    """(N,): share of the sample's own pixel values outside its box; 1 in cutmix."""
    boxes: Tensor
    """int32 (N, 4): left, top, right, bottom of what is the partner's alone, in pixels; empty in mixup."""
    shares: Tensor
    """(N,): weight of the sample's own label; the rest is its partner's."""


@dataclass(frozen=True)
class MixedLabels:
    """Soft labels as two hard ones: `share` of the first, the rest of the second. Cut as a tensor of hard labels is."""

    first: Tensor
    """int64 (N,)."""
    second: Tensor
    """int64 (N,)."""
    share: Tensor
    """(N,), 0..1."""

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, part: slice) -> MixedLabels:
        return MixedLabels(self.first[part], self.second[part], self.share[part])

    def clone(self) -> MixedLabels:
        """Return a copy in memory of its own, for a CUDA graph to read from."""
        return MixedLabels(self.first.clone(), self.second.clone(), self.share.clone())


Labels = Tensor | MixedLabels
"""int64 (N,), or two of them with weights."""


def dominant(labels: Labels) -> Tensor:
    """Return the label with the larger weight, (N,): what counts as the right answer."""
    if isinstance(labels, MixedLabels):
        return torch.where(labels.share < 0.5, labels.second, labels.first)
    return labels


def overwrite(memory: Labels, labels: Labels) -> None:
    """Copy the labels of a batch into the memory of those of another, of the same kind and size."""
    for there, here in zip(_tensors(memory), _tensors(labels), strict=True):
        there.copy_(here)


def _tensors(labels: Labels) -> tuple[Tensor, ...]:
    return (labels.first, labels.second, labels.share) if isinstance(labels, MixedLabels) else (labels,)


def draw(draws: Tensor, *, mixup: float, cutmix: float, side_px: int) -> Mixing:
    """Return the mixing of samples from their random numbers (N, 4): kind, weight, and the centre of the box."""
    kind, number, x, y = draws.unbind(1)  # (N,) each
    is_cut = kind < 0.5 if mixup and cutmix else torch.full_like(kind, bool(cutmix), dtype=torch.bool)
    rank = (number * QUANTILES).to(torch.int64)  # exact: the numbers have 24 bits
    weights = torch.ones_like(number)
    if mixup:
        weights = torch.where(is_cut, weights, _quantiles(mixup, draws.device)[rank].to(draws.dtype))
    sides = torch.zeros_like(rank)
    if cutmix:
        sides = torch.where(is_cut, _cut_sides(cutmix, side_px, draws.device)[rank], sides)
    boxes = squares(x, y, sides, side_px=side_px)
    left, top, right, bottom = boxes.unbind(1)
    # What lies outside of the image is not cut out: the label's weight is that of the pixels that are there.
    area = ((right - left) * (bottom - top)).to(draws.dtype) / side_px**2
    return Mixing(weights=weights, boxes=boxes, shares=torch.where(is_cut, 1 - area, weights))


@lru_cache(maxsize=16)  # a training has two or three sizes of steps; a copy to the device would make each of them wait
def partners(worker_sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return for each image of a process's slice of the step the index of its partner, int64 (N,)."""
    # Fewer than four images would leave one that is its own partner.
    halves = [half for n in worker_sizes for half in ((n // 2, n - n // 2) if n >= 4 else (n,))]
    start, indices = 0, []
    for size in halves:
        indices += [start + (i + 1) % size for i in range(size)]
        start += size
    return torch.tensor(indices, device=device)


def mix(images: Tensor, with_: Tensor, mixing: Mixing) -> Tensor:
    """Mix normalised images (N, 3, H, W) with those at the indices `with_`."""
    in_box = within(mixing.boxes, images.shape[-1])  # (N, H, W)
    own = torch.where(in_box, 0, mixing.weights[:, None, None])[:, None]
    return images * own + images[with_] * (1 - own)


def squares(x: Tensor, y: Tensor, sides: Tensor | int, *, side_px: int) -> Tensor:
    """Return boxes, int32 (N, 4), of so many pixels a side around the pixel at (x, y), 0..1, cut at the edges."""
    # In integers: every device and dtype finds the same pixels. The random numbers have 24 bits.
    numbers = (torch.stack([x, y]) * 2**24).to(torch.int64)  # (2, N)
    start = (numbers * side_px >> 24) - sides // 2
    return torch.cat([start, start + sides]).clamp(0, side_px).T.to(torch.int32).contiguous()


def within(boxes: Tensor, side_px: int) -> Tensor:
    """Return for each box (N, 4) which pixels lie in it: (N, H, W)."""
    left, top, right, bottom = boxes[:, :, None].unbind(1)  # (N, 1) each
    axis = torch.arange(side_px, device=boxes.device)
    return ((axis >= left) & (axis < right))[:, None, :] & ((axis >= top) & (axis < bottom))[:, :, None]


@cache
def _quantiles(alpha: float, device: torch.device) -> Tensor:
    """float64 (QUANTILES,): equally likely values of Beta(alpha, alpha)."""
    middles = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
    if alpha == 1:  # uniform, as the strong preset has it: the same numbers to the bit, without loading scipy
        return middles.to(device)
    from scipy.special import betaincinv  # loaded only where something is mixed

    return torch.from_numpy(betaincinv(alpha, alpha, middles.numpy())).to(device)


@cache
def _cut_sides(alpha: float, side_px: int, device: torch.device) -> Tensor:
    """int64 (QUANTILES,): sides of cutmix's squares in pixels, whose areas are 1 - w."""
    # Rounded here, in double precision and once, so that no device rounds otherwise.
    sides = side_px * (1 - _quantiles(alpha, torch.device("cpu"))).sqrt()
    return sides.to(torch.int64).to(device)
