"""Descriptors for near-duplicates: pictures in, vectors out that do not change when one is turned or mirrored.

A picture is read along circles around a point. On each circle, the strength of the first few angular frequencies does
not change under a turn or a mirror image; only their phase does, and that is left out. Crops, shifts and zooms move the
circles, so each picture is also read at many places and sizes (`PLAN`): a copy of it is near one of those.

All lengths are in halves of the shorter side: the sampling is that of the picture before it was squeezed to a square.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

SIDE_PX = 32
"""Pictures are read at this size: finer detail would only tell a noisy copy from its original."""
NUM_RINGS, NUM_ANGLES, NUM_FREQUENCIES = 8, 24, 6  # 24 angles hold frequencies 0..12: the lowest 6 are kept
DIMENSIONS = 32
"""Length of a descriptor: the principal components of the set itself. 48 found no more copies (docs/LOG.md)."""
_CHROMA_WEIGHT = 0.7  # of the two colour channels in a distance, where brightness has 1
_CONTRAST_FLOOR = 30.0  # grey levels squared: what a nearly constant picture is divided by
_ASPECT_STEP = 0.05  # sides' ratios are rounded to 5 %: one sampling matrix serves many pictures
_FITTED_TO = 4000  # about so many rows determine the principal axes: the SVD of all would grow with the set
_CHUNK = 64  # pictures at a time: bounds the arrays of all discs, see _on_rings
_NUM_RAW = NUM_RINGS * NUM_FREQUENCIES * 3

Floats = NDArray[np.float32]
Disc = tuple[float, float, float]
"""Radius, and the centre as shares of half the width and half the height."""


def _discs(radii: tuple[float, ...], steps: tuple[float, ...]) -> list[Disc]:
    return list(itertools.product(radii, steps, steps))


PLAN: dict[Disc, list[Disc]] = {
    (1.0, 0.0, 0.0): [*_discs((1.0, 0.86, 0.74, 0.63), (-0.2, 0.0, 0.2)), *_discs((0.53, 0.45), (0.0,))],
    (0.7, 0.0, 0.0): _discs((0.7, 0.6, 0.5), (-0.28, -0.14, 0.0, 0.14, 0.28)),
}
"""Each disc of one picture (query), with the discs of all others (probes) that it is compared with: a crop or a zoom of
the one is a smaller disc of the other. The smaller query stays clear of the fill that a shift or a turn brings in."""
QUERIES = list(PLAN)
PROBES = sorted({disc for discs in PLAN.values() for disc in discs})
COMBINATIONS = [(query, PROBES.index(disc)) for query, discs in enumerate(PLAN.values()) for disc in discs]


def describe(images: NDArray[np.uint8], half_sides: Floats) -> tuple[Floats, Floats]:
    """Return descriptors, (N, queries, DIMENSIONS) and (N, probes, DIMENSIONS); see `half_sides_of` for (N, 2)."""
    some = np.arange(0, len(images), max(1, len(images) // _FITTED_TO))
    axes = _principal_axes(_vectors(images[some], half_sides[some], QUERIES).reshape(-1, _NUM_RAW))
    return _vectors(images, half_sides, QUERIES, axes), _vectors(images, half_sides, PROBES, axes)


def _vectors(
    images: NDArray[np.uint8], half_sides: Floats, discs: list[Disc], along: tuple[Floats, Floats] | None = None
) -> Floats:
    """Return (N, discs, dimensions), a chunk of pictures at a time; `along` is the mean and the principal axes."""
    found = np.empty((len(images), len(discs), _NUM_RAW if along is None else along[1].shape[1]), np.float32)
    for rows, ratio in _by_ratio(half_sides):
        matrix = _sampling(discs, ratio)
        for start in range(0, len(rows), _CHUNK):
            some = rows[start : start + _CHUNK]
            raw = _on_rings(matrix, opponent(images[some]), len(discs))
            found[some] = raw if along is None else (raw - along[0]) @ along[1]
    return found


def as_they_stand(images: NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Return descriptors of upright thumbnails: (N, 1, DIMENSIONS), and (N, 4, DIMENSIONS) of all flips of each.

    They serve copies that differ in light, noise or compression: where much is clipped to white, rings lose too much.
    """
    pixels = (SIDE_PX // 2) ** 2
    chunks = (images[start : start + _CHUNK] for start in range(0, len(images), _CHUNK))
    small = np.concatenate([_halved(opponent(some)[..., 0]) for some in chunks])
    small -= small.mean((1, 2), keepdims=True)
    small /= np.sqrt((small * small).sum((1, 2), keepdims=True)) + 1.0
    views = np.stack([small, small[:, :, ::-1], small[:, ::-1], small[:, ::-1, ::-1]], axis=1).reshape(-1, 4, pixels)
    _, axes = _principal_axes(views.reshape(-1, pixels))  # the mean is not needed: distances do not depend on it
    short = np.asarray(views @ axes, np.float32)
    return short[:, :1], short


def _halved(pictures: Floats) -> Floats:
    half = SIDE_PX // 2
    return np.asarray(pictures.reshape(-1, half, 2, half, 2).mean((2, 4)), np.float32)


def half_sides_of(sizes_px: NDArray[np.int64]) -> Floats:
    """Return width and height, (N, 2), each in units of the shorter of them."""
    sides = sizes_px.astype(np.float32)
    return np.asarray(sides / sides.min(axis=1, keepdims=True), np.float32)


def opponent(images: NDArray[np.uint8]) -> Floats:
    """Return opponent colours: (b, px, px, 3) -> (b, 32, 32, 3), brightness, red - green, yellow - blue."""
    num, side = images.shape[:2]
    small = images.astype(np.float32).reshape(num, SIDE_PX, side // SIDE_PX, SIDE_PX, side // SIDE_PX, 3).mean((2, 4))
    red, green, blue = small[..., 0], small[..., 1], small[..., 2]
    return np.stack([(red + green + blue) / 3, (red - green) * 0.7, (red + green - 2 * blue) * 0.4], axis=-1)


def _by_ratio(half_sides: Floats) -> Iterator[tuple[NDArray[np.int64], float]]:
    """Yield the rows of pictures of about the same aspect ratio, and that ratio."""
    rounded = np.rint(np.log(half_sides[:, 0] / half_sides[:, 1]) / _ASPECT_STEP).astype(np.int64)
    for step in np.unique(rounded).tolist():
        yield np.flatnonzero(rounded == step), float(np.exp(step * _ASPECT_STEP))


def _sampling(discs: list[Disc], ratio: float) -> sparse.csr_matrix:
    """Return the bilinear sampling of the rings of all discs, sparse: (discs * rings * angles, pixels).

    Four entries in each row; one product then reads a whole chunk of pictures.
    """
    half = (max(ratio, 1.0), max(1.0 / ratio, 1.0))
    size, *centre = np.array(discs).T[:, :, None, None]  # each (discs, 1, 1), against (rings, angles)
    radius = (np.arange(NUM_RINGS) + 0.5)[:, None] / NUM_RINGS * size
    angle = np.arange(NUM_ANGLES) * (2 * np.pi / NUM_ANGLES)
    places = (centre[0] + radius * np.cos(angle) / half[0], centre[1] + radius * np.sin(angle) / half[1])
    x, y = (np.clip((place + 1) * SIDE_PX / 2 - 0.5, 0, SIDE_PX - 1.001).ravel() for place in places)
    left, top = x.astype(int), y.astype(int)
    right_share, low_share = x - left, y - top
    corner = top * SIDE_PX + left
    columns = np.stack([corner, corner + 1, corner + SIDE_PX, corner + SIDE_PX + 1], axis=1)
    shares = np.stack([1 - right_share, right_share], axis=1)
    shares = np.concatenate([shares * (1 - low_share)[:, None], shares * low_share[:, None]], axis=1)
    starts = np.arange(0, 4 * x.size + 1, 4)
    return sparse.csr_matrix((shares.ravel().astype(np.float32), columns.ravel(), starts), shape=(x.size, SIDE_PX**2))


# The DFT of a ring as a matrix, (2 * frequencies, angles), real parts first: only the lowest frequencies are needed,
# and a product of real matrices serves all rings at once.
_WAVES = np.exp(-2j * np.pi * np.outer(np.arange(NUM_ANGLES), np.arange(NUM_FREQUENCIES)) / NUM_ANGLES) / NUM_ANGLES
_TO_WAVES = np.concatenate([_WAVES.real, _WAVES.imag], axis=1).T.astype(np.float32)
# A ring stands for the area between its neighbours, which grows with its radius. Areas weight means; their square roots
# weight the vectors, whose distances are sums of squares.
_RING_AREAS = ((np.arange(NUM_RINGS) + 0.5) / np.sum(np.arange(NUM_RINGS) + 0.5)).astype(np.float32)[:, None]
_RING_WEIGHTS = np.sqrt((np.arange(NUM_RINGS) + 0.5) / NUM_RINGS)[:, None, None, None]
_CHANNEL_WEIGHTS = np.array([1.0, _CHROMA_WEIGHT, _CHROMA_WEIGHT])
_WEIGHTS = (_RING_WEIGHTS * _CHANNEL_WEIGHTS).astype(np.float32)  # (rings, 1, 1, channels)


def _on_rings(matrix: sparse.csr_matrix, pictures: Floats, num_discs: int) -> Floats:
    """Return (b, discs, rings * frequencies * 3), invariant to brightness and contrast."""
    num = len(pictures)
    columns = np.ascontiguousarray(pictures.transpose(1, 2, 0, 3)).reshape(SIDE_PX**2, num * 3)
    rings = (matrix @ columns).reshape(num_discs * NUM_RINGS, NUM_ANGLES, num * 3)
    waves = _TO_WAVES @ rings  # (discs * rings, 2 * frequencies, b * 3)
    strengths = np.hypot(waves[:, :NUM_FREQUENCIES], waves[:, NUM_FREQUENCIES:])
    strengths[:, 0] = waves[:, 0]  # the mean, with its sign
    strengths = strengths.reshape(num_discs, NUM_RINGS, NUM_FREQUENCIES, num, 3)
    brightness = strengths[:, :, 0, :, 0]  # (discs, rings, b), a view: what is taken off below is taken off strengths
    # ::3 is channel 0, brightness. Colours are divided by its contrast too, so that their share of a picture is kept.
    squares = np.einsum("rab,rab->rb", rings[:, :, ::3], rings[:, :, ::3]).reshape(num_discs, NUM_RINGS, num)
    mean = (brightness * _RING_AREAS).sum(1)
    # Rounding may leave a variance below 0, and a flat disc leaves none: hence the maximum and the floor below.
    variance = (squares / NUM_ANGLES * _RING_AREAS).sum(1) - mean**2
    brightness -= mean[:, None]
    strengths *= _WEIGHTS
    strengths /= np.sqrt(np.maximum(variance, 0) + _CONTRAST_FLOOR)[:, None, None, :, None]
    return np.asarray(strengths.transpose(3, 0, 1, 2, 4).reshape(num, num_discs, -1), np.float32)


def _principal_axes(rows: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Return the mean and the principal axes, (dims, DIMENSIONS), of about _FITTED_TO of the rows."""
    some = rows[:: max(1, len(rows) // _FITTED_TO)].astype(np.float32)
    mean = some.mean(axis=0)
    _, _, axes = np.linalg.svd(some - mean, full_matrices=False)
    return mean, np.ascontiguousarray(axes[:DIMENSIONS].T)
