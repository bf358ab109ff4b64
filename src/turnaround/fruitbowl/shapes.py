"""Random numbers and shapes of fruitbowl, which are the same to the last bit on every machine.

Enters: a key; coordinates. Leaves: uniform numbers; planes with 1 inside a shape and 0 outside of it. Only
operations that IEEE 754 defines to the last bit (+ - * / sqrt, comparisons, integers), no sum whose order a
library may choose, and the raw Philox stream, which numpy keeps stable where its distributions may change.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Plane = npt.NDArray[Any]  # float32, one number a pixel; `Any` because numpy's stubs widen mixed arithmetic
Planes = npt.NDArray[Any]  # float32 (3, rows, columns): red, green, blue, 0..1
Colour = tuple[float, float, float]


class Dice:
    """Random numbers of one image. A uniform number is the top bits of a raw one: exact in binary."""

    def __init__(self, *, label: int, index: int, seed: int) -> None:
        self._stream = np.random.Philox(key=(seed % 2**64) << 64 | label << 32 | index)

    def between(self, low: float, high: float) -> float:
        raw: int = self._stream.random_raw()
        return low + (high - low) * ((raw >> 11) * 2.0**-53)  # 53 bits: what a double holds

    def chance(self, probability: float) -> bool:
        return self.between(0.0, 1.0) < probability

    def plane(self, rows: int, columns: int) -> Plane:
        raw = self._stream.random_raw(rows * columns) >> np.uint64(40)  # 24 bits: what a float32 holds
        return (raw.astype(np.float32) * np.float32(2.0**-24)).reshape(rows, columns)

    def turn(self, reach: float) -> tuple[float, float]:
        """Return (cos, sin) of a random angle, within +-90 degrees for reach 1.

        By the rational parametrisation of the circle: libraries' cosines differ in the last bit.
        """
        t = self.between(-reach, reach)
        return (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)

    def shade_of(self, stops: tuple[Colour, ...], spread: float = 0.05) -> Colour:
        """Return a colour from anywhere along a row of colours, each channel a little off."""
        place = self.between(0, len(stops) - 1)
        at = min(int(place), len(stops) - 2)
        red, green, blue = mix(stops[at], stops[at + 1], place - at)
        off = [self.between(-spread, spread) for _ in range(3)]
        return red + off[0], green + off[1], blue + off[2]


class Frame(NamedTuple):
    """The picture seen from one object: u to its right, v down, its radius is 1."""

    u: Plane
    v: Plane
    light: Colour  # direction towards the light, in this frame
    edge: float  # width of a soft outline: one drawn pixel, in this frame's units


def soft(depth: Plane, width: float) -> Plane:
    """Return 0 to 1 while `depth` goes from 0 to `width`, smooth at both ends (smoothstep)."""
    t: Plane = np.clip(depth * (1.0 / width), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def disc(frame: Frame, u: float, v: float, radius: float, softness: float = 0.0) -> Plane:
    du, dv = frame.u - u, frame.v - v
    return soft(radius - np.sqrt(du * du + dv * dv), frame.edge + softness)


def stroke(frame: Frame, start: tuple[float, float], end: tuple[float, float], width: float) -> Plane:
    """Return a round-ended line: all points nearer than half its width to the segment."""
    along_u, along_v = end[0] - start[0], end[1] - start[1]
    du, dv = frame.u - start[0], frame.v - start[1]
    t = np.clip((du * along_u + dv * along_v) / (along_u * along_u + along_v * along_v), 0.0, 1.0)
    du, dv = du - t * along_u, dv - t * along_v
    return soft(width / 2 - np.sqrt(du * du + dv * dv), frame.edge)


def lens(frame: Frame, u: float, v: float, turn: tuple[float, float], length: float) -> Plane:
    """Return a leaf, the overlap of two discs; it starts at (u, v) and goes `length` along `turn`."""
    du, dv = frame.u - u, frame.v - v
    p = (du * turn[0] + dv * turn[1]) / length - 0.5
    q = np.abs(dv * turn[0] - du * turn[1]) / length + 0.4
    return soft(0.64 - np.sqrt(p * p + q * q), frame.edge / length)


def noise(dice: Dice, size: int, columns: int, rows: int) -> Plane:
    """Return value noise in 0..1: random numbers on a coarse grid, interpolated between its points, (size, size)."""
    return _stretch(_stretch(dice.plane(rows + 1, columns + 1), size).T, size).T


def _stretch(grid: Plane, size: int) -> Plane:
    cells = grid.shape[0] - 1
    position = (np.arange(size, dtype=np.float32) + 0.5) * (cells / size)
    low = np.minimum(position.astype(np.intp), cells - 1)
    share = soft(position - low.astype(np.float32), 1.0)[:, None]
    stretched: Plane = grid[low] + (grid[low + 1] - grid[low]) * share
    return stretched


def mix(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (a + (b - a) * share for a, b in zip(one, other, strict=True))
    return red, green, blue


def column(colour: Colour) -> Planes:
    return np.array(colour, dtype=np.float32)[:, None, None]


def paint(canvas: Planes, where: Plane, colour: Colour) -> None:
    for channel, value in zip(canvas, colour, strict=True):
        channel += (value - channel) * where
