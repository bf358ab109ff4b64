"""A backbone that does not learn, run in passes of one fixed size."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turnaround.training.choices import PrecisionChoice, autocast

GPU_IMAGES_AT_224_PX = 256
"""Enough to fill a GPU; smaller images go in proportion, so that a pass takes about as much memory."""
MAX_GPU_IMAGES = 1024
CPU_IMAGES = 64
SHARE_OF_FREE_MEMORY = 0.2


class FrozenBackbone:
    """Calls itself on images of any number and leaves their features."""

    def __init__(self, module: nn.Module, *, device: torch.device, precision: PrecisionChoice, size_px: int) -> None:
        self.module, self.device, self.precision, self.size_px = module, device, precision, size_px
        self.pass_images = self.steps_at_once = 1
        self._run: Callable[[Tensor], Tensor] = module
        self._has_fixed_shape = False
        self._bytes_per_image = 0

    def plan(self, *, images_per_step: int) -> None:
        """As many whole steps in a pass as fill the device, or as many equal passes as a large step needs."""
        most = CPU_IMAGES
        if self.device.type == "cuda":
            most = min(MAX_GPU_IMAGES, max(1, GPU_IMAGES_AT_224_PX * 224**2 // self.size_px**2))
        self.steps_at_once = max(1, most // images_per_step)
        passes = -(-images_per_step // most)
        self.pass_images = (
            max(images_per_step * self.steps_at_once, 1) if passes == 1 else -(-images_per_step // passes)
        )

    def compile(self) -> None:
        """From here on passes have one shape, so that it is compiled for once; the last one is filled up."""
        self._run, self._has_fixed_shape = torch.compile(self.module, dynamic=False), True

    def warm_up(self, dtype: torch.dtype) -> None:
        """One pass over nothing: compiles, chooses kernels, and learns how large features are."""
        images = torch.zeros(self.pass_images, 3, self.size_px, self.size_px, dtype=dtype, device=self.device)
        features = self(images.contiguous(memory_format=torch.channels_last))
        self._bytes_per_image = features[0].numel() * features.element_size()

    def can_keep(self, num_images: int) -> bool:
        """Whether the features of so many images may stay in memory."""
        free = (
            torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else psutil.virtual_memory().available
        )
        return 0 < num_images * self._bytes_per_image <= free * SHARE_OF_FREE_MEMORY

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        with autocast(self.device, self.precision):
            return torch.cat([self._features(part) for part in torch.split(images, self.pass_images)])

    def _features(self, images: Tensor) -> Tensor:
        missing = self.pass_images - len(images) if self._has_fixed_shape else 0
        if missing:
            images = F.pad(images, (0, 0, 0, 0, 0, 0, 0, missing)).contiguous(memory_format=torch.channels_last)
        return self._run(images)[: len(images) - missing]
