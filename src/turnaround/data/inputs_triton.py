"""Gather, affine variation, colours, cutout, normalisation and mixing of uint8 pixels as one Triton kernel.

One read of the source pixels, one write of the network's input: nothing of the batch is written in between. A thread makes
the three channels of a pixel, so that where it lies in the source is computed once.

On an H200, 224 px to bf16 with rotation, zoom, shift and flip: 3.07 million images/s; a thread a channel gave 1.37 million.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from turnaround.data.augment import Variations

# On an H200, 256 images of 224 px to bf16: 3.07 million images/s with these two, 2.2 to 3.1 million over blocks of 128
# to 1,024 pixels (docs/LOG.md, 2026-11-15).
BLOCK_PIXELS = 256
WARPS = 4


@triton.jit
def _clamped(value):  # type: ignore[no-untyped-def]
    return tl.minimum(tl.maximum(value, 0.0), 1.0)


@triton.jit  # type: ignore[untyped-decorator]
def _sampled(  # type: ignore[no-untyped-def]
    here, to_right, to_bottom, share_x, share_y, inside, HAS_MAPS: tl.constexpr
):
    """One channel in 0..1, interpolated between four pixels where the image is moved."""
    # The last block of an image has pixels beyond its end: nothing is read there (`inside`).
    value = tl.load(here, mask=inside, other=0).to(tl.float32)
    if HAS_MAPS:
        right = tl.load(here + to_right, mask=inside, other=0).to(tl.float32)
        under = tl.load(here + to_bottom, mask=inside, other=0).to(tl.float32)
        opposite = tl.load(here + to_bottom + to_right, mask=inside, other=0).to(tl.float32)
        # a + (b - a) s = (1 - s) a + s b: along x in both rows, then along y between them.
        upper = value + (right - value) * share_x
        lower = under + (opposite - under) * share_x
        value = upper + (lower - upper) * share_y
    # From 0..255 once, at the end: interpolation is linear, so it may come before.
    return value * (1.0 / 255)


@triton.jit
def _coloured(red, green, blue, contrast, saturation):  # type: ignore[no-untyped-def]
    # Contrast around MIDDLE_GREY, then saturation around the grey of the result: weights of BT.601, LUMA in augment.py.
    red = _clamped((red - 0.5) * contrast + 0.5)
    green = _clamped((green - 0.5) * contrast + 0.5)
    blue = _clamped((blue - 0.5) * contrast + 0.5)
    grey = 0.299 * red + 0.587 * green + 0.114 * blue
    red = _clamped(grey + (red - grey) * saturation)
    green = _clamped(grey + (green - grey) * saturation)
    blue = _clamped(grey + (blue - grey) * saturation)
    return red, green, blue


@triton.jit
def _within(boxes, sample, column, row):  # type: ignore[no-untyped-def]
    # (samples, 4): left, top, right, bottom; right and bottom are outside of the box.
    edges = boxes + sample * 4
    is_within = (column >= tl.load(edges)) & (column < tl.load(edges + 2))
    return is_within & (row >= tl.load(edges + 1)) & (row < tl.load(edges + 3))


@triton.jit  # type: ignore[untyped-decorator]
def _varied(  # type: ignore[no-untyped-def]
    here,
    sample,
    maps,
    light,
    colours,
    holes,
    mean0,
    mean1,
    mean2,
    scale0,
    scale1,
    scale2,
    pixel,
    SIDE: tl.constexpr,
    HAS_MAPS: tl.constexpr,
    HAS_LIGHT: tl.constexpr,
    HAS_COLOURS: tl.constexpr,
    HAS_HOLES: tl.constexpr,
):
    """The three channels of some pixels of the image at `here`, varied and normalised."""
    inside = pixel < SIDE * SIDE
    if HAS_MAPS:
        # (samples, 2, 3), from output to input coordinates, -1..1: x = m0 u + m1 v + m2, y = m3 u + m4 v + m5. u and v
        # are the middles of pixels as grid_sample counts them with align_corners=False: (2 i + 1) / side - 1.
        six = maps + sample * 6
        u = (2 * (pixel % SIDE) + 1).to(tl.float32) / SIDE - 1
        v = (2 * (pixel // SIDE) + 1).to(tl.float32) / SIDE - 1
        at_x = tl.load(six) * u + tl.load(six + 1) * v + tl.load(six + 2)
        at_y = tl.load(six + 3) * u + tl.load(six + 4) * v + tl.load(six + 5)
        # From -1..1 to pixels; outside the image the border is repeated (torch: padding_mode="border").
        at_x = tl.minimum(tl.maximum(((at_x + 1) * SIDE - 1) * 0.5, 0.0), SIDE - 1.0)
        at_y = tl.minimum(tl.maximum(((at_y + 1) * SIDE - 1) * 0.5, 0.0), SIDE - 1.0)
        # Conversion cuts the fraction off, which is the floor, since nothing is below 0 here.
        left, top = at_x.to(tl.int32), at_y.to(tl.int32)
        share_x, share_y = at_x - left.to(tl.float32), at_y - top.to(tl.float32)
        # In bytes. The last column and row have no neighbour: the share is 0 there, and any pixel of the image will do.
        to_right = tl.where(left < SIDE - 1, 3, 0)
        to_bottom = tl.where(top < SIDE - 1, SIDE * 3, 0)
        here += (top * SIDE + left) * 3
    else:
        share_x, share_y, to_right, to_bottom = 0.0, 0.0, 0, 0  # not followed
        here += pixel * 3
    red = _sampled(here, to_right, to_bottom, share_x, share_y, inside, HAS_MAPS)
    green = _sampled(here + 1, to_right, to_bottom, share_x, share_y, inside, HAS_MAPS)
    blue = _sampled(here + 2, to_right, to_bottom, share_x, share_y, inside, HAS_MAPS)
    if HAS_LIGHT:
        factor = tl.load(light + sample)
        red, green, blue = _clamped(red * factor), _clamped(green * factor), _clamped(blue * factor)
    if HAS_COLOURS:
        contrast, saturation = tl.load(colours + sample * 2), tl.load(colours + sample * 2 + 1)
        red, green, blue = _coloured(red, green, blue, contrast, saturation)
    red, green, blue = (red - mean0) * scale0, (green - mean1) * scale1, (blue - mean2) * scale2
    if HAS_HOLES:
        # 0 after normalisation is the mean colour before it, with which augment.py fills the hole.
        hidden = _within(holes, sample, pixel % SIDE, pixel // SIDE)
        red, green, blue = tl.where(hidden, 0.0, red), tl.where(hidden, 0.0, green), tl.where(hidden, 0.0, blue)
    return red, green, blue


@triton.jit  # type: ignore[untyped-decorator]
def _inputs(  # type: ignore[no-untyped-def]
    out,
    pixels,
    rows,
    samples,
    maps,
    light,
    colours,
    holes,
    others,
    boxes,
    weights,
    mean0,
    mean1,
    mean2,
    scale0,
    scale1,
    scale2,
    SIDE: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_SAMPLES: tl.constexpr,
    HAS_MAPS: tl.constexpr,
    HAS_LIGHT: tl.constexpr,
    HAS_COLOURS: tl.constexpr,
    HAS_HOLES: tl.constexpr,
    HAS_OTHERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # In 64 bits, as every index of an image here: offsets in 32 bits would end after 14,266 images of 224 px.
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(rows + image) if HAS_ROWS else image
    sample = tl.load(samples + image) if HAS_SAMPLES else image
    here = pixels + source * (SIDE * SIDE * 3)
    red, green, blue = _varied(
        here, sample, maps, light, colours, holes, mean0, mean1, mean2, scale0, scale1, scale2, pixel,
        SIDE, HAS_MAPS, HAS_LIGHT, HAS_COLOURS, HAS_HOLES,
    )  # fmt: skip
    if HAS_OTHERS:
        # The partner is varied here once more, by its own sample's variations: the blocks that write it cannot be
        # waited for within a launch.
        other = tl.load(others + image)
        other_source = tl.load(rows + other) if HAS_ROWS else other
        other_sample = tl.load(samples + other)
        here = pixels + other_source * (SIDE * SIDE * 3)
        other_red, other_green, other_blue = _varied(
            here, other_sample, maps, light, colours, holes, mean0, mean1, mean2, scale0, scale1, scale2, pixel,
            SIDE, HAS_MAPS, HAS_LIGHT, HAS_COLOURS, HAS_HOLES,
        )  # fmt: skip
        # Share of the image's own value: 0 in cutmix's box, which is all the partner's; elsewhere 1, or mixup's weight.
        own = tl.where(_within(boxes, sample, pixel % SIDE, pixel // SIDE), 0.0, tl.load(weights + sample))
        red = red * own + other_red * (1 - own)
        green = green * own + other_green * (1 - own)
        blue = blue * own + other_blue * (1 - own)
    # Channels last: (N, H, W, 3) in memory, so the three values of a pixel lie side by side.
    there = out + image * (SIDE * SIDE * 3) + pixel * 3
    inside = pixel < SIDE * SIDE
    tl.store(there, red.to(out.dtype.element_ty), mask=inside)
    tl.store(there + 1, green.to(out.dtype.element_ty), mask=inside)
    tl.store(there + 2, blue.to(out.dtype.element_ty), mask=inside)


def inputs(
    pixels: Tensor,
    *,
    rows: Tensor | None,
    samples: Tensor | None,
    others: Tensor | None,
    variations: Variations,
    normalised_by: tuple[tuple[float, ...], tuple[float, ...]],
    dtype: torch.dtype,
) -> Tensor:
    """(N, 3, H, W) in channels-last memory; `variations` are those of all samples, `others` the indices in the batch of
    the images that each is mixed with."""
    count = len(pixels) if rows is None else len(rows)
    side_px = pixels.shape[1]
    out = torch.empty(
        (count, 3, side_px, side_px), dtype=dtype, device=pixels.device, memory_format=torch.channels_last
    )
    mean, std = normalised_by
    mixing = variations.mixing

    def pointer(tensor: Tensor | None) -> Tensor:
        return pixels if tensor is None else tensor  # one that is never followed

    # Images on the first axis, on which CUDA takes 2**31 - 1 blocks. The second takes 65,535: images of up to 4,095 px.
    grid = (count, triton.cdiv(side_px * side_px, BLOCK_PIXELS))
    _inputs[grid](
        out,
        pixels,
        pointer(rows),
        pointer(samples),
        pointer(variations.maps),
        pointer(variations.light),
        pointer(variations.colours),
        pointer(variations.holes),
        pointer(others),
        pointer(mixing.boxes if mixing else None),
        pointer(mixing.weights if mixing else None),
        *mean,
        *(1 / s for s in std),  # a multiplication for each value instead of a division
        # Constants of the compilation: what is switched off is not in the kernel. Each combination is compiled once.
        SIDE=side_px,
        HAS_ROWS=rows is not None,
        HAS_SAMPLES=samples is not None,
        HAS_MAPS=variations.maps is not None,
        HAS_LIGHT=variations.light is not None,
        HAS_COLOURS=variations.colours is not None,
        HAS_HOLES=variations.holes is not None,
        HAS_OTHERS=others is not None,
        BLOCK=BLOCK_PIXELS,
        num_warps=WARPS,
    )
    return out
