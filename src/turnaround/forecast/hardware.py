"""A step time carried over to another kind of GPU, from data sheets alone.

Training of image classifiers is bound by memory more than by arithmetic: over public pairs of measurements (A100
against V100 with mixed precision, 44 workloads) the speed was 0.88 of the ratio of memory bandwidths (80 %: 0.70 to
1.13), but 0.71 of the ratio of peak FLOPS. Never to be mixed with what was measured: input, processors and the batch
that fits into memory are not carried over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from turnaround.analysis.gpu_kinds import GpuKind, data_sheet, kind_of, known_kinds, own_kinds_file
from turnaround.errors import InputError
from turnaround.forecast.contract import Forecast

LABEL = "estimate from data sheets"
OF_BANDWIDTH = 0.9
"""Speed ratio as a share of the ratio of memory bandwidths."""
INTERVAL = (0.70, 1.15)
"""The share's 80 % interval, at one precision on both."""
INTERVAL_WITH_TF32 = (0.70, 1.45)
"""The same where the target computes fp32 in TF32 and the measured kind does not (vision: 1.11, 0.71 to 1.43)."""


@dataclass(frozen=True, kw_only=True)
class CarriedOver:
    """A time on a kind of GPU that was not measured."""

    time_s: Forecast
    speed_ratio: Forecast
    """Of the target to the kind that was measured."""
    label: str
    """"measured" where both are the same kind, else "estimate from data sheets"."""
    basis: str
    """The data sheets, in a sentence."""


def carry_over(time_s: Forecast, *, measured_on: str, target: str, precision: str = "amp") -> CarriedOver:
    """The GPU part of a step, or of an epoch, on the target kind. `precision`: fp32, or any lower one."""
    source, destination = sheet_of(measured_on), sheet_of(target)
    if source.name == destination.name:
        same = Forecast(value=1.0, low=1.0, high=1.0)
        return CarriedOver(time_s=time_s, speed_ratio=same, label="measured", basis=f"Measured on {source.name}.")
    ratio = speed_ratio(source, destination, precision=precision)
    value = time_s.value / ratio.value
    # Errors of the time and of the ratio are independent: in quadrature, on a logarithmic scale.
    less = math.hypot(_log_ratio(time_s.value, time_s.low), _log_ratio(ratio.high, ratio.value))
    more = math.hypot(_log_ratio(time_s.high, time_s.value), _log_ratio(ratio.value, ratio.low))
    return CarriedOver(
        time_s=Forecast(value=value, low=value * math.exp(-less), high=value * math.exp(more)),
        speed_ratio=ratio,
        label=LABEL,
        basis=(
            f"{destination.name} has {destination.bandwidth_gb_s / source.bandwidth_gb_s:.2f} times the memory "
            f"bandwidth of {source.name} ({destination.source}; {source.source})."
        ),
    )


def speed_ratio(source: GpuKind, destination: GpuKind, *, precision: str = "amp") -> Forecast:
    """How many times faster the destination is."""
    bandwidths = destination.bandwidth_gb_s / source.bandwidth_gb_s
    adds_tf32 = precision == "fp32" and destination.tf32_tflops is not None and source.tf32_tflops is None
    low, high = INTERVAL_WITH_TF32 if adds_tf32 else INTERVAL
    return Forecast(value=OF_BANDWIDTH * bandwidths, low=low * bandwidths, high=high * bandwidths)


def sheet_of(name: str) -> GpuKind:
    """InputError lists the kinds that are known."""
    sheet = data_sheet(name)
    if sheet is None:
        raise InputError(
            f"No data sheet for the GPU {kind_of(name)!r}. Known: {', '.join(known_kinds())}. To add yours, write into "
            f'{own_kinds_file()}: ["{kind_of(name)}"] and below it bandwidth_gb_s = its memory bandwidth in GB/s.'
        )
    return sheet


def _log_ratio(larger: float, smaller: float) -> float:
    return math.log(larger / smaller)
