"""The law of `turnaround estimate` for GPUs that nobody has tried: derived from published figures, judged on others.

    python bench/estimate_prior.py --published DIR

DIR holds throughput.csv (images per second by number of GPUs). The bytes that a forward pass keeps and its FLOPs are
counted here (timm's networks); the two factors of forecast/prior.py are those with the least soft-L1 error of the
logarithm, each network weighing the same. Each network is forecast with the factors of the others; figures of an H200
(docs/LOG.md, shared/facts.md of 2026-11), which are not among them, are the second test.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import minimize

from turnaround.forecast import hardware, prior
from turnaround.forecast.prior import NetworkCount
from turnaround.training.bench import count_footprint

KINDS = {"V100": "V100", "A100-40GB": "A100", "A100-80GB": "A100-80GB"}
NETWORKS = {
    "resnet50v1.5": ("resnet50", 224),
    "resnext101-32x4d": ("resnext101_32x4d", 224),
    "se-resnext101-32x4d": ("seresnext101_32x4d", 224),
    "efficientnet-b0": ("efficientnet_b0", 224),
    "efficientnet-b4": ("efficientnet_b4", 380),
}
ALIASES = {
    "efficientnet-widese-b0": "efficientnet-b0",
    "EfficientNet-B0": "efficientnet-b0",
    "EfficientNet v1-B0": "efficientnet-b0",
    "efficientnet-widese-b4": "efficientnet-b4",
    "EfficientNet-B4": "efficientnet-b4",
    "EfficientNet v1-B4": "efficientnet-b4",
}
H200 = {
    "vgg16": (3716, 5086),
    "resnet50": (4706, 6824),
    "mobilenetv2_100": (7200, 10666),
    "efficientnet_b0": (5084, 4896),
}
"""Images/s fine-tuned in bf16 at 224 px, batch 256: not compiled, compiled."""
SLOPE = 0.2
"""Of the soft-L1 loss, as in forecast_gpus.py."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One published figure of one GPU."""

    network: str
    kind: str
    precision: str
    images_per_s: float


def figures(file: Path) -> list[Figure]:
    rates: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            network = ALIASES.get(row["model"], row["model"])
            kind = next((ours for theirs, ours in KINDS.items() if row["gpu"].startswith(theirs)), None)
            if row["gpus"] == "1" and network in NETWORKS and kind is not None and row["images_per_s"]:
                key = (row["source_path"], network, kind, row["precision"].lower())
                rates[key].append(float(row["images_per_s"]))
    return [
        Figure(network=network, kind=kind, precision=precision, images_per_s=median(each))
        for (_, network, kind, precision), each in rates.items()
    ]


def count(name: str, size_px: int) -> NetworkCount:
    import timm

    from turnaround.model.network import cost

    module = timm.create_model(name, num_classes=257)
    found = count_footprint(module, size_px=size_px)
    flops = cost(module, size_px=size_px)["forward_flops_per_image"]
    return NetworkCount(**vars(found), forward_flops_per_image=flops, is_frozen=False)


def error(figure: Figure, network: NetworkCount, factors: Sequence[float]) -> float:
    """Return the logarithm of measured / estimated time."""
    prior.BYTES_FACTOR, prior.FLOPS_FACTOR = factors
    time_s = prior.image_time_s(network, hardware.sheet_of(figure.kind), precision=figure.precision).value
    return -math.log(figure.images_per_s * time_s)


def fit(own: Sequence[Figure], counts: dict[str, NetworkCount]) -> tuple[float, float]:
    weights = Counter(figure.network for figure in own)

    def loss(logs: np.ndarray) -> float:
        errors = [(error(f, counts[f.network], np.exp(logs)), weights[f.network]) for f in own]
        return sum(math.sqrt(1 + (e / SLOPE) ** 2) / weight for e, weight in errors)

    starts = [(1.0, 0.0), (2.0, 1.0), (1.0, 1.0)]
    best = min((minimize(loss, start, method="Nelder-Mead") for start in starts), key=lambda found: float(found.fun))
    first, second = (float(value) for value in np.exp(best.x))
    return first, second


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--published", type=Path, required=True)
    own = figures(parser.parse_args().published / "throughput.csv")
    shipped = (prior.BYTES_FACTOR, prior.FLOPS_FACTOR)
    counts = {network: count(*known) for network, known in NETWORKS.items()}
    factors = fit(own, counts)
    print(f"{len(own)} figures, factors {factors[0]:.1f} and {factors[1]:.2f}; the package has {shipped}")
    errors: list[float] = []
    for network in NETWORKS:
        others = fit([f for f in own if f.network != network], counts)
        found = [error(f, counts[network], others) for f in own if f.network == network]
        errors += found
        print(
            f"  {network:22s} {len(found):3d} figures, median measured / estimated time {math.exp(median(found)):.2f}"
        )
    sizes = np.abs(errors)
    print(f"each network from the others: median {np.median(sizes):.2f}, 80 % within {np.quantile(sizes, 0.8):.2f}")
    width = math.hypot(prior.LAW_HALF_WIDTH, hardware.LOG_HALF_WIDTH)
    for name, rates in H200.items():
        counted = count(name, 224)
        for how, rate in zip(("not compiled", "compiled"), rates, strict=True):
            off = error(Figure(network=name, kind="H200", precision="bf16", images_per_s=rate), counted, factors)
            told = f"inside {prior.LAW_HALF_WIDTH}" if abs(off) <= prior.LAW_HALF_WIDTH else f"inside {width:.2f}"
            print(f"  H200 {name:16s} {how:12s} error {off:+.2f}: {told if abs(off) <= width else 'outside'}")


if __name__ == "__main__":
    main()
