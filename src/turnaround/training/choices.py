"""What is chosen for the user, each choice with its reason as data: both go into the record."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from turnaround import kernels
from turnaround.errors import MissingPartError
from turnaround.workers.environment import RankInfo

# Compiling resnet50 at 224 px took 6-17 s frozen and 52-88 s fine-tuned on an H200, and saved 23 and 66 microseconds an
# image: it pays from about 0.7 and 1.1 million images, which are these many FLOPs.
MIN_FLOPS_FROZEN = 6e15
MIN_FLOPS_LEARNING = 2.6e16


# For a depthwise layer and a number of images, cuDNN's plan took 0.55 s on an H200 (0.13 s without gradients). Our
# kernels take 0.49 microseconds more for each image (0.15), and the host 0.26 ms more for a step that is not recorded.
MIN_STEPS_DEPTHWISE = 2_000
MIN_IMAGES_DEPTHWISE = 1_000_000
PLAN = "cuDNN takes seconds to make a plan for each number of images"


@dataclass(frozen=True, kw_only=True)
class DeviceChoice:
    """The device of this process."""

    device: torch.device
    shares_device: bool
    """Whether another process of this run uses the same GPU."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class PrecisionChoice:
    """Arithmetic of the passes: `parameters` is what weights are kept in, `autocast` what passes may use."""

    name: str
    parameters: torch.dtype
    autocast: torch.dtype | None
    reason: str

    @property
    def scales_loss(self) -> bool:
        """fp16 gradients underflow unless the loss is scaled up."""
        return self.autocast == torch.float16


def choose_device(asked: str, place: RankInfo) -> DeviceChoice:
    """The device that was asked for, or the best one that is here."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise MissingPartError(
            f"--device cuda: torch {torch.__version__} sees no CUDA device here. Use --device cpu or auto."
        )
    if asked == "mps" and not torch.backends.mps.is_available():
        raise MissingPartError("--device mps: there is no Apple GPU here. Use --device cpu or auto.")
    chosen = asked
    if asked == "auto":
        chosen = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    reason = "asked for" if asked != "auto" else "the best device here"
    if chosen != "cuda":
        return DeviceChoice(device=torch.device(chosen), shares_device=place.local_size > 1, reason=reason)
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", place.local_rank % gpus)
    torch.cuda.set_device(device)
    return DeviceChoice(device=device, shares_device=place.local_size > gpus, reason=f"{reason} ({gpus} GPU)")


def choose_precision(asked: str, device: torch.device) -> PrecisionChoice:
    """The precision that was asked for, or the fastest safe one of the device."""
    if asked != "auto":
        return _precision(asked, "asked for")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        return _precision("bf16", f"{torch.cuda.get_device_name(device)} computes bf16 in its matrix units")
    if device.type == "cuda":
        return _precision("fp16", f"{torch.cuda.get_device_name(device)} has fp16 matrix units but no bf16 ones")
    return _precision("fp32", f"plain arithmetic on {device.type}: reproducible, and quick enough for small networks")


def autocast(device: torch.device, precision: PrecisionChoice) -> torch.autocast:
    """The arithmetic of a pass, in training and in evaluation alike."""
    return torch.autocast(device.type, dtype=precision.autocast, enabled=precision.autocast is not None)


@dataclass(frozen=True, kw_only=True)
class CompileChoice:
    """Whether what takes the time is compiled, and why."""

    value: bool
    reason: str


def choose_compile(
    asked: str, *, device: torch.device, flops: float, learns_all: bool, fuses_norms: bool
) -> CompileChoice:
    """`flops` are those of the whole training that compiled code would do; compiling pays when they are many."""
    if asked == "on" and device.type == "cuda" and (missing := kernels.unavailable_reason()) is not None:
        raise MissingPartError(
            f"training.compile=on needs Triton, which does not work here ({missing}). It needs a C compiler and the "
            "headers of Python: install both, or leave training.compile at auto."
        )
    if asked != "auto":
        return CompileChoice(value=asked == "on", reason="asked for")
    if device.type == "cuda" and (missing := kernels.unavailable_reason()) is not None:
        return CompileChoice(value=False, reason=f"Triton does not work here ({missing})")
    if device.type != "cuda":
        return CompileChoice(value=False, reason=f"on {device.type} it takes long and gains nothing")
    if fuses_norms:
        return CompileChoice(
            value=False, reason="hosted workers share a pass with batch norm by worker, which is not compiled"
        )
    least = MIN_FLOPS_LEARNING if learns_all else MIN_FLOPS_FROZEN
    if flops < least:
        return CompileChoice(
            value=False, reason=f"{flops:.1e} FLOPs in all are too few: compiling pays from about {least:.0e}"
        )
    return CompileChoice(value=True, reason=f"{flops:.1e} FLOPs in all: compiling pays from about {least:.0e}")


@dataclass(frozen=True, kw_only=True)
class DepthwiseChoice:
    """Whether full passes leave depthwise convolutions to cuDNN, which makes a plan for them first, and why."""

    by_library: bool
    reason: str

    @property
    def value(self) -> str:
        return "cuDNN for full passes" if self.by_library else "our kernels"


def choose_depthwise(*, steps: int, images: int, can_capture: bool) -> DepthwiseChoice:
    """By what the training as a whole will do, not by what was timed: a resumed run must compute as before."""
    if not can_capture and steps >= MIN_STEPS_DEPTHWISE:
        return DepthwiseChoice(by_library=True, reason=f"{PLAN}: over {steps:,} steps that cannot be recorded it pays")
    is_much = images >= MIN_IMAGES_DEPTHWISE
    pays = f"over {images:,} images in all it {'pays' if is_much else 'would not pay'}"
    return DepthwiseChoice(by_library=is_much, reason=f"{PLAN}: {pays}")


def _precision(name: str, reason: str) -> PrecisionChoice:
    parameters = torch.float64 if name == "fp64" else torch.float32
    autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)
    return PrecisionChoice(name=name, parameters=parameters, autocast=autocast, reason=reason)
