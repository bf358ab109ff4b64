"""How long does a training wait for a checkpoint?

    python bench/checkpoint_pause.py [--saves 15] [--network small] [--json]

For the state of the `small` network and of a resnet50 (AdamW: three times the weights), on this machine's CPU and disk:
the pause as it is (a copy in host memory, written beside the training) against writing it in the foreground. A save
begins when the one before is on the disk, as it does with the default interval of 60 s. "CPU" is what the waiting
thread itself worked, which other work on the machine does not change.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import timm
import torch
from torch import nn

from turnaround.model.small import SmallNetwork
from turnaround.training import checkpoint
from turnaround.training.checkpoint import Manifest
from turnaround.training.position import TrainingPosition
from turnaround.training.saving import Saver

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "small": lambda: SmallNetwork(num_classes=10),
    "resnet50": lambda: timm.create_model("resnet50", num_classes=10),
}


def trained(module: nn.Module) -> torch.optim.Optimizer:
    """An optimiser with moments, as after a step."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    return optimizer


def manifest(number: int) -> Manifest:
    return Manifest(position=TrainingPosition(epochs_done=number, global_step=number))


def pauses(folder: Path, module: nn.Module, *, saves: int, in_background: bool) -> list[tuple[float, float]]:
    """Seconds that the training waits, and works, for each save."""
    optimizer, saver, waited_s = trained(module), Saver(folder), []
    for number in range(1, saves + 1):
        begun_s, worked_s = time.perf_counter(), time.thread_time()
        if in_background:
            saver.begin(checkpoint.snapshot(module=module, optimizer=optimizer, manifest=manifest(number)))
        else:
            checkpoint.save(folder, module=module, optimizer=optimizer, manifest=manifest(number))
        waited_s.append((time.perf_counter() - begun_s, time.thread_time() - worked_s))
        saver.wait()  # the next save comes long after this one is written
    return waited_s


def measured(name: str, *, saves: int) -> dict[str, float]:
    """In milliseconds."""
    module = NETWORKS[name]()
    found = {"state_mib": 3 * sum(p.nbytes for p in module.parameters()) / 2**20}
    for how, in_background in (("background", True), ("foreground", False)):
        with tempfile.TemporaryDirectory() as folder:
            both = pauses(Path(folder), module, saves=saves + 1, in_background=in_background)[1:]  # the first warms up
        waited_ms, worked_ms = ([1000 * pair[place] for pair in both] for place in (0, 1))
        figures = {"median": median(waited_ms), "worst": max(waited_ms), "cpu": median(worked_ms)}
        found |= {f"{how}_{what}_ms": figure for what, figure in figures.items()}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=15)
    parser.add_argument("--network", choices=NETWORKS, action="append", help="only this one; may be repeated")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {name: measured(name, saves=options.saves) for name in options.network or NETWORKS}
    if options.json:
        print(json.dumps(found))
        return 0
    print("pause of a training for one checkpoint, ms: median, worst, CPU      beside it          in the foreground")
    columns = [f"{how}_{what}_ms" for how in ("background", "foreground") for what in ("median", "worst", "cpu")]
    for name, figures in found.items():
        text = " ".join(f"{figures[column]:8.1f}" for column in columns)
        print(f"{name:<10} {figures['state_mib']:7.1f} MiB of state {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
