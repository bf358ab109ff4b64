"""Gather, affine variation, brightness and normalisation of uint8 pixels as one Triton kernel.

One read of the source pixels, one write of the network's input: nothing of the batch is written in between. Element e of
an output image is channel e % 3 of pixel e // 3 (channels-last), so neighbouring threads read and write neighbouring bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _inputs(  # type: ignore[no-untyped-def]
    out,
    pixels,
    rows,
    samples,
    maps,
    light,
    mean0,
    mean1,
    mean2,
    scale0,
    scale1,
    scale2,
    SIDE: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_MAPS: tl.constexpr,
    HAS_LIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    size: tl.constexpr = SIDE * SIDE * 3
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = element < size
    channel = element % 3
    pixel = element // 3
    source = tl.load(rows + image) if HAS_ROWS else image
    base = pixels + source * size
    if HAS_MAPS:
        sample = tl.load(samples + image)
        six = maps + sample * 6
        u = (2 * (pixel % SIDE) + 1).to(tl.float32) / SIDE - 1
        v = (2 * (pixel // SIDE) + 1).to(tl.float32) / SIDE - 1
        at_x = tl.load(six) * u + tl.load(six + 1) * v + tl.load(six + 2)
        at_y = tl.load(six + 3) * u + tl.load(six + 4) * v + tl.load(six + 5)
        # From -1..1 to pixels; outside the image the border is repeated (torch: padding_mode="border").
        at_x = tl.minimum(tl.maximum(((at_x + 1) * SIDE - 1) * 0.5, 0.0), SIDE - 1.0)
        at_y = tl.minimum(tl.maximum(((at_y + 1) * SIDE - 1) * 0.5, 0.0), SIDE - 1.0)
        left = at_x.to(tl.int32)
        top = at_y.to(tl.int32)
        right = tl.minimum(left + 1, SIDE - 1)
        bottom = tl.minimum(top + 1, SIDE - 1)
        share_x = at_x - left.to(tl.float32)
        share_y = at_y - top.to(tl.float32)
        upper, lower = top * (SIDE * 3) + channel, bottom * (SIDE * 3) + channel
        a = tl.load(base + upper + left * 3, mask=inside, other=0).to(tl.float32)
        b = tl.load(base + upper + right * 3, mask=inside, other=0).to(tl.float32)
        c = tl.load(base + lower + left * 3, mask=inside, other=0).to(tl.float32)
        d = tl.load(base + lower + right * 3, mask=inside, other=0).to(tl.float32)
        over = a + (b - a) * share_x
        under = c + (d - c) * share_x
        value = (over + (under - over) * share_y) * (1.0 / 255)
    else:
        value = tl.load(base + element, mask=inside, other=0).to(tl.float32) * (1.0 / 255)
    if HAS_LIGHT:
        value = tl.minimum(tl.maximum(value * tl.load(light + tl.load(samples + image)), 0.0), 1.0)
    mean = tl.where(channel == 0, mean0, tl.where(channel == 1, mean1, mean2))
    scale = tl.where(channel == 0, scale0, tl.where(channel == 1, scale1, scale2))
    tl.store(out + image * size + element, ((value - mean) * scale).to(out.dtype.element_ty), mask=inside)


def inputs(
    pixels: Tensor,
    *,
    rows: Tensor | None,
    samples: Tensor | None,
    varied: tuple[Tensor | None, Tensor | None],
    normalised_by: tuple[tuple[float, ...], tuple[float, ...]],
    dtype: torch.dtype,
) -> Tensor:
    """(N, 3, H, W) in channels-last memory; `varied` are the maps and brightness factors of all samples."""
    count = len(pixels) if rows is None else len(rows)
    side_px = pixels.shape[1]
    maps, light = varied
    out = torch.empty(
        (count, 3, side_px, side_px), dtype=dtype, device=pixels.device, memory_format=torch.channels_last
    )
    mean, std = normalised_by
    nothing = pixels  # a pointer that is never followed
    grid = (count, triton.cdiv(side_px * side_px * 3, BLOCK))
    _inputs[grid](
        out,
        pixels,
        nothing if rows is None else rows,
        nothing if samples is None else samples,
        nothing if maps is None else maps,
        nothing if light is None else light,
        *mean,
        *(1 / s for s in std),
        SIDE=side_px,
        HAS_ROWS=rows is not None,
        HAS_MAPS=maps is not None,
        HAS_LIGHT=light is not None,
        BLOCK=BLOCK,
    )
    return out
