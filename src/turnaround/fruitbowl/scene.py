"""One image of fruitbowl: (seed, label, index, size) in, pixels out.

A scene is laid out in units of half the picture (x to the right, y down, both -1..1): the same (seed, label,
index) is the same scene at every size. Rot is a degree from 0 to 1. The degrees of fresh and of rotten fruit
overlap, as in a kitchen, so no network reaches 100 %.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from turnaround.fruitbowl.shapes import (
    Colour,
    Dice,
    Frame,
    Plane,
    Planes,
    column,
    disc,
    lens,
    mix,
    noise,
    paint,
    soft,
    stroke,
)

KINDS = ("apple", "banana", "orange")
CLASSES: tuple[str, ...] = tuple(f"{state}_{kind}" for state in ("fresh", "rotten") for kind in KINDS)
SUPERSAMPLING = 2  # drawn this much larger, then averaged: smooth outlines
NUM_SPOTS = 5  # places on a fruit where rot may begin

# Rows of colours; an object gets one from anywhere along its row.
APPLE_SKINS = ((0.42, 0.62, 0.16), (0.7, 0.74, 0.24), (0.8, 0.25, 0.15), (0.73, 0.12, 0.12), (0.5, 0.05, 0.1))
BANANA_SKINS = ((0.46, 0.62, 0.18), (0.78, 0.78, 0.22), (0.95, 0.83, 0.22), (0.93, 0.72, 0.20))
ORANGE_SKINS = ((0.96, 0.63, 0.10), (0.97, 0.53, 0.05), (0.93, 0.40, 0.04))
BACKGROUNDS = ((0.88, 0.86, 0.82), (0.62, 0.45, 0.3), (0.36, 0.46, 0.56), (0.45, 0.52, 0.36), (0.2, 0.2, 0.2))
BROWNS = ((0.12, 0.07, 0.04), (0.26, 0.15, 0.07), (0.40, 0.26, 0.13))
MOULDS = ((0.86, 0.88, 0.86), (0.55, 0.66, 0.60), (0.38, 0.46, 0.36))
LEAF: Colour = (0.20, 0.42, 0.14)
WOOD: Colour = (0.30, 0.20, 0.10)


class _Fruit(NamedTuple):
    """The layers of a fruit, before it is painted; a Plane is (rows, columns)."""

    skin: Planes
    inside: Plane  # 1 inside, 0 outside, between on the outline
    shading: Plane  # factor on the skin
    shadow: Plane  # on what it lies on
    spots: list[tuple[float, float]]  # (u, v) of places on it, where rot may begin
    parts: list[tuple[Plane, Colour]]  # stem, leaf: painted over it


def _lit(normal_u: Plane, normal_v: Plane, light: Colour) -> Plane:
    """Brightness of a rounded surface whose normal has these parts; the third follows from length 1."""
    normal_w = np.sqrt(np.maximum(1.0 - normal_u * normal_u - normal_v * normal_v, 0.0))
    towards_light: Plane = normal_u * light[0] + normal_v * light[1] + normal_w * light[2]
    return 0.42 + 0.68 * np.maximum(towards_light, 0.0)


def _round_shadow(frame: Frame) -> Plane:
    return disc(frame, -0.35 * frame.light[0], 0.15 - 0.35 * frame.light[1], 1.1, 0.6)


def _apple(frame: Frame, dice: Dice, size: int) -> _Fruit:
    """Draw two discs side by side, narrower below: the dents at both ends come by themselves."""
    lobe, height, narrowing = dice.between(0.24, 0.32), dice.between(1.1, 1.32), dice.between(0.06, 0.22)
    u = frame.u / (1.0 - narrowing * np.clip(frame.v, -1.5, 1.5))
    v = frame.v / height
    beside = np.abs(u) - lobe
    inside = soft(1.0 - lobe - np.sqrt(beside * beside + v * v), frame.edge)
    dent = -height * math.sqrt(1.0 - 2.0 * lobe)  # where the discs meet
    shading = _lit(u, 1.2 * v, frame.light) * (1.0 - 0.45 * disc(frame, 0.0, dent, 0.34, 0.3))
    ground, blush = dice.shade_of(APPLE_SKINS), dice.shade_of(APPLE_SKINS)
    flush = soft(noise(dice, size, 4, 4) + u * dice.between(-0.4, 0.4) - 0.35, 0.4)
    skin = column(ground) + (column(blush) - column(ground)) * (flush * dice.between(0.0, 1.0))
    lean = dice.between(-0.2, 0.2)
    parts = [(stroke(frame, (0.0, dent + 0.1), (lean, dent - 0.35), dice.between(0.07, 0.12)), WOOD)]
    if dice.chance(0.45):
        parts.append((lens(frame, lean / 2, dent - 0.15, dice.turn(0.5), dice.between(0.5, 0.75)), LEAF))
    spots = [(dice.between(-0.7, 0.7), dice.between(-0.6, 0.6)) for _ in range(NUM_SPOTS)]
    return _Fruit(skin, inside, shading, _round_shadow(frame), spots, parts)


def _orange(frame: Frame, dice: Dice, size: int) -> _Fruit:
    """Draw a ball with a pitted skin and the small green button of its stem."""
    height = dice.between(0.90, 1.0)
    u, v = frame.u / 0.92, frame.v / (0.92 * height)
    inside = soft(1.0 - np.sqrt(u * u + v * v), frame.edge)
    shading = _lit(u, v, frame.light) * (0.90 + 0.2 * noise(dice, size, 30, 30))
    skin = np.broadcast_to(column(dice.shade_of(ORANGE_SKINS)), (3, size, size)).copy()
    button = dice.between(-0.6, 0.6), dice.between(-0.6, 0.6)
    shading = shading * (1.0 - 0.25 * disc(frame, *button, 0.2, 0.2))
    parts = [(disc(frame, *button, dice.between(0.06, 0.1)), (0.35, 0.36, 0.14))]
    if dice.chance(0.25):
        parts.append((lens(frame, *button, dice.turn(1.0), dice.between(0.5, 0.75)), LEAF))
    spots = [(dice.between(-0.7, 0.7), dice.between(-0.7, 0.7)) for _ in range(NUM_SPOTS)]
    return _Fruit(skin, inside, shading, _round_shadow(frame), spots, parts)


class _Arc(NamedTuple):
    """A banana's spine, a piece of a circle around (0, radius), and half its thickness in the middle."""

    radius: float
    thick: float
    half_length: float = 0.92

    def v(self, u: float) -> float:
        return self.radius - math.sqrt(self.radius * self.radius - u * u)

    def offset(self, u: Plane, v: Plane) -> Plane:
        """Return the position across: -1 on the inner rim, 0 on the spine, 1 on the outer rim; beyond 1 outside."""
        s = u / self.half_length
        s4 = np.minimum(s * s * s * s, 1.0)
        below = v - self.radius
        across = (np.sqrt(u * u + below * below) - self.radius) / (self.thick * (1.0 - 0.72 * s4))
        return np.where((np.abs(s) < 1.0) & (below < 0.0), across, np.float32(9.0))  # no ring, only the arc


def _banana(frame: Frame, dice: Dice, size: int) -> _Fruit:
    """Draw all points near an arc, thinner towards its ends; a ridge runs along it, both ends are dark."""
    arc = _Arc(radius=dice.between(0.95, 1.5), thick=dice.between(0.23, 0.33))
    middle = arc.v(arc.half_length) / 2  # moves the arc so that its box is centred
    u, v = frame.u, frame.v + middle
    offset = arc.offset(u, v)
    inside = soft(1.0 - np.abs(offset), frame.edge / arc.thick)
    away_u, away_v = 0.18 * frame.light[0], 0.18 * frame.light[1] - 0.06
    shadow = soft(1.5 - np.abs(arc.offset(u + away_u, v + away_v)), 1.0)
    across = np.clip(offset, -1.0, 1.0) * (1.0 / arc.radius)
    ridge = dice.between(-0.3, 0.3)
    shading = _lit(across * u, across * (v - arc.radius), frame.light)
    shading = shading * (1.0 - 0.16 * soft(offset - ridge, 0.15))
    ripe, unripe = dice.shade_of(BANANA_SKINS), BANANA_SKINS[0]
    green = soft(np.abs(u) / arc.half_length - 0.5, 0.6) * dice.between(0.0, 0.7)
    skin = column(ripe) + (column(unripe) - column(ripe)) * green
    stem = (0.84, arc.v(0.84) - middle), (1.08, arc.v(0.92) - middle + dice.between(0.05, 0.25))
    parts = [
        (stroke(frame, *stem, 0.4 * arc.thick), mix(ripe, WOOD, 0.45)),
        (inside * soft(-u - dice.between(0.80, 0.86), 0.06), (0.16, 0.11, 0.06)),
    ]
    along = [dice.between(-0.8, 0.8) for _ in range(NUM_SPOTS)]
    spots = [(at, arc.v(at) - middle + dice.between(-0.15, 0.15)) for at in along]
    return _Fruit(skin, inside, shading, shadow, spots, parts)


def _rot(fruit: _Fruit, frame: Frame, degree: float, dice: Dice, size: int) -> None:
    """Spoil the skin in place: duller, with brown patches that grow and join, and mould on the worst."""
    grey = (fruit.skin[0] + fruit.skin[1] + fruit.skin[2]) * (1.0 / 3.0)
    fruit.skin[:] += (0.8 * grey - fruit.skin) * (0.5 * degree)
    patches = np.zeros((size, size), np.float32)
    for u, v in fruit.spots:
        radius = dice.between(0.2, 0.6)
        patches = np.maximum(patches, disc(frame, u, v, radius, radius))
    field = 0.40 * noise(dice, size, 9, 9) + 0.20 * noise(dice, size, 22, 22) + 0.50 * patches
    brown = soft(field - (0.90 - 0.75 * degree), 0.25) * dice.between(0.75, 0.97)
    paint(fruit.skin, brown, dice.shade_of(BROWNS, 0.03))
    if dice.chance(1.4 * degree - 0.4):
        radius = dice.between(0.25, 0.6)
        mouldy = disc(frame, *fruit.spots[0], radius, radius * 0.6)
        specks = soft(noise(dice, size, 26, 26) - 0.45, 0.2) * mouldy
        paint(fruit.skin, specks, dice.shade_of(MOULDS))


# In the order of KINDS.
_DRAW: tuple[Callable[[Frame, Dice, int], _Fruit], ...] = (_apple, _banana, _orange)


def _rot_degree(dice: Dice, *, rotten: bool) -> float:
    """Return 0 to 0.45, mostly little, for fresh fruit; 0.38 to 1, mostly much, for rotten fruit.

    Where the two overlap nobody can tell: that bounds the accuracy of any network below 100 %.
    """
    one, other = dice.between(0.0, 1.0), dice.between(0.0, 1.0)
    return 0.38 + 0.62 * max(one, other) if rotten else 0.45 * one * other


class _Scene:
    """A canvas and where its light comes from; objects are painted onto it from back to front."""

    def __init__(self, dice: Dice, size: int) -> None:
        axis = (np.arange(size, dtype=np.float32) + 0.5) * np.float32(2.0 / size) - 1.0
        self.dice, self.size = dice, size
        self.x, self.y = axis[None, :], axis[:, None]
        self.canvas = np.zeros((3, size, size), np.float32)
        light_x, light_y = dice.between(-0.6, 0.6), dice.between(-0.7, 0.2)
        self.light = (light_x, light_y, math.sqrt(1.0 - light_x * light_x - light_y * light_y))

    def frame(self, x: float, y: float, radius: float, turn: tuple[float, float]) -> Frame:
        cos, sin = turn
        dx, dy = (self.x - x) / radius, (self.y - y) / radius
        light_x, light_y, light_z = self.light
        light = (light_x * cos + light_y * sin, light_y * cos - light_x * sin, light_z)
        return Frame(dx * cos + dy * sin, dy * cos - dx * sin, light, 2.0 / (self.size * radius))

    def background(self) -> None:
        """Draw a wall or cloth with a gradient; often a table with a grain before it."""
        dice = self.dice
        wall, table = dice.shade_of(BACKGROUNDS), dice.shade_of(BACKGROUNDS)
        slope_x, slope_y = dice.between(-0.15, 0.15), dice.between(-0.15, 0.15)
        paint(self.canvas, np.ones((1, 1), np.float32), wall)
        if dice.chance(0.6):
            line = dice.between(-0.8, 0.6) + self.x * dice.between(-0.15, 0.15)
            paint(self.canvas, soft(self.y - line, 0.03), table)
        columns, rows = ((3, 24), (24, 3), (7, 7), (40, 40))[int(dice.between(0, 4))]
        texture = (noise(dice, self.size, columns, rows) - 0.5) * dice.between(0.0, 0.35)
        self.canvas *= 1.0 + texture + self.x * slope_x + self.y * slope_y

    def fruit(self, kind: int, degree: float, frame: Frame) -> None:
        fruit = _DRAW[kind](frame, self.dice, self.size)
        _rot(fruit, frame, degree, self.dice, self.size)
        paint(self.canvas, fruit.shadow * self.dice.between(0.2, 0.6), (0.05, 0.05, 0.06))
        lit = fruit.skin * fruit.shading
        self.canvas += (lit - self.canvas) * fruit.inside
        gloss = self.dice.between(0.0, 0.7) * (1.0 - 0.7 * degree)
        shine = disc(frame, 0.5 * frame.light[0], 0.5 * frame.light[1], 0.3, 0.3)
        paint(self.canvas, shine * fruit.inside * gloss, (1.0, 1.0, 0.97))
        for where, colour in fruit.parts:
            paint(self.canvas, where, colour)

    def clutter(self, x: float, y: float, radius: float) -> None:
        """Something that lies over the fruit's rim: a spoon's handle, a leaf or a coaster."""
        dice = self.dice
        cos, sin = dice.turn(4.0)
        frame = self.frame(x + radius * cos, y + radius * sin, radius, (cos, sin))
        kind, reach = int(dice.between(0, 3)), dice.between(0.15, 0.35)
        colour = dice.shade_of(BACKGROUNDS, 0.15)
        if kind == 0:
            paint(self.canvas, stroke(frame, (0.3, -3.0), (-0.3, 3.0), reach / 2), colour)
        elif kind == 1:
            leaf = lens(frame, -reach, -reach, dice.turn(1.0), 1.1)
            paint(self.canvas, leaf, mix(LEAF, WOOD, dice.between(0.0, 1.0)))
        else:
            paint(self.canvas, disc(frame, 0.2, 0.0, 2.2 * reach), mix(colour, (1.0, 1.0, 1.0), 0.4))
            paint(self.canvas, disc(frame, 0.2, 0.0, 2.0 * reach), colour)

    def pixels(self) -> npt.NDArray[np.uint8]:
        """Exposure and tint, the average over each drawn block, and the camera's noise."""
        dice = self.dice
        exposure = dice.between(0.75, 1.2)
        tint = (exposure * dice.between(0.9, 1.08), exposure, exposure * dice.between(0.85, 1.08))
        fine = np.clip(self.canvas * (column(tint) * 255.0), 0.0, 255.0).astype(np.int32)
        # In integers, whose sums are exact in any order: a mean of floats may differ between machines.
        total = fine[:, ::2, ::2] + fine[:, 1::2, ::2] + fine[:, ::2, 1::2] + fine[:, 1::2, 1::2]
        size = self.size // SUPERSAMPLING
        strength = dice.between(2.0, 16.0)
        # The sum of two uniform numbers has a triangular distribution: near enough to a camera's noise, and exact.
        grain = (dice.plane(3 * size, size) + dice.plane(3 * size, size) - 1.0) * strength
        noisy = (total + 2) // 4 + grain.astype(np.int32).reshape(3, size, size)
        return np.ascontiguousarray(np.clip(noisy, 0, 255).astype(np.uint8).transpose(1, 2, 0))


def draw(*, label: int, index: int, seed: int, size_px: int) -> npt.NDArray[np.uint8]:
    """Return image `index` of class `label` as (rows, columns, 3). It depends on nothing but its arguments.

    The order of the calls to `dice` is part of the data set: another order is another set (fruitbowl.VERSION).
    """
    assert 0 <= label < len(CLASSES)
    assert 0 <= index < 2**32
    dice = Dice(label=label, index=index, seed=seed)
    scene = _Scene(dice, size_px * SUPERSAMPLING)
    rotten, kind = divmod(label, len(KINDS))
    scene.background()
    if dice.chance(0.15):  # a second, smaller fruit behind, of any kind and in any state
        x, y, radius = dice.between(-1.0, 1.0), dice.between(-1.0, 0.6), dice.between(0.15, 0.25)
        small = scene.frame(x, y, radius, dice.turn(1.0))
        scene.fruit(int(dice.between(0, 3)), dice.between(0.0, 1.0), small)
    x, y, radius = dice.between(-0.3, 0.3), dice.between(-0.25, 0.3), dice.between(0.55, 0.85)
    turn = dice.turn(4.0 if KINDS[kind] == "banana" else 0.6)  # round fruit lie more or less upright
    scene.fruit(kind, _rot_degree(dice, rotten=bool(rotten)), scene.frame(x, y, radius, turn))
    for _ in range(int(dice.between(0.0, 2.0) * dice.between(0.5, 1.05))):  # mostly none, rarely two
        scene.clutter(x, y, radius)
    return scene.pixels()
