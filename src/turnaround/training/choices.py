"""The choices that a recipe leaves to the machine: device, precision, compiling, depthwise convolutions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import torch

from turnaround import kernels
from turnaround.choice import Choice
from turnaround.errors import MissingPartError
from turnaround.workers.contract import Workers
from turnaround.workers.environment import RankInfo

# Compiling resnet50 at 224 px took 6-17 s frozen and 52-88 s fine-tuned on an H200, and saved 23 and 66 microseconds an
# image: it pays from about 0.7 and 1.1 million images, which are these many FLOPs.
MIN_FLOPS_FROZEN = 6e15
MIN_LIMIT_COMPILE_S = 300.0
"""A shorter time limit would lose more to compiling, up to a minute, than a fifth that it may gain."""
MIN_FLOPS_LEARNING = 2.6e16

# For a depthwise layer and a number of images, cuDNN's plan took 0.55 s on an H200 (0.13 s without gradients). Our
# kernels take 0.49 microseconds more for each image (0.15), and the host 0.26 ms more for a step that is not captured
# as a CUDA graph.
MIN_STEPS_DEPTHWISE = 2_000
MIN_IMAGES_DEPTHWISE = 1_000_000
PLAN = "cuDNN takes seconds to make a plan for each number of images"


@dataclass(frozen=True, kw_only=True)
class ProcessDevice:
    """The device of this process."""

    device: torch.device
    shares_device: bool
    """Another process of this run uses the same GPU."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Arithmetic of the passes: `parameters` is the dtype of the weights, `autocast` the one that passes may use."""

    name: str
    parameters: torch.dtype
    autocast: torch.dtype | None

    @property
    def scales_loss(self) -> bool:
        """fp16 gradients underflow unless the loss is scaled up."""
        return self.autocast == torch.float16


class DepthwiseKernels(StrEnum):
    """The kernels of depthwise convolutions in full passes, as the record names them."""

    CUDNN = "cuDNN for full passes"
    OURS = "our kernels"


def choose_device(wanted: str, rank_info: RankInfo) -> Choice[ProcessDevice]:
    """Choose the device that was asked for, or the best one that is here; `cuda,cpu` has one for each process."""
    kinds = wanted.split(",")
    if len(kinds) > 1:
        return _one_of_several(kinds, rank_info)
    if wanted == "cuda" and not torch.cuda.is_available():
        raise MissingPartError(
            f"--device cuda: torch {torch.__version__} sees no CUDA device here. Use --device cpu or auto."
        )
    if wanted == "mps" and not torch.backends.mps.is_available():
        raise MissingPartError("--device mps: there is no Apple GPU here. Use --device cpu or auto.")
    kind = wanted
    if wanted == "auto":
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    reason = "asked for" if wanted != "auto" else "the best device here"
    if kind != "cuda":
        return Choice(ProcessDevice(device=torch.device(kind), shares_device=rank_info.local_size > 1), reason)
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", rank_info.local_rank % gpus)
    torch.cuda.set_device(device)
    return Choice(ProcessDevice(device=device, shares_device=rank_info.local_size > gpus), f"{reason} ({gpus} GPU)")


def _one_of_several(kinds: list[str], rank_info: RankInfo) -> Choice[ProcessDevice]:
    """Choose the device of this process where each has a kind of its own."""
    kind, first_here = kinds[rank_info.rank], rank_info.rank - rank_info.local_rank
    # The n-th process of this host that asks for a GPU has the n-th one.
    number = kinds[first_here : rank_info.rank].count("cuda")
    chosen = choose_device(kind, replace(rank_info, local_rank=number if kind == "cuda" else rank_info.local_rank))
    # As if it were shared: NCCL cannot speak to a CPU, so all take Gloo.
    return replace(chosen, value=replace(chosen.value, shares_device=True))


def choose_precision(wanted: str, device: torch.device) -> Choice[Precision]:
    """Choose the precision that was asked for, or the fastest safe one of the device."""
    if wanted != "auto":
        return Choice(_precision(wanted), "asked for")
    if device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
        if torch.cuda.get_device_capability(device) >= (8, 0):  # Ampere and later
            return Choice(_precision("bf16"), f"{gpu} computes bf16 in its matrix units")
        return Choice(_precision("fp16"), f"{gpu} has fp16 matrix units but no bf16 ones")
    return Choice(
        _precision("fp32"), f"plain arithmetic on {device.type}: reproducible, and quick enough for small networks"
    )


def choose_backbone_precision(wanted: str, device: torch.device, training: Precision) -> Choice[Precision]:
    """Choose the precision of a frozen backbone: that of the training, or bf16 on processors that compute it.

    What learns stays in fp32 there, so that any number of processes is the same training to fp32's tolerance: features
    in bf16 are the same to the bit whatever images share a pass, gradients would not be.
    """
    if wanted == "auto" and device.type == "cpu" and computes_bf16():
        return Choice(_precision("bf16"), "this processor has matrix units for bf16; what learns stays in fp32")
    return Choice(training, "that of the training")


def computes_bf16() -> bool:
    """Tell whether this processor has matrix units for bf16, the tiles of AMX.

    With them a frozen mobilenetv2_100 is 1.2 times as fast as in fp32, a resnet18 3 times. AVX-512's BF16 alone gained
    nothing for a mobilenetv2_100 and lost a third for a small transformer; others emulate bf16 (docs/LOG.md,
    2026-11-19).
    """
    try:
        abilities = torch.cpu.get_capabilities()
    except AttributeError:  # torch before 2.12
        return False
    return bool(abilities.get("amx_bf16"))


def agreed_precision(chosen: Choice[Precision], workers: Workers) -> Choice[Precision]:
    """Return one precision for all processes, whatever their devices: gradients of a scaled loss (fp16) cannot be
    averaged with those of a loss that is not."""
    names = set(workers.gather(chosen.value.name))
    if len(names) == 1:
        return chosen
    # Every CUDA device computes fp16, only later ones bf16; a CPU is quick in fp16 nowhere, in bf16 rarely.
    name = "fp16" if names <= {"fp16", "bf16"} else "fp32"
    return Choice(_precision(name), f"the devices of the processes differ ({' and '.join(sorted(names))} each alone)")


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return the arithmetic of a pass, in training and in evaluation alike."""
    return torch.autocast(device.type, dtype=precision.autocast, enabled=precision.autocast is not None)


def choose_compile(
    wanted: str,
    *,
    device: torch.device,
    flops: float,
    learns_all: bool,
    fuses_norms: bool,
    time_limit_s: float | None = None,
) -> Choice[bool]:
    """Choose whether to compile: `flops` are those of the whole training that compiled code would do."""
    missing = kernels.unavailable_reason() if device.type == "cuda" and wanted != "off" else None
    if wanted == "on" and missing is not None:
        raise MissingPartError(
            f"training.compile=on needs Triton, which does not work here ({missing}). It needs a C compiler and the "
            "headers of Python: install both, or leave training.compile at auto."
        )
    if wanted != "auto":
        return Choice(wanted == "on", "asked for")
    if missing is not None:
        return Choice(False, f"Triton does not work here ({missing})")
    if device.type != "cuda":
        return Choice(False, f"on {device.type} it takes long and gains nothing")
    if fuses_norms:
        return Choice(False, "hosted workers share a pass with batch norm by worker, which is not compiled")
    if time_limit_s is not None and time_limit_s < MIN_LIMIT_COMPILE_S:
        return Choice(False, f"compiling takes up to a minute, too much of a time limit of {time_limit_s:g} s")
    least = MIN_FLOPS_LEARNING if learns_all else MIN_FLOPS_FROZEN
    if flops < least:
        return Choice(False, f"{flops:.1e} FLOPs in all are too few: compiling pays from about {least:.0e}")
    return Choice(True, f"{flops:.1e} FLOPs in all: compiling pays from about {least:.0e}")


def choose_depthwise(*, steps: int, images: int, can_capture: bool) -> Choice[DepthwiseKernels]:
    """Choose by what the training as a whole will do, not by what was timed: a resumed run must compute as before."""
    if not can_capture and steps >= MIN_STEPS_DEPTHWISE:
        return Choice(DepthwiseKernels.CUDNN, f"{PLAN}: over {steps:,} steps that cannot be recorded it pays")
    if images >= MIN_IMAGES_DEPTHWISE:
        return Choice(DepthwiseKernels.CUDNN, f"{PLAN}: over {images:,} images in all it pays")
    return Choice(DepthwiseKernels.OURS, f"{PLAN}: over {images:,} images in all it would not pay")


def _precision(name: str) -> Precision:
    parameters = torch.float64 if name == "fp64" else torch.float32
    passes = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)
    return Precision(name=name, parameters=parameters, autocast=passes)
