"""uint8 pixels -> the network's input: gathered, augmented and normalised.

Enters: batches as `batches.py` makes them. Leaves: floats (N, 3, H, W) in channels-last memory.

One Triton kernel does it all on a CUDA device (inputs_triton.py), at close to the speed of its memory; plain torch
(augment.py) does it elsewhere and in double precision, and is the reference that the kernel is tested against.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnaround import kernels
from turnaround.choice import Choice
from turnaround.data.augment import Augmentation, Variations, normalise, to_float
from turnaround.data.batches import EvaluationBatch, StepBatch
from turnaround.data.mixing import Labels, MixedLabels, mix, partners


class Inputs:
    """Makes the network's input of a batch."""

    def __init__(
        self,
        augmentation: Augmentation,
        *,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        num_train: int,
        device: torch.device,
        dtype: torch.dtype,
        autocast: torch.dtype | None = None,
    ) -> None:
        """`dtype` is that of the weights; under `autocast` the network's first layer takes the narrower one anyway."""
        self.augmentation, self.mean, self.std, self.num_train, self.dtype = augmentation, mean, std, num_train, dtype
        self.narrow = autocast or dtype
        # The kernel computes in single precision, so float64 trainings keep plain torch. So does a machine on which
        # Triton cannot compile: `load` gives None there.
        kernel_applies = device.type == "cuda" and dtype == torch.float32
        self.kernel = kernels.load("turnaround.data.inputs_triton") if kernel_applies else None
        self.unavailable_reason = (
            kernels.unavailable_reason() if kernel_applies else "it is for CUDA devices and single precision"
        )

    @property
    def dtype_of_images(self) -> torch.dtype:
        """dtype of the images returned."""
        # The kernel rounds as autocast's first layer would: in bf16 that is half the bytes to write and to read again.
        return self.narrow if self.kernel else self.dtype

    @property
    def choice(self) -> Choice[str]:
        """For the record: the way that is taken, and why."""
        if self.kernel:
            return Choice("one Triton kernel", "gathers, varies and normalises in one pass over the GPU's memory")
        return Choice("plain torch", f"no Triton kernel: {self.unavailable_reason}")

    def varied(self, batch: StepBatch, *, epoch: int) -> Tensor:
        """Return the augmented images of a step: each is a function of (seed, epoch, sample), and of the worker's slice
        where images are mixed."""
        # (N,): for each image of the batch, where in it its partner is.
        others = partners(batch.worker_sizes, batch.ids.device) if self.augmentation.mixes else None
        if not self.kernel:
            # (N, 3, H, W) in 0..1. What is hidden has the mean colour, which normalisation makes 0.
            pixels = self.augmentation(batch.images, batch.ids, epoch=epoch, dtype=self.dtype, mean=self.mean)
            images = self._normalised(pixels)
            if others is not None:
                mixing = self.augmentation.mixing(batch.ids, epoch=epoch, side_px=pixels.shape[-1], dtype=self.dtype)
                images = mix(images, others, mixing)  # after normalisation, as in the kernel
            return images.contiguous(memory_format=torch.channels_last)
        # All pixels and the rows, not `batch.images`: the kernel gathers while it reads, and nothing is copied before.
        return self._by_kernel(
            batch.pixels, batch.rows, samples=batch.ids, others=others, variations=self._variations(batch, epoch=epoch)
        )

    def labels(self, batch: StepBatch, *, epoch: int) -> Labels:
        """Return the labels of what `varied` makes of a step: soft ones where images are mixed."""
        if not self.augmentation.mixes:
            return batch.labels
        labels, side_px = batch.labels, batch.pixels.shape[1]
        assert isinstance(labels, Tensor), "these are mixed already"
        if self.kernel:
            # Kept for the epoch (augment.py): the very shares by which `varied` mixes the pixels.
            mixing = self._variations(batch, epoch=epoch).mixing
            assert mixing is not None
            shares = mixing.shares[batch.ids]  # (N,)
        else:
            shares = self.augmentation.mixing(batch.ids, epoch=epoch, side_px=side_px, dtype=self.dtype).shares
        return MixedLabels(labels, labels[partners(batch.worker_sizes, batch.ids.device)], shares)

    def _variations(self, batch: StepBatch, *, epoch: int) -> Variations:
        """Return the variations of all training images."""
        # One row for each sample number, drawn once an epoch: the ids of a batch say which rows are its own. The maps,
        # the largest of them, are (num_train, 2, 3) float32: 24 bytes an image.
        return self.augmentation.epoch_variations(
            epoch=epoch, num_samples=self.num_train, side_px=batch.pixels.shape[1], device=batch.pixels.device
        )

    def plain(self, batch: EvaluationBatch) -> Tensor:
        """Return the images without augmentation, normalised."""
        if not self.kernel:
            return self._normalised(to_float(batch.images, dtype=self.dtype))
        # Nothing varies, so the kernel need not know which samples these are.
        return self._by_kernel(batch.pixels, batch.rows, samples=None, others=None, variations=Variations())

    def _normalised(self, pixels: Tensor) -> Tensor:
        return normalise(pixels, mean=self.mean, std=self.std).contiguous(memory_format=torch.channels_last)

    def _by_kernel(
        self,
        pixels: Tensor,
        rows: Tensor | None,
        *,
        samples: Tensor | None,
        others: Tensor | None,
        variations: Variations,
    ) -> Tensor:
        assert self.kernel is not None
        images: Tensor = self.kernel.inputs(
            pixels,
            rows=rows,
            samples=samples,
            others=others,
            variations=variations,
            normalised_by=(self.mean, self.std),
            dtype=self.dtype_of_images,
        )
        return images
