"""Our depthwise kernels against cuDNN's: is what cuDNN compiles at run time still worth avoiding?

    python bench/depthwise.py [--images 128] [--new-images 96] [--rounds 20]

The depthwise layers of MobileNetV2 at 224 px, in bf16 and channels last, each by both in turns: forward, backward, and
the first call, both ways, with a number of images that the process has not seen (a training has several). Prints
milliseconds, and how many times as long cuDNN takes. Run it with the newest cuDNN: one of 9.10 or later compiles.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch
from torch import nn

from turnaround import kernels
from turnaround.model.convolutions import compute_depthwise_ourselves
from turnaround.training.clock import synchronize

LAYERS = {  # channels, side of the input in pixels, stride: how many of them (Sandler et al. 2018, table 2)
    (32, 112, 1): 1,
    (96, 112, 2): 1,
    (144, 56, 1): 1,
    (144, 56, 2): 1,
    (192, 28, 1): 2,
    (192, 28, 2): 1,
    (384, 14, 1): 4,
    (576, 14, 1): 2,
    (576, 14, 2): 1,
    (960, 7, 1): 3,
}


class Times(NamedTuple):
    forward_ms: float
    backward_ms: float
    new_ms: float
    """The first call, both ways, with a number of images that is new."""


class Contender:
    """One layer, by cuDNN or by our kernels."""

    def __init__(self, channels: int, side_px: int, stride: int, *, is_ours: bool, device: torch.device) -> None:
        layer = nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)
        self.layer = layer.to(device, torch.bfloat16)
        if is_ours:
            compute_depthwise_ourselves(self.layer)
        self.shape, self.device = (channels, side_px, side_px), device

    def call(self, images: int) -> tuple[float, float]:
        """Return the milliseconds of a forward and of a backward pass."""
        pictures = torch.randn(images, *self.shape, device=self.device, dtype=torch.bfloat16)
        pictures = pictures.contiguous(memory_format=torch.channels_last).requires_grad_()
        made: list[torch.Tensor] = []
        forward_ms = self._timed(lambda: made.append(self.layer(pictures)))
        gradient = torch.ones_like(made[0])
        return forward_ms, self._timed(lambda: made[0].backward(gradient))

    def _timed(self, work: Callable[[], None]) -> float:
        synchronize(self.device)
        begun_s = time.perf_counter()
        work()
        synchronize(self.device)
        return 1000 * (time.perf_counter() - begun_s)


def measured(contenders: list[Contender], *, images: int, new_images: int, rounds: int) -> list[Times]:
    """Return the times of all contenders, which take turns."""
    for contender in contenders:
        contender.call(images)  # loads libraries, and compiles for this number of images
    calls: list[list[tuple[float, float]]] = [[] for _ in contenders]
    for _ in range(rounds):
        for contender, its_calls in zip(contenders, calls, strict=True):
            its_calls.append(contender.call(images))
    return [
        Times(*(median(times) for times in zip(*its_calls, strict=True)), sum(contender.call(new_images)))
        for contender, its_calls in zip(contenders, calls, strict=True)
    ]


def told(name: str, cudnn: Times, ours: Times) -> str:
    columns = (f"{theirs:9.2f} {mine:8.2f} {theirs / mine:6.2f}" for theirs, mine in zip(cudnn, ours, strict=True))
    return f"{name:<24}" + "   ".join(columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--new-images", type=int, default=96, help="another number, which is computed once")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    if reason := kernels.unavailable_reason():
        sys.exit(f"bench/depthwise.py needs a GPU on which our kernels run: {reason}.")
    device, settings = torch.device("cuda"), vars(options)
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    print(f"{'ms: cuDNN, ours, ratio':<24}{'forward':>25}   {'backward':>25}   {'first with a new number':>25}")
    sums = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    for (channels, side_px, stride), count in LAYERS.items():
        contenders = [Contender(channels, side_px, stride, is_ours=is_ours, device=device) for is_ours in (False, True)]
        cudnn, ours = measured(contenders, **settings)
        print(told(f"{count} x {channels} at {side_px} px, stride {stride}", cudnn, ours), flush=True)
        for total, times in zip(sums, (cudnn, ours), strict=True):
            # Equal layers share what was compiled for the first of them.
            factors = (count, count, 1)
            total[:] = [a + factor * b for a, factor, b in zip(total, factors, times, strict=True)]
    print(told(f"all {sum(LAYERS.values())}", *(Times(*total) for total in sums)))


if __name__ == "__main__":
    main()
