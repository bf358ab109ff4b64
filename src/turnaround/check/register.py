"""Image registration: pairs of pictures in, the similarity transform that lays one on the other and its fit out.

Coarse to fine, many pairs at once: the angle by circular correlation in polar coordinates around a point, plain and
mirrored; then Gauss-Newton steps on the four parameters of a similarity (scale, angle, two shifts) at 16, 32 and 64 px;
pairs that do not fit at one size are not tried at the next. An affine transform would make every banana fit every other
(1,833 false pairs, docs/LOG.md). Two figures state the quality of the fit:

    offset   what differs once brightness is matched, as the displacement in pixels that would cause it
    texture  the correlation of fine detail in small windows, 1 for copies, 0 for strangers

Coordinates are halves of the shorter side, from the centre (see descriptors.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy import ndimage

from turnaround.check.descriptors import Floats

_NUM_ANGLES, _NUM_RINGS = 64, 12  # 5.6 degrees apart: near enough for Gauss-Newton to find the angle itself
_TRIED_ANGLES = 3  # the highest peak may be a symmetry of the object, plain or mirrored
_STEPS = {16: 8, 32: 6, 64: 4}  # of Gauss-Newton, by side: most of the way is gone where a step is cheapest
_MIN_PEAK = 0.55
_MIN_FIT = {16: 0.5, 32: 0.7, 64: 0.85}
"""Correlations below which a pair is given up: around a point, then picture on picture at each size. Some 0.3 % of the
copies that are found lie below the first and fewer below the others; nearly all unrelated pairs of Caltech-101 do."""
_MAX_STEP = 0.15  # of each parameter in one step: farther, the linear model of a picture does not hold
_BLACK_FILL_BEYOND, _WHITE_FILL_BEYOND = 0.45, 0.7
"""Beyond this distance from the centre, flat black or white counts as the fill of a rotation or a shift. White is also
what objects are photographed on: nearer to the centre, it tells one outline from another."""
TEXTURE_WEIGHT = 0.5  # pixels of offset that full agreement of fine detail makes up for


class PictureBatch(NamedTuple):
    """Image pyramids of many pictures: brightness at the three sizes, and the mask of picture against fill."""

    half_sides: Floats  # (b, 2): half the width and half the height, in halves of the shorter side
    brightness: dict[int, Floats]  # by side in px: (b, px, px)
    is_picture: dict[int, Floats]  # 0 or 1, the same shape

    def some(self, keep: NDArray[np.int64]) -> PictureBatch:
        return PictureBatch(
            self.half_sides[keep],
            {side: values[keep] for side, values in self.brightness.items()},
            {side: values[keep] for side, values in self.is_picture.items()},
        )


class Registration(NamedTuple):
    """The transform and the fit of each pair; rows of pairs that were given up hold offset = inf."""

    turn: Floats  # (b, 3, 3): the first picture's coordinates -> the second's
    offset_px: Floats  # (b,), as the two below
    texture: Floats
    overlap: Floats  # share of the first picture that lies on the second

    @property
    def misfit(self) -> Floats:
        """Return the figure that decides, (b,): small for copies."""
        return np.asarray(self.offset_px - TEXTURE_WEIGHT * self.texture, np.float32)


def picture_batch(images: NDArray[np.uint8], half_sides: Floats) -> PictureBatch:
    """Return the pyramids of pictures of (b, 64, 64, 3); `half_sides` is (b, 2)."""
    # Channel by channel: a mean over the last axis of bytes would make a copy four times the size.
    red, green, blue = (images[..., channel].astype(np.float32) for channel in range(3))
    full = np.asarray((red + green + blue) / 3, np.float32)
    picture = _is_picture(full, half_sides)
    brightness, is_picture = {64: full}, {64: picture}
    for side in (32, 16):
        brightness[side] = _halved(brightness[2 * side])
        is_picture[side] = (_halved(is_picture[2 * side]) > 0.5).astype(np.float32)
    return PictureBatch(half_sides, brightness, is_picture)


def _halved(values: Floats) -> Floats:
    rows = values[:, ::2] + values[:, 1::2]
    return np.asarray((rows[:, :, ::2] + rows[:, :, 1::2]) / 4, np.float32)


def _is_picture(brightness: Floats, half_sides: Floats) -> Floats:
    """Return 0 where a pixel is fill, else 1, in the shape of `brightness`."""
    down, across = np.gradient(brightness, axis=(1, 2))
    # 3 levels a pixel, and 7 levels from black or white: JPEG does not leave a fill exactly constant.
    is_flat = (np.abs(down) < 3) & (np.abs(across) < 3)
    x, y = _grid(brightness.shape[1], half_sides)
    from_centre = (x * x + y * y).reshape(brightness.shape)
    is_black = (brightness < 7) & (from_centre > _BLACK_FILL_BEYOND**2)
    is_white = (brightness > 248) & (from_centre > _WHITE_FILL_BEYOND**2)
    return np.asarray(~(is_flat & (is_black | is_white)), np.float32)


def _grid(side: int, half_sides: Floats) -> tuple[Floats, Floats]:
    """Return the coordinates of all pixels, row by row: x and y, each (b, side * side)."""
    # Centres of pixels, in -1..1: the same points of the picture at each of the sizes.
    places = (np.arange(side, dtype=np.float32) + 0.5) / side * 2 - 1
    return half_sides[:, :1] * np.tile(places, side), half_sides[:, 1:] * np.repeat(places, side)


def _in_pixels(turn: Floats, x: Floats, y: Floats, half_sides: Floats, side: int) -> tuple[Floats, Floats]:
    """Map points of the first picture, each (b, points), to the second, in its pixels."""
    across = turn[:, 0, :1] * x + turn[:, 0, 1:2] * y + turn[:, 0, 2:]
    down = turn[:, 1, :1] * x + turn[:, 1, 1:2] * y + turn[:, 1, 2:]
    middle = np.float32((side - 1) / 2)
    return across * (side / 2 / half_sides[:, :1]) + middle, down * (side / 2 / half_sides[:, 1:]) + middle


def _read(values: Floats, x: Floats, y: Floats) -> Floats:
    """Interpolate bilinearly, (b, points); beyond the edge, the edge is repeated."""
    num, side = values.shape[:2]
    x, y = np.clip(x, 0, side - 1.001), np.clip(y, 0, side - 1.001)  # so that left + 1 and top + 1 exist
    left, top = x.astype(np.int32), y.astype(np.int32)
    across, down = x - left, y - top
    # One flat index over the batch: each corner is gathered for all pairs at once.
    flat = values.reshape(-1)
    corner = (np.arange(num, dtype=np.int32) * side**2)[:, None] + top * side + left
    a, b, c, d = flat[corner], flat[corner + 1], flat[corner + side], flat[corner + side + 1]
    upper, lower = a + (b - a) * across, c + (d - c) * across
    return np.asarray(upper + (lower - upper) * down, np.float32)


def _weights(second: PictureBatch, side: int, x: Floats, y: Floats) -> Floats:
    """Return 1 where a point lies on the second picture and not on its fill, else 0: (b, points)."""
    num = len(x)
    inside = (x >= 0) & (x <= side - 1) & (y >= 0) & (y <= side - 1)
    column, row = (np.clip(np.rint(place), 0, side - 1).astype(np.int32) for place in (x, y))
    corner = (np.arange(num, dtype=np.int32) * side**2)[:, None] + row * side + column
    return np.asarray(second.is_picture[side].reshape(-1)[corner] * inside, np.float32)


def fit(first: PictureBatch, second: PictureBatch, discs_first: Floats, discs_second: Floats) -> Registration:
    """Register the pairs. Discs are (b, 3): radius, x and y of the centre of the parts that look alike."""
    num = len(first.half_sides)
    result = Registration(
        np.tile(np.eye(3, dtype=np.float32), (num, 1, 1)),
        *(np.full(num, value, np.float32) for value in (np.inf, 0, 0)),
    )
    angle, is_mirrored, peak = _angles(_on_rings(first, discs_first), _on_rings(second, discs_second))
    left = np.flatnonzero(peak > _MIN_PEAK)  # rows of the pairs that are still tried
    if not len(left):
        return result
    # The discs give scale and shift, the peaks the angle: together a start for Gauss-Newton. Each (pairs left, 3, 3).
    starts = [
        _similarity(angle[left, k], is_mirrored[left, k], discs_first[left], discs_second[left])
        for k in range(_TRIED_ANGLES)
    ]
    turn = result.turn.copy()
    turn[left], correlation = _best_start(first.some(left), second.some(left), starts)
    left = left[correlation > _MIN_FIT[16]]
    for side in (32, 64):
        if not len(left):
            return result
        turn[left], correlation = _refined(first.some(left), second.some(left), turn[left], side)
        left = left[correlation > _MIN_FIT[side]]
    if len(left):
        offset, texture, overlap = _quality(first.some(left), second.some(left), turn[left])
        for column, values in zip(result, (turn[left], offset, texture, overlap), strict=True):
            column[left] = values
    return result


def _best_start(first: PictureBatch, second: PictureBatch, starts: list[Floats]) -> tuple[Floats, Floats]:
    """Return the best of several starts after the steps at 16 px, (b, 3, 3), and its correlation, (b,)."""
    # Every start is refined before one is chosen: angles 5.6 degrees apart do not compare fairly as they are.
    tried = [_refined(first, second, start, 16) for start in starts]
    correlations = np.stack([correlation for _, correlation in tried])
    best = correlations.argmax(axis=0)
    rows = np.arange(len(best))
    return np.stack([turn for turn, _ in tried])[best, rows], correlations[best, rows]


def _on_rings(batch: PictureBatch, discs: Floats) -> Floats:
    """Return brightness in polar coordinates around the discs' centres: (b, rings, angles)."""
    side = 32  # 64 angles on the outermost ring are 1.5 pixels apart at this size
    radius = ((np.arange(_NUM_RINGS, dtype=np.float32) + 0.5) / _NUM_RINGS)[:, None]
    angle = np.arange(_NUM_ANGLES, dtype=np.float32) * np.float32(2 * np.pi / _NUM_ANGLES)
    x = discs[:, 1:2] + discs[:, :1] * (radius * np.cos(angle)).ravel()
    y = discs[:, 2:] + discs[:, :1] * (radius * np.sin(angle)).ravel()
    x, y = _in_pixels(np.tile(np.eye(3, dtype=np.float32), (len(x), 1, 1)), x, y, batch.half_sides, side)
    return _read(batch.brightness[side], x, y).reshape(-1, _NUM_RINGS, _NUM_ANGLES)


def _angles(first: Floats, second: Floats) -> tuple[Floats, NDArray[np.bool_], Floats]:
    """Return angle and mirroring of the highest peaks of the circular correlation, (b, tried), and the top, (b,)."""

    def waves(rings: Floats) -> Any:
        weight = np.sqrt(np.arange(_NUM_RINGS, dtype=np.float32) + 0.5)[:, None]  # a ring counts by its area
        centred = (rings - rings.mean((1, 2), keepdims=True)) * weight
        # Unit norm makes the peaks correlations; the 1e-3 keeps a disc of one colour from a division by zero.
        return scipy.fft.rfft(centred / (np.sqrt((centred**2).sum((1, 2), keepdims=True)) + 1e-3))

    one, other = waves(first), waves(second)  # (b, rings, angles / 2 + 1)
    # The circular correlation over all turns at once; a mirror image turns the other way round, so without conjugate.
    plain = scipy.fft.irfft((np.conj(one) * other).sum(1), _NUM_ANGLES)
    mirrored = scipy.fft.irfft((one * other).sum(1), _NUM_ANGLES)
    # Local maxima alone: the neighbours of the highest peak would otherwise be the second and the third.
    peaks = [np.where((c >= np.roll(c, 1, 1)) & (c >= np.roll(c, -1, 1)), c, -np.inf) for c in (plain, mirrored)]
    best = np.argsort(-np.concatenate(peaks, axis=1), axis=1)[:, :_TRIED_ANGLES]
    # Columns 0..63 are the plain turns, 64..127 the mirrored ones.
    angle = ((best % _NUM_ANGLES) * np.float32(2 * np.pi / _NUM_ANGLES)).astype(np.float32)
    return angle, best >= _NUM_ANGLES, np.maximum(plain, mirrored).max(axis=1)


def _similarity(angle: Floats, is_mirrored: NDArray[np.bool_], first: Floats, second: Floats) -> Floats:
    """Return the transforms, (b, 3, 3), that take one disc onto the other; a mirror image flips y before the turn."""
    turn = np.zeros((len(angle), 3, 3), np.float32)
    scale = second[:, 0] / first[:, 0]
    cos, sin, sense = scale * np.cos(angle), scale * np.sin(angle), np.where(is_mirrored, -1, 1)
    turn[:, 0, 0], turn[:, 0, 1] = cos, -sin * sense
    turn[:, 1, 0], turn[:, 1, 1] = sin, cos * sense
    turn[:, :2, 2] = second[:, 1:] - np.einsum("bij,bj->bi", turn[:, :2, :2], first[:, 1:])
    turn[:, 2, 2] = 1
    return turn


def _refined(first: PictureBatch, second: PictureBatch, turn: Floats, side: int) -> tuple[Floats, Floats]:
    """Return the transform after the Gauss-Newton steps of this size, (b, 3, 3), and its correlation, (b,).

    Inverse compositional (Baker and Matthews): the first picture's gradients serve for all steps.
    """
    brightness = first.brightness[side]
    num = len(brightness)
    x, y = _grid(side, first.half_sides)
    down, across = np.gradient(brightness, axis=(1, 2))
    across = across.reshape(num, -1) * (side / 2 / first.half_sides[:, :1])
    down = down.reshape(num, -1) * (side / 2 / first.half_sides[:, 1:])
    # The Jacobian, (b, 4, pixels): how brightness changes with scale, angle and the two shifts.
    slopes = np.stack([across * x + down * y, down * x - across * y, across, down], axis=1)
    target, own = brightness.reshape(num, -1), first.is_picture[side].reshape(num, -1)
    for step in range(_STEPS[side] + 1):  # once more than there are steps: the correlation is that of the last one
        u, v = _in_pixels(turn, x, y, second.half_sides, side)
        weight = _weights(second, side, u, v) * own
        one, one_spread = _centred(target, weight)
        other, other_spread = _centred(_read(second.brightness[side], u, v), weight)
        correlation = (one * other).sum(1) / ((one_spread * other_spread)[:, 0] * (weight.sum(1) + 1e-6))
        if step == _STEPS[side]:
            break
        # Brightness and contrast are matched first: a darker copy would otherwise be moved, not matched.
        change = _step(slopes, other * (one_spread / other_spread) - one, weight)
        turn = turn @ np.linalg.inv(change)
    enough = weight.mean(1) > 0.15  # on less than that of a picture, anything correlates with anything
    return turn, np.where(enough, correlation, -1).astype(np.float32)


def _centred(values: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Return the values less their weighted mean, (b, points), and their standard deviation, (b, 1)."""
    total = weight.sum(1, keepdims=True) + 1e-6
    centred = (values - (values * weight).sum(1, keepdims=True) / total) * weight
    return centred, np.sqrt((centred * centred).sum(1, keepdims=True) / total) + 1e-3


def _step(slopes: Floats, difference: Floats, weight: Floats) -> Floats:
    """Return the small similarity, (b, 3, 3), that explains the difference; large differences count for less."""
    spread = np.sqrt((difference * difference).mean(1, keepdims=True)) + 1e-3
    # Cauchy weights: a hand in front of the object, or a stamp on the copy, does not pull the whole picture along.
    weighted = slopes * (weight / (1 + (difference / (2 * spread)) ** 2))[:, None, :]
    normal = weighted @ slopes.transpose(0, 2, 1)  # (b, 4, 4)
    # Levenberg's damping: a picture without detail in one direction would otherwise be moved along it at will.
    damping = 5e-4 * np.trace(normal, axis1=1, axis2=2) + 1e-3
    normal += np.eye(4, dtype=np.float32) * damping[:, None, None]
    found = np.linalg.solve(normal, weighted @ difference[:, :, None])[:, :, 0]
    stretch, spin, right, down = np.clip(found, -_MAX_STEP, _MAX_STEP).T
    change = np.tile(np.eye(3, dtype=np.float32), (len(slopes), 1, 1))
    change[:, 0, 0] += stretch
    change[:, 1, 1] += stretch
    change[:, 0, 1], change[:, 1, 0] = -spin, spin
    change[:, 0, 2], change[:, 1, 2] = right, down
    return change


def _quality(first: PictureBatch, second: PictureBatch, turn: Floats) -> tuple[Floats, Floats, Floats]:
    """Return offset, texture and overlap at 64 px, each (b,)."""
    side = 64
    picture = first.brightness[side]
    x, y = _grid(side, first.half_sides)
    u, v = _in_pixels(turn, x, y, second.half_sides, side)
    weight = _weights(second, side, u, v) * first.is_picture[side].reshape(len(picture), -1)
    target = picture.reshape(len(picture), -1)
    laid_on = _toned(target, _read(second.brightness[side], u, v), weight)
    weight = weight.reshape(picture.shape)
    laid_on = laid_on.reshape(picture.shape)
    # Smoothed over 3 px: noise is no displacement.
    smooth, smooth_on = _box(picture, 3), _box(laid_on, 3)
    down, across = np.gradient(smooth, axis=(1, 2))
    # |difference| / |slope| is a displacement in pixels (optical flow); the 1 a pixel keeps it finite on flat ground.
    slope = ((down**2 + across**2) * weight).sum((1, 2)) + weight.sum((1, 2)) + 1e-6
    left_over = ((smooth - smooth_on) ** 2 * weight).sum((1, 2))
    # In pixels of the picture that shows the same in fewer of them.
    scale = np.minimum(np.sqrt(np.abs(np.linalg.det(turn[:, :2, :2]))), 1)
    return np.sqrt(left_over / slope) * scale, _texture(picture, laid_on, weight), weight.mean((1, 2))


def _toned(target: Floats, values: Floats, weight: Floats) -> Floats:
    """Map the values by the parabola that brings them nearest to the target: undoes brightness, contrast, clipping."""
    scaled = values / 128 - 1  # to -1..1: with powers of 255 the normal equations would be ill-conditioned in float32
    powers = np.stack([np.ones_like(scaled), scaled, scaled * scaled], axis=1)  # (b, 3, pixels)
    for _ in range(2):
        weighted = powers * weight[:, None, :]
        normal = weighted @ powers.transpose(0, 2, 1) + np.eye(3, dtype=np.float32) * 1e-2
        toned = (np.linalg.solve(normal, weighted @ target[:, :, None]).transpose(0, 2, 1) @ powers)[:, 0]
        difference = (target - toned) * (weight > 0)
        spread = np.sqrt((difference**2).mean(1, keepdims=True)) + 0.5
        weight = (weight > 0) / (1 + (difference / (2 * spread)) ** 2)  # once more, without what does not fit
    return np.asarray(toned, np.float32)


def _texture(picture: Floats, other: Floats, weight: Floats, window: int = 9) -> Floats:
    """Return the local correlation of what is finer than the window, (b,); windows with more detail count for more."""
    one, two = picture - _box(picture, window), other - _box(other, window)
    share = _box(weight, window)
    safe = np.maximum(share, 1e-3)
    # Moments of each window over its valid pixels alone, each (b, px, px): fill at the edge does not count as detail.
    means = [_box(v * weight, window) / safe for v in (one, two, one * one, two * two, one * two)]
    spread_one = np.maximum(means[2] - means[0] ** 2, 0)
    spread_two = np.maximum(means[3] - means[1] ** 2, 0)
    # The 4 levels squared keep noise from counting as texture, the 12 levels one sharp edge from outvoting the rest.
    correlation = (means[4] - means[0] * means[1]) / np.sqrt((spread_one + 4) * (spread_two + 4))
    counts = np.minimum(np.sqrt(np.maximum(spread_one, spread_two)), 12) * (share > 0.6)
    return np.asarray((correlation * counts).sum((1, 2)) / (counts.sum((1, 2)) + 1e-3), np.float32)


def _box(values: Floats, window: int) -> Floats:
    return np.asarray(ndimage.uniform_filter(values, (0, window, window), mode="nearest"), np.float32)
