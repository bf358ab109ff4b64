"""A step time carried over to another kind of GPU, from data sheets alone.

Training of image classifiers is bound by memory more than by arithmetic: over public pairs of measurements (A100
against V100 with mixed precision, 44 workloads) the speed was 0.88 of the ratio of memory bandwidths (80 %: 0.70 to
1.13), but 0.71 of the ratio of peak FLOPS. Never to be mixed with what was measured: input, processors and the batch
that fits into memory are not carried over.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnaround.analysis.gpu_kinds import GpuKind, data_sheet, kind_of, known_kinds, own_kinds_file
from turnaround.errors import InputError
from turnaround.forecast.interval import Interval

OF_BANDWIDTH = 0.9
"""Speed ratio as a share of the ratio of memory bandwidths."""
INTERVAL = (0.70, 1.15)
"""The share's 80 % interval, at one precision on both."""
INTERVAL_WITH_TF32 = (0.70, 1.45)
"""The same where the target computes fp32 in TF32 and the measured kind does not (vision: 1.11, 0.71 to 1.43)."""


@dataclass(frozen=True, kw_only=True)
class CarriedOver:
    """A time on a kind of GPU that was not measured."""

    time_s: Interval
    speed_ratio: Interval
    """Speed of the target over that of the measured kind; exactly 1 where both are the same kind."""
    source: GpuKind
    destination: GpuKind


def carry_over(time_s: Interval, *, measured_on: str, target: str, precision: str = "amp") -> CarriedOver:
    """Return the GPU part of a step, or of an epoch, on the target kind. `precision`: fp32, or any lower one."""
    source, destination = sheet_of(measured_on), sheet_of(target)
    is_same = source.name == destination.name
    ratio = Interval.exact(1.0) if is_same else speed_ratio(source, destination, precision=precision)
    return CarriedOver(
        # Errors of the time and of the ratio are independent.
        time_s=time_s if is_same else time_s.divided_by(ratio),
        speed_ratio=ratio,
        source=source,
        destination=destination,
    )


def speed_ratio(source: GpuKind, destination: GpuKind, *, precision: str = "amp") -> Interval:
    """Return speed of destination / speed of source = 0.9 x ratio of memory bandwidths, with its 80 % interval."""
    bandwidths = destination.bandwidth_gb_s / source.bandwidth_gb_s
    adds_tf32 = precision == "fp32" and destination.tf32_tflops is not None and source.tf32_tflops is None
    low, high = INTERVAL_WITH_TF32 if adds_tf32 else INTERVAL
    return Interval(value=OF_BANDWIDTH * bandwidths, low=low * bandwidths, high=high * bandwidths)


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
