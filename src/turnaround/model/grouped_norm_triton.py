"""Batch norm of several workers in one pass, as Triton kernels.

In channels-last memory the images of G workers are one array (G, R, C): R = images x height x width of one worker. A
program reduces some of the rows of one worker for BLOCK_C channels; a small second kernel joins the parts in a fixed
order, so results do not depend on timing. Each of the two large passes reads the input once: forward costs two reads and
one write, backward four reads and one write, like torch's own kernels.

Measured on an H200 with bf16 and 32 images a worker: see docs/LOG.md.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# 64 rows of 64 channels, or more rows of fewer channels; the 256 threads of 8 warps have 16 values each.
TILE_VALUES = 4096
WARPS = 8
PROGRAMS_PER_PROCESSOR = 8
"""Enough programs to keep every multiprocessor of the GPU busy."""


def can_handle(input: Tensor, sizes: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> bool:
    """Tell whether these kernels compute this case; float64 wants more precision than they keep."""
    return (
        input.is_cuda
        and input.dim() in (2, 4)
        and input.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and len(set(sizes)) == 1  # (G, R, C) has one R
        and weight is not None
        and bias is not None
    )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The division of (groups, rows, channels) into programs."""

    groups: int
    rows: int
    channels: int
    block_c: int
    block_r: int
    parts: int
    rows_per_part: int

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.groups, triton.cdiv(self.channels, self.block_c), self.parts

    @property
    def joining_grid(self) -> tuple[int, int]:
        return self.groups, triton.cdiv(self.channels, self.block_c)


@cache  # the same few shapes at every step: choosing again costs the host more than a launch
def layout(shape: torch.Size, groups: int, device: torch.device) -> Layout:
    """Choose as many parts as fill the GPU, but none smaller than a tile."""
    channels = shape[1]
    rows = shape.numel() // (groups * channels)
    # Neighbouring channels are neighbours in channels-last memory: a row of a tile is one contiguous load.
    block_c = min(triton.next_power_of_2(channels), 64)
    block_r = max(1, TILE_VALUES // block_c)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    wanted = processors * PROGRAMS_PER_PROCESSOR // (groups * triton.cdiv(channels, block_c))
    parts = max(1, min(wanted, triton.cdiv(rows, block_r)))
    rows_per_part = triton.cdiv(triton.cdiv(rows, parts), block_r) * block_r  # whole tiles
    # Rounding up to tiles may need fewer parts: counted again, or an empty part would be divided by its size of 0.
    return Layout(
        groups=groups,
        rows=rows,
        channels=channels,
        block_c=block_c,
        block_r=block_r,
        parts=triton.cdiv(rows, rows_per_part),
        rows_per_part=rows_per_part,
    )


class GroupedNorm(torch.autograd.Function):
    """(input, weight, bias, groups, eps) -> (output, means (G, C), variances (G, C))."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Any:
        x = _rows_last(input)  # in memory (G, R, C)
        cut = layout(x.shape, groups, x.device)
        # One allocation for several tensors: small passes are limited by the host, and a network has dozens of norms.
        part_mean, part_m2 = torch.empty((2, cut.parts, groups, cut.channels), device=x.device).unbind()
        mean, variance, scale, shift = torch.empty((4, groups, cut.channels), device=x.device).unbind()
        sizes = {"BLOCK_R": cut.block_r, "BLOCK_C": cut.block_c, "num_warps": WARPS}
        _moments[cut.grid](x, part_mean, part_m2, cut.rows, cut.channels, cut.rows_per_part, **sizes)
        _join_moments[cut.joining_grid](
            *(part_mean, part_m2, weight, bias, mean, variance, scale, shift),
            *(cut.rows, cut.channels, cut.parts, cut.rows_per_part, eps),
            BLOCK_C=cut.block_c,
        )
        output = torch.empty_like(x)
        _scale_shift[cut.grid](x, output, scale, shift, cut.rows, cut.channels, cut.rows_per_part, **sizes)
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.groups, ctx.eps = groups, eps
        ctx.mark_non_differentiable(mean, variance)  # they only move the running statistics
        return output, mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        x, weight, mean, variance = ctx.saved_tensors
        cut = layout(x.shape, ctx.groups, x.device)
        grad = _rows_last(grad)  # must have the layout of x: both are read with the same offsets
        part_sum, part_dot = torch.empty((2, cut.parts, cut.groups, cut.channels), device=x.device).unbind()
        joined = torch.empty((5, cut.groups, cut.channels), device=x.device)  # (5, workers, channels)
        of_grad, of_input, constant, sums, dots = joined.unbind()
        sizes = {"BLOCK_R": cut.block_r, "BLOCK_C": cut.block_c, "num_warps": WARPS}
        _gradient_moments[cut.grid](
            *(x, grad, mean, variance, part_sum, part_dot, cut.rows, cut.channels, cut.rows_per_part, ctx.eps), **sizes
        )
        _join_gradient_moments[cut.joining_grid](
            *(part_sum, part_dot, weight, mean, variance, of_grad, of_input, constant, sums, dots),
            *(cut.rows, cut.channels, cut.parts, ctx.eps),
            BLOCK_C=cut.block_c,
        )
        grad_input = torch.empty_like(x)
        _combine[cut.grid](
            *(x, grad, grad_input, of_grad, of_input, constant, cut.rows, cut.channels, cut.rows_per_part), **sizes
        )
        # Weight and bias are shared by the workers, so their gradients are sums over them: (2, C).
        grad_bias, grad_weight = joined[3:].sum(dim=1).to(weight.dtype).unbind()
        return grad_input, grad_weight, grad_bias, None, None


def _rows_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous()


def move_running(running: tuple[Tensor, Tensor], mean: Tensor, variance: Tensor, *, rows: int, momentum: float) -> None:
    """Move the running mean and (unbiased) variance towards the mean over workers."""
    groups, channels = mean.shape
    block = 128
    # rows / (rows - 1): torch normalises by the biased variance and keeps the unbiased one.
    _move_running[(triton.cdiv(channels, block),)](
        *(mean, variance, *running, groups, channels, momentum, rows / (rows - 1)), BLOCK_C=block
    )


@triton.jit
def _move_running(  # type: ignore[no-untyped-def]
    mean, variance, running_mean, running_var, groups, channels, momentum, unbiased, BLOCK_C: tl.constexpr
):
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = columns < channels
    new_mean, new_var = tl.zeros([BLOCK_C], tl.float32), tl.zeros([BLOCK_C], tl.float32)
    for group in range(groups):  # (groups, channels) -> (channels,), in a fixed order
        new_mean += tl.load(mean + group * channels + columns, mask=mask, other=0.0)
        new_var += tl.load(variance + group * channels + columns, mask=mask, other=0.0)
    old_mean = tl.load(running_mean + columns, mask=mask, other=0.0)
    old_var = tl.load(running_var + columns, mask=mask, other=0.0)
    tl.store(running_mean + columns, old_mean + momentum * (new_mean / groups - old_mean), mask=mask)
    tl.store(running_var + columns, old_var + momentum * (new_var * unbiased / groups - old_var), mask=mask)


@triton.jit
def _tile(first_row, last_row, channels, base, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return offsets and mask of BLOCK_R rows of this program's channels."""
    # int64: a large pass has more than 2**31 values.
    rows = first_row + tl.arange(0, BLOCK_R)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (rows < last_row)[:, None] & (columns < channels)[None, :]
    return base + rows[:, None].to(tl.int64) * channels + columns[None, :], mask


@triton.jit
def _moments(x, part_mean, part_m2, rows, channels, rows_per_part, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Compute mean and sum of squared deviations of one part, tile by tile.

    E[x^2] - E[x]^2 would cancel where the mean is large. Chan, Golub and LeVeque 1979 join two sets a and b instead,
    with d = mean_b - mean_a and n = n_a + n_b:

        mean = mean_a + d n_b / n        M2 = M2_a + M2_b + d^2 n_a n_b / n
    """
    group, part = tl.program_id(0), tl.program_id(2)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    base = group.to(tl.int64) * rows * channels
    first = part * rows_per_part
    last = tl.minimum(first + rows_per_part, rows)
    mean, m2 = tl.zeros([BLOCK_C], tl.float32), tl.zeros([BLOCK_C], tl.float32)
    count = 0.0
    for row in range(first, last, BLOCK_R):
        offsets, mask = _tile(row, last, channels, base, BLOCK_R, BLOCK_C)
        values = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
        size = tl.minimum(BLOCK_R, last - row).to(tl.float32)  # rows that are not masked
        tile_mean = tl.sum(values, 0) / size  # (BLOCK_C,)
        # Masked rows load as 0, which adds nothing to a sum, but their deviation would be -tile_mean.
        deviations = tl.where(mask, values - tile_mean[None, :], 0.0)
        step, total = tile_mean - mean, count + size
        mean += step * (size / total)
        m2 += tl.sum(deviations * deviations, 0) + step * step * (count * size / total)
        count = total
    place = (part * tl.num_programs(0) + group) * channels + columns
    tl.store(part_mean + place, mean, mask=columns < channels)
    tl.store(part_m2 + place, m2, mask=columns < channels)


@triton.jit
def _join_moments(  # type: ignore[no-untyped-def]
    part_mean, part_m2, weight, bias, mean_out, variance_out, scale_out, shift_out,
    rows, channels, parts, rows_per_part, eps, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Join the parts of one worker; express the normalisation as output = input * scale + shift."""
    group = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = columns < channels
    mean, m2 = tl.zeros([BLOCK_C], tl.float32), tl.zeros([BLOCK_C], tl.float32)
    count = 0.0
    for part in range(parts):
        place = (part * tl.num_programs(0) + group) * channels + columns
        size = tl.minimum(rows_per_part, rows - part * rows_per_part).to(tl.float32)  # the last part may be shorter
        own_mean = tl.load(part_mean + place, mask=mask, other=0.0)
        step, total = own_mean - mean, count + size
        mean += step * (size / total)
        m2 += tl.load(part_m2 + place, mask=mask, other=0.0) + step * step * (count * size / total)
        count = total
    variance = m2 / rows  # biased, as torch normalises
    # weight (x - mean) / sqrt(variance + eps) + bias = x scale + shift: one multiply-add for each value.
    scale = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32) * tl.rsqrt(variance + eps)
    shift = tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32) - mean * scale
    place = group * channels + columns
    tl.store(mean_out + place, mean, mask=mask)
    tl.store(variance_out + place, variance, mask=mask)
    tl.store(scale_out + place, scale, mask=mask)
    tl.store(shift_out + place, shift, mask=mask)


@triton.jit
def _scale_shift(x, output, scale, shift, rows, channels, rows_per_part, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write output = x * scale + shift, with the scale and shift of this worker."""
    group, part = tl.program_id(0), tl.program_id(2)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    a = tl.load(scale + group * channels + columns, mask=columns < channels, other=0.0)
    b = tl.load(shift + group * channels + columns, mask=columns < channels, other=0.0)
    base = group.to(tl.int64) * rows * channels
    first = part * rows_per_part
    last = tl.minimum(first + rows_per_part, rows)
    for row in range(first, last, BLOCK_R):
        offsets, mask = _tile(row, last, channels, base, BLOCK_R, BLOCK_C)
        values = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
        tl.store(output + offsets, (values * a[None, :] + b[None, :]).to(output.dtype.element_ty), mask=mask)


@triton.jit
def _gradient_moments(  # type: ignore[no-untyped-def]
    x, grad, mean, variance, part_sum, part_dot, rows, channels, rows_per_part, eps,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum the gradient, and gradient x normalised input, over one part: the gradients of bias and weight."""
    group, part = tl.program_id(0), tl.program_id(2)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    centre = tl.load(mean + group * channels + columns, mask=columns < channels, other=0.0)
    # other=1.0: a masked channel must not be divided by sqrt(eps), nor by 0 where eps is 0.
    spread = tl.load(variance + group * channels + columns, mask=columns < channels, other=1.0)
    factor = tl.rsqrt(spread + eps)
    base = group.to(tl.int64) * rows * channels
    first = part * rows_per_part
    last = tl.minimum(first + rows_per_part, rows)
    total, dot = tl.zeros([BLOCK_C], tl.float32), tl.zeros([BLOCK_C], tl.float32)
    for row in range(first, last, BLOCK_R):
        offsets, mask = _tile(row, last, channels, base, BLOCK_R, BLOCK_C)
        values = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
        gradients = tl.load(grad + offsets, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(gradients, 0)
        dot += tl.sum(gradients * (values - centre[None, :]) * factor[None, :], 0)
    place = (part * tl.num_programs(0) + group) * channels + columns
    tl.store(part_sum + place, total, mask=columns < channels)
    tl.store(part_dot + place, dot, mask=columns < channels)


@triton.jit
def _join_gradient_moments(  # type: ignore[no-untyped-def]
    part_sum, part_dot, weight, mean, variance, of_grad_out, of_input_out, constant_out, sum_out, dot_out,
    rows, channels, parts, eps, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Join the parts; express the input's gradient as grad * of_grad + input * of_input + constant.

    With f = 1 / sqrt(variance + eps), n = (x - mean) f, sums over the R rows of one worker, and w the weight:

        dx = w f (g - sum(g) / R - n sum(g n) / R)
    """
    group = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = columns < channels
    total, dot = tl.zeros([BLOCK_C], tl.float32), tl.zeros([BLOCK_C], tl.float32)
    for part in range(parts):
        place = (part * tl.num_programs(0) + group) * channels + columns
        total += tl.load(part_sum + place, mask=mask, other=0.0)
        dot += tl.load(part_dot + place, mask=mask, other=0.0)
    place = group * channels + columns
    factor = tl.rsqrt(tl.load(variance + place, mask=mask, other=1.0) + eps)
    of_grad = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32) * factor
    # n = x f - mean f: its part with x goes to of_input, its part with the mean to the constant.
    of_input = -of_grad * factor * dot / rows
    constant = -of_grad * total / rows - of_input * tl.load(mean + place, mask=mask, other=0.0)
    tl.store(of_grad_out + place, of_grad, mask=mask)
    tl.store(of_input_out + place, of_input, mask=mask)
    tl.store(constant_out + place, constant, mask=mask)
    tl.store(sum_out + place, total, mask=mask)
    tl.store(dot_out + place, dot, mask=mask)


@triton.jit
def _combine(  # type: ignore[no-untyped-def]
    x, grad, grad_input, of_grad, of_input, constant, rows, channels, rows_per_part,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write grad_input = grad * of_grad + x * of_input + constant, with the values of this worker."""
    group, part = tl.program_id(0), tl.program_id(2)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    a = tl.load(of_grad + group * channels + columns, mask=columns < channels, other=0.0)
    b = tl.load(of_input + group * channels + columns, mask=columns < channels, other=0.0)
    c = tl.load(constant + group * channels + columns, mask=columns < channels, other=0.0)
    base = group.to(tl.int64) * rows * channels
    first = part * rows_per_part
    last = tl.minimum(first + rows_per_part, rows)
    for row in range(first, last, BLOCK_R):
        offsets, mask = _tile(row, last, channels, base, BLOCK_R, BLOCK_C)
        values = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
        gradients = tl.load(grad + offsets, mask=mask, other=0.0).to(tl.float32)
        result = gradients * a[None, :] + values * b[None, :] + c[None, :]
        tl.store(grad_input + offsets, result.to(grad_input.dtype.element_ty), mask=mask)
