"""What can be said of a training that nobody has run: time, memory and epochs, from a count of its network.

    time of an image = BYTES_FACTOR x bytes kept / memory bandwidth + FLOPS_FACTOR x 3 x forward FLOPs / peak rate
    time of a step   = images x time of an image + launches

The bytes are those that a forward pass keeps for its backward pass, at the precision of the GPU; a training step reads
and writes them many times, which BYTES_FACTOR counts. Everything here has a wide interval, as wide as published figures
of other networks than those it was learnt from ask for. No runs enter, and no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from turnaround.analysis.gpu_kinds import GpuKind
from turnaround.forecast.epochs import EpochsObservation, EpochsToStable
from turnaround.forecast.hardware import LOG_HALF_WIDTH, peak_tflops, precision_of
from turnaround.forecast.interval import Interval

# Derived by bench/estimate_prior.py (`--published DIR`) from 64 figures of one V100 or A100 for five networks of
# NVIDIA's Deep Learning Examples, each network weighing the same. Each network forecast with the factors of the others:
# median error 19 %, 80 % within 0.30 of the logarithm. Judged on figures of an H200, which are not among them: four
# networks, not compiled and compiled, 7 of 8 inside.
BYTES_FACTOR, FLOPS_FACTOR = 17.7, 0.95
LAW_HALF_WIDTH = 0.30
"""80 % half-width of the logarithm of an image's time, on the kinds that the factors were learnt from."""
LEARNT_KINDS = ("V100", "A100", "A100-80GB")
"""On other kinds the half-width between kinds (forecast/hardware.py) comes on top: none of them was in the figures."""

FROZEN_SPEEDUP = Interval(value=3.8, low=2.6, high=5.0)
"""Images/s of a frozen network over those of a fine-tuned one: four networks on an H200, not compiled and compiled
(docs/LOG.md, "is the GPU the limit?"), their 10 %, 50 % and 90 % quantiles."""
LAUNCH_S = Interval(value=15e-6, low=5e-6, high=100e-6)
"""Seconds of a step for each tensor kept, besides its images: launches, and kernels too small for a large GPU. Steps of
32 images on an H200: 19 (ResNet-50) and 11 microseconds (MobileNetV2) as CUDA graphs, 108 without."""

MEMORY_FACTOR = Interval(value=1.2, low=1.0, high=2.0)
"""Peak of a step over the bytes kept. 1.2: SE-ResNeXt-101 trains with 64 images in fp32 on 16 GB in NVIDIA's examples,
ResNet-50 with 128, so theirs is at most 1.2 and 1.4; 2 is what training/fitting.py allows for."""
COPIES_OF_WEIGHTS = 4
"""Gradients, two moments of the optimizer, a moving average, as in training/fitting.py; the weights themselves come
on top."""
CONTEXT_BYTES = 1e9
"""CUDA's context, libraries and buffers: 0.5 to 1 GB."""
USABLE_SHARE = 0.9
FROZEN_PASS_IMAGES = 256
"""A frozen backbone sees several steps at once, up to so many images."""

STABLE_SHARE = Interval(value=0.45, low=0.15, high=0.85)
"""First epoch of the plateau as a share of the epochs planned, with one worker: 0.13 to 0.3 of frozen features, 0.31 of
a fine-tuned MobileNetV2, 0.5 to 0.83 of the lab's Keras jobs (docs/LOG.md)."""
START_UP_S = {"GPU": Interval(value=10.0, low=4.5, high=30.0), "CPU": Interval(value=10.0, low=2.5, high=40.0)}
"""From the command to the first step, where nobody has measured it: 5.4 to 7.5 s on an H200's machine, 9 to
21 s there before networks were loaded alone; 3 to 15 s on two cores, 30 to 35 s on two cores at a load of 25
(docs/LOG.md)."""
CHECKPOINT_S = Interval(value=0.1, low=0.02, high=0.5)

Fits = Literal["yes", "perhaps", "no", "not known"]


@dataclass(frozen=True, kw_only=True)
class NetworkCount:
    """What was counted of a network: training/bench.py, and its FLOPs."""

    activation_bytes_per_image: float
    largest_activation_bytes: float
    kept_tensors: int
    weight_bytes: float
    trained_bytes: float
    forward_flops_per_image: float
    is_frozen: bool
    keeps_features: bool = False
    """The backbone sees every image once: no augmentation."""


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """Peak memory of a step on one GPU."""

    need_bytes: Interval
    fits: Fits
    largest_batch: int | None
    """The largest power of two whose upper end fits; None where the kind's memory is not known; 0 for none."""


def image_time_s(network: NetworkCount, kind: GpuKind, *, precision: str) -> Interval:
    """Return the time of one training image on one GPU, at a batch that keeps it busy."""
    is_half = precision_of(precision) == "half"
    bytes_kept = network.activation_bytes_per_image * (0.5 if is_half else 1.0)
    time_s = BYTES_FACTOR * bytes_kept / (kind.bandwidth_gb_s * 1e9)
    rate = peak_tflops(kind, precision_of(precision))
    if rate is not None:  # a sheet without peak rates, as a user may write it
        # 3: forward, and backward for the inputs and for the weights, each as much again.
        time_s += FLOPS_FACTOR * 3 * network.forward_flops_per_image / (rate * 1e12)
    other = 0.0 if kind.name in LEARNT_KINDS else LOG_HALF_WIDTH
    width = math.exp(math.hypot(LAW_HALF_WIDTH, other))
    law = Interval(value=time_s, low=time_s / width, high=time_s * width)
    return law.divided_by(FROZEN_SPEEDUP) if network.is_frozen else law


def evaluation_time_s(network: NetworkCount, training_image_s: Interval) -> Interval:
    """Return the time of one validation image: a forward pass."""
    return training_image_s if network.is_frozen else training_image_s.divided_by(FROZEN_SPEEDUP)


def step_time_s(network: NetworkCount, image_s: Interval, *, batch: int) -> Interval:
    """Return the time of one step of one worker."""
    launches = LAUNCH_S.scaled(network.kept_tensors)
    if network.keeps_features:  # the last layer alone: a handful of launches
        launches, image_s = LAUNCH_S.scaled(10), image_s.scaled(0.0)
    images = image_s.scaled(batch)
    # The ends are those of independent errors of two parts that add up.
    value = images.value + launches.value
    less = math.hypot(images.value - images.low, launches.value - launches.low)
    more = math.hypot(images.high - images.value, launches.high - launches.value)
    return Interval(value=value, low=max(value - less, 0.1 * value), high=value + more)


def memory_need(network: NetworkCount, kind: GpuKind | None, *, batch: int, precision: str) -> MemoryNeed:
    """Return the peak memory of a step with this batch, whether the GPU has it, and the largest batch that fits."""
    need = _need(network, batch, precision)
    if kind is None or kind.memory_gb is None:
        return MemoryNeed(need_bytes=need, fits="not known", largest_batch=None)
    room = USABLE_SHARE * kind.memory_gb * 1e9
    fits: Fits = "yes" if need.high <= room else "perhaps" if need.low <= room else "no"
    powers = [2**k for k in range(16) if _need(network, 2**k, precision).high <= room]
    return MemoryNeed(need_bytes=need, fits=fits, largest_batch=max(powers, default=0))


def _need(network: NetworkCount, batch: int, precision: str) -> Interval:
    share = 0.5 if precision_of(precision) == "half" else 1.0
    fixed = CONTEXT_BYTES + network.weight_bytes + COPIES_OF_WEIGHTS * network.trained_bytes
    if network.is_frozen:  # nothing is kept: a layer's input, output and scratch memory
        passing = 3 * share * network.largest_activation_bytes * max(batch, FROZEN_PASS_IMAGES)
        return Interval(value=passing, low=passing / 2, high=passing * 2).plus(fixed)
    return MEMORY_FACTOR.scaled(share * network.activation_bytes_per_image * batch).plus(fixed)


def epochs_to_stable(*, planned: int, batch: int, global_batch: int) -> Interval:
    """Return the epochs to a stable accuracy: the share of those planned with one worker, then the law of the batch."""
    alone = STABLE_SHARE.scaled(planned).at_least(1.0)
    if global_batch == batch:
        return alone
    law = EpochsToStable().fit([EpochsObservation(global_batch=batch, epochs=alone.value)])
    more = law.predict(global_batch).scaled(1 / alone.value)
    return times(alone, more).at_least(1.0)


def times(first: Interval, second: Interval) -> Interval:
    """Return the product of two values with independent errors."""
    return first.divided_by(second.into(1.0))


def joined(interval: Interval, half_width: float) -> Interval:
    """Return the interval with an independent error of this half-width of the logarithm besides."""
    return interval.divided_by(Interval(value=1.0, low=math.exp(-half_width), high=math.exp(half_width)))
