"""One GPU of another kind, or in another precision: published pairs, the rule for the constants, the figures.

For forecast.py. A pair is one network of one example on one GPU, measured on two kinds or in two precisions; the batch
is the example's own, and may differ.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np
from forecast_constants import Constants, constants, in_words, shipped
from scipy.optimize import minimize_scalar

from turnaround.forecast import hardware

KINDS = {"V100": "V100", "A100-40GB": "A100", "A100-80GB": "A100-80GB"}
SHEETS = {kind: hardware.sheet_of(kind) for kind in KINDS.values()}
SLOPE = 0.2
"""Of the soft-L1 loss: errors of the logarithm beyond it count by their size, not their square."""


@dataclass(frozen=True, kw_only=True)
class GpuPair:
    """One network on two kinds of GPU, or in two precisions; the ratio is that of the second to the first."""

    example: str
    first: tuple[str, str]
    second: tuple[str, str]
    log_ratio: float

    def error(self) -> float:
        """Of the logarithm of the speed ratio, with the constants of the package."""
        (kind, precision), (other, other_precision) = self.first, self.second
        sheets = SHEETS[kind], SHEETS[other]
        ratio = hardware.speed_ratio(*sheets, precision=precision, target_precision=other_precision)
        return self.log_ratio - math.log(ratio.value)


def gpu_pairs(file: Path) -> list[GpuPair]:
    rates: dict[tuple[str, str], dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            kind = next((ours for theirs, ours in KINDS.items() if row["gpu"].startswith(theirs)), None)
            if row["gpus"] == "1" and kind is not None and row["images_per_s"]:
                network = (row["source_path"], row["model"])
                rates[network][kind, row["precision"].lower()].append(float(row["images_per_s"]))
    return [
        GpuPair(
            example=example,
            first=first,
            second=second,
            log_ratio=math.log(median(each[second]) / median(each[first])),
        )
        for (example, _), each in rates.items()
        for first, second in combinations(sorted(each), 2)
    ]


def gpu_constants(pairs: Sequence[GpuPair]) -> Constants:
    """The constants of forecast/hardware.py: the arithmetic with the least soft-L1 error over all pairs, and the
    half-width that holds 80 % of those between two kinds."""

    def loss(log_arithmetic: float) -> float:
        with constants(hardware, {"ARITHMETIC": math.exp(log_arithmetic)}):
            return sum(math.sqrt(1 + (p.error() / SLOPE) ** 2) for p in pairs)

    arithmetic = math.exp(float(minimize_scalar(loss, bounds=(-2.0, 6.0), method="bounded").x))
    with constants(hardware, {"ARITHMETIC": arithmetic}):
        errors = [abs(p.error()) for p in pairs if p.first[0] != p.second[0]]
    return {"ARITHMETIC": round(arithmetic, 1), "LOG_HALF_WIDTH": round(float(np.quantile(errors, 0.8)), 2)}


def report_gpus(folder: Path) -> None:
    pairs = gpu_pairs(folder / "throughput.csv")
    derived = gpu_constants(pairs)
    print("ANOTHER KIND OF GPU, from data sheets: V100 and A100, mixed precision and fp32 or TF32, one GPU")
    print(f"Constants from all examples: {in_words(derived)}")
    print(shipped(hardware, derived))
    errors: list[tuple[GpuPair, float, bool]] = []
    for example in sorted({p.example for p in pairs}):
        others = [p for p in pairs if p.example != example]
        with constants(hardware, gpu_constants(others)):
            own = [(p, p.error()) for p in pairs if p.example == example]
            errors += [(p, e, abs(e) <= hardware.LOG_HALF_WIDTH) for p, e in own]
    rows = {
        "another kind, half precision": lambda p: p.first[0] != p.second[0] and p.first[1] == p.second[1] == "amp",
        "another kind, fp32 or TF32": lambda p: p.first[0] != p.second[0] and "amp" not in (p.first[1], p.second[1]),
        "another kind and precision": lambda p: (
            p.first[0] != p.second[0] and (p.first[1] == "amp") != (p.second[1] == "amp")
        ),
        "another precision": lambda p: p.first[0] == p.second[0],
    }
    print("Each example with the constants of the others:")
    for title, is_in in rows.items():
        part = [(abs(math.expm1(e)), inside) for p, e, inside in errors if is_in(p)]
        found = [e for e, _ in part]
        figures = f"median {100 * np.median(found):4.1f} %, 80 % {100 * np.quantile(found, 0.8):4.1f} %"
        print(f"  {title:32s} {len(part):3d} pairs, {figures}, inside {100 * np.mean([i for _, i in part]):3.0f} %")
    print()
