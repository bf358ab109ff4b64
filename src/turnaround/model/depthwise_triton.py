"""Depthwise convolutions as Triton kernels that hold for any number of images and any size of the picture.

In channels-last memory a picture is rows of channels; a program makes some pixels of BLOCK_CHANNELS channels. The gradient
of the weights is summed in a fixed order, so results do not depend on timing.

The layers of MobileNetV2 on an H200, bf16, 256 images, in ms: forward 2.0 (cuDNN 1.4), gradient of the input 2.3 and of
the weights 4.5 (cuDNN 5.3 together). Other blocks are in docs/LOG.md.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-call"

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from turnaround.model.convolutions import Window

# Of 16 to 256 pixels x 16, 32 or 64 channels and 1 to 8 warps, 64 x 32 with 2 warps was best or close (docs/LOG.md).
BLOCK_CHANNELS = 32
BLOCK_PIXELS = 64
SUMMED_AT_ONCE = 128
"""Pixels x places of a window's row, whose products a program of the weights' gradient keeps."""
WARPS = 2
PROGRAMS_PER_PROCESSOR = 32
"""Enough programs to keep every multiprocessor of the GPU busy."""
MAX_LOADED_AT_ONCE = 16
MAX_INT32 = 2**31 - 1


class DepthwiseConvolution(torch.autograd.Function):
    """(input, weight (C, 1, height, width), window, size of the output) -> output, in the input's precision."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, window: Window, size: tuple[int, int]) -> Tensor:
        x, weight = input.contiguous(memory_format=torch.channels_last), weight.contiguous()
        shape = (*x.shape[:2], *size)
        output = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        _slide(x, weight, output, window, backwards=False)
        ctx.save_for_backward(x, weight)
        ctx.window = window
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_input = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_input = torch.empty_like(x)
            _slide(grad, weight, grad_input, ctx.window, backwards=True)
        if ctx.needs_input_grad[1]:
            grad_weight = _gradient_of_weight(x, grad, ctx.window).view(weight.shape).to(weight.dtype)
        return grad_input, grad_weight, None, None


def _slide(source: Tensor, weight: Tensor, made: Tensor, window: Window, *, backwards: bool) -> None:
    count, channels, height, width = made.shape
    # Backwards, the pixels that share a remainder by the stride lie under the same places of the window: one program
    # makes pixels of one remainder, and there are stride x stride of them.
    step = window.stride if backwards else 1
    pixels = count * triton.cdiv(height, step) * triton.cdiv(width, step)
    grid = (triton.cdiv(channels, BLOCK_CHANNELS) * triton.cdiv(pixels, BLOCK_PIXELS), step * step)
    _slide_kernel[grid](
        *(source, weight, made, pixels, *source.shape[2:], height, width, window.above, window.left),
        **_sizes(window, source, made),
        BACKWARDS=backwards,
        BLOCK_PIXELS=BLOCK_PIXELS,
    )


def _gradient_of_weight(x: Tensor, grad: Tensor, window: Window) -> Tensor:
    """Return the weight's gradient, (channels, places of the window)."""
    count, channels, height, width = grad.shape
    pixels, blocks = count * height * width, triton.cdiv(channels, BLOCK_CHANNELS)
    places = triton.next_power_of_2(window.width)
    at_once = max(1, SUMMED_AT_ONCE // places)
    parts = max(1, min(_programs(x.device) // (blocks * window.height), triton.cdiv(pixels, at_once)))
    pixels_per_part = max(1, triton.cdiv(triton.cdiv(pixels, parts), at_once)) * at_once
    parts = max(1, triton.cdiv(pixels, pixels_per_part))  # without images too: a part that adds up nothing
    # float32 whatever the precision of the input: (parts, channels, places of the window)
    sums = torch.empty((parts, channels, window.height * window.width), device=x.device)
    _gradient_of_weight_kernel[(window.height, blocks, parts)](
        *(x, grad, sums, pixels, pixels_per_part, *x.shape[2:], height, width, window.above, window.left),
        **_sizes(window, x, grad),
        PLACES=places,
        BLOCK_PIXELS=at_once,
    )
    return sums.sum(dim=0)  # over parts, in a fixed order: atomic additions would depend on timing


def _sizes(window: Window, *tensors: Tensor) -> dict[str, int | bool]:
    """Return the channels, and the constants that code is compiled for.

    A thread loads as many channels at once as their number is known to be divisible by. The zeros around the picture
    may vary with its size, so they are no constant.
    """
    channels = tensors[0].shape[1]
    # `bundles * TOGETHER` instead of the number itself: so the compiler knows that it can be divided. Without it loads
    # were four times slower (docs/LOG.md).
    together = math.gcd(channels, MAX_LOADED_AT_ONCE)
    return {
        "bundles": channels // together,
        "TOGETHER": together,
        "HEIGHT": window.height,
        "WIDTH": window.width,
        "STRIDE": window.stride,
        "DILATION": window.dilation,
        "IS_LARGE": any(tensor.numel() > MAX_INT32 for tensor in tensors),
        "BLOCK_CHANNELS": BLOCK_CHANNELS,
        "num_warps": WARPS,
    }


@cache
def _programs(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) * PROGRAMS_PER_PROCESSOR


SAME_CODE_FOR_ALL = [
    "pixels", "pixels_per_part", "in_height", "in_width", "out_height", "out_width", "above", "left", "bundles"
]  # fmt: skip
"""Triton would compile once more for every divisibility of these, and a new number of images would cost a second."""


@triton.jit
def _start(pixel, channels, IS_LARGE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the offset of a pixel's first channel."""
    return (pixel.to(tl.int64) if IS_LARGE else pixel) * channels


@triton.jit(do_not_specialize=SAME_CODE_FOR_ALL)
def _slide_kernel(  # type: ignore[no-untyped-def]
    source, weight, made, pixels, in_height, in_width, out_height, out_width, above, left, bundles,
    TOGETHER: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr,
    IS_LARGE: tl.constexpr, BACKWARDS: tl.constexpr, BLOCK_PIXELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Convolve: made = source under the window; BACKWARDS: source is an output's gradient, made that of its input.

    Backwards a program makes every STRIDE-th pixel, and leaves out the places of the window that never lie on them.
    """
    STEP: tl.constexpr = STRIDE if BACKWARDS else 1  # noqa: N806  # as Triton's other constants
    channels = bundles * TOGETHER
    blocks = tl.cdiv(channels, BLOCK_CHANNELS)
    columns = tl.program_id(0) % blocks * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    phase_y, phase_x = tl.program_id(1) // STEP, tl.program_id(1) % STEP
    rows = tl.program_id(0) // blocks * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    high, wide = tl.cdiv(out_height, STEP), tl.cdiv(out_width, STEP)
    image, y, x = rows // (high * wide), rows // wide % high * STEP + phase_y, rows % wide * STEP + phase_x
    inside, known = (rows < pixels) & (y < out_height) & (x < out_width), columns < channels
    total = tl.zeros([BLOCK_PIXELS, BLOCK_CHANNELS], tl.float32)
    for ky in range(HEIGHT):  # a loop in the kernel too: written out, windows of 7 x 7 took a minute to compile
        for kx in tl.static_range(WIDTH):
            to_y, to_x = above - ky * DILATION, left - kx * DILATION
            lies_there = True
            if STEP > 1:
                lies_there = ((phase_y + to_y) % STEP == 0) & ((phase_x + to_x) % STEP == 0)
            if lies_there:
                at_y = (y + to_y) // STRIDE if BACKWARDS else y * STRIDE - to_y
                at_x = (x + to_x) // STRIDE if BACKWARDS else x * STRIDE - to_x
                there = (at_y >= 0) & (at_x >= 0) & (at_y < in_height) & (at_x < in_width) & inside
                at = _start((image * in_height + at_y) * in_width + at_x, channels, IS_LARGE)
                mask = there[:, None] & known[None, :]
                values = tl.load(source + at[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
                factors = tl.load(weight + columns * (HEIGHT * WIDTH) + ky * WIDTH + kx, mask=known, other=0.0)
                total += values * factors.to(tl.float32)[None, :]
    place = made + _start((image * out_height + y) * out_width + x, channels, IS_LARGE)[:, None] + columns[None, :]
    tl.store(place, total.to(made.dtype.element_ty), mask=inside[:, None] & known[None, :])


@triton.jit(do_not_specialize=SAME_CODE_FOR_ALL)
def _gradient_of_weight_kernel(  # type: ignore[no-untyped-def]
    x, grad, sums, pixels, pixels_per_part, in_height, in_width, out_height, out_width, above, left, bundles,
    TOGETHER: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr,
    IS_LARGE: tl.constexpr, PLACES: tl.constexpr, BLOCK_PIXELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Sum gradient x input over some of the output's pixels, for one row of the window; PLACES >= WIDTH."""
    channels = bundles * TOGETHER
    ky, part = tl.program_id(0), tl.program_id(2)
    columns = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    known, places = columns < channels, tl.arange(0, PLACES)
    total = tl.zeros([PLACES, BLOCK_PIXELS, BLOCK_CHANNELS], tl.float32)
    last = tl.minimum((part + 1) * pixels_per_part, pixels)
    for first in range(part * pixels_per_part, last, BLOCK_PIXELS):
        rows = first + tl.arange(0, BLOCK_PIXELS)
        inside = rows < last
        image, row, column = rows // (out_height * out_width), rows // out_width % out_height, rows % out_width
        own = grad + _start(rows, channels, IS_LARGE)[:, None] + columns[None, :]
        gradients = tl.load(own, mask=inside[:, None] & known[None, :], other=0.0).to(tl.float32)
        at_y = row * STRIDE - above + ky * DILATION
        at_x = (column * STRIDE - left)[None, :] + places[:, None] * DILATION
        there = (inside & (at_y >= 0) & (at_y < in_height))[None, :] & (at_x >= 0) & (at_x < in_width)
        there = there & (places < WIDTH)[:, None]
        at = _start(((image * in_height + at_y) * in_width)[None, :] + at_x, channels, IS_LARGE)
        under = x + at[:, :, None] + columns[None, None, :]
        values = tl.load(under, mask=there[:, :, None] & known[None, None, :], other=0.0)
        total += gradients[None, :, :] * values.to(tl.float32)
    place = (part * channels + columns[None, :]) * (HEIGHT * WIDTH) + ky * WIDTH + places[:, None]
    tl.store(sums + place, tl.sum(total, 1), mask=known[None, :] & (places < WIDTH)[:, None])
