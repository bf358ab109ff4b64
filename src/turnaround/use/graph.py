"""Network and preprocessing as one module: what leaves for other programs, and what turnaround itself asks.

Enters: `images`, uint8 (N, size, size, 3), RGB: what every image library gives after resizing. Leaves: `logits`,
float32 (N, classes); their softmax are the probabilities. Whoever runs it need not know mean and standard deviation.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from turnaround.data.augment import to_float
from turnaround.data.decode import BACKGROUND_RGB
from turnaround.use.trained import Trained

INPUT, OUTPUT = "images", "logits"


class WithPreprocessing(nn.Module):
    """The network with its preprocessing: takes bytes."""

    mean: Tensor
    std: Tensor

    def __init__(self, trained: Trained, *, network: nn.Module | None = None) -> None:
        """`network` is another form of the trained one, for this process alone; what is exported is plain fp32."""
        super().__init__()
        self.network = trained.module if network is None else network
        self.register_buffer("mean", torch.tensor(trained.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(trained.std)[:, None, None])
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        pixels = (to_float(images, dtype=torch.float32) - self.mean) / self.std  # as data/augment.py normalises
        return cast(Tensor, self.network(pixels)).float()


def description(trained: Trained) -> dict[str, Any]:
    """Return what a file must say of itself to be used without turnaround: plain values, ready for JSON."""
    return {
        "made_by": "turnaround",
        "run": trained.name,
        "model": trained.recipe.model.name,
        "epoch": trained.epoch,
        "weights": "last" if trained.best is None else "best",
        "classes": list(trained.classes),
        "input": {
            "name": INPUT,
            "type": "uint8",
            "shape": ["N", trained.size_px, trained.size_px, 3],
            "channels": "RGB",
            "resize": f"the whole image to {trained.size_px} x {trained.size_px} px, bilinear with antialiasing, "
            "aspect ratio not kept",
            "orientation": "EXIF orientation applied",
            "transparency": f"composited on RGB {list(BACKGROUND_RGB)}",
        },
        "normalisation": {"scale": 255, "mean": list(trained.mean), "std": list(trained.std)},
        "output": {"name": OUTPUT, "type": "float32", "shape": ["N", len(trained.classes)], "activation": "softmax"},
    }
