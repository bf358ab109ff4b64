"""What do shares by speed gain, where one of two processes has a slower device?

    python bench/shares.py [--workers 16] [--ms 10] [--slower 3] [--epochs 5] [--rounds 1]

A training of fruitbowl on two CPU processes whose devices are slowed on purpose (TURNAROUND_FAULT, kind=drag): each
sleeps `--ms` for every worker that it hosts at every step, the second one `--slower` times as long. By turns with equal
shares, with `--share auto`, and with the shares of the true ratio as given. Prints the median time of the epochs after
the last change of shares, ratios taken in the same run, and how far the weights at the end lie from those of equal
shares (float64, relative to the largest value of each tensor).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from safetensors.torch import load_file

from turnaround.workers.shares import fastest_shares


def trained(out: Path, *, share: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train once; return the lines of its epochs."""
    keys = {
        "data.images": 600,
        "data.size_px": 32,
        "data.cache": out.parent / "cache",
        "model.name": "small",
        "training.batch_per_worker": 2,
        "training.epochs": options.epochs,
        "training.precision": "fp64",
        "training.optimizer": "sgd",
        "training.learning_rate": 0.005,
        "training.scaling": "none",
    }
    command = [sys.executable, "-m", "turnaround", "train", "fruitbowl", "--device", "cpu", "--out", str(out), "--json"]
    command += ["--workers", str(options.workers), "--processes", "2", "--share", share]
    command += [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    slow = f"kind=drag,rank=0,ms={options.ms};kind=drag,rank=1,ms={options.ms * options.slower}"
    subprocess.run(command, env={**os.environ, "TURNAROUND_FAULT": slow}, stdout=subprocess.DEVNULL, check=True)
    return [json.loads(line) for line in (out / "epochs.jsonl").read_text().splitlines()]


def settled_s(lines: list[dict[str, Any]]) -> float:
    """Return the median epoch time with the last shares, without the first epoch, which is cold."""
    return median(line["epoch_time_s"] for line in lines[1:] if line["shares"] == lines[-1]["shares"])


def farthest(out: Path, reference: Path) -> float:
    """Return the largest difference of the weights at the end."""
    mine, theirs = (load_file(sorted(run.glob("checkpoint/*"))[-1] / "weights.safetensors") for run in (out, reference))
    return max(
        float((mine[name] - value).double().abs().max() / value.double().abs().max().clamp(min=1e-3))
        for name, value in theirs.items()
        if value.numel()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--ms", type=int, default=10, help="for each worker and step, on the faster process")
    parser.add_argument("--slower", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    given = ",".join(map(str, fastest_shares([1.0, options.slower], workers=options.workers)))
    times_s: dict[str, list[float]] = {"even": [], "auto": [], given: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for share, each_s in times_s.items():
                out = Path(folder) / f"{number}-{share}"
                lines = trained(out, share=share, options=options)
                each_s.append(settled_s(lines))
                apart = farthest(out, Path(folder) / f"{number}-even")
                shares = [line["shares"] for line in lines]
                print(f"{share}: {each_s[-1]:.2f} s an epoch, shares {shares}, {apart:.1e} from equal ones", flush=True)
    even_s = median(times_s["even"])
    for share, each_s in times_s.items():
        print(f"{share}: {median(each_s):.2f} s an epoch, {even_s / median(each_s):.2f} x as fast as equal shares")


if __name__ == "__main__":
    main()
