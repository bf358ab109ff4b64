"""A time carried over to another kind of GPU, or to another precision, from data sheets alone.

    time of a kind = bytes / memory bandwidth + ARITHMETIC / peak rate at the precision

Training of image classifiers is bound by memory more than by arithmetic: fp32 moves twice the bytes of half precision,
and arithmetic is felt where it is slow (fp32 without tensor cores). A time is a function of kind and precision, so
there and back gives 1. Never to be mixed with what was measured: input, processors and the batch that fits into memory
are not carried over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from turnaround.analysis.gpu_kinds import GpuKind, data_sheet, kind_of, known_kinds, own_kinds_file
from turnaround.errors import InputError
from turnaround.forecast.interval import Interval

Precision = Literal["half", "tf32", "fp32"]
PRECISIONS: dict[str, Precision] = {
    **dict.fromkeys(("amp", "fp16", "bf16", "half", "mixed", "float16", "bfloat16", "16 mixed", "bf16 mixed"), "half"),
    "tf32": "tf32",
    **dict.fromkeys(("fp32", "float32", "single", "32", "32 true"), "fp32"),
}
"""What people and programs write."""

# Derived by gpu_constants in bench/forecast_gpus.py from 23 networks of NVIDIA's Deep Learning Examples on one V100 or
# A100, mixed precision and fp32 or TF32. `python bench/forecast.py --published DIR` derives them again, and tests each
# example with the constants of the others. Other kinds than those two are not in these figures.
ARITHMETIC = 3.4
"""Work of arithmetic in GFLOP for each GB that half precision moves. On a V100 it is a fiftieth of the time in half
precision, and a tenth in fp32."""
LOG_HALF_WIDTH = 0.37
"""80 % half-width of the logarithm of a ratio of speeds, the same either way."""


@dataclass(frozen=True, kw_only=True)
class CarriedOver:
    """A time on a kind of GPU that was not measured."""

    time_s: Interval
    speed_ratio: Interval
    """Speed of the target over that of the measured kind; exactly 1 where kind and precision are the same."""
    source: GpuKind
    destination: GpuKind


def carry_over(
    time_s: Interval, *, measured_on: str, target: str, precision: str = "amp", target_precision: str | None = None
) -> CarriedOver:
    """Return the GPU part of a step, or of an epoch, on the target kind, in the same precision or in another."""
    source, destination = sheet_of(measured_on), sheet_of(target)
    ratio = speed_ratio(source, destination, precision=precision, target_precision=target_precision or precision)
    return CarriedOver(
        # Errors of the time and of the ratio are independent.
        time_s=time_s if ratio == Interval.exact(1.0) else time_s.divided_by(ratio),
        speed_ratio=ratio,
        source=source,
        destination=destination,
    )


def speed_ratio(
    source: GpuKind, destination: GpuKind, *, precision: str = "amp", target_precision: str | None = None
) -> Interval:
    """Return speed of destination / speed of source, with its 80 % interval."""
    ours, theirs = precision_of(precision), precision_of(target_precision or precision)
    if source.name == destination.name and ours == theirs:
        return Interval.exact(1.0)
    rates = [peak_tflops(source, ours), peak_tflops(destination, theirs)]
    # A sheet without peak rates, as a user may write it, is compared by bandwidth alone.
    arithmetic = 0.0 if None in rates else ARITHMETIC
    # GB / (GB/s), and GFLOP / (1000 GFLOP/s of a TFLOPS): seconds for each GB that half precision moves.
    before, after = (
        _bytes(kind_precision) / kind.bandwidth_gb_s + arithmetic / (1000 * (rate or 1.0))
        for kind, kind_precision, rate in ((source, ours, rates[0]), (destination, theirs, rates[1]))
    )
    value, width = before / after, math.exp(LOG_HALF_WIDTH)
    return Interval(value=value, low=value / width, high=value * width)


def precision_of(name: str) -> Precision:
    """Return the precision that a name means; InputError lists those that are known. fp64 is nobody's choice here."""
    spelled = " ".join(name.lower().replace("-", " ").replace("_", " ").split())
    if spelled not in PRECISIONS:
        raise InputError(f"--precision must be amp, fp16, bf16, tf32 or fp32. Received: {name!r}.")
    return PRECISIONS[spelled]


def _bytes(precision: Precision) -> float:
    # TF32 is fp32 in memory: 4 bytes, where half precision has 2.
    return 1.0 if precision == "half" else 2.0


def peak_tflops(kind: GpuKind, precision: Precision) -> float | None:
    """Return the peak rate in TFLOPS; None where the sheet has none.

    torch computes convolutions of fp32 in TF32 where a kind has it; without it TF32 is fp32."""
    if precision == "half":
        return kind.fp16_tflops or kind.fp32_tflops
    return kind.tf32_tflops or kind.fp32_tflops


def sheet_of(name: str) -> GpuKind:
    """Return the data sheet of a kind of GPU; InputError lists the kinds that are known."""
    sheet = data_sheet(name)
    if sheet is None and kind_of(name) == "CPU":
        raise InputError(
            "These runs computed on processors, and no data sheet carries their times over to a GPU. Leave --gpu out "
            "for a forecast on processors, or train one epoch on a GPU, of any kind, and ask again with that run."
        )
    if sheet is None:
        raise InputError(
            f"No data sheet for the GPU {kind_of(name)!r}. Known: {', '.join(known_kinds())}. To add yours, write into "
            f'{own_kinds_file()}: ["{kind_of(name)}"] and below it bandwidth_gb_s = its memory bandwidth in GB/s.'
        )
    return sheet
